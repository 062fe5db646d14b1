"""The values at the door: events, actions and what travels inside them, as compiled frozen dataclasses."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import typing
from enum import IntEnum

import pytest

from kvcore import actions, events, policy, replica, request
from kvcore.actions import (
    Action,
    Dispatch,
    Evict,
    EvictReason,
    Ignored,
    IgnoredReason,
    Park,
    ParkReason,
    Publish,
    RefreshOverlap,
    Reject,
    RejectReason,
)
from kvcore.events import (
    AdmissionReleased,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    CapacityHinted,
    ContextAdvanced,
    DispatchAccepted,
    DispatchFailed,
    Drained,
    Event,
    LoadReported,
    Outcome,
    OutputBlockAdded,
    OverlapRefreshed,
    PeerBooked,
    PeerLost,
    PeerPrefillCompleted,
    PeerReleased,
    PeerSynced,
    PolicyReplaced,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    Tier,
    TimerFired,
    WorkerRemoved,
    WorkerStatusChanged,
    WorkerUpserted,
)
from kvcore.policy import Arbitration, Capacity, QueuePolicy, synthetic_profile
from kvcore.replica import FactKind, PeerFact, ReplicaFacts
from kvcore.request import Overlap, Rank, Request, SelectionWeights, WorkerConfig

INT64_MAX, U32, U64 = 2**63 - 1, 2**32 - 1, 2**64 - 1

RANK = Rank(U64, U32)
FULL = Request(
    "ä-\U0001f600", 2**53, policy_class="vip", strict_priority=U32, priority_jump=0.1, deadline_ns=2**62 - 1,
    do_not_queue=True, pinned=RANK, allowed_workers=frozenset((3, U64)), block_hashes=(1, U64), sequence_hashes=(2,),
    overlap=Overlap(((RANK, 4), (Rank(1), 0)), shared=((0, 2),)), expected_output_tokens=0, track_prefill=False,
    required_taints=frozenset(("gpu", "fast")), preferred_taints=(("gpu", 0.5), ("slow", -1.0)),
    weights=SelectionWeights(temperature=0.7), session_id="s", lifecycle=False)

FACT = PeerFact(FactKind.BOOKED, "ä", INT64_MAX, 3, U64, U32, 4, (1, U64), 5, 6, 7, True)
VALUES = [
    RANK, Rank(0), Overlap(), Overlap(((RANK, 7),)), Overlap(effective=((RANK, 0.5),), cached_tokens=((RANK, 9),)),
    SelectionWeights(), SelectionWeights(0.5, 0.1, 2.0, 0.2, 0.3, 0.4, 32.0, 0.7), Request("a", 1), FULL,
    WorkerConfig(1), WorkerConfig(U64, 3, 5, 8192, 1000, 64, frozenset({"gpu"}), 9_000),
    TimerFired(0), RequestArrived(1, FULL), RequestCancelled(2, "a"), PrefillCompleted(3, "a", INT64_MAX),
    OutputBlockAdded(4, "a", 1), OutputBlockAdded(4, "a", 1, 0.5), RequestFinished(5, "a", 1),
    RequestFinished(5, "a", 1, Outcome.ABORTED, 99), WorkerUpserted(6, WorkerConfig(1)),
    WorkerUpserted(6, WorkerConfig(1), INT64_MAX), WorkerRemoved(7, U64), BlocksStored(8, U64, U32, 1, (1, U64)),
    BlocksStored(8, 1, 2, 3, (), Tier.DISK), BlocksRemoved(9, 1, 2, 3, ()), BlocksCleared(2**62 - 1, 1, 2, 3),
    BlocksCleared(9, 1, 2, 3, Tier.HOST), WorkerStatusChanged(9, 1, 2), LoadReported(9, 1, 2, 3, 4, 5, 6, 7),
    WorkerStatusChanged(9, U64, INT64_MAX, "health", False, True, 5), DispatchAccepted(9, "a", 1),
    DispatchFailed(9, "a", 1), DispatchFailed(9, "a", 1, True), CapacityHinted(9), CapacityHinted(9, (RANK,)),
    Drained(9, 99), ContextAdvanced(9, "a", 1, 2**53), AdmissionReleased(9, "a"), AdmissionReleased(9, "a", RANK),
    OverlapRefreshed(9, "a", 1), OverlapRefreshed(9, "a", 1, Overlap(((RANK, 4),))),
    PolicyReplaced(9, synthetic_profile(QueuePolicy.FCFS, None)),
    Dispatch("a", 1, U64, U32, 0, 16, 1, 17, 2, 2**62 - 1), Reject("a", RejectReason.DUPLICATE_ID),
    Reject("a", RejectReason.QUEUE_FULL_REQUESTS, 3, 5, 4, 1_000_000), Park("a", 2), Park("b", 2, ParkReason.QUEUED),
    Evict("a", 3, 1, EvictReason.WORKER_REMOVED), Ignored("a", 0), Ignored("a", 9, IgnoredReason.STALE),
    RefreshOverlap("a", 3, (1, U64)),
    FACT, PeerFact(FactKind.RELEASED, "p", 0, 1), ReplicaFacts("p", 1, 4, (FACT,)), Publish(FACT),
    PeerBooked(9, "p", 1, 2, U64, U32, 3, (1, U64), 4, 5, 6), PeerPrefillCompleted(9, "p", 1, 2),
    PeerReleased(9, "p", 1, 2), PeerReleased(9, "p", 1, 2, True), PeerLost(9, "p", 1),
    PeerSynced(9, "p", 1, INT64_MAX, (FACT,)),
]
NAMES = {name: item for module in (request, replica, events, actions) for name, item in vars(module).items()
         if isinstance(item, type) and item.__module__ == module.__name__}
every_value = pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)


def content(value) -> list:
    return [getattr(value, field.name) for field in dataclasses.fields(value)]


def another(item):
    """A value of the same type that is not the same, or None where there is no other."""
    match item:
        case bool():
            return not item
        case IntEnum():
            return next((other for other in type(item) if other is not item), None)
        case int() | float():
            return item - 1 if item > 1 else item + 1
        case str():
            return item + "!"
        case tuple() | frozenset():
            return type(item)() if item else None
        case _:
            return None


def test_there_is_a_sample_of_every_class():
    assert {type(value) for value in VALUES} == {
        item for item in NAMES.values() if dataclasses.is_dataclass(item)} - {Event, Action}


@every_value
def test_the_same_fields_are_equal_and_hash_alike(value):
    again = type(value)(*content(value))
    assert again == value
    assert hash(again) == hash(value)
    assert {value: 1}[again] == 1


@every_value
def test_every_field_counts(value):
    for field in dataclasses.fields(value):
        changed = another(getattr(value, field.name))
        if changed is not None:
            other = dataclasses.replace(value, **{field.name: changed})
            assert other != value, field.name
            assert getattr(other, field.name) == changed


def test_values_of_different_classes_are_not_equal():
    assert len(set(VALUES)) == len(VALUES)
    assert TimerFired(0) != Event(0)
    assert BlocksStored(0, 1, 2, 3, ()) != BlocksRemoved(0, 1, 2, 3, ())
    assert Ignored("a", 0) != ("a", 0, IgnoredReason.STALE)


@every_value
def test_the_repr_builds_the_value(value):
    text = repr(value)
    for reason in (*RejectReason, *ParkReason, *EvictReason, *IgnoredReason, *Outcome, *Tier, *QueuePolicy,
                   *Arbitration, *Capacity, *FactKind):
        text = text.replace(repr(reason), f"{type(reason).__name__}.{reason.name}")
    assert eval(text, {**vars(policy), **NAMES}) == value


def test_a_repr_names_its_fields():
    assert repr(WorkerRemoved(5, 7)) == "WorkerRemoved(now_ns=5, worker_id=7)"
    assert repr(Park("a", 0)) == "Park(request_id='a', class_index=0, reason=<ParkReason.QUEUED: 1>)"


@every_value
def test_copies_and_pickles(value):
    assert copy.copy(value) == copy.deepcopy(value) == value
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) == value


@every_value
def test_nothing_can_be_changed(value):
    for field in dataclasses.fields(value):
        with pytest.raises(AttributeError):
            setattr(value, field.name, getattr(value, field.name))
        with pytest.raises(AttributeError):
            object.__setattr__(value, field.name, getattr(value, field.name))
        with pytest.raises(AttributeError):
            delattr(value, field.name)
    with pytest.raises(AttributeError):
        value.something_new = 1


@every_value
def test_values_match_by_position(value):
    names = type(value).__match_args__
    assert names == tuple(field.name for field in dataclasses.fields(value))
    assert [getattr(value, name) for name in names] == content(value)


def test_match_in_python():
    def told(value):
        match value:
            case WorkerRemoved(now_ns, worker_id):
                return now_ns, worker_id
            case Dispatch(request_id=name, worker_id=worker, dp_rank=rank):
                return name, worker, rank
            case Reject("a", RejectReason.WOULD_QUEUE):
                return "would queue"
            case Event(now_ns):
                return now_ns
            case _:
                return None

    assert told(WorkerRemoved(5, 7)) == (5, 7)
    assert told(Dispatch("a", 1, 2, 3, 4, 5, 6, 7, 8, 9)) == ("a", 2, 3)
    assert told(Reject("a", RejectReason.WOULD_QUEUE)) == "would queue"
    assert told(Reject("a", RejectReason.NO_WORKERS)) is None
    assert told(TimerFired(4)) == 4


@every_value
def test_concrete_classes_are_final(value):
    with pytest.raises(TypeError):
        type("Sub", (type(value),), {})


def test_the_unions_name_every_class():
    for module, base, union in ((events, Event, events.AnyEvent), (actions, Action, actions.AnyAction)):
        classes = {item for item in vars(module).values() if isinstance(item, type) and issubclass(item, base)}
        assert set(typing.get_args(union)) == classes - {base}


def test_defaults():
    assert dataclasses.asdict(Request("a", 5)) == {
        "request_id": "a", "prompt_tokens": 5, "policy_class": None, "strict_priority": 0, "priority_jump": 0.0,
        "deadline_ns": None, "do_not_queue": False, "pinned": None, "allowed_workers": None, "block_hashes": (),
        "sequence_hashes": None, "overlap": None, "expected_output_tokens": None, "track_prefill": True,
        "required_taints": frozenset(), "preferred_taints": (), "weights": None, "session_id": None, "lifecycle": True}
    assert Rank(3) == Rank(3, 0)
    assert Overlap() == Overlap((), (), (), (), (), ())
    assert SelectionWeights() == SelectionWeights(1.0, 0.0, 1.0, 0.75, 0.25, 0.0, 0.0, 0.0)
    assert BlocksStored(0, 1, 0, 0, ()).tier is BlocksRemoved(0, 1, 0, 0, ()).tier is Tier.DEVICE
    assert BlocksCleared(0, 1, 0, 0).tier is None
    assert DispatchFailed(0, "a", 1).retry is False
    assert CapacityHinted(0).ranks is None
    assert WorkerStatusChanged(0, 1, 0) == WorkerStatusChanged(0, 1, 0, "", True, False, None)
    assert dataclasses.asdict(WorkerConfig(3)) == {
        "worker_id": 3, "dp_start": 0, "dp_size": 1, "max_batched_tokens": None, "total_kv_blocks": None,
        "max_requests": None, "taints": frozenset(), "prefill_tokens_per_s": None}
    assert OutputBlockAdded(0, "a", 1).decay_fraction is None
    assert RequestFinished(0, "a", 1) == RequestFinished(0, "a", 1, Outcome.COMPLETED, None)
    assert WorkerUpserted(0, WorkerConfig(1)) == WorkerUpserted(0, WorkerConfig(1), 0)
    assert Reject("a", RejectReason.NO_WORKERS) == Reject("a", RejectReason.NO_WORKERS, -1, 0, 0, None)


def test_reasons_are_labels():
    """Metrics and journals keep them: names and numbers stay."""
    assert {reason.name: reason.value for reason in RejectReason} == {
        "DUPLICATE_ID": 1, "DEADLINE_EXPIRED": 2, "PINNED_WORKER_NOT_ALLOWED": 3, "PINNED_WORKER_UNAVAILABLE": 4,
        "NO_WORKERS": 5, "NO_ELIGIBLE_WORKER": 6, "QUEUE_FULL_REQUESTS": 7, "QUEUE_FULL_RAW_TOKENS": 8,
        "QUEUE_FULL_CACHED_TOKENS": 9, "WOULD_QUEUE": 10, "PINNED_WORKER_OVERLOADED": 11,
        "ALL_ELIGIBLE_OVERLOADED": 12, "TOO_LARGE": 13, "SHUTTING_DOWN": 14, "RETRIES_EXHAUSTED": 15,
        "ADMISSION_REFUSED": 16}
    assert {tier.name: tier.value for tier in Tier} == {"DEVICE": 0, "HOST": 1, "DISK": 2}
    assert [(reason.name, reason.value) for kind in (ParkReason, EvictReason, IgnoredReason, Outcome)
            for reason in kind] == [
        ("QUEUED", 1), ("DEFERRED", 2), ("WORKER_REMOVED", 1), ("BOOKING_EXPIRED", 2), ("DRAIN_DEADLINE", 3),
        ("STALE", 1),
        ("COMPLETED", 0), ("ABORTED", 1)]


# Construction converts: what decoders of outside text must know.


@pytest.mark.parametrize(
    ("built", "field", "wanted"),
    [
        (lambda: TimerFired(1.5), "now_ns", 1),
        (lambda: TimerFired(-1.5), "now_ns", -1),
        (lambda: TimerFired(True), "now_ns", 1),
        (lambda: Request("a", 1.9), "prompt_tokens", 1),
        (lambda: Request("a", True), "prompt_tokens", 1),
        (lambda: Request("a", 1, strict_priority=2.7), "strict_priority", 2),
        (lambda: Rank(1.5, 0.9), "worker_id", 1),
        (lambda: Rank(1.5, 0.9), "dp_rank", 0),
        (lambda: PrefillCompleted(0, "a", 3.999), "attempt", 3),
        (lambda: WorkerConfig(1, dp_size=True), "dp_size", 1),
        (lambda: Dispatch("a", 1.5, 2, 3, 4, 5, 6, 7, 8, 9), "attempt", 1),
    ],
)
def test_floats_are_truncated_and_booleans_become_numbers(built, field, wanted):
    """The hazard of compiled dataclasses: nothing raises, so decoders check types before they build."""
    found = getattr(built(), field)
    assert found == wanted
    assert type(found) is int


def test_other_conversions():
    assert Request("a", 1, do_not_queue="yes").do_not_queue is True
    assert Request("a", 1, track_prefill=[]).track_prefill is False
    assert Request("a", 1, priority_jump=2).priority_jump == 2.0
    assert type(Request("a", 1, priority_jump=True).priority_jump) is float
    assert math.isnan(Request("a", 1, priority_jump=math.nan).priority_jump)


def test_objects_are_kept_as_they_are():
    """Fields without a C type are checked by step, not here."""
    for odd in (1.5, True, "x", -1):
        assert Request("a", 1, deadline_ns=odd).deadline_ns is odd
        assert OutputBlockAdded(0, "a", 1, odd).decay_fraction is odd
        assert RequestFinished(0, "a", 1, odd).outcome is odd
        assert WorkerConfig(1, max_batched_tokens=odd).max_batched_tokens is odd


@pytest.mark.parametrize(
    "build",
    [
        lambda: TimerFired(2**63), lambda: TimerFired(-(2**63) - 1), lambda: TimerFired(1e300),
        lambda: TimerFired(math.inf), lambda: WorkerRemoved(0, -1), lambda: WorkerRemoved(0, 2**64),
        lambda: Rank(-1), lambda: Rank(2**64), lambda: Rank(1, -1), lambda: Rank(1, 2**32),
        lambda: Request("a", 2**63), lambda: Request("a", 1, strict_priority=-1),
        lambda: Request("a", 1, strict_priority=2**32), lambda: Request("a", 1, priority_jump=10**400),
        lambda: WorkerConfig(1, dp_start=-1), lambda: WorkerConfig(1, dp_size=2**32),
        lambda: WorkerConfig(-1), lambda: PrefillCompleted(0, "a", 2**63), lambda: BlocksCleared(0, 1, 2**32, 0),
        lambda: WorkerUpserted(0, WorkerConfig(1), 2**63), lambda: Dispatch("a", 1, -1, 0, 0, 0, 0, 0, 0, 0),
        lambda: Park("a", 2**31),
    ],
)
def test_numbers_that_do_not_fit_raise(build):
    with pytest.raises(OverflowError):
        build()


class Text(str):
    __slots__ = ()


class Pair(tuple):
    __slots__ = ()


@pytest.mark.parametrize(
    "build",
    [
        lambda: TimerFired("1"), lambda: TimerFired(None), lambda: TimerFired(), lambda: TimerFired(1, 2),
        lambda: Request("a", "1"), lambda: Request("a", None), lambda: Request(1, 1), lambda: Request(b"a", 1),
        lambda: Request(Text("a"), 1), lambda: Request("a", 1, policy_class=1), lambda: Request("a", 1, pinned=(1, 0)),
        lambda: Request("a", 1, allowed_workers={1}), lambda: Request("a", 1, allowed_workers=(1,)),
        lambda: Request("a", 1, block_hashes=[1]), lambda: Request("a", 1, block_hashes=Pair((1,))),
        lambda: Request("a", 1, sequence_hashes=[1]), lambda: Request("a", 1, overlap=()),
        lambda: Request("a", 1, required_taints={"x"}), lambda: WorkerConfig(1, taints=("x",)),
        lambda: Request("a", 1, priority_jump="1"), lambda: Request("a", 1, colour="red"),
        lambda: Overlap([(RANK, 1)]), lambda: RequestArrived(0, "a"), lambda: RequestArrived(0, RANK),
        lambda: WorkerUpserted(0, RANK), lambda: RequestCancelled(0, 5), lambda: BlocksStored(0, 1, 0, 0, [1]),
        lambda: Reject(5, RejectReason.NO_WORKERS), lambda: Park("a", None),
    ],
)
def test_values_of_another_type_raise(build):
    with pytest.raises(TypeError):
        build()
