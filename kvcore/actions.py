"""Outputs of the core: imperatives (DESIGN 3.2). A driver carries them out in the order in which they stand.

Frozen dataclasses, written once here and given a C layout by actions.pxd. Reasons are IntEnums of few members, safe as
metric labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from kvcore.replica import PeerFact


class RejectReason(IntEnum):
    """Why a request ended without running."""

    DUPLICATE_ID = 1
    DEADLINE_EXPIRED = 2
    PINNED_WORKER_NOT_ALLOWED = 3
    PINNED_WORKER_UNAVAILABLE = 4
    NO_WORKERS = 5
    NO_ELIGIBLE_WORKER = 6
    QUEUE_FULL_REQUESTS = 7
    QUEUE_FULL_RAW_TOKENS = 8
    QUEUE_FULL_CACHED_TOKENS = 9
    WOULD_QUEUE = 10
    PINNED_WORKER_OVERLOADED = 11
    ALL_ELIGIBLE_OVERLOADED = 12
    TOO_LARGE = 13
    SHUTTING_DOWN = 14
    RETRIES_EXHAUSTED = 15
    ADMISSION_REFUSED = 16


class ParkReason(IntEnum):
    """Why a request waits: for capacity, or until its class's admission policy lets it go ahead (DESIGN D10)."""

    QUEUED = 1
    DEFERRED = 2


class EvictReason(IntEnum):
    """Why a booking is gone while its request is still live."""

    WORKER_REMOVED = 1
    BOOKING_EXPIRED = 2
    DRAIN_DEADLINE = 3


class IgnoredReason(IntEnum):
    """Why a fact changed nothing."""

    STALE = 1


@dataclass(frozen=True)
class Action:
    """A command to the driver."""


@dataclass(frozen=True)
class Dispatch(Action):
    """Send the request to this rank; its load is already booked.

    attempt: names this booking in every later fact; from one counter per scheduler, never reused.
    cached_tokens: prompt tokens expected in the rank's cache. overlap_blocks: the same in whole blocks, as looked up.
    prefill_tokens: prefill load booked. potential_decode_blocks: active blocks of the rank once the prompt is placed.
    wait_ns: from arrival to this decision.
    """

    request_id: str
    attempt: int
    worker_id: int
    dp_rank: int
    class_index: int
    cached_tokens: int
    overlap_blocks: int
    prefill_tokens: int
    potential_decode_blocks: int
    wait_ns: int


@dataclass(frozen=True)
class Reject(Action):
    """The request has ended without running.

    class_index: -1 before classification. current, limit, retry_after_ns: set for QUEUE_FULL_* only: usage, the bound
    that it met, and an estimate of when room will be there (None: unknown; DESIGN D18).
    """

    request_id: str
    reason: RejectReason
    class_index: int = -1
    current: int = 0
    limit: int = 0
    retry_after_ns: int | None = None


@dataclass(frozen=True)
class Park(Action):
    """The request waits; at most one Park per request and batch."""

    request_id: str
    class_index: int
    reason: ParkReason = ParkReason.QUEUED


@dataclass(frozen=True)
class Evict(Action):
    """The booking is gone, the request is still live: answer with DispatchFailed, RequestFinished or RequestCancelled.

    Unanswered for booking_ttl_ns the request ends aborted.
    """

    request_id: str
    attempt: int
    worker_id: int
    reason: EvictReason


@dataclass(frozen=True)
class RefreshOverlap(Action):
    """Ask an outside index what of this prompt is cached where, and answer with OverlapRefreshed (DESIGN D13).

    ticket: names this question. Unanswered for refresh_timeout_ns, the request goes on with what is known.
    """

    request_id: str
    ticket: int
    block_hashes: tuple[int, ...]


@dataclass(frozen=True)
class Ignored(Action):
    """The fact about this request changed nothing: how a driver tells "applied" from "no change".

    attempt: the one that the fact named, 0 for facts that name none, or a ticket.
    """

    request_id: str
    attempt: int
    reason: IgnoredReason = IgnoredReason.STALE


@dataclass(frozen=True)
class Publish(Action):
    """Tell the other replicas, which step `peer_event(now_ns, fact)` (DESIGN D19). Only with SchedulerConfig.replica.

    Stands right behind the Dispatch or Evict that it is about; else it is the first answer to the fact that it follows.
    Facts of one step are best stepped in one batch: room that was taken again at once is then not given twice.
    """

    fact: PeerFact


AnyAction: TypeAlias = Dispatch | Reject | Park | Evict | RefreshOverlap | Ignored | Publish
