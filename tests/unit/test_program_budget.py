"""`program_budget` by hand: who is admitted, pauses, forced resumes, what a context is, dumps that are none."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from admission_core import view

from kvcore.admission import Bypass, Defer, InvalidParameter, MakeReady, ProgramBudget, Ready


def policy(budget: int = 100, **parameters: int | None) -> Any:
    """A policy. Any, because its calls are given what tests need and no more."""
    return ProgramBudget({"kv_token_budget": budget, **parameters})


def turn(made: Any, request_id: str, tokens: int = 10, *, expected: int | None = None, now_ns: int = 0) -> Any:
    """A turn of the program that is called like the first letter."""
    return made.decide(view(request_id, request_id[0], tokens, expected=expected, now_ns=now_ns))


def run(made: Any, request_id: str, tokens: int = 10, now_ns: int = 0) -> None:
    """A turn that goes ahead, and that a worker takes."""
    assert turn(made, request_id, tokens, now_ns=now_ns) == Ready()
    assert made.dispatched(request_id, now_ns) == []


def ready(*request_ids: str) -> list[MakeReady]:
    """An answer."""
    return [MakeReady(name) for name in request_ids]


def test_programs_are_admitted_while_they_fit() -> None:
    made = policy(100)
    assert [turn(made, name, tokens) for name, tokens in (("a", 60), ("b", 41), ("c", 1))] == [
        Ready(), Defer(), Defer()]  # c would fit, but b is before it
    assert made.completed("a", None, 0) == ready("b", "c")


def test_a_full_budget_is_not_exceeded() -> None:
    made = policy(100)
    assert [turn(made, name, 50) for name in "ab"] == [Ready(), Ready()]
    assert turn(made, "c", 1) == Defer()


def test_expected_output_counts() -> None:
    made = policy(100)
    assert [turn(made, name, 40, expected=11) for name in "ab"] == [Ready(), Defer()]


def test_so_many_programs() -> None:
    made = policy(100, max_programs=2)
    assert [turn(made, name, 1) for name in ("a1", "b1", "a2", "c1")] == [Ready(), Ready(), Ready(), Defer()]
    assert made.aborted("a1", 0) == []
    assert made.aborted("a2", 0) == ready("c1")


def test_without_a_session_nothing_is_managed() -> None:
    made = policy(1)
    assert [made.decide(view(name, None, 50)) for name in "ab"] == [Bypass(), Bypass()]
    assert made.dump() == {"live": [], "waiting": []}


def test_one_that_is_too_large_runs_alone() -> None:
    made = policy(100)
    run(made, "a")
    assert [turn(made, "b", 101), turn(made, "c", 1)] == [Defer(), Defer()]
    assert made.completed("a", None, 5) == ready("b")
    assert made.completed("b", None, 6) == ready("c")


def test_a_live_program_brings_its_growth_with_it() -> None:
    made = policy(100)
    run(made, "a1", 60)
    run(made, "b1", 30)
    assert turn(made, "a2", 500) == Ready()
    assert made.advanced("b1", 300, 1) == []
    assert turn(made, "c1", 1) == Defer()
    assert made.completed("b1", 300, 2) == []
    assert made.aborted("a2", 3) == ready("c1")


def test_a_waiting_program_waits_and_resumes_with_all_its_turns() -> None:
    made = policy(100)
    run(made, "a")
    assert [turn(made, name, tokens) for name, tokens in (("b1", 91), ("c1", 1), ("b2", 5))] == [Defer()] * 3
    assert made.completed("a", None, 0) == ready("b1", "b2", "c1")


def test_who_is_first_holds_up_the_others_until_it_goes() -> None:
    made = policy(100)
    run(made, "a", 50)
    assert [turn(made, name, tokens) for name, tokens in (("b1", 51), ("c1", 50), ("b2", 1))] == [Defer()] * 3
    assert made.aborted("b2", 0) == []
    assert made.aborted("b1", 0) == ready("c1")
    assert turn(made, "b3", 1) == Defer()


def test_the_need_of_a_waiting_program_is_that_of_its_turns() -> None:
    made = policy(100)
    run(made, "a", 50)
    assert [turn(made, "b1", 10_000), turn(made, "b2", 50)] == [Defer(), Defer()]
    assert made.aborted("b1", 0) == ready("b2")


# Pauses.


def test_a_program_keeps_its_place_between_turns() -> None:
    made = policy(100, pause_ttl_ns=30)
    run(made, "a1", 60)
    assert made.completed("a1", 70, 1000) == []
    assert turn(made, "b1", 31, now_ns=1001) == Defer()
    assert made.next_deadline_ns() == 1030
    run(made, "a2", 75, now_ns=1029)
    assert made.next_deadline_ns() is None
    assert made.completed("a2", None, 1100) == []
    assert [made.next_deadline_ns(), made.on_time(1129), made.next_deadline_ns()] == [1130, [], 1130]
    assert made.on_time(1130) == ready("b1")
    assert made.next_deadline_ns() is None


def test_any_call_ends_pauses() -> None:
    made = policy(100, pause_ttl_ns=30)
    run(made, "a", 60)
    run(made, "b", 30)
    made.completed("a", None, 0)
    assert turn(made, "c", 60) == Defer()
    assert made.advanced("b", 31, 29) == []
    assert made.advanced("b", 31, 30) == ready("c")


def test_a_turn_that_no_worker_has_taken_leaves_nothing() -> None:
    made = policy(100, pause_ttl_ns=30)
    assert turn(made, "a1", 90) == Ready()
    assert made.aborted("a1", 0) == []
    assert made.dump() == {"live": [], "waiting": []}
    run(made, "a2", 20)
    made.completed("a2", 25, 5)
    assert turn(made, "a3", 500, now_ns=10) == Ready()
    assert made.aborted("a3", 11) == []
    assert made.next_deadline_ns() == 41
    assert [turn(made, "b", 75, now_ns=12), turn(made, "c", 1, now_ns=12)] == [Ready(), Defer()]


def test_a_turn_that_a_worker_had_taken_leaves_what_it_needed() -> None:
    made = policy(100, pause_ttl_ns=30)
    run(made, "a", 20)
    made.advanced("a", 40, 1)
    made.aborted("a", 2)
    assert [turn(made, "b", 61), turn(made, "c", 1)] == [Defer(), Defer()]
    assert made.aborted("b", 3) == ready("c")


@pytest.mark.parametrize(("reported", "left"), [(None, 80), (30, 30), (90, 90), (0, 0)])
def test_what_is_reported_replaces_what_was_expected(reported: int | None, left: int) -> None:
    made = policy(100, pause_ttl_ns=30)
    assert turn(made, "a", 20, expected=60) == Ready()
    made.dispatched("a", 0)
    made.completed("a", reported, 1)
    assert turn(made, "b", 100 - left) == Ready()
    assert turn(made, "c", 1) == Defer()


def test_a_compacted_context_makes_room_when_its_turn_ends() -> None:
    made = policy(100, pause_ttl_ns=30)
    run(made, "a1", 90)
    made.completed("a1", 90, 0)
    assert turn(made, "b", 50) == Defer()
    run(made, "a2", 20)
    assert made.completed("a2", 21, 1) == ready("b")


def test_turns_side_by_side_share_a_context() -> None:
    made = policy(100, pause_ttl_ns=30)
    run(made, "a1", 60)
    run(made, "a2", 90)
    run(made, "a3", 30)
    assert turn(made, "b", 40) == Defer()
    assert made.completed("a2", 20, 0) == ready("b")
    assert made.completed("a1", None, 0) == []
    assert turn(made, "c", 1) == Defer()  # a1 has left 60 of 100, b has 40
    assert made.completed("a3", None, 0) == ready("c")


# Forced resumes, and releases by hand.


def test_forced_resume() -> None:
    made = policy(100, resume_after_ns=50, max_programs=1)
    run(made, "a", 90)
    assert [turn(made, "b1", 20, now_ns=10), turn(made, "c1", 5, now_ns=15), turn(made, "b2", 1, now_ns=20)] == [
        Defer()] * 3
    assert [made.next_deadline_ns(), made.on_time(59)] == [60, []]
    assert made.on_time(60) == ready("b1", "b2")
    assert [made.next_deadline_ns(), made.on_time(100), made.next_deadline_ns()] == [65, ready("c1"), None]
    assert turn(made, "c2", 1, now_ns=100) == Ready()


def test_a_place_in_the_queue_is_kept_while_a_turn_waits() -> None:
    made = policy(100, resume_after_ns=50)
    run(made, "a", 90)
    turn(made, "b1", 20, now_ns=10)
    turn(made, "b2", 20, now_ns=30)
    assert made.aborted("b1", 31) == []
    assert made.next_deadline_ns() == 60
    assert made.aborted("b2", 32) == []
    assert made.next_deadline_ns() is None
    turn(made, "b3", 20, now_ns=40)
    assert made.next_deadline_ns() == 90


def test_the_earlier_of_pause_and_forced_resume() -> None:
    made = policy(100, resume_after_ns=50, pause_ttl_ns=30)
    run(made, "a", 90)
    turn(made, "b", 20, now_ns=10)
    made.completed("a", None, 20)
    assert made.next_deadline_ns() == 50
    turn(made, "a2", now_ns=31)
    assert made.next_deadline_ns() == 60


def test_released_by_hand() -> None:
    made = policy(100)
    run(made, "a", 90)
    for name in ("b1", "c1", "c2", "c3", "d1"):
        assert turn(made, name, 20) == Defer()
    assert made.released("c2", 0) == ready("c1", "c3")
    assert made.released("c1", 0) == []
    assert turn(made, "c4", 1) == Ready()
    assert made.completed("a", None, 1) == ready("b1", "d1")


# State.


def test_ids_are_free_once_they_have_ended() -> None:
    """Also those whose need was larger before: what is known of an id is not mixed up."""
    made = policy(100)
    run(made, "a1", 60)
    run(made, "a2", 50)
    made.aborted("a2", 0)
    run(made, "a2", 10)
    made.aborted("a1", 0)
    assert made.dump()["live"][0]["left"] == 60
    run(made, "a3", 5)
    made.completed("a3", 5, 0)
    assert [turn(made, "b", 90), turn(made, "c", 1)] == [Ready(), Defer()]


def test_growth_by_a_single_token() -> None:
    made = policy(100)
    run(made, "a", 50)
    made.advanced("a", 51, 0)
    assert turn(made, "b", 50) == Defer()


def test_state_is_bounded_by_what_is_live() -> None:
    made = policy(10**6, pause_ttl_ns=5)
    for number in range(1000):
        run(made, "a", number + 1, now_ns=number)
        made.advanced("a", 10_000 + number, number)
        run(made, f"a{number % 3}", 5, now_ns=number)
        made.aborted(f"a{number % 3}", number)
        made.completed("a", 10, number)
        run(made, "b", now_ns=number)
        made.aborted("b", number)
    for context_tokens in range(10, 1000):
        run(made, "c") if context_tokens == 10 else made.advanced("c", context_tokens, 1000)
        assert len(made._programs["c"]._largest) <= 20
    made.completed("c", None, 1000)
    made.on_time(1005)
    fresh = policy(10**6, pause_ttl_ns=5)
    assert vars(made) == vars(fresh)


def full() -> Any:
    """A policy with a live, a paused, and two waiting programs."""
    made = policy(100, pause_ttl_ns=30, resume_after_ns=50)
    run(made, "b1", 50)
    assert turn(made, "b2", 20) == Ready()
    run(made, "a1", 40)
    made.completed("a1", 44, 7)
    for name, now_ns in (("d1", 8), ("c1", 8), ("d2", 9)):
        assert turn(made, name, 20, now_ns=now_ns) == Defer()
    return made


def waits(request_id: str, tokens: int = 20, taken: bool = False) -> dict[str, object]:
    """A turn as it is dumped."""
    return {"request_id": request_id, "tokens": tokens, "taken": taken}


def test_dump_and_load() -> None:
    made = full()
    dumped = made.dump()
    assert dumped == {
        "live": [
            {"session_id": "a", "turns": [], "left": 44, "paused_until_ns": 37},
            {"session_id": "b", "turns": [waits("b1", 50, True), waits("b2")], "left": None, "paused_until_ns": None},
        ],
        "waiting": [
            {"session_id": "d", "turns": [waits("d1"), waits("d2")], "since_ns": 8},
            {"session_id": "c", "turns": [waits("c1")], "since_ns": 8},
        ],
    }
    other = policy(100, pause_ttl_ns=30, resume_after_ns=50)
    run(other, "x")
    other.load(json.loads(json.dumps(dumped)))
    assert other.dump() == dumped
    for one in (made, other, copy.deepcopy(other)):
        assert one.next_deadline_ns() == 37
        assert one.on_time(37) == ready("d1", "d2", "c1")
        assert one.completed("b1", None, 38) == []


def dumped(part: str, index: int, **changed: object) -> dict[str, Any]:
    """The dump of `full`, with changes in one program."""
    value: Any = full().dump()
    value[part][index] |= changed
    return value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "must be a mapping of live, waiting"),
        ([], "must be a mapping of live, waiting"),
        ({"live": [], "waiting": [], "x": 1}, "must be a mapping of live, waiting"),
        ({"live": {}, "waiting": []}, "must be a list"),
        ({"live": [], "waiting": None}, "must be a list"),
        (dumped("live", 1, x=1), "must be a mapping of session_id, turns, left, paused_until_ns"),
        (dumped("waiting", 1, x=1), "must be a mapping of session_id, turns, since_ns"),
        (dumped("live", 1, session_id=1), "must be text"),
        (dumped("live", 1, left=True), "must be a whole number"),
        (dumped("live", 1, left=-1), "must be a whole number"),
        (dumped("live", 0, paused_until_ns=1.5), "must be a whole number"),
        (dumped("live", 1, turns=[1]), "must be a mapping of request_id, tokens, taken"),
        (dumped("live", 1, turns=[waits("b1", -1)]), "must be a whole number"),
        (dumped("live", 1, turns=[waits("b1") | {"taken": 1}]), "must be true or false"),
        (dumped("live", 1, turns=[waits("b1") | {"request_id": None}]), "must be text"),
        (dumped("live", 1, turns=[waits("b1"), waits("b1")]), "a request is there twice"),
        (dumped("live", 1, turns=[waits("c1")]), "a request is there twice"),
        (dumped("live", 1, session_id="a"), "a session is there twice"),
        (dumped("waiting", 0, session_id="b"), "a session is there twice"),
        (dumped("live", 0, left=None), "has turns or is paused"),
        (dumped("live", 0, paused_until_ns=None), "has turns or is paused"),
        (dumped("live", 1, paused_until_ns=5), "has turns or is paused"),
        (dumped("live", 1, turns=[]), "has turns or is paused"),
        (dumped("waiting", 0, turns=[]), "no worker has taken one"),
        (dumped("waiting", 0, turns=[waits("d1", taken=True)]), "no worker has taken one"),
        (dumped("waiting", 0, since_ns="8"), "must be a whole number"),
        (dumped("waiting", 0, since_ns=9), "who began to wait first comes first"),
        (dumped("waiting", 0, turns=[waits("d1", 6)]), "the first that waits does not fit"),
        ({"live": [], "waiting": full().dump()["waiting"]}, "the first that waits does not fit"),
    ],
)
def test_what_no_policy_has_dumped(value: object, reason: str) -> None:
    made = full()
    before = made.dump()
    with pytest.raises(ValueError, match=reason):
        made.load(value)
    assert made.dump() == before


@pytest.mark.parametrize(
    ("parameters", "key", "reason"),
    [
        ({}, "kv_token_budget", "is required"),
        ({"kv_token_budget": 0}, "kv_token_budget", r"whole number, 1\.\."),
        ({"kv_token_budget": 1, "max_programs": 0}, "max_programs", r"whole number, 1\.\."),
        ({"kv_token_budget": 1, "pause_ttl_ns": -1}, "pause_ttl_ns", r"whole number, 0\.\."),
        ({"kv_token_budget": 1, "resume_after_ns": 0}, "resume_after_ns", r"whole number, 1\.\."),
        ({"kv_token_budget": 1, "pause_ttl": 1}, "pause_ttl", "unknown key, did you mean pause_ttl_ns?"),
    ],
)
def test_parameters(parameters: dict[str, object], key: str, reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason) as caught:
        ProgramBudget(parameters)
    assert caught.value.key == key
