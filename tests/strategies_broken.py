"""Events that break the contract of `step`, by name: each must raise InvalidEvent and change nothing."""

from __future__ import annotations

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
    PolicyReplaced,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerStatusChanged,
    WorkerUpserted,
)
from kvcore.policy import AdmissionSpec, CacheBucket, PolicyClass, PolicyProfile
from kvcore.request import Overlap, Rank, Request, SelectionWeights, WorkerConfig

NAN = float("nan")
INF = float("inf")
#: Any block size of the strategies is at most 16: eight hashes never fit a prompt of one token.
EIGHT = (1, 2, 3, 4, 5, 6, 7, 8)


def arrival(**changes):
    """An arrival that is right but for these fields."""
    fields = {"request_id": "broken", "prompt_tokens": 1, **changes}
    return lambda now_ns: RequestArrived(now_ns, Request(**fields))


def upsert(incarnation: int = 0, **changes):
    """An upsert that is right but for these fields."""
    return lambda now_ns: WorkerUpserted(now_ns, WorkerConfig(5, **changes), incarnation)


def finish(*arguments):
    """A finish with these arguments after the time."""
    return lambda now_ns: RequestFinished(now_ns, *arguments)


def output(fraction):
    """An output block with this decay fraction."""
    return lambda now_ns: OutputBlockAdded(now_ns, "r1", 1, fraction)


def overlapping(**changes):
    """An arrival that is told of caches like this."""
    return arrival(overlap=Overlap(**changes))


def context(*arguments):
    """A context with these arguments after the time."""
    return lambda now_ns: ContextAdvanced(now_ns, *arguments)


def refreshed(request_id="r1", ticket=1, **changes):
    """An answer that is right but for these fields."""
    overlap = Overlap(**changes) if changes else None
    return lambda now_ns: OverlapRefreshed(now_ns, request_id, ticket, overlap)


def replaced(kind: str, parameters: dict):
    """A policy with a class that asks for this admission policy."""
    classes = (PolicyClass("a", 1), PolicyClass("b", 1, policy_family="b", cache_bucket="all",
                                                admission=AdmissionSpec(kind, parameters)))
    return lambda now_ns: PolicyReplaced(now_ns, PolicyProfile(classes, (CacheBucket("all", 0),), "b"))


def status(incarnation: int = 0, **changes):
    """A mark that is right but for these fields."""
    return lambda now_ns: WorkerStatusChanged(now_ns, 1, incarnation, **changes)


def report(incarnation: int = 0, sequence: int = 1, **changes):
    """A report that is right but for these fields."""
    return lambda now_ns: LoadReported(now_ns, 1, 0, incarnation, sequence, **changes)


