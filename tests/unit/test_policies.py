"""The admission policies of proofs keep their promise: same calls, same answers, and a dump holds all they know."""

from __future__ import annotations

import json

import pytest
from policies import ADMISSION, NOBODY, Gate, Mixed, Timed

from kvcore.admission import AdmissionView, Bypass, Defer, MakeReady, Ready, Refuse
from kvcore.request import Rank


def view(name: str, prompt: int = 8, now_ns: int = 0) -> AdmissionView:
    return AdmissionView(name, None, "c0", prompt, 0, None, 0, None, now_ns)


def test_gate_lets_so_many_run():
    gate = Gate({"running": 2})
    assert [gate.decide(view(name)) for name in "abcd"] == [Ready(), Ready(), Defer(), Defer()]
    assert gate.released("d", 1) is None
    assert gate.completed("a", None, 2) == []
    assert gate.aborted("d", 3) == [MakeReady("c")]
    assert gate.aborted("c", 4) == []
    assert (gate.running, gate.held) == (["b"], [])


def test_timed_holds_back_for_a_while():
    timed = Timed({"every": 2, "for_ns": 10, "ranks": [None, [1, 2]]})
    assert [timed.decide(view(name, now_ns=at)) for at, name in enumerate("abcdef")] == [Ready(), Defer()] * 3
    assert timed.next_deadline_ns() == 11
    assert list(timed.on_time(13)) == [MakeReady("b", Rank(1, 2)), MakeReady("d")]
    assert timed.next_deadline_ns() == 15
    assert timed.completed("a", 49, 14) is None
    assert timed.completed("c", 50, 14) == [MakeReady("f", Rank(1, 2))]
    assert timed.next_deadline_ns() is None


def test_mixed_answers_anything():
    mixed = Mixed({"table": "brpdx", "per_call": 1, "ranks": [[7, 0]]})
    told = [mixed.decide(view("r", prompt)) for prompt in (7, 5, 8, 1, 4)]
    assert told == [Bypass(), Ready(), Ready(Rank(7)), Defer(), Refuse()]
    assert mixed.dispatched("x", 1) == [MakeReady("r", Rank(7)), MakeReady(NOBODY, Rank(7))]
    assert mixed.advanced("x", 3, 1) == [MakeReady("r", Rank(7)), MakeReady(NOBODY, Rank(7))]


@pytest.mark.parametrize("kind", ADMISSION)
def test_a_dump_is_json_and_goes_on_like_the_original(kind):
    parameters = {"running": 1, "every": 2, "for_ns": 5, "per_call": 1, "table": "drp", "ranks": [None, [1, 0]]}
    one, other = ADMISSION[kind](parameters), ADMISSION[kind](parameters)
    for name in "abc":
        one.decide(view(name))
    one.aborted("b", 1)
    other.load(json.loads(json.dumps(one.dump())))
    for policy in (one, other):
        policy.answers = [policy.decide(view("d", now_ns=3)), policy.aborted("a", 4), policy.next_deadline_ns()]
    assert one.answers == other.answers
    assert one.dump() == other.dump()
    held = one.dump()
    one.aborted("d", 5)
    assert held == other.dump()     # it is a copy
    for broken in (None, {}, {**held, "more": 1}, {**held, next(iter(held)): "text"}):
        with pytest.raises(ValueError, match="must"):
            other.load(broken)


@pytest.mark.parametrize(("kind", "parameters"), [
    ("gate", {"running": -1}), ("gate", {"running": True}), ("timed", {"every": 0}), ("timed", {"for_ns": "1"}),
    ("timed", {"ranks": []}), ("mixed", {"table": "bz"}), ("mixed", {"table": ""}), ("mixed", {"per_call": None})])
def test_bad_parameters_are_refused(kind, parameters):
    with pytest.raises(ValueError, match="must be"):
        ADMISSION[kind](parameters)
