"""How events, actions and configurations stand in a journal (DESIGN 6): the layout of format version 1.

It never changes; another layout is another version. Fields with a default value may be added: absent, it has it.

- An event or action is a list: the name of its class; its fields without a default in the order of their declaration;
  then, if any other field differs from its default, an object with those fields by name. Request and WorkerConfig are
  laid out the same way, and PeerFact, without the name.
- Overlap is an object with its fields that are not empty. SelectionWeights and the configuration are objects with every
  field, so that a later change of defaults does not change what was recorded.
- Block hashes are one text, 16 hexadecimal digits each. A frozenset is a sorted list. A rank is [worker_id, dp_rank],
  with a number [worker_id, dp_rank, number]. An enum stands by its value if that is text, else by its name.
- A number is written so that it reads back as the same one; "inf", "-inf" and "nan" are texts, for JSON lacks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvcore import actions, events
from kvcore._journal_codec import (
    FLAG,
    HASHES,
    INTEGER,
    PARAMETERS,
    RANK,
    REAL,
    TEXT,
    Row,
    Table,
    enum,
    optional,
    ranked,
    rows_of,
    set_of,
    shown,
    tuple_of,
)
from kvcore.config import IndexMode, OnOverload, PrefillDecay, Role, SchedulerConfig
from kvcore.policy import AdmissionSpec, Arbitration, CacheBucket, Capacity, PolicyClass, PolicyProfile, QueuePolicy
from kvcore.replica import FactKind, PeerFact
from kvcore.request import Overlap, Request, SelectionWeights, WorkerConfig

_COUNT = optional(INTEGER)

_WEIGHTS = Table(
    SelectionWeights, overlap_score_credit=REAL, overlap_score_credit_decay=REAL, prefill_load_scale=REAL,
    host_cache_hit_weight=REAL, disk_cache_hit_weight=REAL, shared_cache_multiplier=REAL, active_request_weight=REAL,
    temperature=REAL)

_OVERLAP = Table(
    Overlap, full=False, device=ranked(INTEGER), host=ranked(INTEGER), disk=ranked(INTEGER), effective=ranked(REAL),
    cached_tokens=ranked(INTEGER), shared=rows_of(INTEGER, INTEGER))

REQUEST = Row(
    Request, request_id=TEXT, prompt_tokens=INTEGER, policy_class=optional(TEXT), strict_priority=INTEGER,
    priority_jump=REAL, deadline_ns=_COUNT, do_not_queue=FLAG, pinned=optional(RANK),
    allowed_workers=optional(set_of(INTEGER)), block_hashes=HASHES, sequence_hashes=optional(HASHES),
    overlap=optional(_OVERLAP.layout()), expected_output_tokens=_COUNT, track_prefill=FLAG,
    required_taints=set_of(TEXT), preferred_taints=rows_of(TEXT, REAL), weights=optional(_WEIGHTS.layout()),
    session_id=optional(TEXT), lifecycle=FLAG)

WORKER = Row(
    WorkerConfig, worker_id=INTEGER, dp_start=INTEGER, dp_size=INTEGER, max_batched_tokens=_COUNT,
    total_kv_blocks=_COUNT, max_requests=_COUNT, taints=set_of(TEXT), prefill_tokens_per_s=_COUNT)

_CLASS = Table(
    PolicyClass, name=TEXT, quantum=INTEGER, queue_policy=enum(QueuePolicy), policy_family=optional(TEXT),
    cache_bucket=optional(TEXT), prefill_busy_threshold=_COUNT, prefill_busy_threshold_frac=optional(REAL),
    request_queue_limit_per_worker=_COUNT, raw_isl_token_queue_limit_per_worker=_COUNT,
    cached_token_queue_limit_per_worker=_COUNT, max_overtake_tokens=_COUNT,
    admission=optional(Table(AdmissionSpec, type=TEXT, parameters=PARAMETERS).layout()))

PROFILE = Table(
    PolicyProfile, classes=tuple_of(_CLASS.layout()),
    buckets=tuple_of(Table(CacheBucket, name=TEXT, min_tokens=INTEGER).layout()), default_policy_family=optional(TEXT),
    arbitration=enum(Arbitration), capacity=enum(Capacity))

CONFIG = Table(
    SchedulerConfig, block_size=INTEGER, profile=optional(PROFILE.layout()), default_queue_policy=enum(QueuePolicy),
    default_busy_threshold_frac=optional(REAL), booking_ttl_ns=_COUNT, index=enum(IndexMode), seed=INTEGER,
    weights=_WEIGHTS.layout(), role=enum(Role), on_overload=enum(OnOverload), overload_wait_ns=INTEGER,
    prefill_decay=enum(PrefillDecay), predict_ttl_ns=_COUNT, reported_load_ttl_ns=_COUNT,
    capacity=optional(enum(Capacity)), attempts_max=INTEGER, refresh_after_ns=_COUNT, refresh_timeout_ns=INTEGER,
    pin_grace_ns=INTEGER, empty_fleet_wait_ns=INTEGER, decisions_kept=INTEGER, replica=optional(TEXT),
    replica_generation=INTEGER)

_TIER = enum(events.Tier)
_RUN = {"now_ns": INTEGER, "request_id": TEXT, "attempt": INTEGER}
_AT_RANK = {"now_ns": INTEGER, "worker_id": INTEGER, "dp_rank": INTEGER, "incarnation": INTEGER}
_PEER = {"now_ns": INTEGER, "peer": TEXT, "generation": INTEGER}
_PEER_LOAD = {
    "worker_id": INTEGER, "dp_rank": INTEGER, "incarnation": INTEGER, "sequence_hashes": HASHES,
    "unnamed_blocks": INTEGER, "prefill_tokens": INTEGER, "reserve_blocks": INTEGER}
_FACT = Row(
    PeerFact, kind=enum(FactKind), replica=TEXT, generation=INTEGER, attempt=INTEGER, **_PEER_LOAD, completed=FLAG)

#: By class, as the other table below.
EVENTS: dict[type[events.Event], Row] = {row.kind: row for row in (
    Row(events.RequestArrived, "RequestArrived", now_ns=INTEGER, request=REQUEST.layout()),
    Row(events.RequestCancelled, "RequestCancelled", now_ns=INTEGER, request_id=TEXT),
    Row(events.DispatchAccepted, "DispatchAccepted", **_RUN),
    Row(events.DispatchFailed, "DispatchFailed", **_RUN, retry=FLAG),
    Row(events.PrefillCompleted, "PrefillCompleted", **_RUN),
    Row(events.OutputBlockAdded, "OutputBlockAdded", **_RUN, decay_fraction=optional(REAL)),
    Row(events.ContextAdvanced, "ContextAdvanced", **_RUN, context_tokens=INTEGER),
    Row(events.AdmissionReleased, "AdmissionReleased", now_ns=INTEGER, request_id=TEXT, placement=optional(RANK)),
    Row(events.OverlapRefreshed, "OverlapRefreshed", now_ns=INTEGER, request_id=TEXT, ticket=INTEGER,
        overlap=optional(_OVERLAP.layout())),
    Row(events.RequestFinished, "RequestFinished", **_RUN, outcome=enum(events.Outcome), context_tokens=_COUNT),
    Row(events.WorkerUpserted, "WorkerUpserted", now_ns=INTEGER, config=WORKER.layout(), incarnation=INTEGER),
    Row(events.WorkerRemoved, "WorkerRemoved", now_ns=INTEGER, worker_id=INTEGER),
    Row(events.BlocksStored, "BlocksStored", **_AT_RANK, block_hashes=HASHES, tier=_TIER),
    Row(events.BlocksRemoved, "BlocksRemoved", **_AT_RANK, block_hashes=HASHES, tier=_TIER),
    Row(events.BlocksCleared, "BlocksCleared", **_AT_RANK, tier=optional(_TIER)),
    Row(events.WorkerStatusChanged, "WorkerStatusChanged", now_ns=INTEGER, worker_id=INTEGER, incarnation=INTEGER,
        source=TEXT, available=FLAG, overloaded=FLAG, lease_ns=_COUNT),
    Row(events.LoadReported, "LoadReported", **_AT_RANK, sequence=INTEGER, prefill_tokens=INTEGER, blocks=INTEGER,
        requests=INTEGER),
    Row(events.CapacityHinted, "CapacityHinted", now_ns=INTEGER, ranks=optional(tuple_of(RANK))),
    Row(events.PolicyReplaced, "PolicyReplaced", now_ns=INTEGER, profile=PROFILE.layout()),
    Row(events.Drained, "Drained", now_ns=INTEGER, deadline_ns=INTEGER),
    Row(events.PeerBooked, "PeerBooked", **_PEER, attempt=INTEGER, **_PEER_LOAD),
    Row(events.PeerPrefillCompleted, "PeerPrefillCompleted", **_PEER, attempt=INTEGER),
    Row(events.PeerReleased, "PeerReleased", **_PEER, attempt=INTEGER, completed=FLAG),
    Row(events.PeerLost, "PeerLost", **_PEER),
    Row(events.PeerSynced, "PeerSynced", **_PEER, next_attempt=INTEGER, facts=tuple_of(_FACT.layout())),
    Row(events.TimerFired, "TimerFired", now_ns=INTEGER),
)}

ACTIONS: dict[type[actions.Action], Row] = {row.kind: row for row in (
    Row(actions.Dispatch, "Dispatch", request_id=TEXT, attempt=INTEGER, worker_id=INTEGER, dp_rank=INTEGER,
        class_index=INTEGER, cached_tokens=INTEGER, overlap_blocks=INTEGER, prefill_tokens=INTEGER,
        potential_decode_blocks=INTEGER, wait_ns=INTEGER),
    Row(actions.Reject, "Reject", request_id=TEXT, reason=enum(actions.RejectReason), class_index=INTEGER,
        current=INTEGER, limit=INTEGER, retry_after_ns=_COUNT),
    Row(actions.Park, "Park", request_id=TEXT, class_index=INTEGER, reason=enum(actions.ParkReason)),
    Row(actions.Evict, "Evict", request_id=TEXT, attempt=INTEGER, worker_id=INTEGER,
        reason=enum(actions.EvictReason)),
    Row(actions.RefreshOverlap, "RefreshOverlap", request_id=TEXT, ticket=INTEGER, block_hashes=HASHES),
    Row(actions.Publish, "Publish", fact=_FACT.layout()),
    Row(actions.Ignored, "Ignored", request_id=TEXT, attempt=INTEGER, reason=enum(actions.IgnoredReason)),
)}

_EVENT_NAMES = {row.head[0]: row for row in EVENTS.values()}
_ACTION_NAMES = {row.head[0]: row for row in ACTIONS.values()}


def read_events(rows: list[Any]) -> tuple[events.AnyEvent, ...]:
    """The events of a batch. Raises: ValueError, OverflowError."""
    return _read_all("event", _EVENT_NAMES, rows)


def read_actions(rows: list[Any]) -> tuple[actions.AnyAction, ...]:
    """The actions of a batch. Raises: ValueError, OverflowError."""
    return _read_all("action", _ACTION_NAMES, rows)


def _read_all(what: str, rows_by_name: Mapping[str, Row], rows: list[Any]) -> tuple[Any, ...]:
    found: list[Any] = []
    for row in rows:
        if type(row) is not list or not row or type(row[0]) is not str:
            raise ValueError(f"{what} {len(found)}: must be a list that begins with a name, not {shown(row)}")
        kind = rows_by_name.get(row[0])
        if kind is None:
            raise ValueError(f"{what} {len(found)}: unknown kind {shown(row[0])}")
        try:
            found.append(kind.decode(row))
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{what} {len(found)} ({row[0]}): {error}") from None
    return tuple(found)
