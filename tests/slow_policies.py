"""The built-in admission policies once more, plain and slow: lists that are gone through, nothing remembered twice."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.admission import AdmissionPolicy, AdmissionView, Bypass, Decision, Defer, MakeReady, Ready, Refuse


@dataclass
class SlowRequest:
    """A request that a policy manages. taken: by a worker."""

    request_id: str
    session_id: str
    tokens: int
    let_go: bool
    taken: bool = False


class SlowPolicy(AdmissionPolicy):
    """requests: all that are live, in order of arrival."""

    def __init__(self) -> None:
        self.requests: list[SlowRequest] = []

    def of(self, session_id: str, let_go: bool) -> list[SlowRequest]:
        """Requests of a session that are let go, or that are held back."""
        return [one for one in self.requests if one.session_id == session_id and one.let_go == let_go]

    def take_in(self, view: AdmissionView, let_go: bool) -> Decision:
        """Remember a request; answer what has been decided."""
        tokens = view.prompt_tokens + (view.expected_output_tokens or 0)
        self.requests.append(SlowRequest(view.request_id, str(view.session_id), tokens, let_go))
        return Ready() if let_go else Defer()

    def request(self, request_id: str) -> SlowRequest:
        """A live request."""
        (found,) = [one for one in self.requests if one.request_id == request_id]
        return found

    def let_go(self, requests: list[SlowRequest]) -> list[MakeReady]:
        """Let these go ahead."""
        for one in requests:
            one.let_go = True
        return [MakeReady(one.request_id) for one in requests]


class SlowSessions(SlowPolicy):
    """`session_concurrency`."""

    def __init__(self, max_running: int, max_deferred: int | None) -> None:
        super().__init__()
        self.max_running, self.max_deferred = max_running, max_deferred

    def decide(self, view: AdmissionView) -> Decision:
        if view.session_id is None:
            return Bypass()
        if len(self.of(view.session_id, True)) < self.max_running:
            return self.take_in(view, True)
        if self.max_deferred is not None and len(self.of(view.session_id, False)) >= self.max_deferred:
            return Refuse()
        return self.take_in(view, False)

    def released(self, request_id: str, now_ns: int) -> list[MakeReady]:
        self.request(request_id).let_go = True
        return []

    def completed(self, request_id: str, context_tokens: int | None, now_ns: int) -> list[MakeReady]:
        return self.aborted(request_id, now_ns)

    def aborted(self, request_id: str, now_ns: int) -> list[MakeReady]:
        ended = self.request(request_id)
        self.requests.remove(ended)
        room = max(0, self.max_running - len(self.of(ended.session_id, True)))
        return self.let_go(self.of(ended.session_id, False)[:room])


class SlowPrograms(SlowPolicy):
    """`program_budget`. left: by session, what its last turn has left; waiting: (since, session) in order."""

    def __init__(
        self, kv_token_budget: int, max_programs: int | None, pause_ttl_ns: int, resume_after_ns: int | None,
    ) -> None:
        super().__init__()
        self.budget, self.max_programs = kv_token_budget, max_programs
        self.pause_ttl_ns, self.resume_after_ns = pause_ttl_ns, resume_after_ns
        self.left: dict[str, int] = {}
        self.paused_until: dict[str, int] = {}
        self.waiting: list[tuple[int, str]] = []

    def live(self) -> set[str]:
        """Sessions of live programs."""
        return {one.session_id for one in self.requests if one.let_go} | set(self.paused_until)

    def context(self, session_id: str) -> int:
        """Context of a program, live or waiting."""
        needs = [one.tokens for one in self.requests if one.session_id == session_id]
        return max([self.left.get(session_id, 0), *needs])

    def total(self) -> int:
        """Contexts of all live programs."""
        return sum(self.context(session_id) for session_id in self.live())

    def fits(self, tokens: int) -> bool:
        """Whether one more program may be live."""
        if not self.live():
            return True
        if self.max_programs is not None and len(self.live()) + 1 > self.max_programs:
            return False
        return self.total() + tokens <= self.budget

    def decide(self, view: AdmissionView) -> Decision:
        if view.session_id is None:
            return Bypass()
        if view.session_id in self.live():
            self.paused_until.pop(view.session_id, None)
            return self.take_in(view, True)
        if not self.waiting and self.fits(view.prompt_tokens + (view.expected_output_tokens or 0)):
            return self.take_in(view, True)
        if view.session_id not in [session_id for _, session_id in self.waiting]:
            self.waiting.append((view.now_ns, view.session_id))
        return self.take_in(view, False)

    def released(self, request_id: str, now_ns: int) -> list[MakeReady]:
        session_id = self.request(request_id).session_id
        self.waiting = [one for one in self.waiting if one[1] != session_id]
        self.request(request_id).let_go = True
        return self.let_go(self.of(session_id, False)) + self.on_time(now_ns)

    def dispatched(self, request_id: str, now_ns: int) -> list[MakeReady]:
        self.request(request_id).taken = True
        return self.on_time(now_ns)

    def advanced(self, request_id: str, context_tokens: int, now_ns: int) -> list[MakeReady]:
        one = self.request(request_id)
        one.tokens = max(one.tokens, context_tokens)
        return self.on_time(now_ns)

    def completed(self, request_id: str, context_tokens: int | None, now_ns: int) -> list[MakeReady]:
        one = self.request(request_id)
        return self.end(one, one.tokens if context_tokens is None else context_tokens, now_ns)

    def aborted(self, request_id: str, now_ns: int) -> list[MakeReady]:
        one = self.request(request_id)
        return self.end(one, one.tokens, now_ns)

    def end(self, ended: SlowRequest, leaves: int, now_ns: int) -> list[MakeReady]:
        """A turn ends, whichever way."""
        self.requests.remove(ended)
        session_id = ended.session_id
        if ended.taken:
            self.left[session_id] = leaves
        if session_id not in [one.session_id for one in self.requests]:
            self.waiting = [one for one in self.waiting if one[1] != session_id]
            if session_id in self.left:
                self.paused_until[session_id] = now_ns + self.pause_ttl_ns
        return self.on_time(now_ns)

    def next_deadline_ns(self) -> int | None:
        forced = [] if self.resume_after_ns is None else [since + self.resume_after_ns for since, _ in self.waiting]
        return min([*self.paused_until.values(), *forced], default=None)

    def on_time(self, now_ns: int) -> list[MakeReady]:
        for session_id, until_ns in list(self.paused_until.items()):
            if until_ns <= now_ns:
                del self.paused_until[session_id], self.left[session_id]
        answers = []
        while self.waiting:
            since_ns, session_id = self.waiting[0]
            forced = self.resume_after_ns is not None and since_ns + self.resume_after_ns <= now_ns
            if not forced and not self.fits(self.context(session_id)):
                break
            answers += self.let_go(self.of(session_id, False))
            del self.waiting[0]
        return answers
