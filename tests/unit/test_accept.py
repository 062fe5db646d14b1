"""The door of `step`: every context-free rule with its index and message, and nothing applied when one is broken."""

from __future__ import annotations

import math

import pytest

from kvcore.config import SchedulerConfig
from kvcore.errors import InvalidEvent, KvcoreError
from kvcore.events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    Event,
    Outcome,
    OutputBlockAdded,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.request import Overlap, Rank, Request, WorkerConfig
from kvcore.scheduler import Scheduler

NOW = 100
NS_LAST, TWO_53, U64 = 2**62 - 1, 2**53, 2**64 - 1
INF, NAN = math.inf, math.nan


class Odd(Event):
    """An event that nobody knows."""


class Pair(tuple):
    """A pair that answers otherwise when it is taken apart."""

    __slots__ = ()

    def __iter__(self):
        raise ZeroDivisionError


def made() -> Scheduler:
    """Block size 8, one worker, one request running under attempt 1, time 100."""
    scheduler = Scheduler(SchedulerConfig(8, booking_ttl_ns=1_000))
    scheduler.step_many((WorkerUpserted(NOW, WorkerConfig(1)), arrive("live")))
    return scheduler


def arrive(name: str | None = "a", prompt: int = 17, **fields) -> RequestArrived:
    return RequestArrived(NOW, Request(name, prompt, **fields))


def overlap(*pairs) -> RequestArrived:
    return arrive(overlap=Overlap(pairs))


def upsert(**fields) -> WorkerUpserted:
    return WorkerUpserted(NOW, WorkerConfig(1, **fields))


def finish(**fields) -> RequestFinished:
    return RequestFinished(NOW, "live", 1, **fields)


