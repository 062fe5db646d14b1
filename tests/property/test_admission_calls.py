"""Random runs: what a policy is told of a request is a life in order, with one end, and nothing of others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from policies import ADMISSION, logged
from strategies import plans
from strategies_letters import resolved
from strategies_waits import admissions, questions, reloads

from kvcore.admission import Defer, Ready
from kvcore.events import PolicyReplaced, RequestCancelled
from kvcore.scheduler import Scheduler

#: What may follow what; `deferred` and `ready` are decisions. The last entry of a life is always an end.
FOLLOWS = {
    "deferred": {"released", "dispatched", "aborted"},
    "ready": {"dispatched", "aborted"},
    "released": {"dispatched", "aborted"},
    "dispatched": {"advanced", "completed", "aborted"},
    "advanced": {"advanced", "completed", "aborted"},
}
ENDS = {"completed", "aborted"}


class Lives:
    """The present life of each request that a policy manages. at: its last entry; tokens: its context so far."""

    def __init__(self) -> None:
        self.at: dict[str, str] = {}
        self.tokens: dict[str, int] = {}

    def hear(self, call: str, request_id: str, *rest) -> None:
        if call == "decide":
            self.decided(request_id, rest[1])
            return
        assert call in FOLLOWS[self.at[request_id]], (request_id, self.at[request_id], call)
        self.at[request_id] = call
        if call == "advanced":
            assert rest[0] > self.tokens.get(request_id, -1)
            self.tokens[request_id] = rest[0]
        if call == "completed" and request_id in self.tokens:
            assert rest[0] >= self.tokens[request_id]
        if call in ENDS:
            del self.at[request_id]

    def decided(self, request_id: str, answer) -> None:
        """A request is decided once in its life, or anew where its policy has died."""
        self.tokens.pop(request_id, None)
        self.at.pop(request_id, None)
        if isinstance(answer, Ready | Defer):
            self.at[request_id] = "ready" if isinstance(answer, Ready) else "deferred"


@given(plans(st.one_of(admissions(), questions(), reloads())))
def test_a_life_is_told_in_order_and_to_its_end(plan):
    log: list[tuple] = []
    scheduler, lives = Scheduler(plan.config, logged(log)), Lives()
    batches = [events for events, _ in resolved(plan, Oracle(plan.config, ADMISSION)).steps]
    now_ns = batches[-1][-1].now_ns if batches else 0
    names = sorted({event.request.request_id for events in batches for event in events if hasattr(event, "request")})
    for events in [*batches, tuple(RequestCancelled(now_ns, name) for name in names)]:
        scheduler.step_many(events)
        for _, call, *what in log:
            if call != "on_time":
                lives.hear(call, *what)
        log.clear()
    if not any(isinstance(event, PolicyReplaced) for events in batches for event in events):
        assert lives.at == {}
