"""Field reports 2.7: affinity, fleets that change, reads, memory. Each test names the report that it guards against.

Events have this project's names: "migrate" is DispatchFailed with retry, "discovery" WorkerUpserted and WorkerRemoved,
"probe" and "dry run" are `peek` and `potential_loads`. Rows that need drivers or other features are in field_rows.py.
"""

from __future__ import annotations

import gc
from random import Random

import pytest
from capacity_stories import FleetStory, status
from stories import arrive, profile, short, upsert

from kvcore.actions import Dispatch
from kvcore.config import SchedulerConfig
from kvcore.events import DispatchFailed, PrefillCompleted, RequestFinished, WorkerRemoved
from kvcore.request import Overlap, Rank, Request, SelectionWeights
from kvcore.scheduler import Scheduler

WAITS = {"profile": profile(prefill_busy_threshold=0)}
PATH = (1, 2, 3, 4)

#: What a request asks for, and the only worker that fits.
HINTS = {
    "cache": ({"block_hashes": PATH}, 3), "told cache": ({"overlap": Overlap(((Rank(2), 4),))}, 2),
    "pin": ({"pinned": Rank(4)}, 4), "list": ({"allowed_workers": frozenset({2})}, 2),
    "taint": ({"required_taints": frozenset({"x"})}, 4), "preference": ({"preferred_taints": (("x", 5.0),)}, 4),
    "weights": ({"overlap": Overlap(((Rank(1), 1),)), "weights": SelectionWeights(overlap_score_credit=9.0)}, 1),
}


@pytest.mark.parametrize("hint", HINTS)
@pytest.mark.parametrize("parked", [False, True], ids=["at once", "after a wait"])
def test_E97_a_retry_carries_every_hint(hint, parked):
    """dynamo#10920: the affinity of a session was lost when its request was migrated."""
    fields, wanted = HINTS[hint]
    story = FleetStory(1, 2, 3, **WAITS)
    story.upsert(4, taints=frozenset({"x"}))
    story.store(3, *PATH)
    assert story.run("a", 16, strict_priority=2, deadline_ns=900, **fields).worker_id == wanted
    facts = [DispatchFailed(5, "a", 1, True)]
    if parked:
        facts = [status(5, worker_id, "router", available=False, lease_ns=10) for worker_id in (1, 2, 3, 4)] + facts
        assert short(story.many(*facts)) == "P a"
        story.arrive("b", 16, strict_priority=1)
        told = story.tick(15)
    else:
        told = story.many(*facts)
    assert (told[0].request_id, told[0].worker_id, told[0].attempt) == ("a", wanted, 2)


@pytest.mark.parametrize("seed", range(6))
def test_E103_only_workers_that_are_there_are_chosen(seed):
    """production-stack#668, production-stack#680, LMCache#2406: requests went to endpoints that had been deleted."""
    random = Random(seed)
    story, there, running = FleetStory(seed=seed), {}, []
    for number in range(200):
        worker_id, size = random.randrange(5), random.randrange(1, 4)
        facts = [upsert(number, worker_id, dp_size=size)]
        if worker_id in there and random.random() < 0.6:
            facts = [WorkerRemoved(number, worker_id)]
            del there[worker_id]
        else:
            there[worker_id] = size
        facts += [arrive(number, f"r{number}.{i}", block_hashes=(random.randrange(4),)) for i in range(3)]
        for action in story.many(*facts):
            if isinstance(action, Dispatch):
                assert action.dp_rank < there[action.worker_id]
                running.append(action)
        while len(running) > 6:
            done = running.pop(0)
            story.finish(done.request_id, done.attempt)


