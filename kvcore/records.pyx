"""Events and actions as rows of numpy structured arrays: the language of `Scheduler.step_array`.

A request is named by its handle, an integer h in 0..10^18-1; it is the request whose request_id is str(h), also for
`step`, `explain` and the journal. Rows of zeros are the defaults: make an array with numpy.zeros(n, EVENT_DTYPE) and
fill in the kind, the time and what the kind needs.

Not expressible as rows: requests with pins, allow-lists, taints, overlap, weights, sequence hashes or a session, and
facts about workers, policies and replicas. Use `step` for these, between arrays; both see the same scheduler.
"""
import numpy

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.math cimport isfinite
from libc.string cimport memset
from kvcore._slots cimport NO_NUMBER, number_in
from kvcore._types cimport NS_END, ceil_div
from kvcore.actions cimport Dispatch, Evict, Ignored, Park, RefreshOverlap, Reject
from kvcore.events cimport (
    BlocksRemoved, BlocksStored, ContextAdvanced, DispatchAccepted, DispatchFailed, OutputBlockAdded, PrefillCompleted,
    RequestArrived, RequestCancelled, RequestFinished, TimerFired)
from kvcore.request cimport Request

from enum import IntEnum

from kvcore.actions import EvictReason, IgnoredReason, ParkReason, RejectReason
from kvcore.errors import InvalidEvent
from kvcore.events import Outcome, Tier

__all__ = ["ACTION_DTYPE", "EVENT_DTYPE", "ActionKind", "EventKind", "actions_from_records", "records_from_events"]

cdef int64_t TOKENS_MAX = <int64_t>1 << 53
cdef int64_t HANDLE_END = 10**18
cdef tuple TIERS = tuple(Tier)


class EventKind(IntEnum):
    """Which event a row of EVENT_DTYPE is."""

    REQUEST_ARRIVED = EVENT_ARRIVED
    REQUEST_CANCELLED = EVENT_CANCELLED
    DISPATCH_ACCEPTED = EVENT_ACCEPTED
    DISPATCH_FAILED = EVENT_FAILED
    PREFILL_COMPLETED = EVENT_PREFILL_COMPLETED
    OUTPUT_BLOCK_ADDED = EVENT_OUTPUT_BLOCK_ADDED
    CONTEXT_ADVANCED = EVENT_CONTEXT_ADVANCED
    REQUEST_FINISHED = EVENT_FINISHED
    BLOCKS_STORED = EVENT_BLOCKS_STORED
    BLOCKS_REMOVED = EVENT_BLOCKS_REMOVED
    TIMER_FIRED = EVENT_TIMER


class ActionKind(IntEnum):
    """Which action a row of ACTION_DTYPE is."""

    DISPATCH = ACTION_DISPATCH
    REJECT = ACTION_REJECT
    PARK = ACTION_PARK
    EVICT = ACTION_EVICT
    IGNORED = ACTION_IGNORED
    REFRESH_OVERLAP = ACTION_REFRESH_OVERLAP


#: One event. Fields mean what they mean on the events themselves (kvcore.events, kvcore.Request); those that a kind
#: does not have are not read. deadline_ns, expected_output_tokens, context_tokens: 0 for none. policy_class: 0 for
#: none, else k for the k-th of the names given to step_array. first_hash, hashes: where in the array of hashes given to
#: step_array the block hashes stand, and how many there are. decay_fraction counts where decays is not 0. untracked:
#: track_prefill is False. aborted: the outcome is ABORTED. tier: 0 device, 1 host, 2 disk.
EVENT_DTYPE = numpy.dtype([
    ("now_ns", "<i8"), ("request", "<i8"), ("attempt", "<i8"), ("prompt_tokens", "<i8"), ("deadline_ns", "<i8"),
    ("expected_output_tokens", "<i8"), ("context_tokens", "<i8"), ("priority_jump", "<f8"), ("decay_fraction", "<f8"),
    ("worker_id", "<u8"), ("incarnation", "<i8"), ("first_hash", "<i8"), ("hashes", "<i4"), ("strict_priority", "<u4"),
    ("dp_rank", "<u4"), ("policy_class", "<i4"), ("kind", "u1"), ("do_not_queue", "u1"), ("untracked", "u1"),
    ("decays", "u1"), ("aborted", "u1"), ("retry", "u1"), ("tier", "u1"), ("spare", "u1")])

