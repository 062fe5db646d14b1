"""Placement: may a request run now, and on which rank (DESIGN D1, D7, D8).

Owns no state but scratch memory: it reads the fleet and live requests and answers. The same answers serve arrivals,
the dispatch test of heads, placement after a pop, and `peek`.

Never here: queues, bookings, time.

Eligibility: a pin means exactly its rank, an allow-list the ranks of those workers, neither every present rank;
required taints strike out the workers that lack one. An impossible request counts as ready to run, so that it is
answered with its reason instead of waiting for ever.
"""
from libc.stdlib cimport free
from kvcore._ledger cimport active_blocks
from kvcore._requests cimport request_t
from kvcore._selector cimport cheapest, draw
from kvcore._types cimport NO_SLOT, resize, uint32_t
from kvcore._workers cimport worker_t
from kvcore.request cimport Rank, effective_cached_tokens, prefill_delta, prompt_blocks

from kvcore.actions import RejectReason


cdef class Placement:
    def __cinit__(self, Fleet fleet not None, RequestTable requests not None, config not None, list pairs not None):
        """pairs: threshold pair of each class, or None where it has none."""
        cdef slot_t i
        self.fleet = fleet
        self.requests = requests
        self.block_size = config.block_size
        self.indexed = config.index.value == "events"
        resize(<void**>&self.pair_of, len(pairs) * sizeof(slot_t))
        for i in range(<slot_t>len(pairs)):
            self.pair_of[i] = NO_SLOT if pairs[i] is None else pairs[i]

    def __dealloc__(self):
        free(self.pair_of)
        free(self._told)
        free(self._allowed)
        free(self._tied)

    cdef object refusal(self, Request request):
        """Why no present rank may ever take an arriving request, or None: checks in the order of DESIGN D6."""
        if request.pinned is not None and request.allowed_workers is not None:
            if request.pinned.worker_id not in request.allowed_workers:
                return RejectReason.PINNED_WORKER_NOT_ALLOWED
        if self.fleet.workers.present == 0:
            return RejectReason.NO_WORKERS
        if request.pinned is not None:
            if self.fleet.workers.find_rank(request.pinned.worker_id, request.pinned.dp_rank) == NO_SLOT:
                return RejectReason.PINNED_WORKER_UNAVAILABLE
            if not self._fits(request, self.fleet.workers.find(request.pinned.worker_id)):
                return RejectReason.NO_ELIGIBLE_WORKER
        elif _constrained(request) and not self._any_eligible(request):
            return RejectReason.NO_ELIGIBLE_WORKER
        return None

    cdef bint _fits(self, Request request, slot_t worker) except -1:
        """Whether a worker carries the taints that a request requires."""
        if not request.required_taints:
            return True
        return self.fleet.workers.taints.satisfying(request.required_taints)[self.fleet.workers.workers[worker].taints]

    cdef bint _any_eligible(self, Request request) except -1:
        """Whether some worker may take a request that has no pin. O(allow-list) or O(taint sets)."""
        cdef const unsigned char* fits = self.fleet.workers.taints.satisfying(request.required_taints)
        cdef slot_t worker, i
        if request.allowed_workers is None:
            for i in range(self.fleet.workers.taints.size()):
                if fits[i]:
                    return True
            return False
        for worker_id in request.allowed_workers:
            worker = self.fleet.workers.find(worker_id)
            if worker != NO_SLOT and fits[self.fleet.workers.workers[worker].taints]:
                return True
        return False

    cdef tokens_t best_cached(self, slot_t slot, Request request) except -1:
        """Cached tokens on the best rank that the request may use; a pin counts its own rank only (DESIGN D1)."""
        cdef request_t* row = &self.requests.rows[slot]
        cdef const int32_t* depth
        cdef slot_t* ranks = self.fleet.workers.order
        cdef slot_t count = self.fleet.workers.present
        cdef int32_t best = 0
        cdef slot_t i
        if request.overlap is None and (not self.indexed or row.path_length == 0):
            return 0
        depth = self._overlap(slot, request)
        if row.pin != NO_SLOT:
            ranks = &row.pin
            count = 1
        elif _constrained(request):
            count = self.fleet.workers.ranks_of(request.allowed_workers, request.required_taints, self._allowed)
            ranks = self._allowed
        elif request.overlap is None:
            ranks = self.fleet.cached.matched
            count = self.fleet.cached.matches
        for i in range(count):
            best = max(best, depth[ranks[i]])
        self._forget_overlap(request)
        return effective_cached_tokens(best, row.prompt, self.block_size)

    cdef bint may_use(self, slot_t slot, slot_t rank):
        """Whether a request without a pin may be placed on a present rank."""
        cdef Request request = self.requests.request(slot)
        if request.allowed_workers is not None:
            if self.fleet.workers.ranks[rank].worker_id not in request.allowed_workers:
                return False
        return self._fits(request, self.fleet.workers.ranks[rank].worker)

    cdef bint may_run(self, slot_t class_index, slot_t slot):
        """The dispatch test of a head (DESIGN D7): O(1) for pins and unconstrained requests."""
        cdef slot_t pair = self.pair_of[class_index]
        cdef slot_t pin = self.requests.rows[slot].pin
        cdef Request request
        if pair == NO_SLOT:
            return True
        request = self.requests.request(slot)
        if pin != NO_SLOT:
            if self.fleet.workers.ranks[pin].worker == NO_SLOT or not self.fleet.ledger.busy(pin, pair):
                return True
            return not self._fits(request, self.fleet.workers.ranks[pin].worker)
        if not _constrained(request):
            return self.fleet.ledger.free[pair] > 0 or self.fleet.workers.present == 0
        return self._any_free(request, pair) or not self._any_eligible(request)

    cdef bint _any_free(self, Request request, slot_t pair) except -1:
        """Whether some eligible rank is not busy. O(ranks of the allow-list) or O(taint sets)."""
        cdef const unsigned char* fits = self.fleet.workers.taints.satisfying(request.required_taints)
        cdef slot_t worker, i
        cdef uint32_t j
        cdef worker_t* row
        if request.allowed_workers is None:
            for i in range(self.fleet.workers.taints.size()):
                if fits[i] and self.fleet.ledger.free_of[i * self.fleet.ledger.pairs + pair] > 0:
                    return True
            return False
        for worker_id in request.allowed_workers:
            worker = self.fleet.workers.find(worker_id)
            if worker != NO_SLOT and fits[self.fleet.workers.workers[worker].taints]:
                row = &self.fleet.workers.workers[worker]
                for j in range(row.dp_size):
                    if not self.fleet.ledger.busy(row.ranks[j], pair):
                        return True
        return False

    cdef object decide(self, slot_t slot, Request request, uint64_t* generator, slot_t* chosen):
        """The Dispatch that the request would get now, and its rank; or the RejectReason, and NO_SLOT.

        The Dispatch lacks what only the scheduler knows: attempt and wait_ns. Draws iff two or more ranks tie.
        """
        cdef request_t* row = &self.requests.rows[slot]
        cdef query_t query
        cdef slot_t* candidates = self.fleet.workers.order
        cdef slot_t count = self.fleet.workers.present
        cdef slot_t ties
        chosen[0] = NO_SLOT
        if count == 0:
            return RejectReason.NO_WORKERS
        self._reserve()
        if row.pin != NO_SLOT:
            if self.fleet.workers.ranks[row.pin].worker == NO_SLOT:
                return RejectReason.PINNED_WORKER_UNAVAILABLE
            candidates = &row.pin
            count = self._fits(request, self.fleet.workers.ranks[row.pin].worker)
        elif _constrained(request):
            count = self.fleet.workers.ranks_of(request.allowed_workers, request.required_taints, self._allowed)
            candidates = self._allowed
        if count == 0:
            return RejectReason.NO_ELIGIBLE_WORKER
        query.prompt = row.prompt
        query.block_size = self.block_size
        query.sequence_length = row.sequence_length
        query.track_prefill = row.track_prefill
        query.cached = self._overlap(slot, request)
        self.fleet.ledger.active.match(row.sequence, row.sequence_length, row.serial)
        query.active = self.fleet.ledger.active.depth
        ties = cheapest(self.fleet.ledger.loads, candidates, count, &query, self._tied)
        chosen[0] = self._tied[draw(generator, ties) if ties > 1 else 0]
        action = self._dispatch(slot, chosen[0], &query)
        self._forget_overlap(request)
        return action

    cdef int _reserve(self) except -1:
        """Scratch for every rank slot."""
        cdef slot_t room = max(16, self._room)
        cdef slot_t rank
        if self.fleet.workers.ranks_size <= self._room:
            return 0
        while room < self.fleet.workers.ranks_size:
            room *= 2
        resize(<void**>&self._told, room * sizeof(int32_t))
        resize(<void**>&self._allowed, room * sizeof(slot_t))
        resize(<void**>&self._tied, room * sizeof(slot_t))
        for rank in range(self._room, room):
            self._told[rank] = 0
        self._room = room
        return 0

    cdef const int32_t* _overlap(self, slot_t slot, Request request) except NULL:
        """By rank: leading blocks cached there (DESIGN D13). Valid until _forget_overlap."""
        cdef request_t* row = &self.requests.rows[slot]
        cdef slot_t rank
        self._reserve()
        if request.overlap is None:
            self.fleet.cached.match(row.path, row.path_length if self.indexed else 0, row.serial)
            return self.fleet.cached.depth
        for name, blocks in request.overlap.device:
            rank = self.fleet.workers.find_rank((<Rank>name).worker_id, (<Rank>name).dp_rank)
            if rank != NO_SLOT:
                self._told[rank] = blocks
        return self._told

    cdef int _forget_overlap(self, Request request) except -1:
        cdef slot_t rank
        if request.overlap is not None:
            for name, _ in request.overlap.device:
                rank = self.fleet.workers.find_rank((<Rank>name).worker_id, (<Rank>name).dp_rank)
                if rank != NO_SLOT:
                    self._told[rank] = 0
        return 0

    cdef Dispatch _dispatch(self, slot_t slot, slot_t rank, const query_t* query):
        cdef Dispatch action = Dispatch.__new__(Dispatch)
        cdef request_t* row = &self.requests.rows[slot]
        action.request_id = self.requests.ids.id_of(slot)
        action.worker_id = self.fleet.workers.ranks[rank].worker_id
        action.dp_rank = self.fleet.workers.ranks[rank].dp_rank
        action.class_index = row.class_index
        action.overlap_blocks = query.cached[rank]
        action.cached_tokens = effective_cached_tokens(query.cached[rank], row.prompt, self.block_size)
        action.prefill_tokens = prefill_delta(row.prompt, action.cached_tokens, row.track_prefill)
        action.potential_decode_blocks = (
            active_blocks(&self.fleet.ledger.loads[rank]) - query.active[rank]
            + prompt_blocks(row.prompt, self.block_size))
        return action


cdef inline bint _constrained(Request request):
    return request.allowed_workers is not None or len(request.required_taints) > 0
