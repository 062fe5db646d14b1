"""The oracle's host of admission policies: it asks them, tells them what has happened, and does what they answer (D10).

A part of `Oracle`. What a policy is to hear is written down while an event or a due thing is applied and told at its
end, first in first out; what it answers may add to the list.
"""

from __future__ import annotations

from dataclasses import replace

from oracle_state import Host, Live
from oracle_time import POLICY

from kvcore.admission import AdmissionView, Bypass, Decision, Defer, MakeReady, Ready, Refuse, build
from kvcore.errors import AdmissionError, InvalidPolicy
from kvcore.events import AdmissionReleased
from kvcore.policy import PolicyProfile
from kvcore.request import Rank, Request


class Admission:
    """The part of Oracle that talks to policies."""

    # Policies of a profile.

    def _new_hosts(self, profile: PolicyProfile) -> list[Host | None]:
        """A policy for each class that names one. Raises InvalidPolicy."""
        return [None if item.admission is None
                else Host(item.name, item.admission, build(item.admission, item.name, self.given))
                for item in profile.classes]

    def _fault_of_hosts(self, profile: PolicyProfile) -> str | None:
        try:
            self._new_hosts(profile)
        except InvalidPolicy as error:
            return str(error)
        return None

    def _host_of(self, request: Request, class_index: int) -> Host | None:
        """Who is asked about a request of this class."""
        return self.hosts[class_index] if request.lifecycle else None

    # Questions.

    def _ask_policy(self, host: Host, call: str, *arguments):
        try:
            return getattr(host.policy, call)(*arguments)
        except Exception as error:
            raise self._failure(host, call, repr(error)) from error

    def _failure(self, host: Host, call: str, reason: str) -> AdmissionError:
        return AdmissionError(host.spec.type, host.class_name, call, reason)

    def _decide(self, host: Host, request: Request, class_index: int, cached: int) -> Decision:
        view = AdmissionView(
            request.request_id, request.session_id, self.profile.classes[class_index].name, request.prompt_tokens,
            cached, request.expected_output_tokens, request.strict_priority, request.pinned, self.now_ns)
        answer = self._ask_policy(host, "decide", view)
        known = isinstance(answer, (Bypass, Ready, Defer, Refuse))
        if not known or (isinstance(answer, Ready) and not is_placement(answer.placement)):
            raise self._failure(host, "decide", f"answered {answer!r}")
        return answer

    def _timer_of(self, host: Host) -> int | None:
        due_ns = self._ask_policy(host, "next_deadline_ns")
        if due_ns is not None and type(due_ns) is not int:
            raise self._failure(host, "next_deadline_ns", f"answered {due_ns!r}")
        return due_ns

    # What it hears, and what it answers.

    def _tell(self, live: Live, call: str, *arguments) -> None:
        """Who manages a request will hear of it."""
        if live.host is not None:
            self._call(live.host, call, live.request.request_id, *arguments)

    def _call(self, host: Host, call: str, *arguments) -> None:
        self.calls.append((host, call, arguments))

    def _tell_dispatched(self, live: Live) -> None:
        if not live.told_dispatched:
            live.told_dispatched = True
            self._tell(live, "dispatched")

    def _deliver(self) -> bool:
        """Tell all that there is to tell, until nothing comes after; whether there was anything."""
        delivered = bool(self.calls)
        while self.calls:
            host, call, arguments = self.calls.popleft()
            for answer in self._answers(host, call, *arguments):
                self._answered(host, answer)
        return delivered

    def _deliver_all(self) -> bool:
        """The same; and then policies are called whose time has come with that."""
        delivered = self._deliver()
        while True:
            dues = [due for due in self._dues() if due[0] <= self.now_ns and due[1] == POLICY]
            if not dues:
                return delivered
            self._policy_is_due(min(dues, key=lambda due: due[:3])[3])
            self._deliver()
            delivered = True

    def _answers(self, host: Host, call: str, *arguments) -> list[MakeReady]:
        """All of them, before the first is done."""
        answers = self._ask_policy(host, call, *arguments, self.now_ns)
        try:
            found = [] if answers is None else list(answers)
        except Exception as error:
            raise self._failure(host, call, repr(error)) from error
        for answer in found:
            if not isinstance(answer, MakeReady) or not is_placement(answer.placement):
                raise self._failure(host, call, f"answered {answer!r}")
        return found

    def _answered(self, host: Host, answer: MakeReady) -> None:
        live = self.live.get(answer.request_id)
        if live is not None and live.state == "deferred" and live.host is host:
            self._make_ready(live, answer.placement)

    def _policy_is_due(self, host: Host) -> None:
        answers = self._answers(host, "on_time")
        due_ns = self._timer_of(host)
        if due_ns is not None and due_ns <= self.now_ns:
            raise self._failure(host, "on_time", f"it is {self.now_ns}, and the next time is to be {due_ns}")
        for answer in answers:
            self._answered(host, answer)

    # Deferred requests go ahead.

    def _admission_released(self, event: AdmissionReleased) -> None:
        live = self.live.get(event.request_id)
        if live is None or live.state != "deferred":
            self._ignore(event.request_id, 0)
        elif self._make_ready(live, event.placement):
            self._tell(live, "released")

    def _make_ready(self, live: Live, placement: Rank | None) -> bool:
        """Ready, on this rank if it has no other, with its old seq; unless the fleet has nothing for it any more."""
        moves = placement is not None and live.request.pinned is None
        if moves:
            live.request = replace(live.request, pinned=placement)
        reason = self._refusal(live.request, live.arrival_ns)
        if reason is not None:
            self._turn_away(live, reason)
            return False
        if moves:
            live.cached = self._snapshot(live.request)
            live.class_index = self._class_of(live.request, live.cached)
            live.entry.cost = max(1, live.request.prompt_tokens - live.cached)
            live.entry.lane = placement
            live.entry.key = self._key(live)
        self._enqueue(live)
        return True


def is_placement(value) -> bool:
    return value is None or isinstance(value, Rank)
