"""Policies: the admission policies of the classes (DESIGN D10): their objects, their calls, their clocks.

Owns one policy per class that asks for one, the calls that wait to be made, and when each policy wants to be
called by itself. It checks all that a policy answers: what the protocol does not know is an AdmissionError, which
poisons the scheduler.

Never here: requests and queues, and what follows from an answer (_admission).

Calls are made one by one, first in first out, by whoever drives the work list, because an answer may end requests and
so add calls.
"""
import copy
from collections import deque

from kvcore._types cimport NEVER_NS, NO_SLOT

from kvcore.admission import Bypass, Defer, MakeReady, Ready, Refuse
from kvcore.admission import build as build_policy
from kvcore.errors import AdmissionError
from kvcore.request import Rank

cdef tuple NAMES = ("released", "dispatched", "advanced", "completed", "aborted")
cdef tuple DECISIONS = (Bypass, Ready, Defer, Refuse)
cdef tuple RANK_OR_NONE = (Rank, type(None))


cdef class Policies:
    def __cinit__(self, object given):
        """given: type -> factory, looked up before what is built in or installed."""
        self._given = dict(given or {})
        self._policies = []
        self._labels = []
        self._due = []
        self._news = deque()

    cdef list build(self, object profile):
        """Fresh policies for the classes of a profile. Raises InvalidPolicy."""
        return [None if item.admission is None else build_policy(item.admission, item.name, self._given)
                for item in profile.classes]

    cdef list adopt(self, object before, object profile, list built, ns_t now_ns):
        """The classes of this profile from now on, with these fresh policies; before: the profile in force, or None.

        A policy lives on where name and admission of its class stay. Returns, by old class, the new class of the policy
        that lives on, or NO_SLOT. News of the dead are dropped.
        """
        kept = [NO_SLOT] * len(self._policies)
        places = {item.name: i for i, item in enumerate(profile.classes)}
        due = [None] * len(built)
        for i, item in enumerate(() if before is None else before.classes):
            at = places.get(item.name)
            if item.admission is not None and at is not None and profile.classes[at].admission == item.admission:
                built[at] = self._policies[i]
                due[at] = self._due[i]
                kept[i] = at
        self._news = deque([(kept[i], call, request_id, tokens) for i, call, request_id, tokens in self._news
                            if kept[i] != NO_SLOT])
        self._policies = built
        self._labels = [None if item.admission is None else (item.admission.type, item.name)
                        for item in profile.classes]
        self._due = due
        for i, policy in enumerate(built):
            if policy is None:
                due[i] = NEVER_NS
            elif due[i] is None:
                self._look_at_clock(i, now_ns)
        self.any = any(policy is not None for policy in built)
        return kept

    cdef str class_name(self, slot_t class_index):
        return self._labels[class_index][1]

    cdef str type_of(self, slot_t class_index):
        """What kind of policy a class has."""
        return self._labels[class_index][0]

    cdef bint manages(self, slot_t class_index) noexcept:
        """Whether a class has a policy."""
        return self.any and self._policies[class_index] is not None

    cdef object decide(self, slot_t class_index, object view):
        """The policy's decision about an arriving request."""
        decision = self._call(class_index, "decide", (view,))
        if not isinstance(decision, DECISIONS):
            self._fail(class_index, "decide", f"answered {decision!r}, not Bypass, Ready, Defer or Refuse")
        if isinstance(decision, Ready) and not isinstance(decision.placement, RANK_OR_NONE):
            self._fail(class_index, "decide", f"answered {decision!r}, whose placement is no Rank")
        self._look_at_clock(class_index, view.now_ns)
        return decision

    cdef object rehearse(self, slot_t class_index, object view):
        """What it would decide, asked of a copy."""
        policy = self._policies[class_index]
        due = self._due[class_index]
        self._policies[class_index] = copy.deepcopy(policy)
        try:
            return self.decide(class_index, view)
        finally:
            self._policies[class_index] = policy
            self._due[class_index] = due

    cdef int tell(self, slot_t class_index, call_t call, str request_id, object tokens) except -1:
        """Put a call on the work list."""
        self._news.append((class_index, <int>call, request_id, tokens))
        return 0

    cdef bint has_news(self) noexcept:
        return len(self._news) > 0

    cdef list next_answers(self, slot_t* class_index, ns_t now_ns):
        """Make the call that stands first; returns the MakeReadys that it is answered with."""
        place, call, request_id, tokens = self._news.popleft()
        class_index[0] = place
        name = NAMES[call]
        if call == CALL_ADVANCED or call == CALL_COMPLETED:
            answers = self._call(place, name, (request_id, tokens, now_ns))
        else:
            answers = self._call(place, name, (request_id, now_ns))
        checked = self._answers(place, name, answers)
        self._look_at_clock(place, now_ns)
        return checked

    cdef ns_t first_due_ns(self):
        """When some policy next wants to be called; NEVER_NS: none does."""
        return min(self._due) if self.any else NEVER_NS

    cdef slot_t first_due(self):
        """The class whose policy wants to be called first."""
        return self._due.index(min(self._due))

    cdef list on_time(self, slot_t class_index, ns_t now_ns):
        """Tell a policy that its time has come; returns its MakeReadys."""
        checked = self._answers(class_index, "on_time", self._call(class_index, "on_time", (now_ns,)))
        self._look_at_clock(class_index, now_ns)
        if self._due[class_index] <= now_ns:
            self._fail(class_index, "on_time", f"next_deadline_ns() must be later than {now_ns} afterwards")
        return checked

    cdef list dump(self):
        """The states of all policies, by class; None where there is no policy. Raises NotImplementedError."""
        return [None if policy is None else policy.dump() for policy in self._policies]

    cdef int load(self, list states) except -1:
        """Take over what `dump` gave. Raises what a policy raises."""
        for policy, state in zip(self._policies, states, strict=True):
            if policy is not None:
                policy.load(state)
        for i in range(len(states)):
            if self._policies[i] is not None:
                self._look_at_clock(i, 0)
        return 0

    cdef object _call(self, slot_t class_index, str name, tuple arguments):
        try:
            return getattr(self._policies[class_index], name)(*arguments)
        except Exception as error:
            self._fail(class_index, name, f"raised {error!r}", error)

    cdef list _answers(self, slot_t class_index, str name, object answers):
        """The answers to a call, checked."""
        if answers is None:
            return []
        try:
            found = list(answers)
        except Exception as error:
            self._fail(class_index, name, f"raised {error!r}", error)
        for answer in found:
            if not isinstance(answer, MakeReady) or not isinstance(answer.placement, RANK_OR_NONE) or (
                    type(answer.request_id) is not str):
                self._fail(class_index, name, f"answered {answer!r}, not MakeReady(text, Rank or None)")
        return found

    cdef int _look_at_clock(self, slot_t class_index, ns_t now_ns) except -1:
        """After each call: when the policy next wants one. Time does not go back for it."""
        due = self._call(class_index, "next_deadline_ns", ())
        if due is None:
            self._due[class_index] = NEVER_NS
            return 0
        if type(due) is not int:
            self._fail(class_index, "next_deadline_ns", f"answered {due!r}, not an int or None")
        self._due[class_index] = min(max(due, now_ns), NEVER_NS)
        return 0

    cdef object _fail(self, slot_t class_index, str name, str reason, object cause=None):
        policy_type, class_name = self._labels[class_index]
        raise AdmissionError(policy_type, class_name, name, reason) from cause
