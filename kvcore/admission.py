"""Admission policies: who of a class may queue for capacity now, and who is held back until later (DESIGN D10).

Everything that a policy is written with: AdmissionPolicy says which calls it gets, AdmissionView what it sees; Bypass,
Ready, Defer, Refuse and MakeReady are what it may answer. examples/admission_policy.py is one.

Owns where the type that a class asks for is found: given by the embedder, built in, or installed by another package
(entry points of group `kvcore.admission`, each a factory that takes the parameters).

Never here: queues, load, workers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from kvcore import _yaml_marks as marks
from kvcore._admission_protocol import (
    AdmissionPolicy,
    AdmissionView,
    Answers,
    Bypass,
    Decision,
    Defer,
    Factory,
    MakeReady,
    Ready,
    Refuse,
)
from kvcore._admission_values import InvalidParameter, whole_numbers
from kvcore._program_budget import ProgramBudget
from kvcore._session_concurrency import SessionConcurrency
from kvcore.errors import InvalidPolicy
from kvcore.policy import AdmissionSpec

__all__ = [
    "BUILT_IN",
    "ENTRY_POINTS",
    "AdmissionPolicy",
    "AdmissionView",
    "Answers",
    "Bypass",
    "Decision",
    "Defer",
    "Factory",
    "InvalidParameter",
    "MakeReady",
    "ProgramBudget",
    "Ready",
    "Refuse",
    "SessionConcurrency",
    "build",
    "whole_numbers",
]

ENTRY_POINTS = "kvcore.admission"

BUILT_IN: Mapping[str, Factory] = {
    "program_budget": ProgramBudget,
    "session_concurrency": SessionConcurrency,
}


def build(spec: AdmissionSpec, class_name: str, given: Mapping[str, Factory]) -> AdmissionPolicy:
    """The policy that a class asks for. given: types of the embedder, looked up first.

    The factory gets a copy of the parameters, so that no policy can change the profile that is in force.
    Raises: InvalidPolicy for an unknown type, and for whatever a factory raises when it gets the parameters.
    """
    try:
        factory = _factory(spec.type, given)
    except ValueError as error:
        raise _refused(class_name, str(error)) from error
    name = marks.printable(spec.type)
    try:
        policy = factory(copy.deepcopy(dict(spec.parameters)))
    except Exception as error:
        kind = "" if isinstance(error, ValueError | TypeError) else f"{type(error).__name__}: "
        raise _refused(class_name, f"{name}: {kind}{error}") from error
    if not isinstance(policy, AdmissionPolicy):
        raise _refused(class_name, f"{name}: its factory makes a {type(policy).__name__}, not an AdmissionPolicy")
    return policy


def _refused(class_name: str, reason: str) -> InvalidPolicy:
    return InvalidPolicy(marks.printable(reason, 300), location=f'root, class "{class_name}"', key="admission")


def _factory(name: str, given: Mapping[str, Factory]) -> Factory:
    """The type of this name. ValueError: there is none, or it cannot be had."""
    if name in given:
        return given[name]
    if name in BUILT_IN:
        return BUILT_IN[name]
    return _installed(name, {*given, *BUILT_IN})


def _installed(name: str, known: set[str]) -> Factory:
    """A type that another package has installed. known: the types that are there without."""
    # Here because it takes a while to import and few need it.
    from importlib.metadata import entry_points

    what = marks.printable(name)
    found = {entry.value: entry for entry in entry_points(group=ENTRY_POINTS, name=name)}
    if not found:
        names = sorted(known | entry_points(group=ENTRY_POINTS).names)
        hint = marks.did_you_mean(name, names) or "; known are " + ", ".join(names)
        raise ValueError(f"unknown type {what!r}{hint}")
    if len(found) > 1:
        raise ValueError(f"type {what!r} is installed more than once: {', '.join(sorted(found))}")
    (entry,) = found.values()
    try:
        factory: Factory = entry.load()
    except Exception as error:
        raise ValueError(
            f"type {what!r} cannot be loaded from {entry.value}: {type(error).__name__}: {error}") from error
    return factory