BREAKERS = {
    "not an event": lambda now_ns: "TimerFired",
    "none": lambda now_ns: None,
    "a request": lambda now_ns: Request("broken", 1),
    "base class": Event,
    "time negative": lambda now_ns: TimerFired(-1),
    "time too large": lambda now_ns: TimerFired(2**62),
    "time goes back": lambda now_ns: TimerFired(max(now_ns - 1, 0) if now_ns else -1),
    "no request": lambda now_ns: RequestArrived(now_ns, None),
    "id none": arrival(request_id=None),
    "id empty": arrival(request_id=""),
    "id surrogate": arrival(request_id="r\ud800"),
    "prompt zero": arrival(prompt_tokens=0),
    "prompt negative": arrival(prompt_tokens=-1),
    "prompt too large": arrival(prompt_tokens=2**53 + 1),
    "deadline negative": arrival(deadline_ns=-1),
    "deadline too large": arrival(deadline_ns=2**62),
    "deadline float": arrival(deadline_ns=1.5),
    "deadline bool": arrival(deadline_ns=True),
    "deadline text": arrival(deadline_ns="1"),
    "expected negative": arrival(expected_output_tokens=-1),
    "expected too large": arrival(expected_output_tokens=2**53 + 1),
    "expected float": arrival(expected_output_tokens=1.0),
    "blocks none": arrival(block_hashes=None),
    "blocks too many": arrival(block_hashes=EIGHT),
    "blocks negative": arrival(block_hashes=(-1,)),
    "blocks too large": arrival(block_hashes=(2**64,)),
    "blocks float": arrival(block_hashes=(1.0,)),
    "blocks bool": arrival(block_hashes=(True,)),
    "blocks text": arrival(block_hashes=("1",)),
    "sequence too many": arrival(sequence_hashes=EIGHT),
    "sequence negative": arrival(sequence_hashes=(-1,), prompt_tokens=100),
    "sequence text": arrival(sequence_hashes=("1",), prompt_tokens=100),
    "sequence bool": arrival(sequence_hashes=(False,), prompt_tokens=100),
    "allowed negative": arrival(allowed_workers=frozenset({1, -1})),
    "allowed too large": arrival(allowed_workers=frozenset({2**64})),
    "allowed text": arrival(allowed_workers=frozenset({"1"})),
    "allowed bool": arrival(allowed_workers=frozenset({True})),
    "overlap none": arrival(overlap=Overlap(None)),
    "overlap not a pair": arrival(overlap=Overlap((Rank(1),))),
    "overlap long pair": arrival(overlap=Overlap(((Rank(1), 1, 1),))),
    "overlap no rank": arrival(overlap=Overlap(((1, 1),))),
    "overlap negative": arrival(overlap=Overlap(((Rank(1), -1),))),
    "overlap too large": arrival(overlap=Overlap(((Rank(1), 2**31),))),
    "overlap float": arrival(overlap=Overlap(((Rank(1), 1.0),))),
    "overlap bool": arrival(overlap=Overlap(((Rank(1), True),))),
    "class surrogate": arrival(policy_class="\ud800"),
    "session surrogate": arrival(session_id="\ud800"),
    "host none": overlapping(host=None),
    "host float": overlapping(host=((Rank(1), 1.0),)),
    "disk too large": overlapping(disk=((Rank(1), 2**31),)),
    "disk no rank": overlapping(disk=((1, 1),)),
    "cached none": overlapping(cached_tokens=None),
    "cached too large": overlapping(cached_tokens=((Rank(1), 2**53 + 1),)),
    "cached list": overlapping(cached_tokens=([Rank(1), 1],)),
    "effective none": overlapping(effective=None),
    "effective nan": overlapping(effective=((Rank(1), NAN),)),
    "effective infinite": overlapping(effective=((Rank(1), INF),)),
    "effective negative": overlapping(effective=((Rank(1), -0.5),)),
    "effective too large": overlapping(effective=((Rank(1), 2.0**31),)),
    "effective bool": overlapping(effective=((Rank(1), True),)),
    "effective text": overlapping(effective=((Rank(1), "1"),)),
    "shared none": overlapping(shared=None),
    "shared empty": overlapping(shared=((1, 1),)),
    "shared backwards": overlapping(shared=((3, 2),)),
    "shared negative": overlapping(shared=((-1, 2),)),
    "shared overlapping": overlapping(shared=((0, 3), (2, 5))),
    "shared unsorted": overlapping(shared=((4, 5), (0, 1))),
    "shared too large": overlapping(shared=((0, 2**31),)),
    "shared float": overlapping(shared=((0, 1.0),)),
    "shared bool": overlapping(shared=((False, 1),)),
    "shared single": overlapping(shared=((1,),)),
    "preferred none": arrival(preferred_taints=None),
    "preferred no pair": arrival(preferred_taints=("a",)),
    "preferred int": arrival(preferred_taints=((1, 1.0),)),
    "preferred nan": arrival(preferred_taints=(("a", NAN),)),
    "preferred infinite": arrival(preferred_taints=(("a", INF),)),
    "preferred text": arrival(preferred_taints=(("a", "1"),)),
    "preferred bool": arrival(preferred_taints=(("a", True),)),
    "preferred too large": arrival(preferred_taints=(("a", 2**53 + 1),)),
    "preferred twice": arrival(preferred_taints=(("a", 1.0), ("b", 1.0), ("a", 2.0))),
    "preferred surrogate": arrival(preferred_taints=(("\udfff", 1.0),)),
    "weights negative": arrival(weights=SelectionWeights(-0.1)),
    "weights nan": arrival(weights=SelectionWeights(temperature=NAN)),
    "weights infinite": arrival(weights=SelectionWeights(active_request_weight=INF)),
    "host weight above one": arrival(weights=SelectionWeights(host_cache_hit_weight=1.1)),
    "disk weight above one": arrival(weights=SelectionWeights(disk_cache_hit_weight=1.1)),
    "shared weight above one": arrival(weights=SelectionWeights(shared_cache_multiplier=1.1)),
    "required none": arrival(required_taints=None),
    "required int": arrival(required_taints=frozenset({1})),
    "required bytes": arrival(required_taints=frozenset({"gpu", b"gpu"})),
    "required surrogate": arrival(required_taints=frozenset({"gpu", "\ud800"})),
    "cancel none": lambda now_ns: RequestCancelled(now_ns, None),
    "cancel empty": lambda now_ns: RequestCancelled(now_ns, ""),
    "prefill attempt zero": lambda now_ns: PrefillCompleted(now_ns, "r1", 0),
    "prefill id none": lambda now_ns: PrefillCompleted(now_ns, None, 1),
    "output attempt negative": lambda now_ns: OutputBlockAdded(now_ns, "r1", -1),
    "fraction negative": output(-0.1),
    "fraction too large": output(1.0000001),
    "fraction nan": output(NAN),
    "fraction infinite": output(INF),
    "fraction text": output("0.5"),
    "fraction bool": output(True),
    "finish attempt zero": finish("r1", 0),
    "finish id surrogate": finish("\udfff", 1),
    "outcome none": finish("r1", 1, None),
    "outcome int": finish("r1", 1, 0),
    "context negative": finish("r1", 1, Outcome.ABORTED, -1),
    "context float": finish("r1", 1, Outcome.ABORTED, 1.0),
    "advanced id none": context(None, 1, 1),
    "advanced attempt zero": context("r1", 0, 1),
    "advanced negative": context("r1", 1, -1),
    "advanced too large": context("r1", 1, 2**53 + 1),
    "released id none": lambda now_ns: AdmissionReleased(now_ns, None),
    "released id empty": lambda now_ns: AdmissionReleased(now_ns, ""),
    "released id surrogate": lambda now_ns: AdmissionReleased(now_ns, "\ud800", Rank(1)),
    "refreshed id empty": refreshed(""),
    "refreshed id none": refreshed(None),
    "refreshed ticket zero": refreshed(ticket=0),
    "refreshed ticket negative": refreshed(ticket=-1),
    "refreshed device too large": refreshed(device=((Rank(1), 2**31),)),
    "refreshed effective nan": refreshed(effective=((Rank(1), NAN),)),
    "refreshed shared empty": refreshed(shared=((1, 1),)),
    "no profile": lambda now_ns: PolicyReplaced(now_ns, None),
    "profile a class": lambda now_ns: PolicyReplaced(now_ns, PolicyClass("a", 1)),
    "unknown admission": replaced("nobody's", {}),
    "admission refuses its parameters": replaced("gate", {"running": -1}),
    "no config": lambda now_ns: WorkerUpserted(now_ns, None),
    "incarnation negative": upsert(incarnation=-1),
    "dp size zero": upsert(dp_size=0),
    "dp range too high": upsert(dp_start=2**32 - 1, dp_size=2),
    "batched zero": upsert(max_batched_tokens=0),
    "batched float": upsert(max_batched_tokens=1.5),
    "batched too large": upsert(max_batched_tokens=2**53 + 1),
    "batched bool": upsert(max_batched_tokens=True),
    "kv blocks zero": upsert(total_kv_blocks=0),
    "max requests zero": upsert(max_requests=0),
    "max requests text": upsert(max_requests="2"),
    "dp size too large": upsert(dp_size=65_537),
    "rate zero": upsert(prefill_tokens_per_s=0),
    "rate float": upsert(prefill_tokens_per_s=1.0),
    "rate too large": upsert(prefill_tokens_per_s=2**53 + 1),
    "taints none": upsert(taints=None),
    "taints int": upsert(taints=frozenset({1})),
    "taints surrogate": upsert(taints=frozenset({"gpu", "\udfff"})),
    "stored none": lambda now_ns: BlocksStored(now_ns, 1, 0, 0, None),
    "stored negative": lambda now_ns: BlocksStored(now_ns, 1, 0, 0, (-1,)),
    "stored incarnation": lambda now_ns: BlocksStored(now_ns, 1, 0, -1, ()),
    "removed text": lambda now_ns: BlocksRemoved(now_ns, 1, 0, 0, ("1",)),
    "removed incarnation": lambda now_ns: BlocksRemoved(now_ns, 1, 0, -1, ()),
    "cleared incarnation": lambda now_ns: BlocksCleared(now_ns, 1, 0, -1),
    "removed bool": lambda now_ns: BlocksRemoved(now_ns, 1, 0, 0, (True,)),
    "stored tier none": lambda now_ns: BlocksStored(now_ns, 1, 0, 0, (), None),
    "stored tier int": lambda now_ns: BlocksStored(now_ns, 1, 0, 0, (), 0),
    "removed tier text": lambda now_ns: BlocksRemoved(now_ns, 1, 0, 0, (), "host"),
    "cleared tier int": lambda now_ns: BlocksCleared(now_ns, 1, 0, 0, 1),
    "status incarnation": status(incarnation=-1),
    "status source none": status(source=None),
    "status source surrogate": status(source="\ud800"),
    "lease zero": status(lease_ns=0),
    "lease too large": status(lease_ns=2**62),
    "lease float": status(lease_ns=1.0),
    "lease bool": status(lease_ns=True),
    "report incarnation": report(incarnation=-1),
    "report sequence negative": report(sequence=-1),
    "report sequence too large": report(sequence=2**53 + 1),
    "report tokens negative": report(prefill_tokens=-1),
    "report blocks too large": report(blocks=2**53 + 1),
    "report requests negative": report(requests=-1),
    "accept id empty": lambda now_ns: DispatchAccepted(now_ns, "", 1),
    "accept attempt zero": lambda now_ns: DispatchAccepted(now_ns, "r1", 0),
    "fail id none": lambda now_ns: DispatchFailed(now_ns, None, 1),
    "fail attempt negative": lambda now_ns: DispatchFailed(now_ns, "r1", -1, True),
    "hint pair": lambda now_ns: CapacityHinted(now_ns, (Rank(1), (1, 0))),
    "hint none": lambda now_ns: CapacityHinted(now_ns, (None,)),
    "drain negative": lambda now_ns: Drained(now_ns, -1),
    "drain too late": lambda now_ns: Drained(now_ns, 2**62),
}
