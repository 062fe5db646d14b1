"""The door of `step`: context-free checks of a whole batch before the first write (DESIGN 3, item 2).

Owns nothing and changes nothing. Whatever depends on the scheduler's state is not an error and is not looked at
here. Types that the compiled dataclasses enforce at construction (text, C integers) are not checked again.

Cost: O(1) per event, plus O(length) of its tuples.
"""
from cpython.float cimport PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.ref cimport PyObject
from libc.math cimport isfinite
from kvcore._policies cimport Policies
from kvcore._types cimport NS_END, ceil_div, read_uint64, uint64_t
from kvcore._workers cimport DP_SIZE_MAX
from kvcore.config import weights_fault
from kvcore.errors import InvalidEvent
from kvcore.events import Outcome, Tier
from kvcore.policy import PolicyProfile
from kvcore.replica import FactKind
from kvcore.events cimport (
    AdmissionReleased, BlocksCleared, BlocksRemoved, BlocksStored, CapacityHinted, ContextAdvanced, DispatchAccepted,
    DispatchFailed, Drained, Event, LoadReported, OutputBlockAdded, OverlapRefreshed, PeerBooked, PeerLost,
    PeerPrefillCompleted, PeerReleased, PeerSynced, PolicyReplaced, PrefillCompleted, RequestArrived, RequestCancelled,
    RequestFinished, TimerFired, WorkerRemoved, WorkerStatusChanged, WorkerUpserted)
from kvcore.replica cimport PeerFact
from kvcore.request cimport Overlap, Rank, Request, WorkerConfig

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    bint PyUnicode_IS_COMPACT_ASCII(object text) noexcept
    Py_ssize_t PyTuple_GET_SIZE(object items) noexcept
    Py_ssize_t PySet_GET_SIZE(object items) noexcept
    PyObject* PyTuple_GET_ITEM(object items, Py_ssize_t i) noexcept

cdef int64_t TOKENS_MAX = <int64_t>1 << 53
cdef int64_t BLOCKS_MAX = (<int64_t>1 << 31) - 1
cdef int64_t ATTEMPT_MAX = <int64_t>1 << 62
cdef object BOOKED = FactKind.BOOKED
cdef object PREFILL_COMPLETED = FactKind.PREFILL_COMPLETED


cdef list accept(tuple events, ns_t last_ns, int64_t block_size, Policies policies):
    """Check a batch that follows an event at last_ns. Raises InvalidEvent.

    Returns the fresh admission policies of each PolicyReplaced in it: what cannot be built is refused here. None: there
    is no such event.
    """
    cdef list built = None
    cdef Py_ssize_t index = 0
    for item in events:
        policies_of = accept_one(item, index, last_ns, block_size, policies)
        if policies_of is not None:
            built = [] if built is None else built
            built.append(policies_of)
        last_ns = (<Event>item).now_ns
        index += 1
    return built


cdef list accept_one(object event, Py_ssize_t index, ns_t last_ns, int64_t block_size, Policies policies):
    """The same for one event; index: of it in its batch. Returns the policies of a PolicyReplaced, else None."""
    try:
        if not isinstance(event, Event):
            raise ValueError(f"not an event: {type(event).__name__}")
        if not 0 <= (<Event>event).now_ns < NS_END:
            raise ValueError(f"now_ns must be 0..2^62-1, not {(<Event>event).now_ns}")
        if (<Event>event).now_ns < last_ns:
            raise ValueError(f"time went back: now_ns {(<Event>event).now_ns} after {last_ns}")
        _check(<Event>event, block_size)
        return policies.build((<PolicyReplaced>event).profile) if type(event) is PolicyReplaced else None
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidEvent(index, str(error)) from None


cdef int accept_request(Request request, int64_t block_size) except -1:
    """The same for a request that would arrive now."""
    try:
        return _check_request(request, block_size)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidEvent(0, str(error)) from None


