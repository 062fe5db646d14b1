"""The protocol between the core and an admission policy: who of a class may queue now, who is held back (DESIGN D10).

Owns what a policy sees, what it may answer, and the calls that it gets. Policies are written against kvcore.admission,
which has all of this and finds them by their type.

Never here: policies, and where they are found; queues, load, workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kvcore.request import Rank


@dataclass(frozen=True, slots=True)
class AdmissionView:
    """What a policy sees of an arriving request. cached_tokens: on the best rank that it may use (DESIGN D1)."""

    request_id: str
    session_id: str | None
    class_name: str
    prompt_tokens: int
    cached_tokens: int
    expected_output_tokens: int | None
    strict_priority: int
    pinned: Rank | None
    now_ns: int


@dataclass(frozen=True, slots=True)
class Bypass:
    """The request queues like any other, and the policy hears no more of it."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The request queues; the policy hears how it goes on. placement: pins it there, unless it has a pin."""

    placement: Rank | None = None


@dataclass(frozen=True, slots=True)
class Defer:
    """The request is held back until the policy answers MakeReady for it, or its deadline passes."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request is rejected: ADMISSION_REFUSED."""


Decision: TypeAlias = Bypass | Ready | Defer | Refuse


@dataclass(frozen=True, slots=True)
class MakeReady:
    """A deferred request may go ahead. An id that this policy does not hold back any more is passed over."""

    request_id: str
    placement: Rank | None = None


Answers: TypeAlias = Iterable[MakeReady] | None


class AdmissionPolicy:
    """Base of admission policies; `decide` is all that one must have, `dump` and `load` if it is to be recorded.

    A policy is a plain object without clock, thread or randomness: the same calls give the same answers. It is told of
    every request that it manages, in this order: `decide`; `released`, if somebody else let it go ahead; `dispatched`,
    at most once, when a worker has taken it; `advanced`, any number of times; then exactly one of `completed` and
    `aborted`. It is told nothing of a request that it answered with Bypass or Refuse. Every call but `decide` may
    answer with deferred requests that may go ahead now.

    Calls of one event come at its end. So a request may have ended, or somebody else may have released it, when the
    policy answers MakeReady for it; `aborted` or `released` then comes after the answer. Times never go back.
    """

    def decide(self, view: AdmissionView) -> Decision:
        """What becomes of an arriving request."""
        raise NotImplementedError

    def released(self, request_id: str, now_ns: int) -> Answers:
        """A deferred request goes ahead because somebody outside said so (AdmissionReleased)."""

    def dispatched(self, request_id: str, now_ns: int) -> Answers:
        """A worker has taken the request. Once, also if it is dispatched again later."""

    def advanced(self, request_id: str, context_tokens: int, now_ns: int) -> Answers:
        """Its context, prompt and output together, has grown to so many tokens."""

    def completed(self, request_id: str, context_tokens: int | None, now_ns: int) -> Answers:
        """It has ended well, with so many tokens of context if anybody knows."""

    def aborted(self, request_id: str, now_ns: int) -> Answers:
        """It has ended in any other way, from any state."""

    def next_deadline_ns(self) -> int | None:
        """When `on_time` is to be called next; None: not."""

    def on_time(self, now_ns: int) -> Answers:
        """next_deadline_ns() has come; afterwards it must be later than now_ns, or None."""

    def dump(self) -> object:
        """The policy's state as a JSON value; it belongs to snapshot and digest."""
        raise NotImplementedError

    def load(self, value: object) -> None:
        """Take over the state that `dump` gave. ValueError if it cannot be one; nothing has changed then."""
        raise NotImplementedError


Factory: TypeAlias = Callable[[Mapping[str, object]], AdmissionPolicy]