BROKEN = [
    (None, "not an event: NoneType"),
    ("TimerFired", "not an event: str"),
    (Request("a", 1), "not an event: Request"),
    (TimerFired, "not an event: type"),
    (Event(NOW), "unknown event Event"),
    (Odd(NOW), "unknown event Odd"),
    (TimerFired(-1), "now_ns must be 0..2^62-1, not -1"),
    (TimerFired(2**62), "now_ns must be 0..2^62-1, not 4611686018427387904"),
    (WorkerRemoved(-(2**63), 1), "now_ns must be 0..2^62-1, not -9223372036854775808"),
    (TimerFired(NOW - 1), "time went back: now_ns 99 after 100"),
    (TimerFired(0), "time went back: now_ns 0 after 100"),
    (RequestArrived(NOW, None), "request must not be None"),
    (arrive(None), "request_id must be non-empty text"),
    (arrive(""), "request_id must be non-empty text"),
    (arrive("x\ud800"), "request_id is not encodable as UTF-8: 'x\\ud800'"),
    (arrive(prompt=0), "prompt_tokens must be 1..2^53, not 0"),
    (arrive(prompt=-5), "prompt_tokens must be 1..2^53, not -5"),
    (arrive(prompt=TWO_53 + 1), "prompt_tokens must be 1..2^53, not 9007199254740993"),
    (arrive(policy_class="\udfff"), "policy_class is not encodable as UTF-8: '\\udfff'"),
    (arrive(deadline_ns=-1), "deadline_ns must be None or 0..2^62-1, not -1"),
    (arrive(deadline_ns=2**62), "deadline_ns must be None or 0..2^62-1, not 4611686018427387904"),
    (arrive(deadline_ns=200.0), "deadline_ns must be None or 0..2^62-1, not 200.0"),
    (arrive(deadline_ns=True), "deadline_ns must be None or 0..2^62-1, not True"),
    (arrive(deadline_ns="200"), "deadline_ns must be None or 0..2^62-1, not '200'"),
    (arrive(expected_output_tokens=-1), "expected_output_tokens must be None or 0..2^53, not -1"),
    (arrive(expected_output_tokens=TWO_53 + 1), "expected_output_tokens must be None or 0..2^53, not 9007199254740993"),
    (arrive(expected_output_tokens=1.0), "expected_output_tokens must be None or 0..2^53, not 1.0"),
    (arrive(expected_output_tokens=False), "expected_output_tokens must be None or 0..2^53, not False"),
    (arrive(allowed_workers=frozenset({-1})), "allowed_workers must hold integers 0..2^64-1, not -1"),
    (arrive(allowed_workers=frozenset({2**64})),
     "allowed_workers must hold integers 0..2^64-1, not 18446744073709551616"),
    (arrive(allowed_workers=frozenset({1.0})), "allowed_workers must hold integers 0..2^64-1, not 1.0"),
    (arrive(allowed_workers=frozenset({True})), "allowed_workers must hold integers 0..2^64-1, not True"),
    (arrive(allowed_workers=frozenset({"1"})), "allowed_workers must hold integers 0..2^64-1, not '1'"),
    (arrive(required_taints=None), "required_taints must be a frozenset"),
    (arrive(required_taints=frozenset({5})), "required_taints must hold text, not 5"),
    (arrive(required_taints=frozenset({"\ud800"})), "required_taints is not encodable as UTF-8: '\\ud800'"),
    (arrive(block_hashes=None), "block_hashes must be a tuple"),
    (arrive(block_hashes=(1, -1)), "block_hashes must hold integers 0..2^64-1, not -1"),
    (arrive(block_hashes=(2**64,)), "block_hashes must hold integers 0..2^64-1, not 18446744073709551616"),
    (arrive(block_hashes=(1.0,)), "block_hashes must hold integers 0..2^64-1, not 1.0"),
    (arrive(block_hashes=(True,)), "block_hashes must hold integers 0..2^64-1, not True"),
    (arrive(block_hashes=(None,)), "block_hashes must hold integers 0..2^64-1, not None"),
    (arrive(block_hashes=(1, 2, 3, 4)), "4 block_hashes for 17 prompt tokens"),
    (arrive(sequence_hashes=(1, -1)), "sequence_hashes must hold integers 0..2^64-1, not -1"),
    (arrive(sequence_hashes=("1",)), "sequence_hashes must hold integers 0..2^64-1, not '1'"),
    (arrive(sequence_hashes=(1, 2, 3)), "3 sequence_hashes for 17 prompt tokens"),
    (arrive(overlap=Overlap(None)), "overlap.device must be a tuple"),
    (overlap((1, 1)), "overlap.device must hold pairs (Rank, count), not (1, 1)"),
    (overlap(Rank(1)), "overlap.device must hold pairs (Rank, count), not Rank(worker_id=1, dp_rank=0)"),
    (overlap((Rank(1),)), "overlap.device must hold pairs (Rank, count), not (Rank(worker_id=1, dp_rank=0),)"),
    (overlap(Pair((Rank(1), 1))),
     "overlap.device must hold pairs (Rank, count), not (Rank(worker_id=1, dp_rank=0), 1)"),
    (overlap([Rank(1), 1]), "overlap.device must hold pairs (Rank, count), not [Rank(worker_id=1, dp_rank=0), 1]"),
    (overlap((Rank(1), -1)), "overlap.device must hold 0..2147483647, not -1"),
    (overlap((Rank(1), 2**31)), "overlap.device must hold 0..2147483647, not 2147483648"),
    (overlap((Rank(1), 1.0)), "overlap.device must hold 0..2147483647, not 1.0"),
    (overlap((Rank(1), 1), (Rank(2), True)), "overlap.device must hold 0..2147483647, not True"),
    (RequestCancelled(NOW, None), "request_id must be non-empty text"),
    (RequestCancelled(NOW, ""), "request_id must be non-empty text"),
    (RequestCancelled(NOW, "\ud800"), "request_id is not encodable as UTF-8: '\\ud800'"),
    (PrefillCompleted(NOW, None, 1), "request_id must be non-empty text"),
    (PrefillCompleted(NOW, "live", 0), "attempt must be >= 1, not 0"),
    (OutputBlockAdded(NOW, "", 1), "request_id must be non-empty text"),
    (OutputBlockAdded(NOW, "live", -1), "attempt must be >= 1, not -1"),
    (OutputBlockAdded(NOW, "live", 1, NAN), "decay_fraction must be in [0, 1], not nan"),
    (OutputBlockAdded(NOW, "live", 1, INF), "decay_fraction must be in [0, 1], not inf"),
    (OutputBlockAdded(NOW, "live", 1, -INF), "decay_fraction must be in [0, 1], not -inf"),
    (OutputBlockAdded(NOW, "live", 1, -5e-324), "decay_fraction must be in [0, 1], not -5e-324"),
    (OutputBlockAdded(NOW, "live", 1, 1.0000000000000002), "decay_fraction must be in [0, 1], not 1.0000000000000002"),
    (OutputBlockAdded(NOW, "live", 1, 2), "decay_fraction must be in [0, 1], not 2"),
    (OutputBlockAdded(NOW, "live", 1, True), "decay_fraction must be None or a number in [0, 1], not True"),
    (OutputBlockAdded(NOW, "live", 1, "1"), "decay_fraction must be None or a number in [0, 1], not '1'"),
    (RequestFinished(NOW, "", 1), "request_id must be non-empty text"),
    (RequestFinished(NOW, "live", -(2**63)), "attempt must be >= 1, not -9223372036854775808"),
    (finish(outcome=0), "outcome must be an Outcome, not 0"),
    (finish(outcome=None), "outcome must be an Outcome, not None"),
    (finish(outcome="COMPLETED"), "outcome must be an Outcome, not 'COMPLETED'"),
    (finish(context_tokens=-1), "context_tokens must be None or 0..2^53, not -1"),
    (finish(context_tokens=TWO_53 + 1), "context_tokens must be None or 0..2^53, not 9007199254740993"),
    (finish(context_tokens=True), "context_tokens must be None or 0..2^53, not True"),
    (WorkerUpserted(NOW, None), "config must not be None"),
    (WorkerUpserted(NOW, WorkerConfig(1), -1), "incarnation must be >= 0, not -1"),
    (upsert(dp_size=0), "dp_size must be 1..65536, not 0"),
    (upsert(dp_size=65_537), "dp_size must be 1..65536, not 65537"),
    (upsert(dp_start=2**32 - 1, dp_size=2), "dp_start + dp_size must be at most 2^32, not 4294967295 + 2"),
    (upsert(max_batched_tokens=0), "max_batched_tokens must be None or 1..2^53, not 0"),
    (upsert(max_batched_tokens=TWO_53 + 1), "max_batched_tokens must be None or 1..2^53, not 9007199254740993"),
    (upsert(max_batched_tokens=8192.0), "max_batched_tokens must be None or 1..2^53, not 8192.0"),
    (upsert(total_kv_blocks=True), "total_kv_blocks must be None or 1..2^53, not True"),
    (upsert(total_kv_blocks=-1), "total_kv_blocks must be None or 1..2^53, not -1"),
    (upsert(max_requests=0), "max_requests must be None or 1..2^53, not 0"),
    (upsert(max_requests="9"), "max_requests must be None or 1..2^53, not '9'"),
    (upsert(taints=None), "taints must be a frozenset"),
    (upsert(taints=frozenset({b"x"})), "taints must hold text, not b'x'"),
    (upsert(taints=frozenset({"\udc00"})), "taints is not encodable as UTF-8: '\\udc00'"),
    (BlocksStored(NOW, 1, 0, 0, None), "block_hashes must be a tuple"),
    (BlocksStored(NOW, 1, 0, 0, (5, 1.0)), "block_hashes must hold integers 0..2^64-1, not 1.0"),
    (BlocksStored(NOW, 1, 0, -1, ()), "incarnation must be >= 0, not -1"),
    (BlocksRemoved(NOW, 1, 0, 0, None), "block_hashes must be a tuple"),
    (BlocksRemoved(NOW, 1, 0, 0, (True,)), "block_hashes must hold integers 0..2^64-1, not True"),
    (BlocksRemoved(NOW, 1, 0, -7, ()), "incarnation must be >= 0, not -7"),
    (BlocksCleared(NOW, 1, 0, -1), "incarnation must be >= 0, not -1"),
]
every_break = pytest.mark.parametrize(("event", "message"), BROKEN, ids=[message[:40] for _, message in BROKEN])


