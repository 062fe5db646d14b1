"""The driver for threads at the end of the interpreter and after fork: nothing hangs, exit statuses stay as they are.

Each script runs in a process of its own; the time given to it is how long a hang takes to be noticed.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PATIENCE_S = 120

OPENED = """
import os, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from kvcore import *
from kvcore.drivers.threads import *
config = SchedulerConfig(default_busy_threshold_frac=0.0)
manager = open_scheduler(config)
router = manager.__enter__()
router.upsert_worker(WorkerConfig(1))
def client(name):
    try:
        with router.admit(Request(name, 8)):
            os.write(1, f"{name} runs\\n".encode())
    except (Closed, Rejected) as error:
        os.write(1, f"{name} {type(error).__name__}\\n".encode())
def until(condition):
    while not condition():
        time.sleep(0.001)
"""


def run(script: str) -> list[str]:
    """What it prints, line by line. Its exit status is 0 and it says nothing of errors.

    -P: what is installed, whatever lies in the present folder.
    """
    answer = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", OPENED + script], capture_output=True, text=True, check=False,
        timeout=PATIENCE_S)
    assert (answer.returncode, answer.stderr) == (0, "")
    return answer.stdout.splitlines()


def test_it_exits_without_being_closed():
    assert run('client("a"); print("end")') == ["a runs", "end"]


def test_it_exits_while_a_lease_is_held():
    assert run('lease = router.admit(Request("a", 8)).__enter__(); print("end")') == ["end"]


@pytest.mark.parametrize("how", [
    'pool = ThreadPoolExecutor(2); pool.submit(client, "b"); pool.submit(client, "c")',
    'for name in "bc": threading.Thread(target=client, args=name).start()',
])
def test_threads_that_wait_are_sent_away(how):
    """Without the early end: the interpreter waits for threads that wait for a router which nobody will close."""
    lines = run(f"""
lease = router.admit(Request("a", 8)).__enter__()
{how}
until(lambda: router.stats().waiting_requests == 2)
print("end", flush=True)
""")
    assert lines[0] == "end"
    assert sorted(lines[1:]) == ["b Rejected", "c Rejected"]


def test_daemons_that_wait_do_not_hold_it_up():
    lines = run("""
lease = router.admit(Request("a", 8)).__enter__()
threading.Thread(target=client, args="b", daemon=True).start()
until(lambda: router.stats().waiting_requests == 1)
print("end", flush=True)
""")
    assert lines[0] == "end"


def test_a_tap_that_hangs_does_not_hold_it_up():
    assert run("""
entered = threading.Event()
def tap(*step):
    entered.set()
    threading.Event().wait()
import kvcore.drivers.threads as module
module.EXIT_S = 0.01
other = open_scheduler(config, tap=tap)
stuck = other.__enter__()
stuck.hint()
entered.wait()
print("end", flush=True)
""") == ["end"]


def test_it_can_be_closed_at_exit():
    assert run("""
import atexit
atexit.register(lambda: (manager.__exit__(None, None, None), print("closed", flush=True)))
print("end", flush=True)
""") == ["end", "closed"]


FORKED = """
lease = router.admit(Request("a", 8)).__enter__()
again = router.admit(Request("z", 8, do_not_queue=True))
sys.stdout.flush()
child = os.fork()
if child == 0:
    {child}
    sys.stdout.flush()
    {leave}
assert os.waitpid(child, 0)[1] == 0
lease.completed()
print(router.recheck(), router.stats().completed, router.stats().live_requests)
lease.__exit__(None, None, None)
manager.__exit__(None, None, None)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("leave", ["os._exit(0)", "sys.exit(0)"])
@pytest.mark.parametrize(("child", "lines"), [
    ("client('b')", ["b Closed"]),
    ("lease.prefill_done(); lease.completed(); lease.__exit__(None, None, None); print('left')", ["left"]),
    ("manager.__exit__(None, None, None); print('left')", ["left"]),
    ("""
    for call in (router.stats, router.hint, router.recheck, router.drain, again.__enter__):
        try:
            call()
        except Closed as error:
            print(error)
""", ["a router does not survive a fork: open another one in the child"] * 5),
    ("""
    lease.failed(retry=True)
    try:
        lease.again()
    except Closed as error:
        print(error)
""", ["the owner of this lease is in the parent process"]),
    ("""
    with open_scheduler(config) as own:
        own.upsert_worker(WorkerConfig(7))
        with own.admit(Request("c", 8)) as mine:
            print(mine.worker_id)
""", ["7"]),
])
def test_a_child_has_no_router_and_changes_nothing(child, lines, leave):
    assert run(FORKED.format(child=child, leave=leave)) == [*lines, "True 1 0"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forking_while_threads_are_at_it():
    """Locks that other threads hold at the fork are never asked for in the child."""
    assert run("""
done = threading.Event()
def busy(number):
    count = 0
    while not done.is_set():
        with router.admit(Request(f"{number}-{count}", 8)) as lease:
            lease.accepted()
        count += 1
threads = [threading.Thread(target=busy, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
for i in range(30):
    child = os.fork()
    if child == 0:
        try:
            with router.admit(Request("x", 8)):
                os._exit(1)
        except Closed:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
done.set()
for thread in threads:
    thread.join()
print(router.stats().live_requests)
manager.__exit__(None, None, None)
""") == ["0"]
