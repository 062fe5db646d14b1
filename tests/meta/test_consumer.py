"""A package of somebody else that cimports events, actions, request and scheduler: built against what is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig

import pytest
from tree import ROOT

SCRIPT = """
import kvcore as kv
from kvcore_consumer import loop

def core():
    made = kv.Scheduler(kv.SchedulerConfig(block_size=16, seed=3))
    made.step_many([kv.WorkerUpserted(0, kv.WorkerConfig(i, 0, 1, 8192)) for i in range(5)])
    return made

requests = [kv.Request(f"r{i}", 100 + i, block_hashes=(1, 2, i + 3)) for i in range(40)]
in_c, in_python = core(), core()
told = loop.cycles(in_c, requests, 7)
workers = 0
for now_ns, request in enumerate(requests, 7):
    (dispatch,) = in_python.step(kv.RequestArrived(now_ns, request))
    workers += dispatch.worker_id
    in_python.step(kv.PrefillCompleted(now_ns, request.request_id, dispatch.attempt))
    in_python.step(kv.OutputBlockAdded(now_ns, request.request_id, dispatch.attempt))
    in_python.step(kv.RequestFinished(now_ns, request.request_id, dispatch.attempt))
assert told == (workers, dispatch.attempt), (told, workers, dispatch)
assert in_c.digest() == in_python.digest()
assert in_c.stats() == in_python.stats()
assert loop.now_of(kv.TimerFired(9)) == 9
assert loop.prompt_of(kv.RequestArrived(0, requests[0])) == 100
try:
    loop.cycles(in_c, requests[:1], 0)
except kv.InvalidEvent as error:
    print("refused:", error)
print("the same", told[1])
"""


def run(*command, cwd, path=()):
    """Run a command; its output. kvcore comes from where this process has it."""
    inherited = [item for item in os.environ.get("PYTHONPATH", "").split(os.pathsep) if item]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*map(str, path), *inherited]), "PYTHONWARNINGS": "ignore"}
    answer = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        check=False)
    assert answer.returncode == 0, answer.stdout
    return answer.stdout


@pytest.mark.skipif(
    shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is None, reason="there is no C compiler")
def test_a_package_that_cimports_kvcore_builds_and_runs(tmp_path):
    source = shutil.copytree(ROOT / "tests" / "consumer", tmp_path / "source")
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index",
        "--target", site, source, cwd=tmp_path)
    assert list(site.glob("kvcore_consumer/loop.*.so"))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    output = run(sys.executable, script, cwd=tmp_path, path=[site])
    assert "refused: " in output
    assert output.endswith("the same 40\n")
