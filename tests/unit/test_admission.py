"""Where admission policies are found: given by the embedder, built in, installed; and how each can fail."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from admission_core import view

from kvcore.admission import (
    BUILT_IN,
    ENTRY_POINTS,
    AdmissionPolicy,
    Defer,
    MakeReady,
    ProgramBudget,
    Ready,
    SessionConcurrency,
    build,
)
from kvcore.errors import InvalidPolicy
from kvcore.policy import AdmissionSpec

EXAMPLE = Path(__file__).parents[2] / "examples" / "admission_policy.py"


class Nobody(AdmissionPolicy):
    """Keeps its parameters."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters


def install(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Let packages be installed that offer these types; a name can stand for several with _ at its end."""
    entries = importlib.metadata.EntryPoints(
        importlib.metadata.EntryPoint(name.rstrip("_"), value, ENTRY_POINTS) for name, value in values.items())
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **wanted: entries.select(**wanted))
    module = types.ModuleType("some_package")
    module.Nobody = Nobody  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_package", module)


def refused(spec: AdmissionSpec, given: Any = None) -> InvalidPolicy:
    """The error that building it meets, checked for its form."""
    with pytest.raises(InvalidPolicy) as caught:
        build(spec, "c", given or {})
    error = caught.value
    assert (error.location, error.key, error.line) == ('root, class "c"', "admission", None)
    assert spec.type[:80] in error.reason
    assert len(error.reason) < 500
    assert str(error).isprintable()
    return error


def test_built_in() -> None:
    assert list(BUILT_IN) == sorted(BUILT_IN)
    assert type(build(AdmissionSpec("session_concurrency", {"max_running": 1}), "c", {})) is SessionConcurrency
    assert type(build(AdmissionSpec("program_budget", {"kv_token_budget": 1}), "c", {})) is ProgramBudget


def test_given_comes_before_built_in_and_that_before_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, session_concurrency="some_package:Nobody", mine="some_package:Absent")
    assert type(build(AdmissionSpec("session_concurrency", {}), "c", {"session_concurrency": Nobody})) is Nobody
    assert type(build(AdmissionSpec("session_concurrency", {"max_running": 1}), "c", {"mine": Nobody})) is (
        SessionConcurrency)
    assert type(build(AdmissionSpec("mine"), "c", {"mine": Nobody})) is Nobody


def test_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, theirs="some_package:Nobody", theirs_="some_package:Nobody")
    made = build(AdmissionSpec("theirs", {"a": 1}), "c", {})
    assert type(made) is Nobody
    assert made.parameters == {"a": 1}


def test_a_policy_cannot_change_the_profile() -> None:
    spec = AdmissionSpec("mine", {"a": [1]})
    made = build(spec, "c", {"mine": Nobody})
    made.parameters["a"].append(2)  # type: ignore[attr-defined]
    made.parameters["b"] = 3  # type: ignore[attr-defined]
    assert spec.parameters == {"a": [1]}


def test_an_unknown_type(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, theirs="some_package:Nobody")
    assert refused(AdmissionSpec("session_concurency"), {"mine": Nobody}).reason == (
        "unknown type 'session_concurency', did you mean session_concurrency?")
    assert refused(AdmissionSpec("their")).reason == "unknown type 'their', did you mean theirs?"
    assert refused(AdmissionSpec("min"), {"mine": Nobody}).reason == "unknown type 'min', did you mean mine?"
    assert refused(AdmissionSpec("x" * 500), {"mine": Nobody}).reason == (
        f"unknown type '{'x' * 80}...'; known are mine, program_budget, session_concurrency, theirs")


def test_bad_parameters() -> None:
    error = refused(AdmissionSpec("session_concurrency", {"max_running": "1\n"}))
    assert error.reason == (
        r"session_concurrency: max_running: must be a whole number, 1..9007199254740992 (2^53), not '1\n'")


def test_what_factories_raise() -> None:
    def missing(parameters: Any) -> Any:
        return parameters["n"]

    def long(parameters: Any) -> Any:
        raise ValueError("a\nb" * 1000)

    assert refused(AdmissionSpec("mine"), {"mine": missing}).reason == "mine: KeyError: 'n'"
    assert refused(AdmissionSpec("mine"), {"mine": long}).reason.startswith(r"mine: a\nba\nb")
    assert "not callable" in refused(AdmissionSpec("mine"), {"mine": 1}).reason
    assert refused(AdmissionSpec("mine"), {"mine": dict}).reason == (
        "mine: its factory makes a dict, not an AdmissionPolicy")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"theirs": "no_such_package:Policy"},
         "type 'theirs' cannot be loaded from no_such_package:Policy: ModuleNotFoundError"),
        ({"theirs": "some_package:Absent"}, "type 'theirs' cannot be loaded from some_package:Absent: AttributeError"),
        ({"theirs": "some_package"}, "theirs: 'module' object is not callable"),
        ({"theirs": "some_package:Nobody", "theirs_": "another:Nobody"},
         "type 'theirs' is installed more than once: another:Nobody, some_package:Nobody"),
    ],
)
def test_broken_installations(monkeypatch: pytest.MonkeyPatch, values: dict[str, str], reason: str) -> None:
    install(monkeypatch, **values)
    assert refused(AdmissionSpec("theirs")).reason.startswith(reason)


def test_a_policy_need_not_have_more_than_decide() -> None:
    made: Any = AdmissionPolicy()
    with pytest.raises(NotImplementedError):
        made.decide(view("a", None))
    assert [made.released("a", 0), made.dispatched("a", 0), made.advanced("a", 1, 0), made.completed("a", None, 0),
            made.aborted("a", 0), made.next_deadline_ns(), made.on_time(0)] == [None] * 7
    for call in (made.dump, lambda: made.load(None)):
        with pytest.raises(NotImplementedError):
            call()


def test_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written under examples/ for readers, on its own and as the installed type that it tells of."""
    spec = importlib.util.spec_from_file_location("your_package", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "your_package", module)
    assert 'max_in_flight = "your_package:MaxInFlight"' in (module.__doc__ or "")
    install(monkeypatch, max_in_flight="your_package:MaxInFlight")
    made: Any = build(AdmissionSpec("max_in_flight", {"requests": 2}), "c", {})
    assert [made.decide(view(name, None)) for name in "abcdef"] == [Ready()] * 2 + [Defer()] * 4
    assert made.completed("a", None, 1) == [MakeReady("c")]
    assert made.released("c", 2) is None
    assert made.released("e", 2) is None
    assert [made.aborted(name, 3) for name in ("f", "b", "c")] == [None, None, [MakeReady("d")]]
    again: Any = build(AdmissionSpec("max_in_flight", {"requests": 2}), "c", {"max_in_flight": module.MaxInFlight})
    again.load(json.loads(json.dumps(made.dump())))
    assert again.dump() == made.dump() == {"in_flight": ["e", "d"], "deferred": []}
    with pytest.raises(ValueError, match="no such state"):
        again.load([])
    assert refused(AdmissionSpec("max_in_flight", {"request": 2})).reason == (
        "max_in_flight: request: unknown key, did you mean requests?")
