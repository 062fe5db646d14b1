# C layout of the events in events.py.
cimport cython
from kvcore._types cimport int64_t, ns_t, uint32_t, uint64_t
from kvcore.request cimport Overlap, Rank, Request, WorkerConfig


cdef class Event:
    cdef readonly ns_t now_ns                  # never decreases from event to event


@cython.final
cdef class RequestArrived(Event):
    cdef readonly Request request


@cython.final
cdef class RequestCancelled(Event):
    cdef readonly str request_id


@cython.final
cdef class DispatchAccepted(Event):
    cdef readonly str request_id
    cdef readonly int64_t attempt


@cython.final
cdef class DispatchFailed(Event):
    cdef readonly str request_id
    cdef readonly int64_t attempt
    cdef readonly bint retry


@cython.final
cdef class PrefillCompleted(Event):
    cdef readonly str request_id
    cdef readonly int64_t attempt


@cython.final
cdef class OutputBlockAdded(Event):
    cdef readonly str request_id
    cdef readonly int64_t attempt
    cdef readonly object decay_fraction        # float in [0, 1] or None


@cython.final
cdef class ContextAdvanced(Event):
    cdef readonly str request_id
    cdef readonly int64_t attempt
    cdef readonly int64_t context_tokens


@cython.final
cdef class AdmissionReleased(Event):
    cdef readonly str request_id
    cdef readonly Rank placement               # or None


@cython.final
cdef class OverlapRefreshed(Event):
    cdef readonly str request_id
    cdef readonly int64_t ticket
    cdef readonly Overlap overlap              # or None


@cython.final
cdef class RequestFinished(Event):
    cdef readonly str request_id
    cdef readonly int64_t attempt
    cdef readonly object outcome               # Outcome
    cdef readonly object context_tokens        # int or None


@cython.final
cdef class WorkerUpserted(Event):
    cdef readonly WorkerConfig config
    cdef readonly int64_t incarnation


@cython.final
cdef class WorkerRemoved(Event):
    cdef readonly uint64_t worker_id


@cython.final
cdef class BlocksStored(Event):
    cdef readonly uint64_t worker_id
    cdef readonly uint32_t dp_rank
    cdef readonly int64_t incarnation
    cdef readonly tuple block_hashes           # of int
    cdef readonly object tier                  # Tier


@cython.final
cdef class BlocksRemoved(Event):
    cdef readonly uint64_t worker_id
    cdef readonly uint32_t dp_rank
    cdef readonly int64_t incarnation
    cdef readonly tuple block_hashes           # of int
    cdef readonly object tier                  # Tier


@cython.final
cdef class BlocksCleared(Event):
    cdef readonly uint64_t worker_id
    cdef readonly uint32_t dp_rank
    cdef readonly int64_t incarnation
    cdef readonly object tier                  # Tier or None


@cython.final
cdef class WorkerStatusChanged(Event):
    cdef readonly uint64_t worker_id
    cdef readonly int64_t incarnation
    cdef readonly str source
    cdef readonly bint available
    cdef readonly bint overloaded
    cdef readonly object lease_ns              # int or None


@cython.final
cdef class LoadReported(Event):
    cdef readonly uint64_t worker_id
    cdef readonly uint32_t dp_rank
    cdef readonly int64_t incarnation
    cdef readonly int64_t sequence
    cdef readonly int64_t prefill_tokens
    cdef readonly int64_t blocks
    cdef readonly int64_t requests


@cython.final
cdef class CapacityHinted(Event):
    cdef readonly tuple ranks                  # of Rank, or None


@cython.final
cdef class PolicyReplaced(Event):
    cdef readonly object profile               # PolicyProfile


@cython.final
cdef class Drained(Event):
    cdef readonly int64_t deadline_ns


@cython.final
cdef class PeerBooked(Event):
    cdef readonly str peer
    cdef readonly int64_t generation
    cdef readonly int64_t attempt
    cdef readonly uint64_t worker_id
    cdef readonly uint32_t dp_rank
    cdef readonly int64_t incarnation
    cdef readonly tuple sequence_hashes        # of int
    cdef readonly int64_t unnamed_blocks
    cdef readonly int64_t prefill_tokens
    cdef readonly int64_t reserve_blocks


@cython.final
cdef class PeerPrefillCompleted(Event):
    cdef readonly str peer
    cdef readonly int64_t generation
    cdef readonly int64_t attempt


@cython.final
cdef class PeerReleased(Event):
    cdef readonly str peer
    cdef readonly int64_t generation
    cdef readonly int64_t attempt
    cdef readonly bint completed


@cython.final
cdef class PeerLost(Event):
    cdef readonly str peer
    cdef readonly int64_t generation


@cython.final
cdef class PeerSynced(Event):
    cdef readonly str peer
    cdef readonly int64_t generation
    cdef readonly int64_t next_attempt
    cdef readonly tuple facts                  # of PeerFact


@cython.final
cdef class TimerFired(Event):
    pass


# For embedders in C: the frequent events without a call of their types. What `step` refuses is refused there, not here.

cdef inline RequestArrived make_arrived(ns_t now_ns, Request request):
    cdef RequestArrived event = RequestArrived.__new__(RequestArrived)
    event.now_ns = now_ns
    event.request = request
    return event


cdef inline PrefillCompleted make_prefill_completed(ns_t now_ns, str request_id, int64_t attempt):
    cdef PrefillCompleted event = PrefillCompleted.__new__(PrefillCompleted)
    event.now_ns = now_ns
    event.request_id = request_id
    event.attempt = attempt
    return event


cdef inline OutputBlockAdded make_output_block_added(ns_t now_ns, str request_id, int64_t attempt):
    cdef OutputBlockAdded event = OutputBlockAdded.__new__(OutputBlockAdded)
    event.now_ns = now_ns
    event.request_id = request_id
    event.attempt = attempt
    return event


cdef inline RequestFinished make_finished(
        ns_t now_ns, str request_id, int64_t attempt, object outcome, object context_tokens):
    cdef RequestFinished event = RequestFinished.__new__(RequestFinished)
    event.now_ns = now_ns
    event.request_id = request_id
    event.attempt = attempt
    event.outcome = outcome
    event.context_tokens = context_tokens
    return event