def refused(scheduler, events) -> InvalidEvent:
    """The error; nothing that can be seen has changed."""
    before = (scheduler.digest(), scheduler.stats(), scheduler.loads().tolist(), scheduler.next_deadline_ns)
    with pytest.raises(InvalidEvent) as caught:
        scheduler.step_many(events)
    assert (scheduler.digest(), scheduler.stats(), scheduler.loads().tolist(), scheduler.next_deadline_ns) == before
    return caught.value


@every_break
def test_a_broken_event_is_refused_with_its_reason(event, message):
    scheduler = made()
    error = refused(scheduler, (event,))
    assert (error.index, error.reason, str(error)) == (0, message, f"event 0: {message}")
    assert scheduler.step(TimerFired(NOW)) == ()


@every_break
def test_nothing_of_its_batch_is_applied(event, message):
    """Neither what stands before it nor what stands behind."""
    scheduler, twin = made(), made()
    good = (arrive("b"), WorkerUpserted(NOW, WorkerConfig(2)), RequestCancelled(NOW, "live"))
    error = refused(scheduler, (*good, event, TimerFired(NOW)))
    assert (error.index, error.reason) == (3, message)
    assert scheduler.step_many(good) == twin.step_many(good)
    assert scheduler.digest() == twin.digest()


def test_the_first_broken_event_is_named():
    error = refused(made(), (TimerFired(NOW), arrive(prompt=0), arrive("")))
    assert (error.index, error.reason) == (1, "prompt_tokens must be 1..2^53, not 0")


