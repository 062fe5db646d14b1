"""Obstacles: what keeps a request that does not run from each of the ranks that it may use (DESIGN D7, D8), in words.

Owns what it found about the request that it last looked at. The test of a head (_placement) asks whether any rank takes
a request; this looks at each, and for each kind of obstacle remembers where it is nearest to being gone.

Never here: the queue; what time makes of a wait.

Invariants: a rank takes the request, as the test of a head sees it, iff nothing stands in the way there; what a
sentence names is a rank that this obstacle keeps from taking it and, if there is such a rank, no other does.

Cost: O(ranks that it may use).
"""
from kvcore._load cimport (
    INT64_TOP, RANK_GONE, RANK_LEASED, RANK_OVERLOADED, has_room, held_of, requests_of)
from kvcore._requests cimport request_t
from kvcore._types cimport NO_SLOT, NS_END
from kvcore._workers cimport rank_t
from kvcore.request cimport prompt_blocks

from kvcore._explanation_text import named, span

cdef tuple STATES = ("open", "overloaded", "leased", "gone")


cdef class Obstacles:
    def __cinit__(self, RequestTable requests not None, Fleet fleet not None, Placement placement not None):
        self._requests = requests
        self._fleet = fleet
        self._placement = placement

    cdef int look(self, slot_t slot) except -1:
        """Find out about a live request. Views are of this moment; they need to be taken before the next look."""
        cdef request_t* row = &self._requests.rows[slot]
        cdef bint strict = self._placement.strict
        cdef finding_t* found
        cdef int32_t standing
        cdef slot_t rank, i
        cdef int obstacle
        self._slot = slot
        self._pair = self._placement.pair_of[row.class_index]
        self._needed = prompt_blocks(row.prompt, self._placement.block_size) + row.reserve
        self.usable = self._placement.eligible.find_live(slot)
        if strict:
            self._fleet.ledger.active.index.match(row.sequence, row.sequence_length, row.serial)
        for obstacle in range(OBSTACLES):
            self._found[obstacle].ranks = 0
        for i in range(self.usable):
            rank = self._placement.eligible.ranks[i]
            standing = self._standing(rank)
            for obstacle in range(OBSTACLES if standing else 0):
                if standing & (1 << obstacle):
                    found = &self._found[obstacle]
                    self._weigh(found, rank, standing == 1 << obstacle, self._excess(rank, obstacle))
        return 0

    cdef void _weigh(self, finding_t* found, slot_t rank, bint alone, i128 excess) noexcept:
        """One more rank where this obstacle stands."""
        if found.ranks == 0 or (alone and not found.alone) or (alone == found.alone and excess < found.excess):
            found.nearest = rank
            found.alone = alone
            found.excess = excess
        found.ranks += 1

    cdef int32_t _standing(self, slot_t rank) noexcept:
        """All that stands in the way on a rank that is not gone, a bit each; 0: it takes the request."""
        cdef const load_t* load = &self._fleet.ledger.loads[rank]
        cdef int32_t standing = 0
        if load.state == RANK_OVERLOADED:
            standing = 1 << OBSTACLE_OVERLOADED
        elif load.state == RANK_LEASED:
            standing = 1 << OBSTACLE_LEASED
        if self._pair != NO_SLOT and self._fleet.ledger.busy(rank, self._pair):
            standing |= 1 << OBSTACLE_BUSY
        if self._placement.strict and not has_room(load, self._needed_on(rank)):
            if requests_of(load) >= load.max_requests:
                standing |= 1 << OBSTACLE_REQUESTS
            if self._excess(rank, OBSTACLE_ROOM) > 0:
                standing |= 1 << OBSTACLE_ROOM
        return standing

    cdef i128 _excess(self, slot_t rank, int obstacle) noexcept:
        """By how much an obstacle stands in the way; it does iff that is above 0, where it can be counted."""
        cdef const load_t* load = &self._fleet.ledger.loads[rank]
        if obstacle == OBSTACLE_BUSY:
            return <i128>self._fleet.ledger.tokens(rank) - self._fleet.ledger.calm(rank, self._pair)
        if obstacle == OBSTACLE_REQUESTS:
            return <i128>requests_of(load) + 1 - load.max_requests
        if obstacle == OBSTACLE_ROOM and load.max_blocks != INT64_TOP:
            return load.held + load.foreign_blocks + self._needed_on(rank) - load.max_blocks
        return 0

    cdef int64_t _needed_on(self, slot_t rank) noexcept:
        """Blocks that the request would add there, under strict capacity."""
        return self._needed - self._fleet.ledger.active.index.depth[rank]

    # What is told.

    cdef tuple views(self):
        """The first ranks that it may use; where its pin is lost, that one."""
        cdef slot_t pin = self._requests.rows[self._slot].pin
        cdef slot_t i
        if pin != NO_SLOT and (self._fleet.workers.ranks[pin].worker == NO_SLOT
                               or self._fleet.ledger.loads[pin].state == RANK_GONE):
            return (self._lost(pin),)
        return tuple([
            self._view(self._placement.eligible.ranks[i]) for i in range(min(self.usable, <slot_t>VIEWS_MAX))])

    cdef RankView _view(self, slot_t rank):
        cdef const load_t* load = &self._fleet.ledger.loads[rank]
        cdef const rank_t* name = &self._fleet.workers.ranks[rank]
        cdef RankView view = RankView.__new__(RankView)
        view.worker_id = name.worker_id
        view.dp_rank = name.dp_rank
        view.state = STATES[load.state]
        view.takes = self._standing(rank) == 0
        view.prefill_tokens = self._fleet.ledger.tokens(rank)
        if self._pair != NO_SLOT:
            view.busy = self._fleet.ledger.busy(rank, self._pair)
            view.busy_above_tokens = bound_of(self._fleet.ledger.calm(rank, self._pair))
        view.requests = requests_of(load)
        view.max_requests = bound_of(load.max_requests)
        view.held_blocks = held_of(load)
        view.total_kv_blocks = bound_of(load.max_blocks)
        if self._placement.strict:
            view.needs_blocks = self._needed_on(rank)
        return view

    cdef RankView _lost(self, slot_t rank):
        """A rank that is not there, or unavailable until told otherwise: what is on it does not matter."""
        cdef const rank_t* name = &self._fleet.workers.ranks[rank]
        cdef RankView view = RankView.__new__(RankView)
        view.worker_id = name.worker_id
        view.dp_rank = name.dp_rank
        view.state = STATES[<int>RANK_GONE]
        return view

    cdef int tell(self, str class_name, str whose, list sentences) except -1:
        """A sentence per kind of obstacle. whose: stands before each where it is not the explained request's own."""
        cdef int obstacle
        for obstacle in range(OBSTACLES):
            if self._found[obstacle].ranks:
                sentences.append(whose + self._sentence(obstacle, class_name))
        return 0

    cdef str _sentence(self, int obstacle, str class_name):
        cdef const finding_t* found = &self._found[obstacle]
        cdef const load_t* load = &self._fleet.ledger.loads[found.nearest]
        cdef const rank_t* rank = &self._fleet.workers.ranks[found.nearest]
        cdef str name = f"worker {rank.worker_id} rank {rank.dp_rank}"
        cdef str are = f"{found.ranks:,} of {self.usable:,} ranks {'is' if found.ranks == 1 else 'are'}"
        if obstacle == OBSTACLE_BUSY:
            return (f"{are} busy for class {named(class_name)}: the prefill load of {name} must fall from "
                    f"{self._fleet.ledger.tokens(found.nearest):,} to "
                    f"{self._fleet.ledger.calm(found.nearest, self._pair):,} tokens")
        if obstacle == OBSTACLE_ROOM:
            return (f"{are} without room for it: on {name} {max(0, load.max_blocks - held_of(load)):,} of "
                    f"{load.max_blocks:,} KV blocks are free, it needs {self._needed_on(found.nearest):,}")
        if obstacle == OBSTACLE_REQUESTS:
            return (f"{are} full: {name} runs {requests_of(load):,} requests and may run {load.max_requests:,}")
        if obstacle == OBSTACLE_OVERLOADED:
            return f"{are} overloaded, {name} for one"
        return f"{are} unavailable for a while, {name} {self._lease(found.nearest)}"

    cdef str _lease(self, slot_t rank):
        """Until when a rank is unavailable: the end of the last lease that says so."""
        end_ns = max([mark[3] for mark in self._fleet.marks.marks_of(self._fleet.workers.ranks[rank].worker)
                      if not mark[1]])
        return "for ever" if end_ns >= NS_END else f"for another {span(end_ns - self._fleet.ledger.now_ns)}"


cdef object bound_of(int64_t value):
    """A cap or bound; None: there is none."""
    return None if value == INT64_TOP else value