cdef int _check(Event event, int64_t block_size) except -1:
    cdef object kind = type(event)
    if kind is RequestArrived:
        _check_request((<RequestArrived>event).request, block_size)
    elif kind is PrefillCompleted:
        _check_run((<PrefillCompleted>event).request_id, (<PrefillCompleted>event).attempt)
    elif kind is OutputBlockAdded:
        _check_run((<OutputBlockAdded>event).request_id, (<OutputBlockAdded>event).attempt)
        _check_fraction((<OutputBlockAdded>event).decay_fraction)
    elif kind is RequestFinished:
        _check_run((<RequestFinished>event).request_id, (<RequestFinished>event).attempt)
        if not isinstance((<RequestFinished>event).outcome, Outcome):
            raise ValueError(f"outcome must be an Outcome, not {(<RequestFinished>event).outcome!r}")
        _check_count("context_tokens", (<RequestFinished>event).context_tokens, 0)
    elif kind is BlocksStored:
        _check_hashes("block_hashes", (<BlocksStored>event).block_hashes)
        _check_incarnation((<BlocksStored>event).incarnation)
        _check_tier((<BlocksStored>event).tier)
    elif kind is BlocksRemoved:
        _check_hashes("block_hashes", (<BlocksRemoved>event).block_hashes)
        _check_incarnation((<BlocksRemoved>event).incarnation)
        _check_tier((<BlocksRemoved>event).tier)
    elif kind is BlocksCleared:
        _check_incarnation((<BlocksCleared>event).incarnation)
        if (<BlocksCleared>event).tier is not None:
            _check_tier((<BlocksCleared>event).tier)
    elif kind is ContextAdvanced:
        _check_run((<ContextAdvanced>event).request_id, (<ContextAdvanced>event).attempt)
        _check_count("context_tokens", (<ContextAdvanced>event).context_tokens, 0)
    elif kind is AdmissionReleased:
        _check_id((<AdmissionReleased>event).request_id)
    elif kind is OverlapRefreshed:
        _check_refreshed(<OverlapRefreshed>event)
    elif kind is PolicyReplaced:
        if not isinstance((<PolicyReplaced>event).profile, PolicyProfile):
            raise ValueError(f"profile must be a PolicyProfile, not {(<PolicyReplaced>event).profile!r}")
    elif kind is RequestCancelled:
        _check_id((<RequestCancelled>event).request_id)
    elif kind is WorkerUpserted:
        _check_worker((<WorkerUpserted>event).config)
        _check_incarnation((<WorkerUpserted>event).incarnation)
    elif kind is WorkerRemoved:
        pass
    elif kind is WorkerStatusChanged:
        _check_status(<WorkerStatusChanged>event)
    elif kind is LoadReported:
        _check_report(<LoadReported>event)
    elif kind is DispatchAccepted:
        _check_run((<DispatchAccepted>event).request_id, (<DispatchAccepted>event).attempt)
    elif kind is DispatchFailed:
        _check_run((<DispatchFailed>event).request_id, (<DispatchFailed>event).attempt)
    elif kind is CapacityHinted:
        for rank in (<CapacityHinted>event).ranks or ():
            if not isinstance(rank, Rank):
                raise ValueError(f"ranks must hold Ranks, not {rank!r}")
    elif kind is Drained:
        if not 0 <= (<Drained>event).deadline_ns < NS_END:
            raise ValueError(f"deadline_ns must be 0..2^62-1, not {(<Drained>event).deadline_ns}")
    elif kind is TimerFired:
        pass
    elif kind is PeerBooked:
        _check_peer_booked(<PeerBooked>event)
    elif kind is PeerPrefillCompleted:
        _check_peer((<PeerPrefillCompleted>event).peer, (<PeerPrefillCompleted>event).generation,
                    (<PeerPrefillCompleted>event).attempt)
    elif kind is PeerReleased:
        _check_peer((<PeerReleased>event).peer, (<PeerReleased>event).generation, (<PeerReleased>event).attempt)
    elif kind is PeerLost:
        _check_peer((<PeerLost>event).peer, (<PeerLost>event).generation, 1)
    elif kind is PeerSynced:
        _check_peer_synced(<PeerSynced>event)
    else:
        raise ValueError(f"unknown event {type(event).__name__}")
    return 0


