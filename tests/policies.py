"""Small admission policies for proofs: deterministic, dumpable, with states and answers that random plans reach.

None of them looks at names of requests, so that other names make no difference. ADMISSION is what schedulers and
oracles of random plans are given; `logged` makes the same of policies that write down what they are told.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial

from kvcore.admission import AdmissionPolicy, AdmissionView, Answers, Bypass, Decision, Defer, MakeReady, Ready, Refuse
from kvcore.request import Rank

#: A name that no request has.
NOBODY = "nobody's"


def number(parameters: Mapping[str, object], name: str, least: int) -> int:
    """A whole number among the parameters."""
    value = parameters.get(name, least)
    if type(value) is not int or value < least:
        raise ValueError(f"{name} must be an integer >= {least}, not {value!r}")
    return value


class Dumpable(AdmissionPolicy):
    """A policy whose state is in a few attributes: plain lists and numbers."""

    STATE: tuple[str, ...] = ()

    def dump(self) -> object:
        return {name: copy.deepcopy(getattr(self, name)) for name in self.STATE}

    def load(self, value: object) -> None:
        if not isinstance(value, dict) or set(value) != set(self.STATE):
            raise ValueError(f"must have {', '.join(self.STATE)}")
        for name in self.STATE:
            if type(value[name]) is not type(getattr(self, name)):
                raise ValueError(f"{name} must be a {type(getattr(self, name)).__name__}")
        for name in self.STATE:
            setattr(self, name, copy.deepcopy(value[name]))


class Gate(Dumpable):
    """At most `running` requests between decision and end; the others are held back, first come, first served."""

    STATE = ("running", "held")

    def __init__(self, parameters: Mapping[str, object]) -> None:
        self.most = number(parameters, "running", 0)
        self.running: list[str] = []
        self.held: list[str] = []

    def decide(self, view: AdmissionView) -> Decision:
        if len(self.running) < self.most:
            self.running.append(view.request_id)
            return Ready()
        self.held.append(view.request_id)
        return Defer()

    def released(self, request_id: str, now_ns: int) -> Answers:
        self.held.remove(request_id)
        self.running.append(request_id)
        return None

    def completed(self, request_id: str, context_tokens: int | None, now_ns: int) -> Answers:
        self.running.remove(request_id)
        return self._fill()

    def aborted(self, request_id: str, now_ns: int) -> Answers:
        (self.running if request_id in self.running else self.held).remove(request_id)
        return self._fill()

    def _fill(self) -> list[MakeReady]:
        free = max(0, self.most - len(self.running))
        lucky, self.held = self.held[:free], self.held[free:]
        self.running += lucky
        return [MakeReady(name) for name in lucky]


def ranks(parameters: Mapping[str, object]) -> list[Rank | None]:
    """Where requests are put: pairs (worker_id, dp_rank), or null for anywhere."""
    rows = parameters.get("ranks", [None])
    if not isinstance(rows, list) or not rows:
        raise ValueError("ranks must be a list, and not empty")
    return [None if row is None else Rank(*row) for row in rows]


class Timed(Dumpable):
    """Holds back every `every`th request for `for_ns`, then lets it go where the next of `ranks` says."""

    STATE = ("seen", "let_go", "held")

    def __init__(self, parameters: Mapping[str, object]) -> None:
        self.every = number(parameters, "every", 1)
        self.for_ns = number(parameters, "for_ns", 1)
        self.ranks = ranks(parameters)
        self.seen = 0
        self.let_go = 0
        self.held: list[list] = []      # [due time, request_id]

    def decide(self, view: AdmissionView) -> Decision:
        self.seen += 1
        if self.seen % self.every:
            return Ready()
        self.held.append([view.now_ns + self.for_ns, view.request_id])
        return Defer()

    def released(self, request_id: str, now_ns: int) -> Answers:
        self._forget(request_id)
        return []

    def completed(self, request_id: str, context_tokens: int | None, now_ns: int) -> Answers:
        """A long context makes room for the first in line."""
        if context_tokens is None or context_tokens < 50 or not self.held:
            return None
        return [self._next(self.held.pop(0)[1])]

    def aborted(self, request_id: str, now_ns: int) -> Answers:
        self._forget(request_id)
        return None

    def next_deadline_ns(self) -> int | None:
        return min((due_ns for due_ns, _ in self.held), default=None)

    def on_time(self, now_ns: int) -> Answers:
        due = [name for due_ns, name in self.held if due_ns <= now_ns]
        self.held = [row for row in self.held if row[0] > now_ns]
        return (self._next(name) for name in due)

    def _next(self, request_id: str) -> MakeReady:
        self.let_go += 1
        return MakeReady(request_id, self.ranks[self.let_go % len(self.ranks)])

    def _forget(self, request_id: str) -> None:
        self.held = [row for row in self.held if row[1] != request_id]


class Mixed(Dumpable):
    """Any answer, as a table of letters has it: bypass, ready, placed, defer, x for refuse.

    Who is held back goes ahead when others get on, `per_call` at a time. It also lets go whom it does not hold.
    """

    STATE = ("seen", "calls", "held", "gone")

    def __init__(self, parameters: Mapping[str, object]) -> None:
        table = parameters.get("table", "brpdx")
        if not isinstance(table, str) or not table or set(table) - set("brpdx"):
            raise ValueError(f"table must be made of the letters brpdx, not {table!r}")
        self.table = table
        self.per_call = number(parameters, "per_call", 0)
        self.ranks = ranks(parameters)
        self.seen = 0
        self.calls = 0
        self.held: list[str] = []
        self.gone: list[str] = []       # the last who was let go

    def decide(self, view: AdmissionView) -> Decision:
        self.seen += 1
        letter = self.table[(view.prompt_tokens + view.cached_tokens + 3 * self.seen) % len(self.table)]
        if letter == "d":
            self.held.append(view.request_id)
        return {"b": Bypass(), "r": Ready(), "p": Ready(self._rank()), "d": Defer(), "x": Refuse()}[letter]

    def released(self, request_id: str, now_ns: int) -> Answers:
        self._forget(request_id)
        return self._some()

    def dispatched(self, request_id: str, now_ns: int) -> Answers:
        return self._some()

    def advanced(self, request_id: str, context_tokens: int, now_ns: int) -> Answers:
        return self._some() if context_tokens % 2 else None

    def completed(self, request_id: str, context_tokens: int | None, now_ns: int) -> Answers:
        return self._some()

    def aborted(self, request_id: str, now_ns: int) -> Answers:
        self._forget(request_id)
        return self._some()

    def _some(self) -> list[MakeReady]:
        self.calls += 1
        lucky, self.held = self.held[: self.per_call], self.held[self.per_call :]
        answers = [MakeReady(name, self._rank()) for name in [*self.gone, *lucky, NOBODY]]
        self.gone = (lucky or self.gone)[-1:]
        return answers

    def _rank(self) -> Rank | None:
        return self.ranks[(self.calls + self.seen) % len(self.ranks)]

    def _forget(self, request_id: str) -> None:
        self.held = [name for name in self.held if name != request_id]


ADMISSION = {"gate": Gate, "timed": Timed, "mixed": Mixed}


class Logged(AdmissionPolicy):
    """Does what another policy does, and writes down every call but reads, and what it decides."""

    def __init__(self, kind: type[Dumpable], log: list[tuple], parameters: Mapping[str, object]) -> None:
        self.policy = kind(parameters)
        self.log = log

    def _pass_on(self, call: str, *arguments):
        self.log.append((type(self.policy).__name__, call, *arguments))
        return getattr(self.policy, call)(*arguments)

    def decide(self, view: AdmissionView) -> Decision:
        answer = self.policy.decide(view)
        self.log.append((type(self.policy).__name__, "decide", view.request_id, view, answer))
        return answer

    def released(self, request_id: str, now_ns: int) -> Answers:
        return self._pass_on("released", request_id, now_ns)

    def dispatched(self, request_id: str, now_ns: int) -> Answers:
        return self._pass_on("dispatched", request_id, now_ns)

    def advanced(self, request_id: str, context_tokens: int, now_ns: int) -> Answers:
        return self._pass_on("advanced", request_id, context_tokens, now_ns)

    def completed(self, request_id: str, context_tokens: int | None, now_ns: int) -> Answers:
        return self._pass_on("completed", request_id, context_tokens, now_ns)

    def aborted(self, request_id: str, now_ns: int) -> Answers:
        return self._pass_on("aborted", request_id, now_ns)

    def on_time(self, now_ns: int) -> Answers:
        return self._pass_on("on_time", now_ns)

    def next_deadline_ns(self) -> int | None:
        return self.policy.next_deadline_ns()

    def dump(self) -> object:
        return self.policy.dump()

    def load(self, value: object) -> None:
        self.policy.load(value)


def logged(log: list[tuple]) -> dict:
    """ADMISSION, with all calls in one list, in their order."""
    return {name: partial(Logged, kind, log) for name, kind in ADMISSION.items()}
