"""Admission type `session_concurrency`: at most so many requests of a session at a time (DESIGN D10).

A request is let go when it may queue, and stays so until it has ended: queued, running or evicted. At most max_running
of a session are let go; its others are held back and follow in the order of their arrival as earlier ones end.
Requests without a session pass by. With max_deferred, one more than so many held back in a session is refused.

Owns, per session with live requests: which are let go, and the queue of those held back. What somebody else releases
counts as let go, so a session may have more than max_running then; nobody follows until it has fewer again.

Never here: time; what waits or runs of other sessions.

Invariants: a session holds requests back only while max_running or more of it are let go; it is known only while it
has live requests, and then at least one of them is let go.
Cost: O(1) per call, O(live requests) memory; `dump` and `load` O(n log n) of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import ClassVar

from kvcore._admission_protocol import (
    AdmissionPolicy,
    AdmissionView,
    Answers,
    Bypass,
    Decision,
    Defer,
    MakeReady,
    Ready,
    Refuse,
)
from kvcore._admission_values import Parameter, dumped_list, dumped_record, dumped_text, numbers_of


class _Session:
    """let_go: ids of those let go; deferred: ids of those held back, oldest first."""

    __slots__ = ("deferred", "let_go")

    def __init__(self) -> None:
        self.let_go: set[str] = set()
        # Not a dict: finding its first key costs as many steps as keys have been taken from its front.
        self.deferred: OrderedDict[str, None] = OrderedDict()


class SessionConcurrency(AdmissionPolicy):
    """At most max_running requests of a session are let go at once. See the module."""

    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {
        "max_running": Parameter(1, "Requests of one session that are let go at a time.", is_required=True),
        "max_deferred": Parameter(
            0, "Requests of one session that are held back; one more is refused. Left out: no bound."),
    }

    def __init__(self, parameters: Mapping[str, object]) -> None:
        """parameters: see PARAMETERS."""
        values = numbers_of(parameters, self.PARAMETERS)
        self._max_running = values["max_running"]
        self._max_deferred = values.get("max_deferred")
        self._sessions: dict[str, _Session] = {}
        self._session_of: dict[str, str] = {}

    def decide(self, view: AdmissionView) -> Decision:
        """Let go while the session has room, then held back, then refused."""
        if view.session_id is None:
            return Bypass()
        session = self._sessions.setdefault(view.session_id, _Session())
        room = len(session.let_go) < self._max_running
        if not room and self._max_deferred is not None and len(session.deferred) >= self._max_deferred:
            return Refuse()
        self._session_of[view.request_id] = view.session_id
        if room:
            session.let_go.add(view.request_id)
            return Ready()
        session.deferred[view.request_id] = None
        return Defer()

    def released(self, request_id: str, now_ns: int) -> Answers:
        """Counted as let go. Nothing changes if it already was when somebody released it."""
        session = self._sessions[self._session_of[request_id]]
        if request_id in session.deferred:
            del session.deferred[request_id]
            session.let_go.add(request_id)
        return None

    def completed(self, request_id: str, context_tokens: int | None, now_ns: int) -> Answers:
        """The session's oldest held back follows."""
        return self._ended(request_id)

    def aborted(self, request_id: str, now_ns: int) -> Answers:
        """As completed, if it was let go."""
        return self._ended(request_id)

    def _ended(self, request_id: str) -> Answers:
        name = self._session_of.pop(request_id)
        session = self._sessions[name]
        if request_id in session.deferred:
            del session.deferred[request_id]
            return None
        session.let_go.remove(request_id)
        if session.deferred and len(session.let_go) < self._max_running:
            following, _ = session.deferred.popitem(last=False)
            session.let_go.add(following)
            return (MakeReady(following),)
        if not session.let_go:
            del self._sessions[name]
        return None

    def dump(self) -> object:
        """Sessions by name."""
        return [
            {"session_id": name, "let_go": sorted(session.let_go), "deferred": list(session.deferred)}
            for name, session in sorted(self._sessions.items())
        ]

    def load(self, value: object) -> None:
        """Take over a dump. ValueError if no policy with these parameters can have given it."""
        sessions: dict[str, _Session] = {}
        session_of: dict[str, str] = {}
        ids = 0
        for item in dumped_list(value):
            name, *lists = dumped_record(item, "session_id", "let_go", "deferred")
            let_go, deferred = [[dumped_text(one) for one in dumped_list(ids_of)] for ids_of in lists]
            self._check(len(let_go), len(deferred))
            session = sessions[dumped_text(name)] = _Session()
            session.let_go.update(let_go)
            session.deferred.update(dict.fromkeys(deferred))
            session_of.update(dict.fromkeys([*let_go, *deferred], dumped_text(name)))
            ids += len(let_go) + len(deferred)
        if len(session_of) != ids or len(sessions) != len(dumped_list(value)):
            raise ValueError("a request or a session is there twice")
        self._sessions, self._session_of = sessions, session_of

    def _check(self, let_go: int, deferred: int) -> None:
        if let_go == 0:
            raise ValueError("a session has no request that is let go")
        if deferred and let_go < self._max_running:
            raise ValueError("a session holds requests back while it has room")
        if self._max_deferred is not None and deferred > self._max_deferred:
            raise ValueError("a session holds back more than max_deferred")
