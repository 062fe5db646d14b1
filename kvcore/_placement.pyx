"""Placement: may a request run now, and on which rank (DESIGN D1, D7, D8).

Owns no state but scratch memory: it reads the fleet and live requests and answers. The same answers serve arrivals,
the dispatch test of heads, placement after a pop, and `peek`.

Never here: queues, bookings, time.

Of the ranks that a request may use (_eligible) the open ones take requests; an overloaded or leased-out one is waited
for. Under strict capacity a rank must also have room. An impossible request counts as ready to run, so that it is
answered with its reason instead of waiting for ever.

Cost: O(1) for pins and, under advisory capacity, for requests without constraints; O(allow-list) or O(taint sets)
for others; a choice O(log ranks) where Standings serve, else O(candidates).
"""
from libc.stdlib cimport free
from kvcore._eligible cimport constrained
from kvcore._ledger cimport Ledger
from kvcore._load cimport (
    RANK_GONE, RANK_LEASED, RANK_OPEN, RANK_OVERLOADED, RANK_STATES, active_blocks, has_room, load_t)
from kvcore._overlaps cimport room_for
from kvcore._requests cimport TIMER_GRACE, request_t
from kvcore._selector cimport cached_tokens, choose, device_blocks
from kvcore._types cimport NEVER_NS, NO_SLOT, int32_t, resize
from kvcore.request cimport effective_cached_tokens, output_blocks, prefill_delta, prompt_blocks

from kvcore.actions import RejectReason
from kvcore.config import OnOverload

cdef enum:
    RANKED_FROM = 2        # present ranks from which keeping standings pays


cdef bint runs_now(void* placement, slot_t class_index, slot_t slot) noexcept nogil:
    if (<Placement>placement).strict or (<Placement>placement).requests.rows[slot].constrained:
        with gil:
            return _runs_now(<Placement>placement, class_index, slot)
    return _runs_anywhere(<Placement>placement, class_index, slot)


cdef inline bint _runs_anywhere(Placement placement, slot_t class_index, slot_t slot) noexcept nogil:
    """Placement.may_run under advisory capacity for a request that may use every rank."""
    cdef slot_t pair = placement.pair_of[class_index]
    cdef const int32_t* in_state = placement.fleet.ledger.in_state
    if placement.requests.rows[slot].due_ns[<int>TIMER_GRACE] != NEVER_NS:
        return False
    if pair == NO_SLOT or placement.fleet.ledger.free[pair] > 0:
        return True
    if in_state[<int>RANK_OPEN] > 0 or in_state[<int>RANK_LEASED] > 0:
        return False
    return not (placement.sits_out and in_state[<int>RANK_OVERLOADED] > 0)


cdef bint _runs_now(Placement placement, slot_t class_index, slot_t slot) noexcept:
    try:
        return placement.may_run(class_index, slot)
    except MemoryError as error:
        placement.failure = error
        placement.failed = True
        return False


