"""Door for tests to the ledger.

Never shipped. A door converts and does nothing else: NO_SLOT becomes None, C rows become tuples, 128-bit sums become
ints, an infinite cap is None.
"""
from cpython cimport array
from kvcore._ledger cimport (
    INT64_TOP, RANK_STATES, Ledger, active_blocks, blocks_of, has_room, held_of, output_weight, own_tokens_at,
    rank_state_t, requests_of, tokens_at, weight_of)
from kvcore._ledger_audit cimport ledger_faults
from kvcore._types cimport NEVER_NS, NO_SLOT, i128, int32_t, int64_t, ns_t, slot_t, uint64_t

import array


cdef object wide(i128 value):
    """All 128 bits."""
    return int(<int64_t>(value >> 64)) * 2**64 + int(<uint64_t>value)


cdef int64_t cap(bound):
    return INT64_TOP if bound is None else bound


cdef class Books:
    """Ledger. thresholds: pairs (absolute or None, fraction or None). Paths are sequences of block hashes."""

    cdef Ledger ledger
    cdef dict paths

    def __cinit__(self, list thresholds, bint decays=False):
        self.ledger = Ledger(thresholds, decays)
        self.paths = {}

    # Ranks.

    def add_rank(self, slot_t rank, uint64_t tag):
        self.ledger.reserve_ranks(rank + 1)
        self.ledger.name_rank(rank, tag)

    def configure(self, slot_t rank, int64_t max_batched_tokens, slot_t taints=0, blocks=None, requests=None,
                  int64_t rate=0):
        self.ledger.configure_rank(rank, max_batched_tokens, cap(blocks), cap(requests), rate, taints)

    def set_state(self, slot_t rank, int state):
        self.ledger.set_state(rank, <rank_state_t>state)

    def remove_rank(self, slot_t rank):
        self.ledger.remove_rank(rank)

    def calm(self, slot_t rank, slot_t pair):
        """The largest prefill load that is not busy."""
        return self.ledger._calm[rank * self.ledger.pairs + pair]

    def busy(self, slot_t rank, slot_t pair):
        return bool(self.ledger.busy(rank, pair))

    def free(self):
        """Free ranks per pair."""
        cdef slot_t pair
        return [self.ledger.free[pair] for pair in range(self.ledger.pairs)]

    def free_of(self, slot_t taints):
        """Free ranks per pair, of those that carry this taint set."""
        cdef slot_t pair
        return [self.ledger.free_of[taints * self.ledger.pairs + pair] for pair in range(self.ledger.pairs)]

    def in_state(self, taints=None):
        """Present ranks by state, of all or of one taint set."""
        cdef slot_t state
        if taints is None:
            return [self.ledger.in_state[state] for state in range(RANK_STATES)]
        return [self.ledger.in_state_of[<slot_t>taints * RANK_STATES + state] for state in range(RANK_STATES)]

    # Bookings.

    def book(self, slot_t slot, slot_t rank, int64_t prefill, path, int64_t private=0, int64_t reserve=0):
        cdef array.array hashes = array.array("Q", path)
        self.ledger.book(slot, rank, prefill, <const uint64_t*>hashes.data.as_ulonglongs, <int32_t>len(hashes),
                         private, reserve)
        self.paths[slot] = hashes

    def complete_prefill(self, slot_t slot):
        return bool(self.ledger.complete_prefill(slot))

    def add_output(self, slot_t slot, int32_t weight=-1):
        self.ledger.add_output(slot, weight)

    def release(self, slot_t slot, bint completed=False):
        relieved = bool(self.ledger.release(slot, completed))
        del self.paths[slot]
        return relieved

    # Reports and time.

    def report(self, slot_t rank, int64_t sequence, int64_t prefill, int64_t blocks, int64_t requests, bint counts):
        return bool(self.ledger.report(rank, sequence, prefill, blocks, requests, counts))

    def forget_report(self, slot_t rank):
        self.ledger.forget_report(rank)

    def next_crossing_ns(self):
        cdef ns_t at_ns = self.ledger.next_crossing_ns()
        return None if at_ns == NEVER_NS else at_ns

    def advance(self, ns_t now_ns):
        """Ranks that this has made less busy."""
        cdef slot_t i
        self.ledger.advance(now_ns)
        return [self.ledger.crossed[i] for i in range(self.ledger.crossed_count)]

    def dirty(self):
        """Ranks that have changed since this was asked last."""
        cdef slot_t i
        found = [self.ledger.dirty_ranks[i] for i in range(self.ledger.dirties)]
        self.ledger.clear_dirty()
        return found

    # Reading.

    def load(self, slot_t rank):
        """(prefill tokens before decay, weight, active blocks, requests), all own."""
        row = &self.ledger.loads[rank]
        return wide(row.prefill), row.weight, active_blocks(row), row.requests

    def held(self, slot_t rank):
        """Own blocks."""
        return wide(self.ledger.loads[rank].held)

    def own_tokens(self, slot_t rank):
        """After decay."""
        return wide(own_tokens_at(&self.ledger.loads[rank], self.ledger.now_ns))

    def effective(self, slot_t rank):
        """(prefill tokens, blocks, requests, held blocks) with foreign ones."""
        row = &self.ledger.loads[rank]
        assert self.ledger.tokens(rank) == tokens_at(row, self.ledger.now_ns)
        assert self.ledger.blocks(rank) == blocks_of(row)
        return self.ledger.tokens(rank), self.ledger.blocks(rank), requests_of(row), held_of(row)

    def has_room(self, slot_t rank, int64_t need):
        return bool(has_room(&self.ledger.loads[rank], need))

    def reported(self, slot_t rank):
        """(sequence, prefill tokens, blocks, requests) as told; -1: none."""
        row = &self.ledger.loads[rank]
        return row.reported_sequence, row.reported_prefill, row.reported_blocks, row.reported_requests

    def anchor_ns(self, slot_t rank):
        return self.ledger.loads[rank].anchor_ns

    def fifo(self, slot_t rank):
        """Request slots, front first."""
        cdef slot_t slot = self.ledger.loads[rank].fifo_first
        found = []
        while slot != NO_SLOT:
            found.append(slot)
            slot = self.ledger.bookings[slot].fifo_next
        return found

    def booked_on(self, slot_t rank):
        """Request slots, newest booking first."""
        cdef slot_t slot = self.ledger.loads[rank].first
        found = []
        while slot != NO_SLOT:
            found.append(slot)
            slot = self.ledger.bookings[slot].next
        return found

    def weight(self, slot_t rank, uint64_t block_hash):
        """Of a prompt block on a rank; None: nobody uses it there."""
        cdef int32_t row = self.ledger.active.find(block_hash, rank)
        return None if row == NO_SLOT else weight_of(self.ledger.bookings, &self.ledger.active.rows[row])

    def output_weight(self, slot_t slot):
        return output_weight(&self.ledger.bookings[slot])

    def bound_from(self, slot_t slot):
        return self.ledger.bookings[slot].bound_from

    def owner(self, slot_t rank, uint64_t block_hash):
        """Request slot that a live prompt block is bound to."""
        cdef slot_t slot = self.ledger.active.rows[self.ledger.active.find(block_hash, rank)].owner
        return None if slot == NO_SLOT else slot

    def pairs_held(self):
        """(blocks, (block, rank) pairs, mixed) of prompt blocks of live bookings."""
        return self.ledger.active.index.blocks, self.ledger.active.pairs, self.ledger.active.index.mixed

    def faults(self):
        return ledger_faults(self.ledger)

    # What a broken ledger would look like.

    def spoil(self, str name, slot_t row=0, int64_t by=1):
        """Add to one number that the ledger keeps."""
        if name == "prefill":
            self.ledger.loads[row].prefill += by
        elif name == "weight":
            self.ledger.loads[row].weight += by
        elif name == "held":
            self.ledger.loads[row].held += by
        elif name == "requests":
            self.ledger.loads[row].requests += <int32_t>by
        elif name == "anchor":
            self.ledger.loads[row].anchor_ns += by
        elif name == "front":
            self.ledger.loads[row].front_ns += by
        elif name == "fifo_last":
            self.ledger.loads[row].fifo_last = NO_SLOT
        elif name == "free":
            self.ledger.free[row] += <int32_t>by
        elif name == "free_of":
            self.ledger.free_of[row] += <int32_t>by
        elif name == "in_state":
            self.ledger.in_state[row] += <int32_t>by
        elif name == "in_state_of":
            self.ledger.in_state_of[row] += <int32_t>by
        elif name == "bound_from":
            self.ledger.bookings[row].bound_from += <int32_t>by
        elif name == "owner":
            self.ledger.active.rows[row].owner = NO_SLOT
        elif name == "at":
            self.ledger.active.rows[row].at += <int32_t>by
        elif name == "count":
            self.ledger.active.rows[row].count += <int32_t>by
        elif name == "prev":
            self.ledger.bookings[row].prev = <slot_t>by
        elif name == "fifo_prev":
            self.ledger.bookings[row].fifo_prev = <slot_t>by
        elif name == "prefilling":
            self.ledger.bookings[row].prefilling = False
        elif name == "dirty":
            self.ledger.loads[row].dirty = not self.ledger.loads[row].dirty
        elif name == "crossing":
            self.ledger._crossings.nodes[0].key.first += by
        elif name == "crossing_pos":
            self.ledger._crossing_pos[row] = NO_SLOT
        elif name == "calm":
            self.ledger._calm[row] += by
        else:
            raise ValueError(name)