cdef int _check_request(Request request, int64_t block_size) except -1:
    if request is None:
        raise ValueError("request must not be None")
    _check_id(request.request_id)
    if not 1 <= request.prompt_tokens <= TOKENS_MAX:
        raise ValueError(f"prompt_tokens must be 1..2^53, not {request.prompt_tokens}")
    if request.policy_class is not None:
        _check_text("policy_class", request.policy_class)
    if request.session_id is not None:
        _check_text("session_id", request.session_id)
    if request.deadline_ns is not None:
        if not PyLong_CheckExact(request.deadline_ns) or not 0 <= request.deadline_ns < NS_END:
            raise ValueError(f"deadline_ns must be None or 0..2^62-1, not {request.deadline_ns!r}")
    _check_count("expected_output_tokens", request.expected_output_tokens, 0)
    if request.allowed_workers is not None:
        for worker_id in request.allowed_workers:
            _check_hash("allowed_workers", worker_id)
    _check_taints("required_taints", request.required_taints)
    _check_hashes("block_hashes", request.block_hashes)
    if len(request.block_hashes) > ceil_div(request.prompt_tokens, block_size):
        raise ValueError(f"{len(request.block_hashes)} block_hashes for {request.prompt_tokens} prompt tokens")
    if request.sequence_hashes is not None:
        _check_hashes("sequence_hashes", request.sequence_hashes)
        if len(request.sequence_hashes) > request.prompt_tokens // block_size:
            raise ValueError(
                f"{len(request.sequence_hashes)} sequence_hashes for {request.prompt_tokens} prompt tokens")
    if request.overlap is not None:
        _check_overlap(request.overlap)
    if request.preferred_taints is None or request.preferred_taints:
        _check_preferred(request.preferred_taints)
    if request.weights is not None:
        fault = weights_fault(request.weights)
        if fault is not None:
            raise ValueError(f"weights: {fault}")
    return 0


cdef int _check_preferred(tuple pairs) except -1:
    if pairs is None:
        raise ValueError("preferred_taints must be a tuple")
    for pair in pairs:
        if type(pair) is not tuple or len(pair) != 2 or type(pair[0]) is not str or not _is_number(pair[1]):
            raise ValueError(f"preferred_taints must hold pairs (text, finite number), not {pair!r}")
        _check_text("preferred_taints", pair[0])
    if len({pair[0] for pair in pairs}) != len(pairs):
        raise ValueError(f"preferred_taints must name each taint once, not {pairs!r}")
    return 0


cdef int _check_overlap(Overlap overlap) except -1:
    _check_ranked("device", overlap.device, BLOCKS_MAX)
    _check_ranked("host", overlap.host, BLOCKS_MAX)
    _check_ranked("disk", overlap.disk, BLOCKS_MAX)
    _check_ranked("cached_tokens", overlap.cached_tokens, TOKENS_MAX)
    if overlap.effective is None:
        raise ValueError("overlap.effective must be a tuple")
    for pair in overlap.effective:
        if type(pair) is not tuple or len(pair) != 2 or not isinstance(pair[0], Rank):
            raise ValueError(f"overlap.effective must hold pairs (Rank, blocks), not {pair!r}")
        if not _is_number(pair[1]) or not 0 <= pair[1] <= BLOCKS_MAX:
            raise ValueError(f"overlap.effective must hold 0..2^31-1, not {pair[1]!r}")
    return _check_shared(overlap.shared)


cdef int _check_ranked(str name, tuple pairs, int64_t top) except -1:
    if pairs is None:
        raise ValueError(f"overlap.{name} must be a tuple")
    for pair in pairs:
        if type(pair) is not tuple or len(pair) != 2 or not isinstance(pair[0], Rank):
            raise ValueError(f"overlap.{name} must hold pairs (Rank, count), not {pair!r}")
        if not PyLong_CheckExact(pair[1]) or not 0 <= pair[1] <= top:
            raise ValueError(f"overlap.{name} must hold 0..{top}, not {pair[1]!r}")
    return 0


