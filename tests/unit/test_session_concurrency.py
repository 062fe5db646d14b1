"""`session_concurrency` by hand: who goes ahead and who follows, what is refused, dumps that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from admission_core import view

from kvcore.admission import Bypass, Defer, InvalidParameter, MakeReady, Ready, Refuse, SessionConcurrency


def policy(max_running: int = 1, max_deferred: int | None = None, taking_in: str = "", session: str = "s") -> Any:
    """A policy that has taken in a request of the session for each letter."""
    made = SessionConcurrency({"max_running": max_running, "max_deferred": max_deferred})
    for name in taking_in:
        made.decide(view(name, session))
    return made


def test_the_first_go_ahead_and_the_others_follow_in_their_order() -> None:
    made = policy(2)
    assert [made.decide(view(name, "s")) for name in "abcde"] == [Ready(), Ready(), Defer(), Defer(), Defer()]
    assert made.completed("b", 7, 0) == (MakeReady("c"),)
    assert made.aborted("a", 0) == (MakeReady("d"),)
    assert made.completed("d", None, 0) == (MakeReady("e"),)
    assert [made.completed(name, None, 0) for name in "ec"] == [None, None]
    assert made.decide(view("f", "s")) == Ready()


def test_sessions_have_nothing_to_do_with_each_other() -> None:
    made = policy(1, taking_in="ab")
    assert made.decide(view("c", "t")) == Ready()
    assert made.decide(view("d", "t")) == Defer()
    assert made.completed("c", None, 0) == (MakeReady("d"),)


def test_without_a_session_nothing_is_managed() -> None:
    made = policy(1)
    assert [made.decide(view(name, None)) for name in "ab"] == [Bypass(), Bypass()]
    assert made.dump() == []


@pytest.mark.parametrize("max_deferred", [0, 1, 2])
def test_one_more_than_may_wait_is_refused(max_deferred: int) -> None:
    made = policy(1, max_deferred, "a" + "bcd"[:max_deferred])
    assert made.decide(view("x", "s")) == Refuse()
    assert made.decide(view("y", "t")) == Ready()
    made.aborted("a" if max_deferred == 0 else "b", 0)
    assert made.decide(view("x", "s")) == (Ready() if max_deferred == 0 else Defer())


def test_one_that_is_held_back_and_aborted_makes_no_room() -> None:
    made = policy(1, taking_in="abc")
    assert made.aborted("b", 0) is None
    assert made.completed("a", None, 0) == (MakeReady("c"),)


def test_released_by_hand_counts() -> None:
    made = policy(1, taking_in="abcd")
    assert made.released("c", 0) is None
    assert made.completed("a", None, 0) is None
    assert made.decide(view("e", "s")) == Defer()
    assert made.completed("c", None, 0) == (MakeReady("b"),)


def test_released_by_hand_after_it_has_been_let_go_changes_nothing() -> None:
    made = policy(1, taking_in="abc")
    assert made.completed("a", None, 0) == (MakeReady("b"),)
    assert made.released("b", 0) is None
    assert made.completed("b", None, 0) == (MakeReady("c"),)


def test_who_has_ended_is_forgotten_and_the_id_is_free() -> None:
    made = policy(1, taking_in="ab")
    made.aborted("b", 0)
    assert made.decide(view("b", "t")) == Ready()
    made.aborted("a", 0)
    made.completed("b", None, 0)
    assert (made.dump(), vars(made)) == ([], vars(policy(1)))


def test_nothing_happens_in_between_and_there_is_no_timer() -> None:
    made = policy(1, taking_in="ab")
    assert [made.dispatched("a", 1), made.advanced("a", 5, 2), made.on_time(3)] == [None] * 3
    assert made.next_deadline_ns() is None


def test_dump_and_load() -> None:
    made = policy(2, taking_in="dcba")
    made.decide(view("e", "r"))
    dumped = made.dump()
    assert dumped == [{"session_id": "r", "let_go": ["e"], "deferred": []},
                      {"session_id": "s", "let_go": ["c", "d"], "deferred": ["b", "a"]}]
    other = policy(2, taking_in="xyz")
    other.load(json.loads(json.dumps(dumped)))
    assert vars(other).keys() == vars(made).keys()
    assert other.dump() == dumped
    assert [other.completed(name, None, 0) for name in "cdb"] == [(MakeReady("b"),), (MakeReady("a"),), None]


def session(**changed: object) -> dict[str, object]:
    """One session as it is dumped, with changes."""
    return {"session_id": "s", "let_go": ["a"], "deferred": ["b"]} | changed


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "must be a list"),
        ({}, "must be a list"),
        ([[]], "must be a mapping of session_id, let_go, deferred"),
        ([session(more=1)], "must be a mapping of"),
        ([{"session_id": "s", "let_go": ["a"]}], "must be a mapping of"),
        ([session(session_id=None)], "must be text"),
        ([session(let_go="a")], "must be a list"),
        ([session(let_go=[1])], "must be text"),
        ([session(deferred={"b": None})], "must be a list"),
        ([session(let_go=[], deferred=[])], "no request that is let go"),
        ([session(), session(session_id="t", let_go=[], deferred=["c"])], "no request that is let go"),
        ([session(deferred=["b", "c", "d"])], "more than max_deferred"),
        ([session(deferred=["a"])], "there twice"),
        ([session(let_go=["a", "a"])], "there twice"),
        ([session(), session(let_go=["c"], deferred=[])], "there twice"),
        ([session(), session(session_id="t")], "there twice"),
    ],
)
def test_what_no_policy_has_dumped(value: object, reason: str) -> None:
    made = policy(1, 2, "xy")
    before = made.dump()
    with pytest.raises(ValueError, match=reason):
        made.load(value)
    assert made.dump() == before


def test_a_dump_of_another_policy() -> None:
    with pytest.raises(ValueError, match="holds requests back while it has room"):
        policy(2).load([session()])


@pytest.mark.parametrize(
    ("parameters", "key", "reason"),
    [
        ({}, "max_running", "is required"),
        ({"max_running": None}, "max_running", "is required"),
        ({"max_running": 0}, "max_running", r"must be a whole number, 1\.\.9007199254740992 \(2\^53\), not 0"),
        ({"max_running": 2**53 + 1}, "max_running", "not 9007199254740993"),
        ({"max_running": True}, "max_running", "not True"),
        ({"max_running": 1.0}, "max_running", r"not 1\.0"),
        ({"max_running": "1"}, "max_running", "not '1'"),
        ({"max_running": 1, "max_deferred": -1}, "max_deferred", r"whole number, 0\.\..*, not -1"),
        ({"max_runing": 1}, "max_runing", "unknown key, did you mean max_running?"),
        ({"max_running": 1, "x": 1}, "x", "unknown key; known are max_running, max_deferred"),
    ],
)
def test_parameters(parameters: dict[str, object], key: str, reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason) as caught:
        SessionConcurrency(parameters)
    assert (caught.value.key, str(caught.value)) == (key, f"{key}: {caught.value.reason}")