#: One action. event: index of the row that led to it. reason: value of the RejectReason, ParkReason, EvictReason or
#: IgnoredReason. retry_after_ns: -1 for None. class_index: -1 before classification. A refresh names its ticket; the
#: hashes are those that the request has come with. Fields that a kind does not have are 0.
ACTION_DTYPE = numpy.dtype([
    ("event", "<i8"), ("request", "<i8"), ("attempt", "<i8"), ("worker_id", "<u8"), ("overlap_blocks", "<i8"),
    ("cached_tokens", "<i8"), ("prefill_tokens", "<i8"), ("potential_decode_blocks", "<i8"), ("wait_ns", "<i8"),
    ("current", "<i8"), ("limit", "<i8"), ("retry_after_ns", "<i8"), ("ticket", "<i8"), ("dp_rank", "<u4"),
    ("class_index", "<i4"), ("kind", "u1"), ("reason", "u1"), ("spare", "u1", (6,))])

assert EVENT_DTYPE.itemsize == sizeof(event_record_t) and ACTION_DTYPE.itemsize == sizeof(action_record_t)


cdef enum fault_t:
    FAULT_NONE
    FAULT_KIND
    FAULT_TIME
    FAULT_ORDER
    FAULT_HANDLE
    FAULT_ATTEMPT
    FAULT_PROMPT
    FAULT_DEADLINE
    FAULT_EXPECTED
    FAULT_CLASS
    FAULT_HASHES
    FAULT_TOO_MANY_HASHES
    FAULT_FRACTION
    FAULT_CONTEXT
    FAULT_INCARNATION
    FAULT_TIER


cdef enum:
    MANY = 256                 # rows whose check takes longer than giving the interpreter lock away


cdef tuple FAULTS = (
    "", "kind must be an EventKind, not {kind}", "now_ns must be 0..2^62-1, not {now_ns}",
    "time went back: now_ns {now_ns} after {last_ns}", "request must be 0..10^18-1, not {request}",
    "attempt must be >= 1, not {attempt}", "prompt_tokens must be 1..2^53, not {prompt_tokens}",
    "deadline_ns must be 0..2^62-1, not {deadline_ns}",
    "expected_output_tokens must be 0..2^53, not {expected_output_tokens}",
    "policy_class must be 0..{names}, not {policy_class}",
    "hashes must lie within the array of hashes, not {first_hash} + {hashes} of {hash_count}",
    "{hashes} block_hashes for {prompt_tokens} prompt tokens", "decay_fraction must be in [0, 1], not {decay_fraction}",
    "context_tokens must be 0..2^53, not {context_tokens}", "incarnation must be >= 0, not {incarnation}",
    "tier must be 0..2, not {tier}")


