"""Admission: what the admission policies' answers make of requests (DESIGN D10).

Owns nothing: it carries out between the policies and the backlog. An arriving request is decided about before limits; a
deferred one is released by its policy or from outside, keeps its place in time, and may have been given a rank, which
can move it to another class. The policy that decided goes on hearing of it.

Never here: the policies' own checks (_policies), when the work list is worked off (the scheduler, at the end of each
event).
"""
from dataclasses import replace

from kvcore._policies cimport CALL_ADVANCED, CALL_DISPATCHED, CALL_RELEASED
from kvcore._requests cimport STATE_DEFERRED, request_t
from kvcore._types cimport NO_SLOT

from kvcore.actions import RejectReason
from kvcore.admission import AdmissionView, Bypass, Defer, Refuse


cdef class Admission:
    def __cinit__(self, RequestTable requests not None, Fleet fleet not None, Placement placement not None,
                  Backlog backlog not None, Endings endings not None, Policies policies not None):
        self._requests = requests
        self._fleet = fleet
        self._placement = placement
        self._backlog = backlog
        self._endings = endings
        self._policies = policies

    cdef entry_t arrive(self, slot_t slot, list out) except *:
        """What its class's policy makes of a classified request that is stored nowhere yet."""
        cdef request_t* row = &self._requests.rows[slot]
        cdef Request request = self._requests.request(slot)
        if not self._policies.manages(row.class_index) or not request.lifecycle:
            return ENTRY_STORE
        return self._carry_out(slot, self._policies.decide(row.class_index, self._view(slot, request)), out)

    cdef object rehearse(self, slot_t slot):
        """The decision about a request that is only thought of, or None: there is no policy to ask."""
        cdef Request request = self._requests.request(slot)
        cdef slot_t class_index = self._requests.rows[slot].class_index
        if not self._policies.manages(class_index) or not request.lifecycle:
            return None
        return self._policies.rehearse(class_index, self._view(slot, request))

    cdef object _view(self, slot_t slot, Request request):
        cdef request_t* row = &self._requests.rows[slot]
        return AdmissionView(
            request.request_id, request.session_id, self._policies.class_name(row.class_index), request.prompt_tokens,
            self._backlog.queue.waiting.rows[slot].cached, request.expected_output_tokens, request.strict_priority,
            request.pinned, self._fleet.ledger.now_ns)

    cdef entry_t _carry_out(self, slot_t slot, object decision, list out) except *:
        cdef request_t* row = &self._requests.rows[slot]
        cdef str request_id = self._requests.request(slot).request_id
        if isinstance(decision, Bypass):
            return ENTRY_STORE
        if isinstance(decision, Refuse):
            self._endings.reject(
                slot, self._backlog.refused(slot, request_id, RejectReason.ADMISSION_REFUSED), out)
            return ENTRY_ENDED
        row.policy = row.class_index
        if isinstance(decision, Defer):
            if row.may_wait:
                return ENTRY_DEFER
            self._endings.reject(slot, self._backlog.would_queue(slot, request_id), out)
            return ENTRY_ENDED
        if not self.pin(slot, decision.placement):
            return ENTRY_STORE
        reason = self._placement.refusal(self._requests.request(slot), row.arrival_ns)
        if reason is not None:
            self._endings.reject(slot, self._backlog.refused(slot, request_id, reason), out)
            return ENTRY_ENDED
        self._backlog.classify(slot, self._requests.request(slot))
        return ENTRY_STORE

    cdef bint pin(self, slot_t slot, Rank rank) except -1:
        """Pin a request to the rank that its policy wants, if it wants one; a pin of its own stands. True: done."""
        cdef Request request = self._requests.request(slot)
        if rank is None or request.pinned is not None:
            return False
        self._requests.replace(slot, replace(request, pinned=rank))
        return True

    cdef int release(self, slot_t slot, Rank rank, bint by_hand, list out) except -1:
        """A deferred request is ready to run: in its place in time, or rejected if nobody can take it any more."""
        cdef request_t* row = &self._requests.rows[slot]
        cdef bint moved
        self._backlog.withdraw(slot)
        moved = self.pin(slot, rank)
        reason = self._placement.refusal(self._requests.request(slot), row.arrival_ns)
        if reason is not None:
            return self._endings.reject(
                slot, self._backlog.refused(slot, self._requests.ids.id_of(slot), reason), out)
        if moved:
            self._backlog.snapshot(slot, self._requests.request(slot))
            self._backlog.arrange(slot, self._requests.request(slot))
        if by_hand and row.policy != NO_SLOT:
            self._policies.tell(row.policy, CALL_RELEASED, self._requests.ids.id_of(slot), None)
        return self._backlog.come_back(slot)

    cdef int decide_anew(self, slot_t slot, list out) except -1:
        """The policy that held a request back is no more: its class's present one decides, or nobody (DESIGN D16)."""
        cdef request_t* row = &self._requests.rows[slot]
        cdef Request request = self._requests.request(slot)
        if not self._policies.manages(row.class_index) or not request.lifecycle:
            return self.release(slot, None, False, out)
        decision = self._policies.decide(row.class_index, self._view(slot, request))
        if isinstance(decision, Bypass):
            return self.release(slot, None, False, out)
        if isinstance(decision, Refuse):
            self._backlog.withdraw(slot)
            return self._endings.reject(
                slot, self._backlog.refused(slot, request.request_id, RejectReason.ADMISSION_REFUSED), out)
        row.policy = row.class_index
        return 0 if isinstance(decision, Defer) else self.release(slot, decision.placement, False, out)

    cdef int hear(self, slot_t slot) except -1:
        """A worker has taken the request: its policy hears of it, once."""
        cdef request_t* row = &self._requests.rows[slot]
        if row.policy != NO_SLOT and not row.heard:
            row.heard = True
            self._policies.tell(row.policy, CALL_DISPATCHED, self._requests.ids.id_of(slot), None)
        return 0

    cdef int advance_context(self, slot_t slot, tokens_t tokens) except -1:
        """Its context is at least so long."""
        cdef request_t* row = &self._requests.rows[slot]
        if tokens <= row.context:
            return 0
        row.context = tokens
        if row.policy != NO_SLOT:
            self._policies.tell(row.policy, CALL_ADVANCED, self._requests.ids.id_of(slot), tokens)
        return 0

    cdef int deliver(self, list out) except -1:
        """Work off all that policies are to be told, and what follows from their answers."""
        cdef slot_t class_index
        while self._policies.has_news():
            answers = self._policies.next_answers(&class_index, self._fleet.ledger.now_ns)
            self._release_all(class_index, answers, out)
        return 0

    cdef bint deliver_all(self, list out) except -1:
        """The same, and call the policies whose time has come with that. Whether there was anything to do."""
        cdef bint worked = self._policies.has_news()
        self.deliver(out)
        while self._policies.first_due_ns() <= self._fleet.ledger.now_ns:
            worked = True
            self.on_time(out)
            self.deliver(out)
        return worked

    cdef int on_time(self, list out) except -1:
        """The policy that wants to be called first is called."""
        cdef slot_t class_index = self._policies.first_due()
        return self._release_all(class_index, self._policies.on_time(class_index, self._fleet.ledger.now_ns), out)

    cdef int _release_all(self, slot_t class_index, list answers, list out) except -1:
        cdef slot_t slot
        for answer in answers:
            slot = self._requests.find(answer.request_id)
            if slot != NO_SLOT and self._requests.rows[slot].state == STATE_DEFERRED and (
                    self._requests.rows[slot].policy == class_index):
                self.release(slot, answer.placement, False, out)
        return 0