def test_E107_what_is_gone_is_shown_no_longer():
    """production-stack#936, production-stack#943, aibrix#1976: gauges kept dead servers."""
    story = FleetStory(1, predict_ttl_ns=100)
    before = story.core.stats()
    story.upsert(2, dp_size=3)
    story.store(2, *PATH)
    story.report(2, 1, 5, 5, 5)
    story.run("a", pinned=Rank(2, 1), block_hashes=PATH[:2])
    assert (len(story.core.loads()), story.core.stats().ranks) == (4, 4)
    story.remove(2)
    story.finish("a", 1)
    after = story.core.stats()
    assert story.column("worker_id") == [1]
    assert story.core.potential_loads(Request("q", 8))["worker_id"].tolist() == [1]
    assert (after.workers, after.ranks, after.index_blocks) == (before.workers, before.ranks, before.index_blocks)


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def one_life() -> None:
    """A scheduler with 64 workers and 1,024 ranks, requests that wait and run, and an end of all of it."""
    core = Scheduler(SchedulerConfig(4, profile(10, 10, prefill_busy_threshold=0, max_overtake_tokens=50),
                                     booking_ttl_ns=100, reported_load_ttl_ns=100, predict_ttl_ns=100))
    core.step_many([upsert(0, worker_id, dp_size=16) for worker_id in range(64)])
    core.step_many([status(0, worker_id, "s", available=False, lease_ns=99) for worker_id in range(0, 64, 2)])
    core.step_many([arrive(1, f"r{i}", 40, block_hashes=tuple(range(i, i + 10)), deadline_ns=50,
                           pinned=Rank(i % 64, i // 64) if i % 3 else None) for i in range(300)])
    core.peek(Request("q", 8, overlap=Overlap(((Rank(1), 1),))))
    core.step_many([PrefillCompleted(9, f"r{i}", 1 + i) for i in range(100)])
    core.step_many([RequestFinished(9, f"r{i}", 1 + i) for i in range(50)])


def test_E116_schedulers_that_come_and_go_leave_no_memory_behind():
    """dynamo#10729: memory grew as models came and went. One life takes about a megabyte; 60 of them none."""
    for _ in range(20):
        one_life()
    before = resident_bytes()
    for _ in range(60):
        one_life()
    assert resident_bytes() - before < 1_000_000


def test_E116_a_scheduler_whose_fleet_and_requests_come_and_go_does_not_grow():
    """dynamo#10729: the same inside one scheduler."""
    core = Scheduler(SchedulerConfig(4, **WAITS, predict_ttl_ns=10))
    number = 0

    def storm() -> None:
        nonlocal number
        number += 1
        now_ns = core.next_deadline_ns or 1000 * number
        core.step_many([upsert(now_ns, worker_id + number, number, dp_size=128) for worker_id in range(32)])
        core.step_many([arrive(now_ns, f"r{number}.{i}", 40, block_hashes=tuple(range(i, i + 10))) for i in range(300)])
        core.step_many([WorkerRemoved(now_ns, worker_id + number) for worker_id in range(32)])
        core.step_many([DispatchFailed(now_ns, f"r{number}.{i}", 300 * (number - 1) + i + 1) for i in range(300)])

    for _ in range(100):
        storm()
    assert core.stats().live_requests == 0
    before = resident_bytes()
    for _ in range(100):
        storm()
    assert resident_bytes() - before < 1_000_000


def test_E118_who_asks_changes_nothing():
    """dynamo#2889, dynamo#2798: a probe changed the router's state, and so the next real choice."""
    stories = [FleetStory(*range(8), seed=3, predict_ttl_ns=100, **WAITS) for _ in range(2)]
    asked, quiet = stories
    for number in range(40):
        request = Request(f"r{number}", 16, block_hashes=PATH[: number % 5])
        for _ in range(number % 4):
            asked.core.peek(request)
            asked.core.potential_loads(request)
            asked.core.loads()
            asked.core.stats()
            asked.core.audit()
        told = {tuple(story.many(arrive(number, request.request_id, 16, block_hashes=request.block_hashes)))
                for story in stories}
        assert len(told) == 1
        assert asked.core.digest() == quiet.core.digest()


def test_E121_every_dispatch_tells_how_long_it_has_waited():
    """llm-d-router#2486, llm-d-router#2488, llm-d-router#2490: clients saw a queue only when it refused them.

    0 for whoever did not wait, also in a batch; across retries the time counts from the arrival.
    """
    story = FleetStory(1, **WAITS)
    assert story.at(10).run("x").wait_ns == 0
    story.at(20).arrive("a")
    story.at(25).arrive("b")
    assert story.at(30).prefill("x", 1)[0].wait_ns == 10
    assert story.at(47).fail("a", 2, True)[0].wait_ns == 27
    assert story.at(60).finish("a", 3)[0].wait_ns == 35
    story.finish("b", 4)
    assert story.many(arrive(70, "c"), arrive(75, "d"))[0].wait_ns == 5
