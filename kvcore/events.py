"""Inputs of the core: past-tense facts, each stamped with the time at which its owner learned it (DESIGN 3.1).

Frozen dataclasses, written once here and given a C layout by events.pxd. `step` checks ranges and types of a whole
batch before it applies anything; an id, attempt or incarnation that is not current is *stale*: answered with
Ignored, counted, never an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from kvcore.policy import PolicyProfile
from kvcore.replica import FactKind, PeerFact, ReplicaFacts
from kvcore.request import Overlap, Rank, Request, WorkerConfig


class Outcome(IntEnum):
    """How a request's run ended."""

    COMPLETED = 0
    ABORTED = 1


class Tier(IntEnum):
    """Where an engine keeps a cached block."""

    DEVICE = 0
    HOST = 1
    DISK = 2


@dataclass(frozen=True)
class Event:
    """A fact. now_ns: 0 <= now_ns < 2^62, any monotonic origin; it never decreases from event to event."""

    now_ns: int


@dataclass(frozen=True)
class RequestArrived(Event):
    """A request asks to be scheduled.

    Origin: driver, once per request.
    Yields: Reject with a reason; or Dispatch in the same step if it may run now; or Park.
    """

    request: Request


@dataclass(frozen=True)
class RequestCancelled(Event):
    """The caller has gone: the request is removed wherever it is, and a booking is released as aborted.

    Unknown id: stale.
    """

    request_id: str


@dataclass(frozen=True)
class DispatchAccepted(Event):
    """The backend has taken the request. Any progress implies it; a repeat, or after progress: stale."""

    request_id: str
    attempt: int


@dataclass(frozen=True)
class DispatchFailed(Event):
    """The backend has not taken the request, or has lost it: its booking is undone exactly. The answer to an Evict.

    retry: put it back where it was in its class, if attempts_max, deadline and fleet allow it (DESIGN D11): yields
        Dispatch, Park or Reject. A WorkerStatusChanged with a lease, before it in the same batch, keeps it from going
        straight back. Without retry the request ends aborted.
    Unknown id or other attempt: stale.
    """

    request_id: str
    attempt: int
    retry: bool = False


@dataclass(frozen=True)
class PrefillCompleted(Event):
    """The worker has computed the whole prompt (first token): its prefill tokens are released, once.

    attempt: from the Dispatch. Unknown id or other attempt: stale; a repeat: stale.
    """

    request_id: str
    attempt: int


@dataclass(frozen=True)
class OutputBlockAdded(Event):
    """One more block of output. Never drains by itself.

    decay_fraction: weight in [0, 1] that this request's output blocks and the prompt blocks that only it uses shall
        have from now on, stored as floor(f * 2^20 + 0.5) (DESIGN D9); None: leave the weights.
    """

    request_id: str
    attempt: int
    decay_fraction: float | None = None


@dataclass(frozen=True)
class ContextAdvanced(Event):
    """The context of a running request has grown to so many tokens, prompt and output together: the maximum counts.

    Heard by the admission policy that manages it. Progress like OutputBlockAdded, also where the maximum stays.
    """

    request_id: str
    attempt: int
    context_tokens: int


@dataclass(frozen=True)
class AdmissionReleased(Event):
    """Somebody outside lets a deferred request go ahead (DESIGN D10). An id that is not deferred: stale.

    placement: pins it to this rank, unless it has a pin of its own; its class may change.
    """

    request_id: str
    placement: Rank | None = None


@dataclass(frozen=True)
class OverlapRefreshed(Event):
    """The answer to RefreshOverlap (DESIGN D13). Yields Dispatch, Reject, or Park where there is no room any more.

    ticket: from the question; another one, or a request that no longer waits for it: stale. overlap None: nothing new.
    """

    request_id: str
    ticket: int
    overlap: Overlap | None = None