def test_time_is_compared_inside_a_batch_too():
    scheduler = made()
    error = refused(scheduler, (TimerFired(NOW), TimerFired(NOW + 5), TimerFired(NOW + 4)))
    assert (error.index, error.reason) == (2, "time went back: now_ns 104 after 105")
    assert scheduler.step_many((TimerFired(NOW), TimerFired(NOW + 5), TimerFired(NOW + 5))) == ()
    assert refused(scheduler, (TimerFired(NOW + 4),)).reason == "time went back: now_ns 104 after 105"


def test_a_refused_batch_does_not_move_time():
    scheduler = made()
    refused(scheduler, (TimerFired(NOW + 50), arrive("")))
    assert scheduler.step(TimerFired(NOW)) == ()


def test_peek_checks_as_step_does():
    scheduler = made()
    before = scheduler.digest()
    for event, message in BROKEN:
        if isinstance(event, RequestArrived) and event.request is not None:
            with pytest.raises(InvalidEvent) as caught:
                scheduler.peek(event.request)
            assert (caught.value.index, caught.value.reason) == (0, message)
    assert scheduler.digest() == before
    with pytest.raises(TypeError):
        scheduler.peek(None)


@pytest.mark.parametrize("events", [None, 5, TimerFired(NOW)])
def test_a_batch_is_a_sequence(events):
    scheduler = made()
    before = scheduler.digest()
    with pytest.raises(TypeError):
        scheduler.step_many(events)
    assert scheduler.digest() == before
    assert scheduler.step_many([TimerFired(NOW)]) == scheduler.step_many(iter([TimerFired(NOW)])) == ()


def test_a_refusal_is_a_value_error_of_ours():
    assert issubclass(InvalidEvent, KvcoreError)
    assert issubclass(InvalidEvent, ValueError)
    with pytest.raises(InvalidEvent) as caught:
        made().step(None)
    assert caught.value.__cause__ is None


