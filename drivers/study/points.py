"""Points of a sweep: the values of a point put into a case, and the figures of its replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import yaml

from kvcore.config import IndexMode, weights_fault
from kvcore.errors import InvalidConfig, KvcoreError
from kvcore.policy import PolicyClass, PolicyProfile
from kvcore.policy_file import PolicyDocument, check_admission, describe, load_policy
from kvcore.request import SelectionWeights

from ..replay.presets import PRESETS
from ..replay.report import rounded
from .case import Case, replay
from .outcomes import ALL, FIGURES, Figures, Outcomes, flat
from .space import InvalidSpace, Point, Value, known

FLEET = ("workers", "engine", "index", "tell_output")
_POLICY = ("arbitration", "capacity", "default_policy_family")
_FIXED = ("name", "policy_family", "cache_bucket", "admission")
WORKERS_MAX = 65_536


@dataclass(frozen=True)
class Task:
    """A point to be tried: what another process is sent."""

    number: int
    values: Point
    base: Case


@dataclass(frozen=True)
class Tried:
    """A point that was tried. error: None, or why there are no figures."""

    number: int
    values: Point
    figures: Figures
    error: str | None = None


def check_keys(places: Mapping[str, str], profile: PolicyProfile) -> None:
    """Refuse keys that nothing answers to. places: of each key, where it is written. Raises: InvalidSpace."""
    classes = [item.name for item in profile.classes]
    keys = [item.name for item in fields(PolicyClass) if item.name not in _FIXED]
    for name, place in places.items():
        owner, dot, key = name.rpartition(".")
        if not dot:
            raise InvalidSpace(place, f"key {name!r} must be OWNER.KEY, such as {classes[0]}.quantum or fleet.workers")
        if owner == "fleet":
            known(key, FLEET, place, "key of the fleet")
        elif owner == "policy":
            known(key, _POLICY, place, "key of the policy")
        elif owner == "selection":
            known(key, [item.name for item in fields(SelectionWeights)], place, "selection weight")
        elif owner.startswith("bucket."):
            known(owner.removeprefix("bucket."), [item.name for item in profile.buckets], place, "bucket")
            known(key, ("min_tokens",), place, "key of a bucket")
        else:
            known(owner, [*classes, "*", "fleet", "policy", "selection"], place, "class")
            known(key, keys, place, "key of a class")


def figure_names(profile: PolicyProfile, point: Point) -> list[str]:
    """Names of all figures of a point: of each class and of all, and those of its values that may be numbers."""
    groups = list(dict.fromkeys([*(item.name for item in profile.classes), ALL]))
    names = [f"{group}.{name}" for group in groups for name in ("requests", *FIGURES)]
    return [*names, *(f"{item.name}.share" for item in profile.classes), *point]


def policy_of(profile: PolicyProfile, values: Point) -> dict[str, Any]:
    """The policy of a point, in the layout of a policy file; keys that are off are left out."""
    policy = describe(PolicyDocument(root=profile))
    del policy["models"]
    for name, value in values.items():
        owner, _, key = name.rpartition(".")
        if owner in ("fleet", "selection"):
            continue
        if owner == "policy":
            policy[key] = value
        elif owner.startswith("bucket."):
            for item in policy["uncached_isl_buckets"]:
                if item["bucket"] == owner.removeprefix("bucket."):
                    item[key] = value
        else:
            for item in policy["policy_classes"]:
                if owner in ("*", item["name"]):
                    item[key] = value
    policy["policy_classes"] = [
        {key: value for key, value in item.items() if value is not None} for item in policy["policy_classes"]]
    return policy


def policy_text(profile: PolicyProfile, values: Point) -> str:
    """The same as YAML."""
    text: str = yaml.safe_dump(policy_of(profile, values), sort_keys=False, allow_unicode=True)
    return text


def case_of_point(base: Case, values: Point) -> Case:
    """A case with the values of a point. Raises: KvcoreError for values that it can not have."""
    profile = base.profile
    if profile is not None and any(name.rpartition(".")[0] not in ("fleet", "selection") for name in values):
        document = load_policy(policy_text(profile, values), "policy of the point")
        check_admission(document)
        profile = document.root
    weights = {name.rpartition(".")[2]: value for name, value in values.items() if name.startswith("selection.")}
    for key, value in weights.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidConfig(f"selection.{key} must be a number, not {value!r}")
    numbers: dict[str, Any] = {key: float(value) for key, value in weights.items() if isinstance(value, int | float)}
    changed = replace(base.weights, **numbers)
    fault = weights_fault(changed)
    if fault is not None:
        raise InvalidConfig(fault)
    fleet = {name.removeprefix("fleet."): value for name, value in values.items() if name.startswith("fleet.")}
    return replace(base, profile=profile, weights=changed, **_fleet(fleet))


def _fleet(given: dict[str, Value]) -> dict[str, Any]:
    changed: dict[str, Any] = dict(given)
    if "workers" in given and not (type(given["workers"]) is int and 1 <= given["workers"] <= WORKERS_MAX):
        raise InvalidConfig(f"fleet.workers must be 1..{WORKERS_MAX}, not {given['workers']!r}")
    if "engine" in given and given["engine"] not in PRESETS:
        raise InvalidConfig(f"fleet.engine must be one of {', '.join(PRESETS)}, not {given['engine']!r}")
    if "tell_output" in given and not isinstance(given["tell_output"], bool):
        raise InvalidConfig(f"fleet.tell_output must be true or false, not {given['tell_output']!r}")
    if "index" in given:
        modes = [mode.value for mode in IndexMode]
        if given["index"] not in modes:
            raise InvalidConfig(f"fleet.index must be one of {', '.join(modes)}, not {given['index']!r}")
        changed["index"] = IndexMode(given["index"])
    return changed


def try_point(task: Task) -> Tried:
    """Replay a point. What goes wrong with it is an answer and no exception."""
    try:
        result, _ = replay(case_of_point(task.base, task.values))
        figures = flat(Outcomes(result).figures())
        for item, (_, share, _) in zip(result.profile.classes, result.contended_shares(), strict=True):
            figures[f"{item.name}.share"] = rounded(share)
        return Tried(task.number, task.values, figures)
    except KvcoreError as error:
        return Tried(task.number, task.values, {}, " ".join(str(error).split()))
    except Exception as error:  # also of a bug: hours of other points must not be lost for it
        return Tried(task.number, task.values, {}, " ".join(f"{type(error).__name__}: {error}".split()))


def all_figures(tried: Tried, names: Iterable[str]) -> Figures:
    """All of these, None where the replay has none; a point's values are among them if they are numbers."""
    own: Figures = {
        name: value for name, value in tried.values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)}
    return {name: tried.figures.get(name, own.get(name)) for name in names}
