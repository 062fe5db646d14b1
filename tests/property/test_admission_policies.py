"""The built-in admission policies against slow models of them, call by call, under all that a core may tell them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from admission_core import Core, State
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_policies import SlowPrograms, SlowSessions

from kvcore.admission import ProgramBudget, Ready, SessionConcurrency

SESSIONS = ("a", "b", "a", "b", "c", "d", "a", None)
KINDS = ("arrive", "arrive", "arrive", "arrive", "arrive", "dispatch", "dispatch", "dispatch", "advance", "complete",
         "complete", "abort", "abort", "release", "wait", "late", "reload")
#: Four bytes a step: what is done, to whom, with which numbers. A case takes about a millisecond.
stories = st.binary(min_size=120, max_size=280) | st.binary(max_size=80)
CASES = 8 * settings().max_examples


def play(core: Core, story: bytes, fresh: Callable[[], Any],
         check: Callable[[str, list[str]], None]) -> None:
    """Play the steps as far as they make sense, and call `check` with the kind of each and whom it let go."""
    for position in range(0, len(story) - 3, 4):
        kind = KINDS[story[position] % len(KINDS)]
        which, other, number = story[position + 1], story[position + 2] % 8, story[position + 3] % 16
        if kind not in ("abort", "late"):  # a request whose deadline has come is rejected before policies are called
            core.answered = []
            core.due()
            check("on_time", core.answered)
        core.answered = []
        deferred, let_go = core.of(State.DEFERRED), core.of(State.READY, State.RUNNING)
        if kind == "arrive":
            request_id = next(name for name in map(str, range(100)) if name not in core.requests)
            decision = core.arrive(request_id, SESSIONS[which % 8], 1 + number, other if other < 6 else None)
            if request_id in core.requests and isinstance(decision, Ready):
                core.answered = [request_id]
        elif kind == "reload":
            core.reload(fresh())
        elif kind in ("wait", "late"):
            core.now_ns += number
        elif kind == "dispatch" and core.of(State.READY):
            core.dispatch(core.of(State.READY)[which % len(core.of(State.READY))])
        elif kind == "advance" and core.of(State.RUNNING):
            request_id = core.of(State.RUNNING)[which % len(core.of(State.RUNNING))]
            core.requests[request_id].tokens += number
            core.tell("advanced", request_id, core.requests[request_id].tokens)
        elif kind == "complete" and let_go:
            core.complete(let_go[which % len(let_go)], None if number % 3 == 0 else number)
        elif kind == "abort" and core.requests:
            for request_id in sorted({list(core.requests)[which % len(core.requests)], list(core.requests)[-1]}):
                core.abort(request_id)
        elif kind == "release" and deferred:
            if let_go and number % 2:
                core.abort(let_go[other % len(let_go)])
            core.release(deferred[which % len(deferred)])
        if core.calls:
            core.deliver()
        check(kind, core.answered)


@settings(max_examples=CASES)
@given(stories, st.integers(1, 3), st.none() | st.integers(0, 3))
def test_session_concurrency(story: bytes, max_running: int, max_deferred: int | None) -> None:
    def fresh() -> SessionConcurrency:
        return SessionConcurrency({"max_running": max_running, "max_deferred": max_deferred})

    core = Core([fresh(), SlowSessions(max_running, max_deferred)])

    def check(kind: str, let_go: list[str]) -> None:
        for session_id in {core.requests[one].session_id for one in let_go if one in core.requests}:
            running = [one for one in core.requests.values()
                       if one.session_id == session_id and one.state is not State.DEFERRED]
            assert kind == "release" or len(running) <= max_running
        for session_id in "abcd":
            waiting = [one for one in core.requests.values()
                       if one.session_id == session_id and one.state is State.DEFERRED]
            assert max_deferred is None or len(waiting) <= max_deferred

    play(core, story, fresh, check)
    core.end_all()
    assert core.policies[0].dump() == fresh().dump()


@settings(max_examples=CASES)
@given(stories, st.integers(1, 40), st.none() | st.integers(1, 3), st.integers(0, 20), st.none() | st.integers(1, 30))
def test_program_budget(story: bytes, budget: int, max_programs: int | None,
                        pause_ttl_ns: int, resume_after_ns: int | None) -> None:
    def fresh() -> ProgramBudget:
        return ProgramBudget({"kv_token_budget": budget, "max_programs": max_programs, "pause_ttl_ns": pause_ttl_ns,
                              "resume_after_ns": resume_after_ns})

    slow = SlowPrograms(budget, max_programs, pause_ttl_ns, resume_after_ns)
    core = Core([fresh(), slow])
    live: set[str] = set()
    waited_since: dict[str, int] = {}

    def check(kind: str, let_go: list[str]) -> None:
        """The rule at each admission; nobody waits longer than is allowed; who waits does so with all its turns."""
        admitted = {one for one in slow.live() - live if any(
            request.session_id == one for name, request in core.requests.items() if name in let_go)}
        forced = resume_after_ns is not None and any(
            waited_since[one] + resume_after_ns <= core.now_ns for one in admitted if one in waited_since)
        if admitted and kind != "release" and not forced and len(slow.live()) > 1:
            assert slow.total() <= budget
            assert max_programs is None or len(slow.live()) <= max_programs
        waiting = {core.requests[name].session_id for name in core.of(State.DEFERRED)}
        assert waiting & slow.live() == set()
        if kind == "on_time" and resume_after_ns is not None:
            assert all(core.requests[name].since_ns + resume_after_ns > core.now_ns for name in core.of(State.DEFERRED))
        live.clear()
        live.update(slow.live())
        waited_since.clear()
        waited_since.update({session_id: since_ns for since_ns, session_id in slow.waiting})

    play(core, story, fresh, check)
    core.end_all()
    assert core.policies[0].dump() == fresh().dump()
