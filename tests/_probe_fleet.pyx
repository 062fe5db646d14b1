"""Doors for tests to compiled internals: fleet, backlog, what a drain asks of both.

Never shipped. A door converts and does nothing else: NO_SLOT becomes None, C rows become tuples.
"""
from cpython cimport array
from kvcore._backlog cimport Backlog
from kvcore._fleet cimport Fleet
from kvcore._lanes cimport ClassQueue
from kvcore._ledger_audit cimport ledger_faults
from kvcore._endings cimport Endings
from kvcore._inspect cimport Inspector
from kvcore._placement cimport Placement, runs_now
from kvcore._policies cimport Policies
from kvcore._requests cimport RequestTable
from kvcore._types cimport NEVER_NS, NO_SLOT, NS_END, int32_t, int64_t, ns_t, slot_t, uint32_t, uint64_t
from kvcore.request cimport Request, WorkerConfig

import array

from kvcore.config import SchedulerConfig


cdef object or_none(slot_t slot):
    return None if slot == NO_SLOT else slot


cdef class Room:
    """Backlog over workers of one rank each. Nothing runs; requests are named by their slots."""

    cdef RequestTable requests
    cdef Fleet fleet
    cdef Placement placement
    cdef Backlog backlog
    cdef Endings endings

    def __cinit__(self, config, workers):
        self.requests = RequestTable(False)
        self.fleet = Fleet(config, [], self.requests)
        pairs = [None] * len(config.effective_profile().classes)
        self.placement = Placement(self.fleet, self.requests, config, pairs)
        self.backlog = Backlog(config, self.requests, self.fleet, self.placement)
        inspector = Inspector(config.effective_profile(), self.requests, self.backlog.queue, self.fleet)
        self.endings = Endings(self.requests, self.fleet, inspector, Policies(None))
        for worker_id in workers:
            self.fleet.upsert(WorkerConfig(worker_id), 0)

    @property
    def next_seq(self):
        return self.backlog.next_seq

    def classify(self, Request request):
        """Slot of a request that is classified and not stored."""
        cdef slot_t slot = self.requests.open(request, 0, 16)
        self.backlog.classify(slot, request)
        return slot

    def begin_batch(self):
        self.backlog.begin_batch()

    def store(self, slot_t slot):
        self.backlog.store(slot)

    def end(self, slot_t slot):
        """Take a waiting request out, for good."""
        self.backlog.withdraw(slot)
        self.endings.abort(slot)

    def still_waiting(self):
        """Of what the batch has stored, in order: the slot, or None where it waits no longer."""
        cdef int64_t i
        return [or_none(self.backlog.still_waiting(i)) for i in range(self.backlog.stored)]

    def lose(self, worker_id):
        """A worker is gone."""
        self.fleet.drop_ranks(self.fleet.all_ranks(self.fleet.workers.find(worker_id)))
        self.fleet.remove(worker_id)

    def scratch(self):
        """Rows of memory by rank slot, and by candidate."""
        return self.placement.overlaps._room, self.placement.eligible._room

    def ghosts(self):
        """Names of ranks that are gone and that waiting pins keep."""
        return sorted(self.fleet.workers._ghosts)


cdef class Hall:
    """What a drain looks at: backlog, and workers of one rank each. All classes have thresholds. Pops book nothing."""

    cdef RequestTable requests
    cdef Fleet fleet
    cdef Placement placement
    cdef Backlog backlog

    def __cinit__(self, config, workers):
        thresholds = [(item.prefill_busy_threshold, item.prefill_busy_threshold_frac)
                      for item in config.effective_profile().classes]
        distinct = list(dict.fromkeys(thresholds))
        self.requests = RequestTable(False)
        self.fleet = Fleet(config, distinct, self.requests)
        self.placement = Placement(self.fleet, self.requests, config, [distinct.index(pair) for pair in thresholds])
        self.backlog = Backlog(config, self.requests, self.fleet, self.placement)
        for worker_id in workers:
            self.fleet.upsert(WorkerConfig(worker_id), 0)
        self.fleet.forget_changes()

    def book(self, worker_id, str name, int64_t prefill):
        """Slot of a booking."""
        cdef slot_t slot = self.requests.open(Request(name, prefill), 0, 16)
        self.fleet.ledger.book(slot, self.fleet.workers.find_rank(worker_id, 0), prefill, NULL, 0, 0, 0)
        return slot

    def complete_prefill(self, slot_t slot, bint noted=True):
        """noted False: the ledger knows, and nobody is told."""
        if noted:
            self.fleet.complete_prefill(slot)
        else:
            self.fleet.ledger.complete_prefill(slot)

    def store(self, Request request):
        cdef slot_t slot = self.requests.open(request, 0, 16)
        self.backlog.classify(slot, request)
        self.backlog.store(slot)

    def hint(self, ranks):
        self.fleet.hint(ranks)

    def recheck(self):
        self.backlog.recheck()

    def pop(self):
        """Name of the request that is served next, or None."""
        cdef slot_t slot = self.backlog.queue.pop(runs_now, <void*>self.placement)
        return None if slot == NO_SLOT else self.requests.ids.id_of(slot)

    def changes(self):
        """(ranks remembered, whether everything is to be judged again)."""
        return self.fleet.changes, bool(self.fleet.recheck_all)

    def asked(self):
        """(classes looked at, heads tested) so far."""
        cdef slot_t i
        return self.backlog.queue.visits, sum(
            [(<ClassQueue>self.backlog.queue.queue(i)).tests for i in range(self.backlog.queue.count)])