cdef void* memory_of(object array) except NULL:
    """Where the items of a contiguous array lie, while it lives. A memoryview of it would cost ten times as much."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
    PyBuffer_Release(&view)
    return view.buf


cdef int check(const batch_t* batch, ns_t last_ns, int64_t block_size) except -1:
    """What `accept` checks of events, of all rows: raises InvalidEvent.

    Where there are many, the interpreter lock is released meanwhile.
    """
    cdef int64_t i
    cdef fault_t fault = FAULT_NONE
    if batch.count < MANY:
        i = _first_fault(batch, last_ns, block_size, &fault)
    else:
        with nogil:
            i = _first_fault(batch, last_ns, block_size, &fault)
    if fault == FAULT_NONE:
        return 0
    told = dict(batch.events[i], names=batch.names, hash_count=batch.hash_count,
                last_ns=last_ns if i == 0 else batch.events[i - 1].now_ns)
    raise InvalidEvent(i, FAULTS[<int>fault].format(**told))


cdef int64_t _first_fault(const batch_t* batch, ns_t last_ns, int64_t block_size, fault_t* fault) noexcept nogil:
    """The first row with a fault, and which; without one all are counted."""
    cdef int64_t i
    for i in range(batch.count):
        fault[0] = _fault(batch, i, last_ns, block_size)
        if fault[0] != FAULT_NONE:
            return i
        last_ns = batch.events[i].now_ns
    return batch.count


cdef fault_t _fault(const batch_t* batch, int64_t i, ns_t last_ns, int64_t block_size) noexcept nogil:
    cdef const event_record_t* record = &batch.events[i]
    cdef int kind = record.kind
    if kind == EVENT_NONE or kind >= EVENT_KINDS:
        return FAULT_KIND
    if not 0 <= record.now_ns < NS_END:
        return FAULT_TIME
    if record.now_ns < last_ns:
        return FAULT_ORDER
    if kind == EVENT_TIMER:
        return FAULT_NONE
    if kind == EVENT_BLOCKS_STORED or kind == EVENT_BLOCKS_REMOVED:
        if record.incarnation < 0:
            return FAULT_INCARNATION
        return FAULT_TIER if record.tier > 2 else _hash_fault(batch, record)
    if not 0 <= record.request < HANDLE_END:
        return FAULT_HANDLE
    if kind == EVENT_ARRIVED:
        return _arrival_fault(batch, record, block_size)
    if kind == EVENT_CANCELLED:
        return FAULT_NONE
    if record.attempt < 1:
        return FAULT_ATTEMPT
    if kind == EVENT_OUTPUT_BLOCK_ADDED and record.decays:
        if not isfinite(record.decay_fraction) or not 0.0 <= record.decay_fraction <= 1.0:
            return FAULT_FRACTION
    if kind == EVENT_FINISHED or kind == EVENT_CONTEXT_ADVANCED:
        if not 0 <= record.context_tokens <= TOKENS_MAX:
            return FAULT_CONTEXT
    return FAULT_NONE


cdef fault_t _arrival_fault(const batch_t* batch, const event_record_t* record, int64_t block_size) noexcept nogil:
    if not 1 <= record.prompt_tokens <= TOKENS_MAX:
        return FAULT_PROMPT
    if not 0 <= record.deadline_ns < NS_END:
        return FAULT_DEADLINE
    if not 0 <= record.expected_output_tokens <= TOKENS_MAX:
        return FAULT_EXPECTED
    if not 0 <= record.policy_class <= batch.names:
        return FAULT_CLASS
    if record.hashes > ceil_div(record.prompt_tokens, block_size):
        return FAULT_TOO_MANY_HASHES
    return _hash_fault(batch, record)


cdef fault_t _hash_fault(const batch_t* batch, const event_record_t* record) noexcept nogil:
    if record.hashes == 0:
        return FAULT_NONE
    if record.hashes < 0 or record.first_hash < 0 or record.first_hash > batch.hash_count - record.hashes:
        return FAULT_HASHES
    return FAULT_NONE


cdef Event event_of(const event_record_t* record, const uint64_t* hashes, tuple names):
    """The event that a checked row is."""
    cdef int kind = record.kind
    cdef ns_t now_ns = record.now_ns
    cdef int32_t i
    context_tokens = record.context_tokens if record.context_tokens else None
    if kind == EVENT_TIMER:
        return TimerFired(now_ns)
    if kind == EVENT_BLOCKS_STORED or kind == EVENT_BLOCKS_REMOVED:
        blocks = tuple([hashes[record.first_hash + i] for i in range(record.hashes)])
        return (BlocksStored if kind == EVENT_BLOCKS_STORED else BlocksRemoved)(
            now_ns, record.worker_id, record.dp_rank, record.incarnation, blocks, TIERS[record.tier])
    request_id = str(record.request)
    if kind == EVENT_ARRIVED:
        return RequestArrived(now_ns, Request(
            request_id, record.prompt_tokens, names[record.policy_class - 1] if record.policy_class else None,
            record.strict_priority, record.priority_jump, record.deadline_ns if record.deadline_ns else None,
            record.do_not_queue != 0,
            block_hashes=tuple([hashes[record.first_hash + i] for i in range(record.hashes)]),
            expected_output_tokens=record.expected_output_tokens if record.expected_output_tokens else None,
            track_prefill=not record.untracked))
    if kind == EVENT_CANCELLED:
        return RequestCancelled(now_ns, request_id)
    if kind == EVENT_ACCEPTED:
        return DispatchAccepted(now_ns, request_id, record.attempt)
    if kind == EVENT_FAILED:
        return DispatchFailed(now_ns, request_id, record.attempt, record.retry != 0)
    if kind == EVENT_PREFILL_COMPLETED:
        return PrefillCompleted(now_ns, request_id, record.attempt)
    if kind == EVENT_OUTPUT_BLOCK_ADDED:
        return OutputBlockAdded(
            now_ns, request_id, record.attempt, record.decay_fraction if record.decays else None)
    if kind == EVENT_CONTEXT_ADVANCED:
        return ContextAdvanced(now_ns, request_id, record.attempt, record.context_tokens)
    return RequestFinished(
        now_ns, request_id, record.attempt, Outcome.ABORTED if record.aborted else Outcome.COMPLETED, context_tokens)


cdef int fill_action(action_record_t* record, object action) except -1:
    """The row of an action; all but its event. Its request has a handle."""
    cdef int64_t event = record.event
    memset(record, 0, sizeof(action_record_t))
    record.event = event
    if isinstance(action, Dispatch):
        record.kind = ACTION_DISPATCH
        record.attempt = (<Dispatch>action).attempt
        record.worker_id = (<Dispatch>action).worker_id
        record.dp_rank = (<Dispatch>action).dp_rank
        record.class_index = (<Dispatch>action).class_index
        record.overlap_blocks = (<Dispatch>action).overlap_blocks
        record.cached_tokens = (<Dispatch>action).cached_tokens
        record.prefill_tokens = (<Dispatch>action).prefill_tokens
        record.potential_decode_blocks = (<Dispatch>action).potential_decode_blocks
        record.wait_ns = (<Dispatch>action).wait_ns
    elif isinstance(action, Reject):
        record.kind = ACTION_REJECT
        record.reason = (<Reject>action).reason
        record.class_index = (<Reject>action).class_index
        record.current = (<Reject>action).current
        record.limit = (<Reject>action).limit
        record.retry_after_ns = -1 if (<Reject>action).retry_after_ns is None else (<Reject>action).retry_after_ns
    elif isinstance(action, Park):
        record.kind = ACTION_PARK
        record.reason = (<Park>action).reason
        record.class_index = (<Park>action).class_index
    elif isinstance(action, Evict):
        record.kind = ACTION_EVICT
        record.reason = (<Evict>action).reason
        record.attempt = (<Evict>action).attempt
        record.worker_id = (<Evict>action).worker_id
    elif isinstance(action, Ignored):
        record.kind = ACTION_IGNORED
        record.reason = (<Ignored>action).reason
        record.attempt = (<Ignored>action).attempt
    elif isinstance(action, RefreshOverlap):
        record.kind = ACTION_REFRESH_OVERLAP
        record.ticket = (<RefreshOverlap>action).ticket
    else:
        raise TypeError(f"no row can hold a {type(action).__name__}")
    record.request = number_in(action.request_id) if action.request_id else -1
    return 0


def records_from_events(events, names=()):
    """Events as rows: (array of EVENT_DTYPE, array of hashes), for step_array with these class names.

    Raises ValueError for an event that no row can hold, or whose request_id writes out no handle.
    """
    events = tuple(events)
    table = numpy.zeros(len(events), EVENT_DTYPE)
    numbers = {name: k + 1 for k, name in enumerate(names)}
    hashes = []
    for at, event in enumerate(events):
        row = _row_of(event, numbers, hashes)
        for value in row.values():
            if value is not None and type(value) not in (int, float, bool):
                raise ValueError(f"no row can hold {event!r}")
        for name, value in row.items():
            table[at][name] = value
    for block_hash in hashes:
        if type(block_hash) is not int:
            raise ValueError(f"a hash must be an integer, not {block_hash!r}")
    return table, numpy.array(hashes, numpy.uint64)


cdef dict _row_of(object event, dict numbers, list hashes):
    cdef Request request
    kind = type(event)
    if not isinstance(event, Event):
        raise ValueError(f"not an event: {kind.__name__}")
    row = {"now_ns": event.now_ns}
    if kind is RequestArrived:
        if event.request is None:
            raise ValueError("no row can hold an arrival without a request")
        request = event.request
        if request != Request(
                request.request_id, request.prompt_tokens, request.policy_class, request.strict_priority,
                request.priority_jump, request.deadline_ns, request.do_not_queue, block_hashes=request.block_hashes,
                expected_output_tokens=request.expected_output_tokens, track_prefill=request.track_prefill):
            raise ValueError(f"no row can hold {request!r}")
        for value in (request.expected_output_tokens, request.deadline_ns):
            if value is not None and (type(value) is not int or value == 0):
                raise ValueError(f"no row can hold {request!r}")
        row |= {"kind": EVENT_ARRIVED, "request": _handle(request.request_id), "prompt_tokens": request.prompt_tokens,
                "policy_class": 0 if request.policy_class is None else numbers[request.policy_class],
                "strict_priority": request.strict_priority, "priority_jump": request.priority_jump,
                "deadline_ns": request.deadline_ns or 0, "do_not_queue": request.do_not_queue,
                "expected_output_tokens": request.expected_output_tokens or 0, "untracked": not request.track_prefill,
                "first_hash": len(hashes), "hashes": len(request.block_hashes)}
        hashes += request.block_hashes
        return row
    if kind is TimerFired:
        return row | {"kind": EVENT_TIMER}
    if kind is BlocksStored or kind is BlocksRemoved:
        row |= {"kind": EVENT_BLOCKS_STORED if kind is BlocksStored else EVENT_BLOCKS_REMOVED,
                "worker_id": event.worker_id, "dp_rank": event.dp_rank, "incarnation": event.incarnation,
                "tier": TIERS.index(event.tier), "first_hash": len(hashes), "hashes": len(event.block_hashes)}
        hashes += event.block_hashes
        return row
    if kind not in RUN_KINDS:
        raise ValueError(f"no row can hold a {kind.__name__}")
    row |= {"kind": RUN_KINDS[kind], "request": _handle(event.request_id)}
    if kind is not RequestCancelled:
        row["attempt"] = event.attempt
    if kind is DispatchFailed:
        row["retry"] = event.retry
    elif kind is OutputBlockAdded and event.decay_fraction is not None:
        if type(event.decay_fraction) not in (int, float):
            raise ValueError(f"no row can hold {event!r}")
        row |= {"decays": True, "decay_fraction": event.decay_fraction}
    elif kind is ContextAdvanced:
        row["context_tokens"] = event.context_tokens
    elif kind is RequestFinished:
        tokens = event.context_tokens
        if not isinstance(event.outcome, Outcome) or (
                tokens is not None and (type(tokens) is not int or tokens == 0)):
            raise ValueError(f"no row can hold {event!r}")
        row |= {"aborted": event.outcome is Outcome.ABORTED, "context_tokens": event.context_tokens or 0}
    return row


cdef dict RUN_KINDS = {
    RequestCancelled: EVENT_CANCELLED, DispatchAccepted: EVENT_ACCEPTED, DispatchFailed: EVENT_FAILED,
    PrefillCompleted: EVENT_PREFILL_COMPLETED, OutputBlockAdded: EVENT_OUTPUT_BLOCK_ADDED,
    ContextAdvanced: EVENT_CONTEXT_ADVANCED, RequestFinished: EVENT_FINISHED}


cdef object _handle(str request_id):
    cdef int64_t number = number_in(request_id)
    if number == NO_NUMBER:
        raise ValueError(f"request_id {request_id!r} writes out no handle")
    return number


def actions_from_records(records):
    """The actions that rows of ACTION_DTYPE are: a tuple. A RefreshOverlap lacks its block hashes."""
    return tuple([_action_of(row) for row in records])


cdef object _action_of(object row):
    cdef int kind = row["kind"]
    request_id = str(row["request"])
    if kind == ACTION_DISPATCH:
        return Dispatch(request_id, *[int(row[name]) for name in (
            "attempt", "worker_id", "dp_rank", "class_index", "cached_tokens", "overlap_blocks", "prefill_tokens",
            "potential_decode_blocks", "wait_ns")])
    if kind == ACTION_REJECT:
        retry_ns = int(row["retry_after_ns"])
        return Reject(request_id, RejectReason(row["reason"]), int(row["class_index"]), int(row["current"]),
                      int(row["limit"]), None if retry_ns < 0 else retry_ns)
    if kind == ACTION_PARK:
        return Park(request_id, int(row["class_index"]), ParkReason(row["reason"]))
    if kind == ACTION_EVICT:
        return Evict(request_id, int(row["attempt"]), int(row["worker_id"]), EvictReason(row["reason"]))
    if kind == ACTION_IGNORED:
        return Ignored(request_id, int(row["attempt"]), IgnoredReason(row["reason"]))
    return RefreshOverlap(request_id, int(row["ticket"]), ())
