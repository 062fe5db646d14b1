# C layout of the actions in actions.py, and the factories that the core builds them with.
cimport cython
from kvcore._types cimport int64_t, ns_t, slot_t, tokens_t, uint32_t, uint64_t
from kvcore.replica cimport PeerFact


cdef class Action:
    pass


@cython.final
cdef class Dispatch(Action):
    cdef readonly str request_id
    cdef readonly int64_t attempt
    cdef readonly uint64_t worker_id
    cdef readonly uint32_t dp_rank
    cdef readonly slot_t class_index
    cdef readonly tokens_t cached_tokens
    cdef readonly int64_t overlap_blocks
    cdef readonly tokens_t prefill_tokens
    cdef readonly int64_t potential_decode_blocks
    cdef readonly ns_t wait_ns


@cython.final
cdef class Reject(Action):
    cdef readonly str request_id
    cdef readonly object reason                # RejectReason
    cdef readonly slot_t class_index           # -1 before classification
    cdef readonly int64_t current
    cdef readonly int64_t limit
    cdef readonly object retry_after_ns        # int or None


@cython.final
cdef class Park(Action):
    cdef readonly str request_id
    cdef readonly slot_t class_index
    cdef readonly object reason                # ParkReason


@cython.final
cdef class Evict(Action):
    cdef readonly str request_id
    cdef readonly int64_t attempt
    cdef readonly uint64_t worker_id
    cdef readonly object reason                # EvictReason


@cython.final
cdef class RefreshOverlap(Action):
    cdef readonly str request_id
    cdef readonly int64_t ticket
    cdef readonly tuple block_hashes           # of int


@cython.final
cdef class Ignored(Action):
    cdef readonly str request_id
    cdef readonly int64_t attempt
    cdef readonly object reason                # IgnoredReason


@cython.final
cdef class Publish(Action):
    cdef readonly PeerFact fact


cdef inline Reject make_reject(str request_id, object reason, slot_t class_index):
    cdef Reject action = Reject.__new__(Reject)
    action.request_id = request_id
    action.reason = reason
    action.class_index = class_index
    return action


cdef inline Park make_park(str request_id, slot_t class_index, object reason):
    cdef Park action = Park.__new__(Park)
    action.request_id = request_id
    action.class_index = class_index
    action.reason = reason
    return action


cdef inline Evict make_evict(str request_id, int64_t attempt, uint64_t worker_id, object reason):
    cdef Evict action = Evict.__new__(Evict)
    action.request_id = request_id
    action.attempt = attempt
    action.worker_id = worker_id
    action.reason = reason
    return action


cdef inline RefreshOverlap make_refresh(str request_id, int64_t ticket, tuple block_hashes):
    cdef RefreshOverlap action = RefreshOverlap.__new__(RefreshOverlap)
    action.request_id = request_id
    action.ticket = ticket
    action.block_hashes = block_hashes
    return action


cdef inline Ignored make_ignored(str request_id, int64_t attempt, object reason):
    cdef Ignored action = Ignored.__new__(Ignored)
    action.request_id = request_id
    action.attempt = attempt
    action.reason = reason
    return action


cdef inline Publish make_publish(PeerFact fact):
    cdef Publish action = Publish.__new__(Publish)
    action.fact = fact
    return action
