"""Hints: what clients ask for besides the completion itself, in the words of several ecosystems, within the policy.

Headers win over the body. Nothing here is trusted: what cannot be read is refused with its name, what is out of range
is clamped, and what remains is capped by class. Priorities are turned the scheduler's way, higher is sooner; the value
in effect is echoed on the response. A client's request id is echoed and never names anything in the scheduler.

    class            x-kvcore-policy-class, x-dynamo-meta-policy-class, x-llm-d-inference-objective, x-smg-priority
    priority         x-kvcore-priority, x-dynamo-request-priority, nvext.agent_hints.priority; body `priority` as vLLM
                     has it: lower is sooner, so -5 is a head start of 5 s
    tier             x-kvcore-strict-priority, x-dynamo-request-strict-priority, nvext.agent_hints.strict_priority
    session          x-kvcore-session-id, x-dynamo-session-id, x-session-id, x-smg-routing-key,
                     x-llm-d-inference-fairness-id; a parent's (x-dynamo-parent-session-id) before all: sub-agents count
                     in the session that has started them
    deadline         x-kvcore-max-wait-ms, x-llm-d-inference-ttl (a Go duration): longest wait in the queue
    do not queue     x-kvcore-do-not-queue: true, or a longest wait of 0
    worker           x-kvcore-worker-id, x-dynamo-worker-instance-id, with x-dynamo-dp-rank or x-data-parallel-rank
    answer           nvext.agent_hints.osl; max_completion_tokens and max_tokens where hints.output_reserve says so
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kvcore.policy import PolicyProfile
from kvcore.request import Rank

from .bodies import AgentHints, Body
from .config import HintCaps, HintSettings, OutputReserve, Trust
from .refusals import Refused, Trouble

T = TypeVar("T")
NAME_CHARS_MAX = 256
TOKENS_MAX = 2**53
U32_MAX, U64_MAX = 2**32 - 1, 2**64 - 1
#: Longest wait that is told apart from none: about a year.
WAIT_S_MAX = 3.2e7

_CLASS = (b"x-kvcore-policy-class", b"x-dynamo-meta-policy-class", b"x-llm-d-inference-objective",
          b"x-gateway-inference-objective", b"x-smg-priority")
_PRIORITY = (b"x-kvcore-priority", b"x-dynamo-request-priority")
_STRICT = (b"x-kvcore-strict-priority", b"x-dynamo-request-strict-priority")
_SESSION = (b"x-dynamo-parent-session-id", b"x-kvcore-session-id", b"x-dynamo-session-id", b"x-session-id",
            b"x-smg-routing-key", b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id")
_WORKER = (b"x-kvcore-worker-id", b"x-dynamo-worker-instance-id")
_RANK = (b"x-kvcore-dp-rank", b"x-dynamo-dp-rank", b"x-data-parallel-rank")
_MAX_WAIT, _TTL, _DO_NOT_QUEUE = b"x-kvcore-max-wait-ms", b"x-llm-d-inference-ttl", b"x-kvcore-do-not-queue"
#: What any hint can stand in; a request without one of these costs one look.
NAMES = frozenset((*_CLASS, *_PRIORITY, *_STRICT, *_SESSION, *_WORKER, *_RANK, _MAX_WAIT, _TTL, _DO_NOT_QUEUE))

_INTEGER = re.compile(rb"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(rb"[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,4})?")
_DURATION = re.compile(rb"\+?(?:(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:ns|us|\xc2\xb5s|ms|s|m|h))+|\+?0")
_PART = re.compile(rb"([0-9.]+)(ns|us|\xc2\xb5s|ms|s|m|h)")
_UNITS_S = {b"ns": 1e-9, b"us": 1e-6, b"\xc2\xb5s": 1e-6, b"ms": 1e-3, b"s": 1.0, b"m": 60.0, b"h": 3600.0}


@dataclass(frozen=True, slots=True)
class Hints:
    """What a request asks for, in range and within its caps. Names as in kvcore.Request.

    max_wait_ns: longest wait in the queue; None: no deadline. worker_id, dp_rank: a pin is both; a worker alone is an
    allow-list of one.
    """

    policy_class: str | None = None
    priority_jump: float = 0.0
    strict_priority: int = 0
    session_id: str | None = None
    max_wait_ns: int | None = None
    do_not_queue: bool = False
    worker_id: int | None = None
    dp_rank: int | None = None
    expected_output_tokens: int | None = None

    @property
    def pinned(self) -> Rank | None:
        """Exactly this rank, or none."""
        return None if self.worker_id is None or self.dp_rank is None else Rank(self.worker_id, self.dp_rank)

    @property
    def allowed_workers(self) -> frozenset[int] | None:
        """These workers, or any."""
        return frozenset((self.worker_id,)) if self.worker_id is not None and self.dp_rank is None else None


def names_of(profile: PolicyProfile | None) -> frozenset[str]:
    """Names by which a client can ask for a class: explicit classes and families."""
    if profile is None:
        return frozenset((default_name(None),))
    return frozenset(item.policy_family or item.name for item in profile.classes)


def default_name(profile: PolicyProfile | None) -> str:
    """What a request is in that names nothing; without a policy there is one class."""
    return "default" if profile is None else profile.default_policy_family or "default"


class HintReader:
    """Reads hints under one policy and one set of caps. profile: that in force; a reload makes another reader."""

    def __init__(self, settings: HintSettings, profile: PolicyProfile | None) -> None:
        self._settings = settings
        self._caps = HintCaps(
            True, settings.priority_max, settings.strict_priority_max, settings.deadline_max_s,
            settings.expected_output_max)
        self._default = default_name(profile)
        self._known = names_of(profile)
        self._usual: dict[tuple[bytes, bytes], Hints] = {}
        self._usual = self._usually()

    def read(self, headers: Sequence[tuple[bytes, bytes]], body: Body) -> Hints:
        """The hints of one request; headers: lower-case names. Raises: Refused(MALFORMED) for what cannot be read."""
        reserve = self._settings.output_reserve
        if self._settings.trust is Trust.NONE:
            caps = self._caps_of(None)
            return Hints(max_wait_ns=_span_ns(caps.deadline_max_s), expected_output_tokens=_least(
                body.output_max if reserve is OutputReserve.MAX_TOKENS else None, caps.expected_output_max))
        given = _given(headers)
        if len(given) <= 1 and body.nvext is None and not body.priority and reserve is not OutputReserve.MAX_TOKENS:
            (asked,) = given.items() or [(b"", b"")]
            usual = self._usual.get(asked)
            if usual is not None:
                return usual
        agent = (body.nvext.agent_hints if body.nvext is not None else None) or AgentHints()
        policy_class = self._class(given)
        caps = self._caps_of(policy_class)
        max_wait_s = self._max_wait_s(given)
        refuses_queue = _first(given, (_DO_NOT_QUEUE,), _truth) or False
        deadline_s = caps.deadline_max_s
        if max_wait_s is not None and max_wait_s > 0:
            deadline_s = max_wait_s if deadline_s is None else min(max_wait_s, deadline_s)
        pins = self._settings.pins
        return Hints(
            policy_class=policy_class,
            priority_jump=min(caps.priority_max, self._priority(given, agent, body)),
            strict_priority=min(caps.strict_priority_max, self._strict(given, agent)),
            session_id=_first(given, _SESSION, _name),
            max_wait_ns=_span_ns(deadline_s),
            do_not_queue=refuses_queue or max_wait_s == 0,
            worker_id=_first(given, _WORKER, _clamped(0, U64_MAX)) if pins else None,
            dp_rank=_first(given, _RANK, _clamped(0, U32_MAX)) if pins else None,
            expected_output_tokens=_least(self._output(agent, body), caps.expected_output_max))

    def _usually(self) -> dict[tuple[bytes, bytes], Hints]:
        """Hints of requests that name a class of the policy and ask for nothing else, or for nothing at all."""
        if self._settings.trust is Trust.NONE:
            return {}
        nothing = Body()
        names = [(header, name.encode()) for header in _CLASS[:2] for name in self._known]
        return {(b"", b""): self.read([], nothing)} | {asked: self.read([asked], nothing) for asked in names}

    def _caps_of(self, policy_class: str | None) -> HintCaps:
        """Those of the class that it will be in: a name that nothing bears must not lead past the default one's."""
        name = policy_class if policy_class in self._known else self._default
        return self._settings.classes.get(name, self._caps)

    def _class(self, given: Mapping[bytes, bytes]) -> str | None:
        """The class or family asked for, where a client may have it; None: the default family.

        Names that nothing bears go on to the scheduler, which counts them: a typo must not hide. The words of other
        gateways count where the policy has such a class.
        """
        for header in _CLASS:
            if given.get(header):
                name = _name(header, given[header])
                if header not in _CLASS[:2] and name not in self._known:
                    continue
                return name if self._settings.classes.get(name, self._caps).allowed else None
        return None

    def _priority(self, given: Mapping[bytes, bytes], agent: AgentHints, body: Body) -> float:
        value = _first(given, _PRIORITY, _number)
        if value is None:
            value = agent.priority if agent.priority is not None else -(body.priority or 0)
        return max(0.0, float(value)) if value <= 1e9 else 1e9

    def _strict(self, given: Mapping[bytes, bytes], agent: AgentHints) -> int:
        value = _first(given, _STRICT, _clamped(0, U32_MAX))
        return max(0, min(U32_MAX, agent.strict_priority or 0)) if value is None else value

    def _max_wait_s(self, given: Mapping[bytes, bytes]) -> float | None:
        wait_ms = _first(given, (_MAX_WAIT,), _number)
        if wait_ms is not None:
            return max(0.0, min(WAIT_S_MAX, wait_ms / 1000))
        return _first(given, (_TTL,), _duration_s)

    def _output(self, agent: AgentHints, body: Body) -> int | None:
        match self._settings.output_reserve:
            case OutputReserve.NONE:
                return None
            case OutputReserve.MAX_TOKENS if agent.osl is None:
                return body.output_max
            case _:
                return agent.osl