cdef int _check_shared(tuple ranges) except -1:
    if ranges is None:
        raise ValueError("overlap.shared must be a tuple")
    after = 0
    for pair in ranges:
        if (type(pair) is not tuple or len(pair) != 2
                or not PyLong_CheckExact(pair[0]) or not PyLong_CheckExact(pair[1])):
            raise ValueError(f"overlap.shared must hold pairs (start, end), not {pair!r}")
        if not after <= pair[0] < pair[1] <= BLOCKS_MAX:
            raise ValueError(f"overlap.shared must be sorted and disjoint, within 0..2^31-1, not {ranges!r}")
        after = pair[1]
    return 0


cdef int _check_tier(object tier) except -1:
    if not isinstance(tier, Tier):
        raise ValueError(f"tier must be a Tier, not {tier!r}")
    return 0


cdef int _check_refreshed(OverlapRefreshed event) except -1:
    _check_id(event.request_id)
    if event.ticket < 1:
        raise ValueError(f"ticket must be >= 1, not {event.ticket}")
    return 0 if event.overlap is None else _check_overlap(event.overlap)


cdef int _check_status(WorkerStatusChanged event) except -1:
    _check_incarnation(event.incarnation)
    if event.source is None:
        raise ValueError("source must be text")
    _check_text("source", event.source)
    if event.lease_ns is not None:
        if not PyLong_CheckExact(event.lease_ns) or not 1 <= event.lease_ns < NS_END:
            raise ValueError(f"lease_ns must be None or 1..2^62-1, not {event.lease_ns!r}")
    return 0


cdef int _check_report(LoadReported event) except -1:
    _check_incarnation(event.incarnation)
    for name, value in (("sequence", event.sequence), ("prefill_tokens", event.prefill_tokens),
                        ("blocks", event.blocks), ("requests", event.requests)):
        if not 0 <= value <= TOKENS_MAX:
            raise ValueError(f"{name} must be 0..2^53, not {value}")
    return 0


cdef int _check_peer(str peer, int64_t generation, int64_t attempt) except -1:
    if peer is None or not peer:
        raise ValueError("peer must be non-empty text")
    _check_text("peer", peer)
    if generation < 0:
        raise ValueError(f"generation must be >= 0, not {generation}")
    if not 1 <= attempt <= ATTEMPT_MAX:
        raise ValueError(f"attempt must be 1..2^62, not {attempt}")
    return 0


cdef int _check_peer_booked(PeerBooked event) except -1:
    _check_peer(event.peer, event.generation, event.attempt)
    return _check_peer_load(event.incarnation, event.sequence_hashes, event.unnamed_blocks, event.prefill_tokens,
                            event.reserve_blocks)


cdef int _check_peer_load(
        int64_t incarnation, tuple hashes, int64_t unnamed_blocks, int64_t prefill_tokens,
        int64_t reserve_blocks) except -1:
    _check_incarnation(incarnation)
    _check_hashes("sequence_hashes", hashes)
    for name, value in (("unnamed_blocks", unnamed_blocks), ("prefill_tokens", prefill_tokens),
                        ("reserve_blocks", reserve_blocks)):
        if not 0 <= value <= TOKENS_MAX:
            raise ValueError(f"{name} must be 0..2^53, not {value}")
    return 0


cdef int _check_peer_synced(PeerSynced event) except -1:
    """Each booking once, by attempt; behind it, if at all, that its prefill has been completed."""
    cdef PeerFact fact
    cdef int64_t last = 0
    cdef bint prefilled = True
    _check_peer(event.peer, event.generation, event.next_attempt)
    if event.facts is None:
        raise ValueError("facts must be a tuple")
    for item in event.facts:
        if not isinstance(item, PeerFact):
            raise ValueError(f"facts must hold PeerFacts, not {item!r}")
        fact = <PeerFact>item
        if fact.replica != event.peer or fact.generation != event.generation or fact.attempt >= event.next_attempt:
            raise ValueError(f"facts must be the peer's own and below next_attempt, not {fact!r}")
        if fact.kind is BOOKED and fact.attempt > last:
            _check_peer_load(fact.incarnation, fact.sequence_hashes, fact.unnamed_blocks, fact.prefill_tokens,
                             fact.reserve_blocks)
        elif fact.kind is not PREFILL_COMPLETED or fact.attempt != last or prefilled:
            raise ValueError(f"facts must be BOOKED by attempt, each followed by PREFILL_COMPLETED if at all: {fact!r}")
        prefilled = fact.kind is PREFILL_COMPLETED
        last = fact.attempt
    return 0


