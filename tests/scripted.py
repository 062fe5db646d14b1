"""Stories of requests that wait for more than room, on any scheduler: a clock in hand, and a policy that has a script.

MAKERS is what such stories are told on: each builds a scheduler of a configuration and admission policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from stand_in import StandIn
from stories import Story, profile

from kvcore.admission import AdmissionPolicy, AdmissionView, Answers, Bypass, Decision, Defer, MakeReady, Ready, Refuse
from kvcore.policy import AdmissionSpec, Capacity, PolicyClass, PolicyProfile
from kvcore.request import Rank
from kvcore.scheduler import Scheduler

MAKERS = (StandIn, Scheduler)


class Script(AdmissionPolicy):
    """Does what stands in its parameters, and writes down what it is told.

    who: a name, for the log. decide: request_id -> answer, see `decision`; the others are ready. on: call and
    request_id -> whom it makes ready. at: the times at which it wants to be called; `on` has `on_time` with the time.
    """

    def __init__(self, log: list[str], views: list[AdmissionView], parameters: Mapping[str, object]) -> None:
        self.log, self.views = log, views
        self.who = parameters.get("who", "")
        self.answers = parameters.get("decide", {})
        self.on = parameters.get("on", {})
        self.at = list(parameters.get("at", []))
        if not isinstance(self.answers, dict):
            raise ValueError("decide must be an object")

    def _hear(self, call: str, *what) -> list[MakeReady]:
        self.log.append(" ".join([f"{self.who}{call}", *map(str, what[:-1]), f"@{what[-1]}"]))
        found = self.on.get(f"{call} {what[0]}", "")
        return [made_ready(text) for text in found.split(", ") if text]

    def decide(self, view: AdmissionView) -> Decision:
        self.views.append(view)
        self._hear("decide", view.request_id, view.now_ns)
        return decision(self.answers.get(view.request_id, "ready"))

    def released(self, request_id: str, now_ns: int) -> Answers:
        return self._hear("released", request_id, now_ns)

    def dispatched(self, request_id: str, now_ns: int) -> Answers:
        return self._hear("dispatched", request_id, now_ns)

    def advanced(self, request_id: str, context_tokens: int, now_ns: int) -> Answers:
        return self._hear("advanced", request_id, context_tokens, now_ns)

    def completed(self, request_id: str, context_tokens: int | None, now_ns: int) -> Answers:
        return self._hear("completed", request_id, context_tokens, now_ns)

    def aborted(self, request_id: str, now_ns: int) -> Answers:
        return self._hear("aborted", request_id, now_ns)

    def next_deadline_ns(self) -> int | None:
        return self.at[0] if self.at else None

    def on_time(self, now_ns: int) -> Answers:
        self.at.pop(0)
        return self._hear("on_time", now_ns)

    def dump(self) -> object:
        return list(self.at)

    def load(self, value: object) -> None:
        self.at = list(value)


def rank(text: str) -> Rank:
    """`2` or `2/1`."""
    return Rank(*map(int, text.split("/")))


def decision(text: str) -> Decision:
    """`ready`, `ready 2`, `defer`, `bypass`, `refuse`."""
    word, *where = text.split()
    if word == "ready":
        return Ready(*map(rank, where))
    return {"defer": Defer, "bypass": Bypass, "refuse": Refuse}[word]()


def made_ready(text: str) -> MakeReady:
    """`a` or `a 2/1`."""
    name, *where = text.split()
    return MakeReady(name, *map(rank, where))


def script(**parameters) -> AdmissionSpec:
    """The admission of a class; see Script."""
    return AdmissionSpec("script", parameters)


def holding(*names: str, **parameters) -> AdmissionSpec:
    """One that defers these."""
    return script(decide=dict.fromkeys(names, "defer"), **parameters)


def classes(*items: PolicyClass, capacity: Capacity = Capacity.ADVISORY, **keys) -> PolicyProfile:
    """A profile of a class `c0`, of the default family, and of others that are chosen by their names."""
    made = profile(10, **{"prefill_busy_threshold": 0, **keys})
    return PolicyProfile((*made.classes, *items), made.buckets, "f0", capacity=capacity)


class Play(Story):
    """A story on one of MAKERS; a rank whose prefill is not done is busy, unless another profile is given."""

    def __init__(self, make, *workers: int, **config) -> None:
        self.log: list[str] = []
        self.views: list[AdmissionView] = []
        given = {"script": partial(Script, self.log, self.views)}
        config.setdefault("profile", classes())
        super().__init__(*workers, make=make, admission=given, **config)

    def heard(self) -> str:
        """What policies have been told since this was asked last."""
        text = ", ".join(self.log)
        self.log.clear()
        return text

    def waiting(self) -> tuple[int, int, int, int, int]:
        """Requests that wait, of them deferred ones; raw, cached and cost tokens of class c0."""
        stats = self.core.stats()
        row = stats.classes[0]
        return (stats.waiting_requests, stats.deferred_requests, row.waiting_raw_tokens, row.waiting_cached_tokens,
                row.waiting_cost_tokens)


def held(make, *workers: int, keys: dict | None = None, **config) -> Play:
    """A story whose class c0 has these keys, admission among them."""
    return Play(make, *workers, profile=classes(**(keys or {})), **config)
