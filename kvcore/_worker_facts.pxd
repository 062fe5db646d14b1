# What is told of workers, their ranks and their caches: from events to the fleet.
cimport cython
from kvcore._backlog cimport Backlog
from kvcore._fleet cimport Fleet
from kvcore._inspect cimport Inspector
from kvcore._lifecycle cimport Lifecycle
from kvcore._types cimport slot_t
from kvcore.events cimport Event, LoadReported, WorkerRemoved, WorkerStatusChanged, WorkerUpserted


@cython.final
cdef class WorkerFacts:
    cdef Fleet _fleet
    cdef Backlog _backlog
    cdef Inspector _inspector
    cdef Lifecycle _lifecycle

    cdef int apply(self, Event event, list out) except -1

    cdef bint _blocks(self, Event event) except -1
    cdef bint _upserted(self, WorkerUpserted event, list out) except -1
    cdef bint _removed(self, WorkerRemoved event, list out) except -1
    cdef bint _status(self, WorkerStatusChanged event) except -1
    cdef bint _report(self, LoadReported event) except -1
