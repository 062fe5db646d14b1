"""WorkerFacts: every event that is about no request of ours, carried to the fleet (DESIGN 3.1, D14, D19).

Owns nothing. What a fact means for requests, it leaves to others: bookings of ranks that go end first, and those who
wait for what is lost hear of it. A fact about a rank, worker or replica that is not the current one is counted, and no
more.
"""
from kvcore._types cimport NEVER_NS, NO_SLOT, ns_t
from kvcore.events cimport BlocksCleared, BlocksRemoved, BlocksStored, CapacityHinted


cdef class WorkerFacts:
    def __cinit__(self, Lifecycle lifecycle not None):
        self._lifecycle = lifecycle
        self._fleet = lifecycle.fleet
        self._backlog = lifecycle.backlog
        self._inspector = lifecycle.inspector

    cdef int apply(self, Event event, list out) except -1:
        """Apply a fact about workers or replicas, at the time to which the fleet has been brought."""
        cdef object kind = type(event)
        cdef bint current = True
        if kind is BlocksStored or kind is BlocksRemoved or kind is BlocksCleared:
            current = self._blocks(event)
        elif kind is WorkerUpserted:
            current = self._upserted(<WorkerUpserted>event, out)
        elif kind is WorkerRemoved:
            current = self._removed(<WorkerRemoved>event, out)
        elif kind is WorkerStatusChanged:
            current = self._status(<WorkerStatusChanged>event)
        elif kind is LoadReported:
            current = self._report(<LoadReported>event)
        elif kind is CapacityHinted:
            self._fleet.hint((<CapacityHinted>event).ranks)
        else:
            self._inspector.stale += self._fleet.heard(event)       # the others are what replicas tell
        self._inspector.stale += not current
        return 0

    cdef bint _blocks(self, Event event) except -1:
        cdef BlocksStored stored
        cdef BlocksRemoved removed
        cdef BlocksCleared cleared
        if type(event) is BlocksStored:
            stored = <BlocksStored>event
            return self._fleet.store_blocks(
                stored.worker_id, stored.dp_rank, stored.incarnation, stored.tier, stored.block_hashes)
        if type(event) is BlocksRemoved:
            removed = <BlocksRemoved>event
            return self._fleet.remove_blocks(
                removed.worker_id, removed.dp_rank, removed.incarnation, removed.tier, removed.block_hashes)
        cleared = <BlocksCleared>event
        return self._fleet.clear_blocks(
            cleared.worker_id, cleared.dp_rank, cleared.incarnation, -1 if cleared.tier is None else cleared.tier)

    cdef bint _upserted(self, WorkerUpserted event, list out) except -1:
        if self._fleet.is_stale(event.config, event.incarnation):
            return False
        self._lifecycle.drop_ranks(self._fleet.leaving(event.config, event.incarnation), out)
        self._fleet.upsert(event.config, event.incarnation)
        self._backlog.follow_fleet()
        return True

    cdef bint _removed(self, WorkerRemoved event, list out) except -1:
        cdef slot_t worker = self._fleet.workers.find(event.worker_id)
        if worker == NO_SLOT:
            return False
        self._lifecycle.drop_ranks(self._fleet.all_ranks(worker), out)
        self._fleet.remove(event.worker_id)
        self._backlog.follow_fleet()
        return True

    cdef bint _status(self, WorkerStatusChanged event) except -1:
        cdef ns_t end_ns = NEVER_NS if event.lease_ns is None else self._fleet.ledger.now_ns + <ns_t>event.lease_ns
        cdef bint current = self._fleet.set_mark(
            event.worker_id, event.incarnation, event.source, event.available, event.overloaded, end_ns)
        self._backlog.follow_fleet()
        return current

    cdef bint _report(self, LoadReported event) except -1:
        return self._fleet.report(
            event.worker_id, event.dp_rank, event.incarnation, event.sequence, event.prefill_tokens, event.blocks,
            event.requests)