@dataclass(frozen=True)
class RequestFinished(Event):
    """The run has ended; everything it held is released, exactly once.

    context_tokens: prompt and output together, or None if unknown.
    """

    request_id: str
    attempt: int
    outcome: Outcome = Outcome.COMPLETED
    context_tokens: int | None = None


@dataclass(frozen=True)
class WorkerUpserted(Event):
    """A worker exists with this configuration.

    incarnation: grows with every restart of the same worker_id. Higher than the current one: removal, then add (DESIGN
    D14). Equal: the configuration is replaced; ranks that fall out of a shrunk range are removed. Lower: stale.
    """

    config: WorkerConfig
    incarnation: int = 0


@dataclass(frozen=True)
class WorkerRemoved(Event):
    """A worker is gone: its bookings end (Evict), its index rows are purged. Unknown id: stale."""

    worker_id: int


@dataclass(frozen=True)
class BlocksStored(Event):
    """The engine has cached these blocks on a rank; duplicates of stored ones change nothing.

    block_hashes: names of blocks together with all that precedes them (see Request.block_hashes), in any order.
    Unknown rank or other incarnation: stale.
    """

    worker_id: int
    dp_rank: int
    incarnation: int
    block_hashes: tuple[int, ...]
    tier: Tier = Tier.DEVICE


@dataclass(frozen=True)
class BlocksRemoved(Event):
    """The engine has dropped these blocks of a rank; unknown ones change nothing. Unknown rank: stale."""

    worker_id: int
    dp_rank: int
    incarnation: int
    block_hashes: tuple[int, ...]
    tier: Tier = Tier.DEVICE


@dataclass(frozen=True)
class BlocksCleared(Event):
    """The engine has dropped every cached block of a rank: in this tier, or (None) in all. Unknown rank: stale."""

    worker_id: int
    dp_rank: int
    incarnation: int
    tier: Tier | None = None


@dataclass(frozen=True)
class WorkerStatusChanged(Event):
    """One source's opinion of a worker, in place of its earlier one. Opinions of several sources are OR-ed (D14).

    source: who says so, e.g. "health" or "router". available False: it gets nothing. overloaded: it gets nothing now.
    lease_ns: how long this holds, >= 1; None: until the same source says otherwise. A worker that is unavailable by
        leased opinions only counts as busy, not as gone.
    Unknown worker or other incarnation: stale.
    """

    worker_id: int
    incarnation: int
    source: str = ""
    available: bool = True
    overloaded: bool = False
    lease_ns: int | None = None


@dataclass(frozen=True)
class LoadReported(Event):
    """What an engine says of its own load; all of it, not a change. It never takes away what has been booked here.

    sequence: grows from report to report of a rank; not above the last one: stale. prefill_tokens, blocks, requests:
        as the engine counts them. What they are above the bookings of this scheduler counts as load of others, where
        SchedulerConfig.reported_load_ttl_ns is set.
    Unknown rank or other incarnation: stale.
    """

    worker_id: int
    dp_rank: int
    incarnation: int
    sequence: int
    prefill_tokens: int = 0
    blocks: int = 0
    requests: int = 0


@dataclass(frozen=True)
class CapacityHinted(Event):
    """Somebody has seen room: heads that may use these ranks are judged again. None, or a rank not known: all are."""

    ranks: tuple[Rank, ...] | None = None


@dataclass(frozen=True)
class PolicyReplaced(Event):
    """Another policy is in force from now on; every request keeps its place in time (DESIGN D16).

    Classes match by name. An equal profile changes nothing. SchedulerConfig.capacity, if set, still decides. A profile
    whose admission policies cannot be built is an InvalidEvent.
    """

    profile: PolicyProfile


@dataclass(frozen=True)
class Drained(Event):
    """Nothing more is let in, and what waits is rejected (SHUTTING_DOWN). Running requests may finish.

    deadline_ns: when those that still run are evicted; in the past: at once. A later Drained replaces it.
    """

    deadline_ns: int


