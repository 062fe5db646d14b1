"""One advance() over many facts, with the interpreter's lock given away: the same facts as one by one; one owner."""

from __future__ import annotations

import threading
import time

import pytest
from engine_cases import MOCK, tight
from kvcore.drivers.replay._engine import Fleet
from kvcore.drivers.replay.presets import PRESETS

END_NS = 1 << 60


def filled(workers, spec, block_size, requests):
    """A fleet with a backlog whose prompts share blocks, long enough for chunks, evictions and preemptions."""
    fleet = Fleet(workers, spec, block_size)
    fit = spec.scaled(block_size).kv_blocks * block_size
    for i in range(requests):
        prompt = 1 + i * 37 % (fit // 2)
        names = tuple((i % 5 << 32) + j for j in range(prompt // block_size))
        fleet.submit(i % workers, f"r{i}", i, prompt, 1 + i * 13 % (fit // 4), names, 0)
    return fleet


def one_by_one(fleet):
    facts = []
    while (next_ns := fleet.next_ns) is not None:
        facts += fleet.advance(next_ns)
    return facts


SPECS = {
    "chunks": (3, tight(64, tokens=16, seqs=8), 4, 60),
    "preemptions": (2, tight(24, seqs=6), 4, 60),
    "many": (16, PRESETS["generic"], 16, 400),
    "mock": (4, MOCK, 16, 200),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_leap_tells_what_single_steps_tell(name):
    steps, leap = filled(*SPECS[name]), filled(*SPECS[name])
    facts = one_by_one(steps)
    assert leap.advance(END_NS) == facts
    assert leap.finished() == steps.finished()
    assert (leap.counters() == steps.counters()).all()
    workers = SPECS[name][0]
    assert [leap.blocks(i) for i in range(workers)] == [steps.blocks(i) for i in range(workers)]
    kinds = {type(fact).__name__ for fact in facts}
    assert {"PrefillCompleted", "OutputBlockAdded", "RequestFinished", "BlocksStored"} <= kinds
    if name == "many":
        assert len(facts) > 3 * 4096  # several times more than what is kept before events are made of it
    if name in ("chunks", "preemptions"):
        assert "BlocksRemoved" in kinds
        assert name == "chunks" or steps.counters()["preemptions"].sum() > 0


def test_a_leap_after_a_cancellation():
    steps, leap = filled(*SPECS["preemptions"]), filled(*SPECS["preemptions"])
    for fleet in (steps, leap):
        now_ns = fleet.next_ns
        fleet.advance(now_ns)
        assert all(fleet.cancel(f"r{i}", now_ns) for i in range(2, 60, 3))
    assert leap.advance(END_NS) == one_by_one(steps)
    assert leap.finished() == steps.finished()


def test_what_is_freed_in_a_leap_is_used_again():
    """Rows of sequences go back when their facts have been told: later requests behave the same."""
    steps, leap = filled(*SPECS["chunks"]), filled(*SPECS["chunks"])
    one_by_one(steps)
    leap.advance(END_NS)
    for fleet in (steps, leap):
        for i in range(30):
            fleet.submit(i % 3, f"s{i}", 1, 40 + i, 9, (), END_NS)
    assert leap.advance(2 * END_NS) == one_by_one(steps)


def test_fleets_of_two_threads_do_not_disturb_each_other():
    alone = filled(*SPECS["many"]).advance(END_NS)
    fleets = [filled(*SPECS["many"]) for _ in range(2)]
    found = {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: fleets[i].advance(END_NS)})) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: alone, 1: alone}


def test_a_second_thread_in_the_same_fleet_is_refused():
    """It gets in while the first has given the lock away, which it does again and again; and it changes nothing."""
    alone = filled(16, PRESETS["generic"], 16, 600).advance(END_NS)
    fleet = filled(16, PRESETS["generic"], 16, 600)
    found, refused = [], []
    calls = (  # none of which would change anything before or after
        lambda: fleet.submit(0, "other", 0, 1, 1, (), -1),
        lambda: fleet.cancel("r0", -1),
        lambda: fleet.advance(-1),
        lambda: fleet.next_ns,
    )
    thread = threading.Thread(target=lambda: found.extend(fleet.advance(END_NS)))
    thread.start()
    while thread.is_alive():
        for call in calls:
            try:
                call()
            except RuntimeError as error:
                refused.append(str(error))
            except ValueError:
                pass  # time goes back: nobody is in there just now
        time.sleep(0)  # or the other would wait 5 ms each time that it wants the lock back
    thread.join()
    assert found == alone
    assert set(refused) == {"another thread is in advance(): a fleet has one owner at a time"}