cdef class Ships:
    """Fleet. Ranks are named (worker_id, dp_rank); bookings have no path."""

    cdef Fleet fleet

    def __cinit__(self, list thresholds, **config):
        self.fleet = Fleet(SchedulerConfig(**config), thresholds, RequestTable(False))

    def rank(self, worker_id, uint32_t dp_rank=0):
        return or_none(self.fleet.workers.find_rank(worker_id, dp_rank))

    def names(self, ranks):
        cdef slot_t rank
        return [(self.fleet.workers.ranks[rank].worker_id, self.fleet.workers.ranks[rank].dp_rank) for rank in ranks]

    def order(self):
        cdef slot_t i
        return self.names([self.fleet.workers.order[i] for i in range(self.fleet.workers.present)])

    def is_stale(self, WorkerConfig config, int64_t incarnation):
        return bool(self.fleet.is_stale(config, incarnation))

    def leaving(self, WorkerConfig config, int64_t incarnation):
        return self.names(self.fleet.leaving(config, incarnation))

    def upsert(self, WorkerConfig config, int64_t incarnation=0):
        """As the scheduler does it, bookings aside."""
        self.fleet.drop_ranks(self.fleet.leaving(config, incarnation))
        self.fleet.upsert(config, incarnation)

    def remove(self, worker_id):
        """As the scheduler does it, bookings aside."""
        self.fleet.drop_ranks(self.fleet.all_ranks(self.fleet.workers.find(worker_id)))
        self.fleet.remove(worker_id)

    def store_blocks(self, worker_id, uint32_t dp_rank, int64_t incarnation, tuple hashes, int tier=0):
        return bool(self.fleet.store_blocks(worker_id, dp_rank, incarnation, tier, hashes))

    def remove_blocks(self, worker_id, uint32_t dp_rank, int64_t incarnation, tuple hashes, int tier=0):
        return bool(self.fleet.remove_blocks(worker_id, dp_rank, incarnation, tier, hashes))

    def clear_blocks(self, worker_id, uint32_t dp_rank, int64_t incarnation, int tier=-1):
        return bool(self.fleet.clear_blocks(worker_id, dp_rank, incarnation, tier))

    def cached(self, int tier=0):
        """(blocks, (block, rank) pairs, mixed) of the index of a tier."""
        index = self.fleet.tier(tier)
        return index.blocks, index.pairs, index.mixed

    def holds(self, worker_id, uint32_t dp_rank, uint64_t hash, int tier=0):
        return bool(self.fleet.tier(tier).holds(hash, self.fleet.workers.find_rank(worker_id, dp_rank)))

    def mark(self, worker_id, str source, bint available, bint overloaded, ns_t end_ns=NEVER_NS, int64_t incarnation=0):
        return bool(self.fleet.set_mark(worker_id, incarnation, source, available, overloaded, end_ns))

    def report(self, worker_id, int64_t sequence, int64_t prefill, int64_t blocks=0, int64_t requests=0,
               uint32_t dp_rank=0, int64_t incarnation=0):
        return bool(self.fleet.report(worker_id, dp_rank, incarnation, sequence, prefill, blocks, requests))

    def state(self, worker_id, uint32_t dp_rank=0):
        return self.fleet.ledger.loads[self.fleet.workers.find_rank(worker_id, dp_rank)].state

    def tokens(self, worker_id, uint32_t dp_rank=0):
        """Effective prefill tokens."""
        return self.fleet.ledger.tokens(self.fleet.workers.find_rank(worker_id, dp_rank))

    def advance(self, ns_t now_ns):
        self.fleet.advance(now_ns)

    def due(self, bint awaited=True):
        cdef ns_t due_ns = self.fleet.next_due_ns(awaited)
        return None if due_ns >= NS_END else due_ns

    def faults(self):
        return ledger_faults(self.fleet.ledger)

    def book(self, slot_t slot, worker_id, uint32_t dp_rank, int64_t prefill):
        self.fleet.ledger.book(slot, self.fleet.workers.find_rank(worker_id, dp_rank), prefill, NULL, 0, 0, 0)

    def predicted(self, worker_id, uint32_t dp_rank=0):
        """How many blocks are predicted on a rank; None: nothing is."""
        if self.fleet.predicted is None:
            return None
        return self.fleet.predicted.uses[self.fleet.workers.find_rank(worker_id, dp_rank)].held

    def touch(self, slot_t slot, hashes):
        """The prompt of a booking, told anew."""
        path = array.array("Q", hashes)
        cdef uint64_t[:] view = path
        self.fleet.touch(slot, &view[0], <int32_t>len(path))

    def complete_prefill(self, slot_t slot):
        self.fleet.complete_prefill(slot)

    def release(self, slot_t slot):
        self.fleet.release(slot, True)

    def bookings_on(self, names):
        return self.fleet.bookings_on([self.rank(worker_id, dp_rank) for worker_id, dp_rank in names])

    def free(self):
        cdef slot_t pair
        return [self.fleet.ledger.free[pair] for pair in range(self.fleet.ledger.pairs)]

    def busy(self, worker_id, uint32_t dp_rank=0, slot_t pair=0):
        return bool(self.fleet.ledger.busy(self.fleet.workers.find_rank(worker_id, dp_rank), pair))

    def changed(self):
        """(names of the ranks whose load fell, whether everything is to be judged again)."""
        cdef int32_t i
        return self.names([self.fleet.changed[i] for i in range(self.fleet.changes)]), bool(self.fleet.recheck_all)

    def forget_changes(self):
        self.fleet.forget_changes()
