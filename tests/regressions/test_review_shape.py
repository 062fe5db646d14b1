"""Review items 9, 10 and 15: final types, one name per operation, memory that shrinks. See test_review_items.py."""

from __future__ import annotations

import inspect
import re
import tracemalloc
from dataclasses import fields

import pytest
from capacity_stories import FleetStory, strict
from stories import Story, arrive
from tree import ROOT

import kvcore
from kvcore.actions import Dispatch
from kvcore.config import SchedulerConfig
from kvcore.events import (
    BlocksStored,
    CapacityHinted,
    DispatchAccepted,
    DispatchFailed,
    Outcome,
    OutputBlockAdded,
    PrefillCompleted,
    RequestArrived,
    RequestFinished,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.request import Overlap, Rank, Request, WorkerConfig
from kvcore.scheduler import Scheduler

#: What reads need besides the scheduler.
ARGUMENTS = {"peek": (Request("q", 8),), "potential_loads": (Request("q", 8),), "explain": ("a",), "queue_dump": (9,)}
#: Doors; `restore`, which makes another scheduler; `replica_facts`, which needs a name of its own.
DOORS = {"step", "step_many", "step_array", "restore", "replica_facts"}


def classes_of(path) -> list[tuple[str, bool]]:
    """(name, is it final) of the extension types that a .pxd or .pyx declares."""
    found = re.findall(r"^(@cython\.final\n)?cdef class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [(name, bool(final)) for final, name in found]


def test_review_09_extension_types_are_final():
    """A call on one is a direct call, and no caller converts to what a subclass might want. But for the two bases.

    Fails without @cython.final on any of them.
    """
    core = ROOT / "kvcore"
    declared = [*core.glob("*.pxd"), *(path for path in core.glob("*.pyx") if not path.with_suffix(".pxd").exists())]
    open_ones = {name for path in declared for name, final in classes_of(path) if not final}
    assert open_ones == {"Event", "Action"}


def peak_bytes(story: Story, call) -> int:
    """Most Python memory that a call needs beyond what it found."""
    call(story)
    tracemalloc.start()
    try:
        call(story)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        call(story)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def run_one(story: Story, **fields) -> None:
    """A request from its arrival to its end."""
    (action,) = story.core.step(arrive(story.now, "a", 16, **fields))
    assert isinstance(action, Dispatch)
    story.core.step_many([
        DispatchAccepted(story.now, "a", action.attempt), PrefillCompleted(story.now, "a", action.attempt),
        OutputBlockAdded(story.now, "a", action.attempt, 0.5), RequestFinished(story.now, "a", action.attempt)])


CALLS = {
    "step": run_one,
    "step with blocks": lambda story: run_one(story, block_hashes=(1, 2, 3, 4)),
    "step with a pin": lambda story: run_one(story, pinned=Rank(3)),
    "step with a list": lambda story: run_one(story, allowed_workers=frozenset({2, 3})),
    "step with taints": lambda story: run_one(story, required_taints=frozenset({"x"})),
    "step told of caches": lambda story: run_one(story, overlap=Overlap(((Rank(3), 2),))),
    "hint": lambda story: story.core.step(CapacityHinted(0, (Rank(3),))),
    "peek": lambda story: story.core.peek(Request("q", 16, block_hashes=(1, 2))),
    "next deadline": lambda story: story.core.next_deadline_ns,
}


@pytest.mark.parametrize("call", CALLS)
def test_review_09_no_entry_builds_a_map_of_the_fleet(call):
    """What a call allocates does not grow with the fleet: 4 workers or 2,000 are the same to it.

    Fails if any of them copies the table of workers or makes a list of all ranks. Enough is live that a debug build
    does not audit the whole fleet after these steps.
    """
    peaks = []
    for workers in (4, 2_000):
        story = Story()
        for worker_id in range(workers):
            story.core.step(WorkerUpserted(0, WorkerConfig(worker_id, taints=frozenset({"x"}))))
        story.store(3, 1, 2)
        for number in range(65):
            story.core.step(arrive(0, f"live {number}", 16))
        peaks.append(peak_bytes(story, CALLS[call]))
    assert peaks[1] - peaks[0] < 2_000


def test_review_10_no_value_has_two_names():
    """Fails with an alias in kvcore.__all__, or on Scheduler."""
    public = [getattr(kvcore, name) for name in kvcore.__all__]
    assert len({id(value) for value in public}) == len(public)
    assert {name: value.__name__ for name, value in vars(kvcore).items() if inspect.isclass(value)} == {
        name: name for name, value in vars(kvcore).items() if inspect.isclass(value)}
    methods = {name: value.__name__ for name, value in vars(Scheduler).items() if callable(value) and name[0] != "_"}
    assert methods == {name: name for name in methods}


def test_review_10_there_is_one_door():
    """All else that a Scheduler offers is a read. Fails with a public method that changes anything, say `free(id)`."""
    story = Story(1, 2)
    story.arrive("a", block_hashes=(1, 2))
    before, deadline_ns = story.core.digest(), story.core.next_deadline_ns
    for name in dir(Scheduler):
        if name[0] != "_" and name not in DOORS:
            found = getattr(story.core, name)
            if callable(found):
                found(*ARGUMENTS.get(name, ()))
            assert (story.core.digest(), story.core.next_deadline_ns) == (before, deadline_ns), name


#: What an operation on a booking needs besides request and attempt, by its field.
FILLED = {"context_tokens": 100, "outcome": Outcome.COMPLETED, "decay_fraction": None, "retry": False}


def effect(kind) -> tuple[int, ...]:
    """What one fact does to (bookings, prefill tokens, active blocks) of the rank of a running request."""
    story = FleetStory(1)
    story.run("a", 16, block_hashes=(1, 2, 3, 4))
    story.accept("a", 1)
    before = story.row(1)
    names = [item.name for item in fields(kind)][3:]
    story.many(kind(0, "a", 1, *[FILLED[name] for name in names]))
    after = story.row(1)
    return tuple([after[name] - before[name] for name in ("requests", "prefill_tokens", "active_blocks")])


def test_review_10_each_operation_on_a_booking_has_one_event():
    """Fails with a second event that adds an output block or completes a prefill. Ends differ in why it ended."""
    kinds = [kind for kind in vars(kvcore).values() if inspect.isclass(kind) and issubclass(kind, kvcore.Event)
             and [item.name for item in fields(kind)][1:3] == ["request_id", "attempt"]]
    found = {kind: effect(kind) for kind in kinds}
    assert [kind for kind in kinds if found[kind] == (0, 0, 1)] == [OutputBlockAdded]
    assert [kind for kind in kinds if found[kind] == (0, -16, 0)] == [PrefillCompleted]
    assert {kind for kind in kinds if found[kind] == (-1, -16, -4)} == {RequestFinished, DispatchFailed}
    assert set(found.values()) == {(0, 0, 1), (0, -16, 0), (-1, -16, -4), (0, 0, 0)}


#: Requests that look at the fleet in different ways.
LOOKS = [
    {}, {"block_hashes": (1, 2)}, {"overlap": Overlap(((Rank(900), 2), (Rank(3), 1)))},
    {"allowed_workers": frozenset({3, 5, 900})}, {"required_taints": frozenset({"x"})},
    {"preferred_taints": (("x", 1.0),)}, {"pinned": Rank(7)}, {"pinned": Rank(900)},
]


def up(worker_id: int) -> WorkerUpserted:
    """Even workers carry x, odd ones y."""
    return WorkerUpserted(0, WorkerConfig(worker_id, taints=frozenset("xy"[worker_id % 2])))


def seen(core: Scheduler, number: int) -> tuple:
    """What a look finds, what each rank would cost it, and where it goes; 'nan' is equal to itself as text."""
    request = Request(f"r{number}", 8, **LOOKS[number % len(LOOKS)])
    return core.peek(request), str(core.potential_loads(request).tolist()), core.step(RequestArrived(0, request))


@pytest.mark.parametrize("config", [{}, {"predict_ttl_ns": 10**9}, {"profile": strict()}],
                         ids=["told", "predicted", "strict"])
def test_review_15_ranks_that_are_gone_leave_nothing_behind(config):
    """2,048 workers come and cache, 2,032 of them go: the 16 that are left decide as if they had been alone.

    One that has gone comes back, too. That memory follows the fleet is in unit/test_backlog.py. Fails without a purge
    in Fleet.drop_ranks, without the clearing in Overlaps.end, and if Placement does not rebuild its standings.
    """
    config = SchedulerConfig(4, seed=7, **config)
    large, small = Scheduler(config), Scheduler(config)
    small.step_many([up(worker_id) for worker_id in range(16)])
    large.step_many([up(worker_id) for worker_id in range(2_048)])
    gone = range(16, 2_048)
    large.step_many([BlocksStored(0, worker_id, 0, 0, (1, 2)) for worker_id in gone])
    for fields_ in LOOKS:
        large.peek(Request("q", 8, **fields_))
    large.step_many([WorkerRemoved(0, worker_id) for worker_id in gone])
    assert large.digest() == small.digest()
    for number in range(100):
        if number == 50:
            assert large.step(up(900)) == small.step(up(900))
        assert seen(large, number) == seen(small, number)
    assert large.digest() == small.digest()