ACCEPTED = [
    TimerFired(NS_LAST), arrive("\U0001f600\0"), arrive(prompt=1), arrive(prompt=TWO_53), arrive(policy_class=""),
    arrive(deadline_ns=0), arrive(deadline_ns=NS_LAST), arrive(expected_output_tokens=0),
    arrive(expected_output_tokens=TWO_53), arrive(allowed_workers=frozenset()),
    arrive(allowed_workers=frozenset({0, 1, U64})), arrive(block_hashes=(0, U64, 3)),
    arrive(prompt=16, block_hashes=(1, 2)), arrive(sequence_hashes=(0, U64)), arrive(sequence_hashes=()),
    arrive(block_hashes=(1,), sequence_hashes=(7, 8)), overlap(), overlap((Rank(U64, 9), 0), (Rank(1), 2**31 - 1)),
    arrive(priority_jump=NAN), arrive(priority_jump=-INF), arrive(priority_jump=INF),
    arrive(required_taints=frozenset({"", "ä"})), OutputBlockAdded(NOW, "live", 1, 0),
    OutputBlockAdded(NOW, "live", 1, 1), OutputBlockAdded(NOW, "live", 1, 0.0), OutputBlockAdded(NOW, "live", 1, -0.0),
    OutputBlockAdded(NOW, "live", 1, 1.0), OutputBlockAdded(NOW, "live", 2**63 - 1), PrefillCompleted(NOW, "live", 1),
    finish(outcome=Outcome.ABORTED, context_tokens=0), finish(context_tokens=TWO_53),
    upsert(dp_start=2**32 - 1, max_batched_tokens=1, total_kv_blocks=TWO_53, max_requests=1),
    upsert(dp_size=65_536), upsert(max_batched_tokens=TWO_53), upsert(taints=frozenset({"", "ä"})),
    WorkerUpserted(NOW, WorkerConfig(1), 2**63 - 1), WorkerRemoved(NOW, U64),
    BlocksStored(NOW, 1, 0, 0, (0, U64, 0)), BlocksStored(NOW, U64, 2**32 - 1, 2**63 - 1, ()),
    BlocksRemoved(NOW, 1, 0, 0, ()), BlocksCleared(NOW, 1, 0, 0),
]


@pytest.mark.parametrize("event", ACCEPTED, ids=lambda event: type(event).__name__)
def test_edges_are_accepted(event):
    scheduler = made()
    scheduler.step(event)
    assert scheduler.audit() == []


EDGES = sorted({base + by for base in (2**30, 2**60, 2**63, 2**64) for by in (-2, -1, 0, 1)} | {0, 1, 2**15, 2**32})


@pytest.mark.parametrize("block_hash", EDGES)
def test_a_hash_is_read_whole_at_every_length_of_an_int(block_hash):
    """The digits that Python keeps are read without its library: a lost bit would be another block."""
    scheduler = made()
    if block_hash > U64:
        for event in (BlocksStored(NOW, 1, 0, 0, (block_hash,)), arrive(block_hashes=(block_hash,))):
            with pytest.raises(InvalidEvent, match=str(block_hash)):
                scheduler.step(event)
        return
    scheduler.step(BlocksStored(NOW, 1, 0, 0, (block_hash,)))
    for other in EDGES:
        if other <= U64:
            request = Request("b", 17, block_hashes=(other,), sequence_hashes=())
            assert scheduler.peek(request).overlap_blocks == (other == block_hash)
    scheduler.step(BlocksRemoved(NOW, 1, 0, 0, (block_hash,)))
    assert scheduler.peek(Request("b", 17, block_hashes=(block_hash,), sequence_hashes=())).overlap_blocks == 0
    with pytest.raises(InvalidEvent, match=f"not {-block_hash or True}"):
        scheduler.step(BlocksStored(NOW, 1, 0, 0, (-block_hash or True,)))