@dataclass(frozen=True)
class PeerBooked(Event):
    """Another replica has booked a request (DESIGN D19): its load counts here as own load does. See PeerFact.

    Stale: what is known already, an attempt that is over, a rank or incarnation that is not here (PeerSynced brings it
    later), a generation that is over or lost, and what bears our own name. Peer* events never yield Ignored.
    """

    peer: str
    generation: int
    attempt: int
    worker_id: int
    dp_rank: int = 0
    incarnation: int = 0
    sequence_hashes: tuple[int, ...] = ()
    unnamed_blocks: int = 0
    prefill_tokens: int = 0
    reserve_blocks: int = 0


@dataclass(frozen=True)
class PeerPrefillCompleted(Event):
    """The prefill of another replica's booking is over. Remembered if the booking has yet to be heard of."""

    peer: str
    generation: int
    attempt: int


@dataclass(frozen=True)
class PeerReleased(Event):
    """Another replica's booking is over, for good: should it be heard of only now, it will not come back.

    completed: see PeerFact.
    """

    peer: str
    generation: int
    attempt: int
    completed: bool = False


@dataclass(frozen=True)
class PeerLost(Event):
    """A replica of this generation, or an older one, is gone: what it has booked is released, here and only here.

    Whatever it still has said is stale. A fact of a newer generation brings it back, and loses the older one by itself.
    The core has no time-out for replicas: whoever carries their facts notices that one has gone silent. One that was
    only out of reach must come back under a newer generation, if need be one that its driver writes into what it sends.
    """

    peer: str
    generation: int


@dataclass(frozen=True)
class PeerSynced(Event):
    """All that another replica had booked when it said so, as ReplicaFacts: our picture of it becomes that.

    Bookings below next_attempt that are not in facts are released, those that we lack are added; from next_attempt on
    nothing changes, for those are newer than the sync. What has been heard to be released stays so. A link that never
    loses a fact needs one when replicas meet; another one needs them now and then, also to forget what is long over.
    facts: in the order of ReplicaFacts; another order, or facts that name somebody else, are an InvalidEvent.
    """

    peer: str
    generation: int
    next_attempt: int
    facts: tuple[PeerFact, ...] = ()


@dataclass(frozen=True)
class TimerFired(Event):
    """Only time has passed. A spurious one is a no-op."""


AnyEvent: TypeAlias = (
    RequestArrived
    | RequestCancelled
    | DispatchAccepted
    | DispatchFailed
    | PrefillCompleted
    | OutputBlockAdded
    | ContextAdvanced
    | AdmissionReleased
    | OverlapRefreshed
    | RequestFinished
    | WorkerUpserted
    | WorkerRemoved
    | BlocksStored
    | BlocksRemoved
    | BlocksCleared
    | WorkerStatusChanged
    | LoadReported
    | CapacityHinted
    | PolicyReplaced
    | Drained
    | PeerBooked
    | PeerPrefillCompleted
    | PeerReleased
    | PeerLost
    | PeerSynced
    | TimerFired
)


def peer_event(
    now_ns: int, told: PeerFact | ReplicaFacts
) -> PeerBooked | PeerPrefillCompleted | PeerReleased | PeerSynced:
    """What a replica steps when it has received, at now_ns, what another one has told."""
    if isinstance(told, ReplicaFacts):
        return PeerSynced(now_ns, told.replica, told.generation, told.next_attempt, told.facts)
    if told.kind is FactKind.BOOKED:
        return PeerBooked(
            now_ns, told.replica, told.generation, told.attempt, told.worker_id, told.dp_rank, told.incarnation,
            told.sequence_hashes, told.unnamed_blocks, told.prefill_tokens, told.reserve_blocks)
    if told.kind is FactKind.PREFILL_COMPLETED:
        return PeerPrefillCompleted(now_ns, told.replica, told.generation, told.attempt)
    return PeerReleased(now_ns, told.replica, told.generation, told.attempt, told.completed)
