"""What a policy sees of a core: several policies get the same legal calls, and must give the same answers.

An event changes the core's requests first; its calls are delivered after that, first in, first out. So an answer may
name a request that has ended or been released meanwhile, and is passed over.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from kvcore.admission import AdmissionPolicy, AdmissionView, Bypass, Decision, Defer, MakeReady, Ready, Refuse


class State(Enum):
    """Of a request that the policies manage."""

    DEFERRED = auto()
    READY = auto()
    RUNNING = auto()


def view(request_id: str, session_id: str | None, prompt_tokens: int = 1, *, expected: int | None = None,
         now_ns: int = 0) -> AdmissionView:
    """What a policy sees of an arrival, of which most does not matter here."""
    return AdmissionView(request_id, session_id, "c", prompt_tokens, 0, expected, 0, None, now_ns)


@dataclass
class Known:
    """A request of the core. tokens: its context as last told; since_ns: when it arrived."""

    session_id: str
    state: State
    tokens: int
    since_ns: int


@dataclass
class Core:
    """policies: the first is the one under test. answered: what has been let go by the event under way."""

    policies: list[AdmissionPolicy]
    now_ns: int = 0
    requests: dict[str, Known] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)
    calls: deque[tuple[str, tuple[object, ...]]] = field(default_factory=deque)

    def of(self, *states: State) -> list[str]:
        """Ids in these states, in order of arrival."""
        return [name for name, one in self.requests.items() if one.state in states]

    def same(self, name: str, *arguments: object) -> object:
        """Call all policies; their answer and their next deadline, which must be the same ones."""
        first, *others = [getattr(policy, name)(*arguments) for policy in self.policies]
        wanted = list(first or ()) if not isinstance(first, Decision) else first
        for other in others:
            assert wanted == (list(other or ()) if not isinstance(other, Decision) else other), (name, arguments)
        assert len({policy.next_deadline_ns() for policy in self.policies}) == 1, (name, arguments)
        return wanted

    def tell(self, name: str, request_id: str, *arguments: object) -> None:
        """Put a call on the list of this event."""
        self.calls.append((name, (request_id, *arguments)))

    def deliver(self) -> None:
        """The end of an event."""
        self.answered = []
        while self.calls:
            name, arguments = self.calls.popleft()
            answers = self.same(name, *arguments, self.now_ns)
            assert isinstance(answers, list)
            for answer in answers:
                assert type(answer) is MakeReady
                one = self.requests.get(answer.request_id)
                if one is not None and one.state is State.DEFERRED:
                    one.state = State.READY
                    self.answered.append(answer.request_id)

    def arrive(self, request_id: str, session_id: str | None, prompt_tokens: int, expected: int | None) -> Decision:
        """An arrival, of an id that is not live."""
        seen = view(request_id, session_id, prompt_tokens, expected=expected, now_ns=self.now_ns)
        decision = self.same("decide", seen)
        assert isinstance(decision, Decision)
        assert (session_id is None) == isinstance(decision, Bypass)
        if isinstance(decision, Ready | Defer) and session_id is not None:
            state = State.READY if isinstance(decision, Ready) else State.DEFERRED
            self.requests[request_id] = Known(session_id, state, prompt_tokens, self.now_ns)
        else:
            assert isinstance(decision, Bypass | Refuse)
        return decision

    def dispatch(self, request_id: str) -> None:
        """A worker takes a request."""
        self.requests[request_id].state = State.RUNNING
        self.tell("dispatched", request_id)

    def complete(self, request_id: str, context_tokens: int | None) -> None:
        """A request that is let go ends well."""
        if self.requests[request_id].state is State.READY:
            self.dispatch(request_id)
        del self.requests[request_id]
        self.tell("completed", request_id, context_tokens)

    def abort(self, request_id: str) -> None:
        """A request ends in another way."""
        del self.requests[request_id]
        self.tell("aborted", request_id)

    def release(self, request_id: str) -> None:
        """Somebody outside lets a deferred request go."""
        self.requests[request_id].state = State.READY
        self.tell("released", request_id)

    def due(self) -> None:
        """The policy timer, if its time has come."""
        deadline_ns = self.policies[0].next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= self.now_ns:
            self.calls.append(("on_time", ()))
            self.deliver()
            following_ns = self.policies[0].next_deadline_ns()
            assert following_ns is None or following_ns > self.now_ns

    def reload(self, fresh: AdmissionPolicy) -> None:
        """From now on another policy, which has taken over what the first one wrote down, is under test with it."""
        dumped = json.loads(json.dumps(self.policies[0].dump()))
        assert dumped == self.policies[0].dump()
        fresh.load(dumped)
        assert fresh.dump() == dumped
        self.policies.insert(1, fresh)

    def end_all(self) -> None:
        """End whatever has been let go, again and again, with time passing: then nobody is left."""
        while self.requests:
            self.due()
            let_go = self.of(State.READY, State.RUNNING)
            if not let_go:
                deadline_ns = self.policies[0].next_deadline_ns()
                assert deadline_ns is not None, f"deferred for ever: {self.of(State.DEFERRED)}"
                self.now_ns = deadline_ns
            for request_id in let_go:
                self.complete(request_id, None)
            self.deliver()
        while (deadline_ns := self.policies[0].next_deadline_ns()) is not None:
            self.now_ns = deadline_ns
            self.due()