def _given(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Hint headers by name. One that is there twice is refused: two answers to one question are somebody's trick."""
    given: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in NAMES:
            if name in given and given[name] != value:
                raise _bad(name, "is given twice")
            given[name] = value.strip()
    return given


def _first(
    given: Mapping[bytes, bytes], names: Iterable[bytes], read: Callable[[bytes, bytes], T],
) -> T | None:
    for name in names:
        if given.get(name):
            return read(name, given[name])
    return None


def _bad(name: bytes, reason: str) -> Refused:
    text = name.decode("ascii")
    return Refused(Trouble.MALFORMED, f"Header {text} {reason}.", param=text)


def _name(header: bytes, value: bytes) -> str:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(header, "is not UTF-8 text") from error
    if not text or len(text) > NAME_CHARS_MAX or not text.isprintable():
        raise _bad(header, f"must be 1 to {NAME_CHARS_MAX} printable characters")
    return text


def _number(header: bytes, value: bytes) -> float:
    number = float(value) if _NUMBER.fullmatch(value) else math.nan
    if math.isnan(number):
        raise _bad(header, "must be a number")
    return number


def _clamped(low: int, high: int) -> Callable[[bytes, bytes], int]:
    def read(header: bytes, value: bytes) -> int:
        if not _INTEGER.fullmatch(value):
            raise _bad(header, "must be a whole number")
        return max(low, min(high, int(value)))

    return read


def _truth(header: bytes, value: bytes) -> bool:
    word = value.lower()
    if word not in (b"true", b"false", b"1", b"0"):
        raise _bad(header, "must be true or false")
    return word in (b"true", b"1")


def _duration_s(header: bytes, value: bytes) -> float:
    if not _DURATION.fullmatch(value):
        raise _bad(header, "must be a duration such as 1500ms")
    return min(WAIT_S_MAX, sum([float(number) * _UNITS_S[unit] for number, unit in _PART.findall(value)]))


def _least(value: int | None, bound: int) -> int | None:
    return None if value is None or value < 0 else min(value, bound, TOKENS_MAX)


def _span_ns(span_s: float | None) -> int | None:
    return None if span_s is None else max(1, round(span_s * 1e9))