cdef int _check_worker(WorkerConfig config) except -1:
    if config is None:
        raise ValueError("config must not be None")
    if not 1 <= config.dp_size <= DP_SIZE_MAX:
        raise ValueError(f"dp_size must be 1..{DP_SIZE_MAX}, not {config.dp_size}")
    if <int64_t>config.dp_start + config.dp_size > <int64_t>1 << 32:
        raise ValueError(f"dp_start + dp_size must be at most 2^32, not {config.dp_start} + {config.dp_size}")
    _check_count("max_batched_tokens", config.max_batched_tokens, 1)
    _check_count("total_kv_blocks", config.total_kv_blocks, 1)
    _check_count("max_requests", config.max_requests, 1)
    _check_count("prefill_tokens_per_s", config.prefill_tokens_per_s, 1)
    _check_taints("taints", config.taints)
    return 0


cdef int _check_run(str request_id, int64_t attempt) except -1:
    _check_id(request_id)
    if attempt < 1:
        raise ValueError(f"attempt must be >= 1, not {attempt}")
    return 0


cdef int _check_id(str request_id) except -1:
    if request_id is None or not request_id:
        raise ValueError("request_id must be non-empty text")
    return _check_text("request_id", request_id)


cdef int _check_text(str name, str text) except -1:
    if PyUnicode_IS_COMPACT_ASCII(text):
        return 0
    try:
        PyUnicode_AsUTF8AndSize(text, NULL)
    except UnicodeEncodeError:
        raise ValueError(f"{name} is not encodable as UTF-8: {text!r}") from None
    return 0


cdef int _check_taints(str name, frozenset taints) except -1:
    if taints is None:
        raise ValueError(f"{name} must be a frozenset")
    if not PySet_GET_SIZE(taints):
        return 0
    for taint in taints:
        if type(taint) is not str:
            raise ValueError(f"{name} must hold text, not {taint!r}")
        _check_text(name, taint)
    return 0


cdef int _check_incarnation(int64_t incarnation) except -1:
    if incarnation < 0:
        raise ValueError(f"incarnation must be >= 0, not {incarnation}")
    return 0


cdef int _check_count(str name, object value, int64_t low) except -1:
    if value is not None and (not PyLong_CheckExact(value) or not low <= value <= TOKENS_MAX):
        raise ValueError(f"{name} must be None or {low}..2^53, not {value!r}")
    return 0


cdef bint _is_number(object value) except -1:
    """Whether a value is a finite float, or an integer of moderate size."""
    if PyLong_CheckExact(value):
        return -TOKENS_MAX <= value <= TOKENS_MAX
    return PyFloat_CheckExact(value) and isfinite(<double>value)


cdef int _check_fraction(object fraction) except -1:
    if fraction is None:
        return 0
    if not PyFloat_CheckExact(fraction) and not PyLong_CheckExact(fraction):
        raise ValueError(f"decay_fraction must be None or a number in [0, 1], not {fraction!r}")
    if not isfinite(<double>fraction) or not 0.0 <= <double>fraction <= 1.0:
        raise ValueError(f"decay_fraction must be in [0, 1], not {fraction!r}")
    return 0


cdef int _check_hashes(str name, tuple hashes) except -1:
    cdef Py_ssize_t i
    if hashes is None:
        raise ValueError(f"{name} must be a tuple")
    for i in range(PyTuple_GET_SIZE(hashes)):
        _check_hash(name, <object>PyTuple_GET_ITEM(hashes, i))
    return 0


cdef inline int _check_hash(str name, object value) except -1:
    cdef uint64_t number
    if not PyLong_CheckExact(value) or not read_uint64(<PyObject*>value, &number):
        raise ValueError(f"{name} must hold integers 0..2^64-1, not {value!r}")
    return 0
