"""Overlaps: what one request finds on each rank (DESIGN D1, D8, D13). Begin with a request, read, end.

Owns scratch memory only, by rank and used again for every request: between `end` and `begin` all of it is zero, so
that a request costs what it finds and not the size of the fleet.

Never here: which rank is better (_selector), who may be used (_placement).

Sources, in this order: what the request brings itself (Request.overlap); else the indexes of the fleet: blocks told
by engines, by tier, and blocks predicted from own dispatches.
"""
from libc.stdlib cimport free
from kvcore._elementary cimport kv_exp, kv_tanh
from kvcore._types cimport NO_SLOT, resize
from kvcore.request cimport Rank

from kvcore.config import Role


cdef class Overlaps:
    def __cinit__(self, Fleet fleet not None, RequestTable requests not None, config not None):
        self._fleet = fleet
        self._requests = requests
        self._block_size = config.block_size
        copy_weights(config.weights, &self._weights)
        self._decode_role = config.role is Role.DECODE

    def __dealloc__(self):
        free(self._device)
        free(self._host)
        free(self._disk)
        free(self._start)
        free(self._effective)
        free(self._cached)
        free(self._listed)
        free(self.ranks)
        free(self._shared)
        free(self._multiplier)

    cdef int begin(self, slot_t slot, Request request, bint running, query_t* query) except -1:
        """Fill in the query of a live request. running: also what of its prompt runs on each rank.

        Valid until `end`, which must follow, also after an exception out of here.
        """
        cdef request_t* row = &self._requests.rows[slot]
        if not row.special:
            return self.begin_plain(slot, running, query)
        self._blank(row, query)
        if request.weights is not None:
            copy_weights(request.weights, &query.weights)
        if request.overlap is None:
            self._ask_index(row, query)
        else:
            self._take_told(request.overlap, query)
        if running:
            self._match_running(row)
            if request.preferred_taints and row.pin == NO_SLOT:
                self._weigh(request, query)
        return 0

    cdef int begin_plain(self, slot_t slot, bint running, query_t* query) except -1 nogil:
        """`begin` for a request that brings no overlap, weights or preferred taints. MemoryError: it has not begun."""
        cdef request_t* row = &self._requests.rows[slot]
        self._blank(row, query)
        self._ask_index(row, query)
        if running:
            self._match_running(row)
        return 0

    cdef int _blank(self, const request_t* row, query_t* query) except -1 nogil:
        """The query of a request of which nothing is known anywhere."""
        self._reserve()
        query.prompt = row.prompt
        query.block_size = self._block_size
        query.sequence_length = row.sequence_length
        query.track_prefill = row.track_prefill
        query.decode_role = self._decode_role
        query.now_ns = self._fleet.ledger.now_ns
        query.weights = self._weights
        query.device = self._device
        query.effective = NULL
        query.host = NULL
        query.disk = NULL
        query.cached = NULL
        query.shared = NULL
        query.shared_count = 0
        query.multiplier = NULL
        query.active = self._fleet.ledger.active.index.depth
        return 0

    cdef void _match_running(self, const request_t* row) noexcept nogil:
        """List the ranks on which blocks of its prompt run."""
        cdef slot_t i
        if row.sequence_length == 0 and self._fleet.ledger.active.index.matches == 0:
            return
        self._fleet.ledger.active.index.match(row.sequence, row.sequence_length, row.serial)
        for i in range(self._fleet.ledger.active.index.matches):
            self._list(self._fleet.ledger.active.index.matched[i])

    cdef void end(self) noexcept nogil:
        cdef slot_t i, rank
        for i in range(self.count):
            rank = self.ranks[i]
            self._listed[rank] = 0
            if self._written:
                self._device[rank] = 0
                self._host[rank] = 0
                self._disk[rank] = 0
                self._start[rank] = 0
                self._effective[rank] = 0.0
                self._cached[rank] = 0
        self.count = 0
        self._written = False

    cdef void _list(self, slot_t rank) noexcept nogil:
        if not self._listed[rank]:
            self._listed[rank] = 1
            self.ranks[self.count] = rank
            self.count += 1

    cdef int _ask_index(self, const request_t* row, query_t* query) except -1 nogil:
        """Depths in the fleet's indexes; without lower tiers and predictions the index's own array serves as it is."""
        cdef bint lower = self._fleet.host.pairs > 0 or self._fleet.disk.pairs > 0
        cdef int32_t reach = 0     # no rank's blocks so far go on beyond it
        cdef slot_t i, rank
        if not self._fleet.indexed and self._fleet.predicted is None:
            return 0
        if self._fleet.indexed:
            self._fleet.device.match(row.path, row.path_length, row.serial)
            reach = self._fleet.device.reach
            for i in range(self._fleet.device.matches):
                self._list(self._fleet.device.matched[i])
            if not lower and self._fleet.predicted is None:
                query.device = self._fleet.device.depth
                return 0
            self._written = True
            for i in range(self._fleet.device.matches):
                rank = self._fleet.device.matched[i]
                self._device[rank] = self._fleet.device.depth[rank]
        self._written = True
        if self._fleet.predicted is not None:
            self._fleet.predicted.index.match(row.path, row.path_length, row.serial)
            reach = max(reach, self._fleet.predicted.index.reach)
            for i in range(self._fleet.predicted.index.matches):
                rank = self._fleet.predicted.index.matched[i]
                self._device[rank] = max(self._device[rank], self._fleet.predicted.index.depth[rank])
                self._list(rank)
        if not lower:
            return 0
        self._fleet.host.match_on(row.path, row.path_length, self._device, reach)
        reach = max(reach, self._fleet.host.reach)
        for i in range(self._fleet.host.matches):
            rank = self._fleet.host.matched[i]
            self._host[rank] = self._fleet.host.depth[rank]
            self._list(rank)
        for i in range(self.count):
            rank = self.ranks[i]
            self._start[rank] = self._device[rank] + self._host[rank]
        self._fleet.disk.match_on(row.path, row.path_length, self._start, reach)
        for i in range(self._fleet.disk.matches):
            rank = self._fleet.disk.matched[i]
            self._disk[rank] = self._fleet.disk.depth[rank]
            self._list(rank)
        query.host = self._host
        query.disk = self._disk
        return 0

    cdef int _take_told(self, Overlap overlap, query_t* query) except -1:
        """What the request brings itself. Ranks that are not present are passed over."""
        cdef slot_t rank
        cdef int32_t i = 0
        self._written = True
        if overlap.device or overlap.host or overlap.disk or not overlap.effective:
            self._take(overlap.device, self._device)
            if self._take(overlap.host, self._host):
                query.host = self._host
            if self._take(overlap.disk, self._disk):
                query.disk = self._disk
        else:
            query.effective = self._effective
            for name, blocks in overlap.effective:
                rank = self._rank_of(name)
                if rank != NO_SLOT:
                    self._effective[rank] = blocks
        if overlap.cached_tokens:
            query.cached = self._cached
            for name, tokens in overlap.cached_tokens:
                rank = self._rank_of(name)
                if rank != NO_SLOT:
                    self._cached[rank] = tokens
        if overlap.shared:
            if <int32_t>len(overlap.shared) > self._shared_room:
                resize(<void**>&self._shared, len(overlap.shared) * sizeof(range_t))
                self._shared_room = <int32_t>len(overlap.shared)
            for start, end in overlap.shared:
                self._shared[i].start = start
                self._shared[i].end = end
                i += 1
            query.shared = self._shared
            query.shared_count = i
        return 0

    cdef slot_t _rank_of(self, object name) except -2:
        """Slot of a rank that is told of, listed; NO_SLOT: it is not present."""
        cdef slot_t rank = self._fleet.workers.find_rank((<Rank>name).worker_id, (<Rank>name).dp_rank)
        if rank != NO_SLOT:
            self._list(rank)
        return rank

    cdef bint _take(self, tuple pairs, int32_t* into) except -1:
        cdef slot_t rank
        for name, blocks in pairs:
            rank = self._rank_of(name)
            if rank != NO_SLOT:
                into[rank] = blocks
        return len(pairs) > 0

    cdef int _weigh(self, Request request, query_t* query) except -1:
        """What the preferred taints make of the cost, per taint set: e^-tanh(sum of the weights that it carries)."""
        cdef slot_t sets = self._fleet.workers.taints.size()
        cdef slot_t number
        cdef double total
        if sets > self._multiplier_room:
            resize(<void**>&self._multiplier, sets * sizeof(double))
            self._multiplier_room = sets
        for number in range(sets):
            taints = self._fleet.workers.taints.taints_of(number)
            if taints is None:
                continue
            total = 0.0
            for taint, weight in request.preferred_taints:
                if taint in taints:
                    total += <double>weight
            self._multiplier[number] = kv_exp(-kv_tanh(total))
        query.multiplier = self._multiplier
        return 0

    cdef int _reserve(self) except -1 nogil:
        """Scratch for every rank slot; it shrinks with the fleet."""
        cdef slot_t room = room_for(self._fleet.workers.ranks_size, self._room)
        cdef slot_t rank
        if room == self._room:
            return 0
        resize(<void**>&self._device, room * sizeof(int32_t))
        resize(<void**>&self._host, room * sizeof(int32_t))
        resize(<void**>&self._disk, room * sizeof(int32_t))
        resize(<void**>&self._start, room * sizeof(int32_t))
        resize(<void**>&self._effective, room * sizeof(double))
        resize(<void**>&self._cached, room * sizeof(int64_t))
        resize(<void**>&self._listed, room)
        resize(<void**>&self.ranks, room * sizeof(slot_t))
        for rank in range(self._room, room):
            self._device[rank] = 0
            self._host[rank] = 0
            self._disk[rank] = 0
            self._start[rank] = 0
            self._effective[rank] = 0.0
            self._cached[rank] = 0
            self._listed[rank] = 0
        self._room = room
        return 0


cdef void copy_weights(SelectionWeights source, weights_t* target) noexcept:
    target.credit = source.overlap_score_credit
    target.credit_decay = source.overlap_score_credit_decay
    target.scale = source.prefill_load_scale
    target.host = source.host_cache_hit_weight
    target.disk = source.disk_cache_hit_weight
    target.shared = source.shared_cache_multiplier
    target.requests = source.active_request_weight
    target.temperature = source.temperature
