"""An embedder in Cython: events are made and stepped without a call of a Python method, actions are read as C fields.

`play` is `step` without the argument parsing; what it refuses, it refuses in the same way.
"""
from kvcore._types cimport int64_t, ns_t, uint64_t
from kvcore.actions cimport Dispatch
from kvcore.events cimport (
    Event, RequestArrived, make_arrived, make_finished, make_output_block_added, make_prefill_completed)
from kvcore.request cimport Request
from kvcore.scheduler cimport Scheduler

from kvcore.events import Outcome

cdef object COMPLETED = Outcome.COMPLETED


cdef Dispatch dispatched(tuple actions):
    """The Dispatch that an uncontended arrival is answered with."""
    if len(actions) != 1 or type(actions[0]) is not Dispatch:
        raise RuntimeError(f"not dispatched at once: {actions}")
    return <Dispatch>actions[0]


def cycles(Scheduler core not None, list requests not None, int64_t now_ns):
    """Arrival, prefill, one output block and finish of each request, one after the other.

    Returns: the sum of the ids of the workers that were chosen, and the last attempt.
    """
    cdef Request request
    cdef Dispatch dispatch
    cdef uint64_t workers = 0
    cdef int64_t attempt = 0
    for request in requests:
        dispatch = dispatched(core.play(make_arrived(now_ns, request)))
        attempt = dispatch.attempt
        workers += dispatch.worker_id
        core.play(make_prefill_completed(now_ns, request.request_id, attempt))
        core.play(make_output_block_added(now_ns, request.request_id, attempt))
        core.play(make_finished(now_ns, request.request_id, attempt, COMPLETED, None))
        now_ns += 1
    return workers, attempt


def now_of(Event event not None):
    """A field of an event, read in C."""
    cdef ns_t now_ns = event.now_ns
    return now_ns


def prompt_of(RequestArrived event not None):
    """A field of a field."""
    return event.request.prompt_tokens