cdef class Placement:
    def __cinit__(self, Fleet fleet not None, RequestTable requests not None, config not None, list pairs not None):
        """pairs: threshold pair of each class, or None where it has none."""
        self.fleet = fleet
        self.requests = requests
        self.eligible = Eligible(fleet, requests)
        self.overlaps = Overlaps(fleet, requests, config)
        self.block_size = config.block_size
        self.sits_out = config.on_overload is OnOverload.WAIT
        self._request_weight = config.weights.active_request_weight
        self.adopt(pairs)

    def __dealloc__(self):
        free(self.pair_of)
        free(self._tied)
        free(self._costs)

    cdef int adopt(self, list pairs) except -1:
        """Other classes from now on, and what the fleet's capacity means now; pairs: as in __cinit__."""
        cdef slot_t i
        self.strict = self.fleet.strict
        self.standings = Standings(self.fleet.ledger, self.block_size, self._request_weight, self.strict)
        self._largest_version = -1
        self._ranked_version = -1
        self.bounded = None not in pairs
        resize(<void**>&self.pair_of, len(pairs) * sizeof(slot_t))
        for i in range(<slot_t>len(pairs)):
            self.pair_of[i] = NO_SLOT if pairs[i] is None else pairs[i]
        return 0

    cdef bint queues(self, slot_t class_index) noexcept nogil:
        """Whether requests of a class may have to wait for a rank."""
        return self.strict or self.pair_of[class_index] != NO_SLOT

    # Who may be used, and what is cached there.

    cdef object refusal(self, Request request, ns_t arrival_ns):
        """Why no present rank may ever take a request, or None: checks in the order of DESIGN D6."""
        cdef slot_t pin = NO_SLOT
        if request.pinned is not None and request.allowed_workers is not None:
            if request.pinned.worker_id not in request.allowed_workers:
                return RejectReason.PINNED_WORKER_NOT_ALLOWED
        if self.eligible.in_grace(request, arrival_ns):
            return None
        if self.fleet.workers.present == 0:
            return RejectReason.NO_WORKERS
        if request.pinned is not None:
            pin = self.fleet.workers.find_rank(request.pinned.worker_id, request.pinned.dp_rank)
            if pin == NO_SLOT or self.eligible.gone(pin):
                return RejectReason.PINNED_WORKER_UNAVAILABLE
            if not self.eligible.fits(request, self.fleet.workers.ranks[pin].worker):
                return RejectReason.NO_ELIGIBLE_WORKER
        elif not self._any_usable(request):
            return RejectReason.NO_ELIGIBLE_WORKER
        if self.strict and not self._could_hold(request, pin):
            return RejectReason.TOO_LARGE
        return None

    cdef bint _any_usable(self, Request request) except -1:
        """Whether some rank may take a request that has no pin. O(allow-list) or O(taint sets)."""
        cdef prospects_t found
        if not constrained(request):
            return self.fleet.ledger.in_state[<int>RANK_GONE] < self.fleet.workers.present
        if request.allowed_workers is None:
            self._look_by_taints(request, NO_SLOT, &found)
            return found.any
        return self.eligible.find(request, NO_SLOT) > 0

    cdef tokens_t best_cached(self, slot_t slot, Request request) except -1:
        """Cached tokens on the best rank that the request may use; a pin counts its own rank only (DESIGN D1)."""
        cdef request_t* row = &self.requests.rows[slot]
        cdef query_t query
        cdef int64_t best = 0
        cdef slot_t count, i
        cdef const slot_t* ranks
        if not row.constrained and not row.special:
            return self.best_cached_anywhere(slot)
        if request.overlap is None and (row.path_length == 0 or not self.fleet.knows_blocks()):
            return 0
        if request.pinned is not None and row.pin == NO_SLOT:
            return 0
        try:
            self.overlaps.begin(slot, request, False, &query)
            if row.pin != NO_SLOT or constrained(request):
                count = self.eligible.find(request, row.pin)
                ranks = self.eligible.ranks
            else:
                count = self.overlaps.count
                ranks = self.overlaps.ranks
            for i in range(count):
                if self.fleet.ledger.loads[ranks[i]].state != RANK_GONE:
                    best = max(best, cached_tokens(&query, ranks[i]))
        finally:
            self.overlaps.end()
        return effective_cached_tokens(best, row.prompt)

    cdef tokens_t best_cached_anywhere(self, slot_t slot) except -1 nogil:
        """The same for a request that may use every rank and brings nothing of its own."""
        cdef request_t* row = &self.requests.rows[slot]
        cdef query_t query
        cdef int64_t best = 0
        cdef slot_t i
        if row.path_length == 0 or not self.fleet.knows_blocks():
            return 0
        self.overlaps.begin_plain(slot, False, &query)
        for i in range(self.overlaps.count):
            if self.fleet.ledger.loads[self.overlaps.ranks[i]].state != RANK_GONE:
                best = max(best, cached_tokens(&query, self.overlaps.ranks[i]))
        self.overlaps.end()
        return effective_cached_tokens(best, row.prompt)

    # May it run.

    cdef bint may_run(self, slot_t class_index, slot_t slot) except -1:
        """The dispatch test of a head (DESIGN D7)."""
        cdef slot_t pair = self.pair_of[class_index]
        cdef prospects_t found
        if self.requests.rows[slot].due_ns[<int>TIMER_GRACE] != NEVER_NS:
            return False
        if pair == NO_SLOT and not self.strict:
            return True
        self._look(slot, self.requests.request(slot), pair, &found)
        if found.runs or not found.any or not found.holds:
            return True
        return not (found.open or found.leased or self.sits_out)

    cdef object overload(self, slot_t slot):
        """The reason to give up a waiting request because all its ranks are overloaded, or None."""
        cdef prospects_t found
        self._look(slot, self.requests.request(slot), NO_SLOT, &found)
        if not found.any or found.open or found.leased:
            return None
        if self.requests.rows[slot].pin != NO_SLOT:
            return RejectReason.PINNED_WORKER_OVERLOADED
        return RejectReason.ALL_ELIGIBLE_OVERLOADED

    cdef int _look(self, slot_t slot, Request request, slot_t pair, prospects_t* found) except -1:
        """What the ranks are like that a live request may use; pair: thresholds of its class."""
        cdef slot_t pin = self.requests.rows[slot].pin
        cdef slot_t count, i, rank
        cdef int64_t needed
        cdef load_t* load
        if pin == NO_SLOT and not constrained(request):
            return self._look_anywhere(slot, request, pair, found)
        if pin == NO_SLOT and request.allowed_workers is None and not self.strict:
            return self._look_by_taints(request, pair, found)
        count = self.eligible.find(request, pin)
        needed = self._needed(request)
        found[0] = prospects_t(any=count > 0, runs=False, open=False, leased=False, holds=not self.strict)
        self._match_active(slot)
        for i in range(count):
            rank = self.eligible.ranks[i]
            load = &self.fleet.ledger.loads[rank]
            found.leased = found.leased or load.state == RANK_LEASED
            found.holds = found.holds or needed <= load.max_blocks
            if load.state == RANK_OPEN:
                found.open = True
                found.runs = found.runs or self._takes(rank, pair, needed)
        return 0

    cdef int _look_anywhere(self, slot_t slot, Request request, slot_t pair, prospects_t* found) except -1:
        """For a request that may use every rank: from counters; under strict capacity from the roomiest rank."""
        cdef Ledger ledger = self.fleet.ledger
        cdef int64_t needed
        cdef slot_t i
        found.open = ledger.in_state[<int>RANK_OPEN] > 0
        found.leased = ledger.in_state[<int>RANK_LEASED] > 0
        found.any = found.open or found.leased or ledger.in_state[<int>RANK_OVERLOADED] > 0
        found.holds = True
        found.runs = found.open if pair == NO_SLOT else ledger.free[pair] > 0
        if not self.strict:
            return 0
        needed = self._needed(request)
        found.holds = needed <= self.largest_rank()
        self._rank()
        found.runs = self.standings.most_room(pair) >= needed
        if not found.runs:
            # Blocks that it would share with what runs there are not needed twice.
            self._match_active(slot)
            for i in range(ledger.active.index.matches):
                found.runs = found.runs or self._takes(ledger.active.index.matched[i], pair, needed)
        return 0

    cdef int _look_by_taints(self, Request request, slot_t pair, prospects_t* found) except -1:
        """For a request with nothing but required taints, under advisory capacity: from counters per taint set."""
        cdef const unsigned char* fits = self.fleet.workers.taints.satisfying(request.required_taints)
        cdef Ledger ledger = self.fleet.ledger
        cdef slot_t number
        found[0] = prospects_t(any=False, runs=False, open=False, leased=False, holds=True)
        for number in range(self.fleet.workers.taints.size()):
            if fits[number]:
                found.open = found.open or ledger.in_state_of[number * RANK_STATES + <int>RANK_OPEN] > 0
                found.leased = found.leased or ledger.in_state_of[number * RANK_STATES + <int>RANK_LEASED] > 0
                found.any = found.any or ledger.in_state_of[number * RANK_STATES + <int>RANK_OVERLOADED] > 0
                if pair != NO_SLOT:
                    found.runs = found.runs or ledger.free_of[number * ledger.pairs + pair] > 0
        found.any = found.any or found.open or found.leased
        return 0

    cdef void _match_active(self, slot_t slot) noexcept nogil:
        """What of a request runs on each rank already, where that matters to whether it may run."""
        if self.strict:
            self.fleet.ledger.active.index.match(
                self.requests.rows[slot].sequence, self.requests.rows[slot].sequence_length,
                self.requests.rows[slot].serial)

    cdef bint _takes(self, slot_t rank, slot_t pair, int64_t needed) noexcept nogil:
        """Whether a rank would take a request now that needs so many blocks; after _match_active."""
        cdef const load_t* load = &self.fleet.ledger.loads[rank]
        if load.state != RANK_OPEN or (pair != NO_SLOT and self.fleet.ledger.busy(rank, pair)):
            return False
        return not self.strict or has_room(load, needed - self.fleet.ledger.active.index.depth[rank])

    # Strict capacity.

    cdef int64_t _needed(self, Request request) except -1:
        """Blocks of its prompt and of its expected output."""
        return prompt_blocks(request.prompt_tokens, self.block_size) + output_blocks(request, self.block_size)

    cdef bint _could_hold(self, Request request, slot_t pin) except -1:
        """Whether some rank that it may use could ever hold it."""
        cdef int64_t needed = self._needed(request)
        cdef slot_t count, i
        if pin == NO_SLOT and not constrained(request):
            return needed <= self.largest_rank()
        count = self.eligible.find(request, pin)
        for i in range(count):
            if needed <= self.fleet.ledger.loads[self.eligible.ranks[i]].max_blocks:
                return True
        return False

    cdef int64_t largest_rank(self) noexcept nogil:
        """Most blocks that any rank can hold which is not gone. O(ranks) after a change of the fleet, else O(1)."""
        cdef slot_t i
        cdef load_t* load
        if self._largest_version != self.fleet.version:
            self._largest_version = self.fleet.version
            self._largest = -1
            for i in range(self.fleet.workers.present):
                load = &self.fleet.ledger.loads[self.fleet.workers.order[i]]
                if load.state != RANK_GONE:
                    self._largest = max(self._largest, load.max_blocks)
        return self._largest

    # Where.

    cdef slot_t decide(self, slot_t slot, uint64_t* generator, choice_t* choice) except -2 nogil:
        """The rank that a classified request would get now, with what it finds there; NO_SLOT: none, see `nowhere`.

        Draws as DESIGN D8 says.
        """
        cdef const request_t* row = &self.requests.rows[slot]
        cdef query_t query
        cdef slot_t rank
        if self.fleet.workers.present == 0:
            return NO_SLOT
        if row.constrained or row.special:
            with gil:
                return self._decide(slot, self.requests.request(slot), generator, choice)
        self._reserve()
        if self._ranked(row):
            self._rank()
        self.overlaps.begin_plain(slot, True, &query)
        rank = self._cheapest(slot, &query, generator)
        if rank == NO_SLOT:
            rank = choose(self.fleet.ledger.loads, self.eligible.ranks, self._open_to(slot), &query, generator,
                          self._tied, self._costs)
        if rank != NO_SLOT:
            self._measure(row, rank, &query, choice)
        self.overlaps.end()
        return rank

    cdef slot_t _decide(self, slot_t slot, Request request, uint64_t* generator, choice_t* choice) except -2:
        """The same for any request."""
        cdef query_t query
        cdef slot_t rank, count
        self._reserve()
        try:
            self.overlaps.begin(slot, request, True, &query)
            rank = NO_SLOT
            if self._ranked(&self.requests.rows[slot]):
                self._rank()
                rank = self._cheapest(slot, &query, generator)
            if rank == NO_SLOT:
                count = self.willing(slot, request)
                rank = choose(
                    self.fleet.ledger.loads, self.eligible.ranks, count, &query, generator, self._tied, self._costs)
            if rank != NO_SLOT:
                self._measure(&self.requests.rows[slot], rank, &query, choice)
            return rank
        finally:
            self.overlaps.end()

    cdef bint _ranked(self, const request_t* row) noexcept nogil:
        """Whether standings may serve a request: it may use every rank, and there are some to compare."""
        return (self.fleet.workers.present >= RANKED_FROM and not self.strict and not row.constrained
                and self.fleet.ledger.in_state[<int>RANK_OPEN] > 0)

    cdef slot_t _cheapest(self, slot_t slot, const query_t* query, uint64_t* generator) noexcept nogil:
        """By standings, which are up to date; NO_SLOT: they do not serve this request."""
        if not self._ranked(&self.requests.rows[slot]) or not self.standings.serves(query):
            return NO_SLOT
        return self.standings.cheapest(query, self.overlaps.ranks, self.overlaps.count, generator)

    cdef slot_t _open_to(self, slot_t slot) noexcept nogil:
        """`willing` for a request that may use every rank; there is room in `eligible.ranks`."""
        cdef const request_t* row = &self.requests.rows[slot]
        cdef slot_t pair = self.pair_of[row.class_index] if self.strict else NO_SLOT
        cdef int64_t needed = prompt_blocks(row.prompt, self.block_size) + row.reserve
        cdef slot_t kept = 0
        cdef slot_t i
        if self.strict and needed > self.largest_rank():
            return 0
        self._match_active(slot)
        for i in range(self.fleet.workers.present):
            if self._takes(self.fleet.workers.order[i], pair, needed):
                self.eligible.ranks[kept] = self.fleet.workers.order[i]
                kept += 1
        return kept

    cdef slot_t willing(self, slot_t slot, Request request) except -1:
        """Ranks that would take a classified request now, in canonical order, into `eligible.ranks`; how many."""
        cdef slot_t pin = self.requests.rows[slot].pin
        cdef slot_t count = self.eligible.find_live(slot)
        cdef slot_t pair = self.pair_of[self.requests.rows[slot].class_index] if self.strict else NO_SLOT
        cdef int64_t needed = self._needed(request)
        cdef slot_t kept = 0
        cdef slot_t i
        if count and self.strict and not self._could_hold(request, pin):
            return 0               # only names that contradict each other could seem to have room
        self._match_active(slot)
        for i in range(count):
            if self._takes(self.eligible.ranks[i], pair, needed):
                self.eligible.ranks[kept] = self.eligible.ranks[i]
                kept += 1
        return kept

    cdef object nowhere(self, slot_t slot):
        """Why no rank takes a request that has been popped."""
        cdef Request request = self.requests.request(slot)
        cdef slot_t pin = self.requests.rows[slot].pin
        cdef slot_t count, i
        if self.fleet.workers.present == 0:
            return RejectReason.NO_WORKERS
        if pin != NO_SLOT and self.eligible.gone(pin):
            return RejectReason.PINNED_WORKER_UNAVAILABLE
        count = self.eligible.find(request, pin)
        if count and self.strict and not self._could_hold(request, pin):
            return RejectReason.TOO_LARGE
        for i in range(count):
            if self.fleet.ledger.loads[self.eligible.ranks[i]].state == RANK_OVERLOADED:
                return RejectReason.ALL_ELIGIBLE_OVERLOADED if pin == NO_SLOT else RejectReason.PINNED_WORKER_OVERLOADED
        if count and pin != NO_SLOT:
            return RejectReason.PINNED_WORKER_UNAVAILABLE
        return RejectReason.NO_ELIGIBLE_WORKER

    cdef int _rank(self) except -1 nogil:
        """Bring the standings up to date."""
        if self._ranked_version != self.fleet.version:
            self.standings.rebuild(self.fleet.workers.order, self.fleet.workers.present)
            self._ranked_version = self.fleet.version
        return self.standings.refresh()

    cdef int _reserve(self) except -1 nogil:
        """Scratch for every present rank; it shrinks with the fleet."""
        cdef slot_t room = room_for(self.fleet.workers.present, self._room)
        self.eligible.reserve()
        if room == self._room:
            return 0
        resize(<void**>&self._tied, room * sizeof(slot_t))
        resize(<void**>&self._costs, room * sizeof(double))
        self._room = room
        return 0

    cdef void _measure(
            self, const request_t* row, slot_t rank, const query_t* query, choice_t* choice) noexcept nogil:
        """What the request finds on its rank, and makes of it."""
        choice.overlap_blocks = device_blocks(query, rank)
        choice.cached_tokens = effective_cached_tokens(cached_tokens(query, rank), row.prompt)
        choice.prefill_tokens = prefill_delta(row.prompt, choice.cached_tokens, row.track_prefill)
        choice.potential_decode_blocks = (
            active_blocks(&self.fleet.ledger.loads[rank]) - query.active[rank]
            + prompt_blocks(row.prompt, self.block_size))
