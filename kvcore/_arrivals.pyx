"""Arrivals: the way in, from a request that arrives to one that waits in its class, or to its refusal (DESIGN D6).

Owns the order of checks: what needs no class first, then class and key, the class's admission policy, its limits.
`arrive_plainly` is the same for the many of which there is nothing to be said: it knows when it does not do. Who is
alone in his step while nothing waits, and may run, is not stored for the moment until he is popped.

Never here: who runs (the settler), how a refusal is worded.
"""
from kvcore._admission cimport ENTRY_DEFER, ENTRY_ENDED, entry_t
from kvcore._drr cimport LIMIT_NONE
from kvcore._load cimport RANK_GONE
from kvcore._requests cimport request_t
from kvcore._types cimport NO_SLOT, ceil_div
from kvcore.actions cimport make_reject

from kvcore.actions import RejectReason


cdef class Arrivals:
    def __cinit__(self, Lifecycle lifecycle not None, Settler settler not None, int64_t block_size):
        self._requests = lifecycle.requests
        self._fleet = lifecycle.fleet
        self._placement = lifecycle.placement
        self._backlog = lifecycle.backlog
        self._endings = lifecycle.endings
        self._admission = lifecycle.admission
        self._inspector = lifecycle.inspector
        self._lifecycle = lifecycle
        self._policies = lifecycle.policies
        self._dispatcher = lifecycle.dispatcher
        self._settler = settler
        self._block_size = block_size

    cdef object refusal(self, Request request):
        """Why an arriving request cannot even wait, or None (DESIGN D6)."""
        if self._requests.find(request.request_id) != NO_SLOT:
            return RejectReason.DUPLICATE_ID
        if self._lifecycle.draining:
            return RejectReason.SHUTTING_DOWN
        if request.deadline_ns is not None and request.deadline_ns <= self._fleet.ledger.now_ns:
            return RejectReason.DEADLINE_EXPIRED
        return self._placement.refusal(request, self._fleet.ledger.now_ns)

    cdef int arrive(self, Request request, list out) except -1:
        """It waits from now on, is held back by its class's admission policy, or is refused."""
        cdef slot_t slot
        cdef int64_t current = 0
        cdef int64_t bound = 0
        cdef limit_t kind = LIMIT_NONE
        cdef entry_t entry
        self._inspector.arrived += 1
        reason = self.refusal(request)
        if reason is not None:
            self._inspector.count_reject(reason, -1)
            out.append(make_reject(request.request_id, reason, -1))
            return 0
        slot = self._requests.open(request, self._fleet.ledger.now_ns, self._block_size)
        self._backlog.classify(slot, request)
        if request.policy_class is not None:
            self._inspector.unknown_names += not self._backlog.classes.meaning(request.policy_class).known
        if self._is_over_limit(slot, &kind, &current, &bound):
            # What single steps would have run must not be refused because a batch has not decided yet.
            self._settler.settle(out)
        if kind == LIMIT_NONE and not self._policies.any:
            if self.alone and self._backlog.pass_by(slot):
                self._backlog.keep_pin(slot)
                return self._dispatcher.place(slot, out)
            return self._backlog.store(slot)
        entry = self._admission.arrive(slot, out)
        if entry == ENTRY_ENDED:
            return 0
        if self._is_over_limit(slot, &kind, &current, &bound):
            if entry != ENTRY_DEFER:
                self._settler.settle(out)      # its policy may have moved it to another class
            if self._is_over_limit(slot, &kind, &current, &bound):
                return self._endings.reject(
                    slot, self._backlog.queue_full(slot, request.request_id, kind, current, bound), out)
        return self._backlog.defer(slot) if entry == ENTRY_DEFER else self._backlog.store(slot)

    cdef bint arrive_plainly(
            self, int64_t number, const plain_t* plain, const uint64_t* hashes, int32_t length,
            list out) except -1 nogil:
        """Let a request that has come as a record wait or run, where there are no admission policies.

        False: there is more to be said about it, and nothing has changed.
        """
        cdef slot_t slot
        cdef int64_t current = 0
        cdef int64_t bound = 0
        cdef limit_t kind = LIMIT_NONE
        if self._requests.ids.get_number(number) != NO_SLOT or self._lifecycle.draining or self._fleet.graced:
            return False
        if plain.deadline_ns <= self._fleet.ledger.now_ns:
            return False
        if self._fleet.ledger.in_state[<int>RANK_GONE] >= self._fleet.workers.present:
            return False
        if self._placement.strict and self._placement.largest_rank() < (
                ceil_div(plain.prompt, self._block_size)
                + (ceil_div(plain.expected, self._block_size) if plain.expected > 0 else 0)):
            return False
        slot = self._requests.open_number(
            number, plain, hashes, length, self._fleet.ledger.now_ns, self._block_size)
        self._backlog.classify_record(slot)
        if self._is_over_limit(slot, &kind, &current, &bound):
            self._requests.close(slot)
            return False
        self._inspector.arrived += 1
        if plain.class_name >= 0:
            self._inspector.unknown_names += not self._backlog.classes.numbered[plain.class_name].known
        if self.alone and self._backlog.pass_by(slot):
            self._dispatcher.place(slot, out)
        else:
            self._backlog.store(slot)
        return True

    cdef bint _is_over_limit(self, slot_t slot, limit_t* kind, int64_t* current, int64_t* bound) noexcept nogil:
        """Whether a limit of its class refuses a classified request now."""
        cdef const request_t* row = &self._requests.rows[slot]
        kind[0] = LIMIT_NONE
        if row.may_wait:
            kind[0] = self._backlog.limit_hit(slot, current, bound)
        return kind[0] != LIMIT_NONE
