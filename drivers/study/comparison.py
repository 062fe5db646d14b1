"""Policies side by side on the same requests: replays of each, and how each differs from the first, as JSON values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvcore.policy import PolicyProfile
from kvcore.policy_file import PolicyDocument, describe

from ..replay.report import ratio, rounded
from ..replay.result import ReplayResult
from .bootstrap import differences
from .case import Case, replay
from .fairness import FairnessTap, Pair, is_promised
from .outcomes import Outcomes


@dataclass(frozen=True)
class Candidate:
    """A policy under comparison. label: tells it from the others."""

    label: str
    case: Case


@dataclass(frozen=True)
class Replayed:
    """A candidate's replay. unusable: rows that were left out."""

    label: str
    result: ReplayResult
    outcomes: Outcomes
    pairs: list[Pair]
    unusable: int


def labels(paths: Sequence[str]) -> list[str]:
    """A name for each file: its path, with a number if another has the same."""
    return [path if paths.count(path) == 1 else f"{path}#{paths[: i + 1].count(path)}" for i, path in enumerate(paths)]


def replay_candidate(candidate: Candidate, progress: Callable[[int, int], None] | None = None) -> Replayed:
    """Replay one candidate. Raises: see case.replay."""
    tap = FairnessTap(_profile(candidate.case))
    result, unusable = replay(candidate.case, tap, progress)
    return Replayed(candidate.label, result, Outcomes(result), tap.pairs(), unusable)


def _profile(case: Case) -> PolicyProfile:
    if case.profile is None:
        raise ValueError("a candidate needs a policy")
    return case.profile


def compare(
    runs: Sequence[Replayed], *, seed: int, resamples: int, percent: int, progress: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Everything but the configuration: each candidate's numbers, and differences of all others from the first."""
    base, *others = runs
    for run in others:
        if not np.array_equal(base.outcomes.keys, run.outcomes.keys):
            raise AssertionError(f"{run.label} has replayed other requests than {base.label}")
    return {
        "candidates": [_candidate(run) for run in runs],
        "differences": [
            {
                "base": base.label,
                "candidate": run.label,
                "same_outcomes": _same(base, run),
                "classes": [
                    {"name": name, "figures": {
                        key: asdict(found) | {"is_clear": found.is_clear} for key, found in differences(
                            base.outcomes, run.outcomes, name, seed=seed, resamples=resamples, percent=percent,
                            progress=progress).items()}}
                    for name in groups(base, run)
                ],
            }
            for run in others
        ],
        "bootstrap": {"seed": seed, "resamples": resamples, "confidence_percent": percent},
    }


def groups(base: Replayed, other: Replayed) -> list[str]:
    """Classes that had requests in either run, those of the first first; all requests last."""
    first = base.outcomes.groups()
    return [*first[:-1], *(name for name in other.outcomes.groups()[:-1] if name not in first), first[-1]]


def _same(base: Replayed, other: Replayed) -> bool:
    """Whether every request had the same class, worker, times and tokens in both, under classes of the same names."""
    return (base.outcomes.names == other.outcomes.names
            and np.array_equal(base.result.table.rows(), other.result.table.rows()))


def _candidate(run: Replayed) -> dict[str, Any]:
    profile = run.result.profile
    policy = describe(PolicyDocument(root=profile))
    del policy["models"]
    return {
        "label": run.label,
        "policy": policy,
        "skipped": run.unusable,
        "digest": run.result.digest,
        "simulated_ns": run.result.end_ns - run.result.start_ns,
        "classes": [{"name": name, "figures": figures} for name, figures in run.outcomes.figures().items()],
        "fairness": {
            "arbitration": profile.arbitration.value,
            "is_promised": is_promised(profile),
            "pairs": [_pair(pair) for pair in run.pairs],
            "shares": _shares(run.result),
            "contended": [_contended(run.result, waiting) for waiting in sorted(run.result.contended)],
        },
    }


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "classes": [pair.one, pair.other], "drift_rounds": rounded(pair.apart), "bound_rounds": rounded(pair.bound),
        "broken": pair.broken, "looks": pair.looks,
    }


def _shares(result: ReplayResult) -> list[dict[str, Any]]:
    """Per class: what it was given while several classes waited, and what its quantum is due."""
    found = []
    for item, (tokens, share, due) in zip(result.profile.classes, result.contended_shares(), strict=True):
        lost = None if share is None or due is None else rounded(due - share)
        found.append({"name": item.name, "quantum": item.quantum, "uncached_tokens": tokens, "share": rounded(share),
                      "due": rounded(due), "lost": lost})
    return found


def _contended(result: ReplayResult, waiting: int) -> dict[str, Any]:
    """The same while exactly these classes waited."""
    classes, tokens = result.profile.classes, result.contended[waiting]
    inside = [i for i in range(len(classes)) if waiting >> i & 1]
    total, quanta = sum(tokens), sum(classes[i].quantum for i in inside)
    return {
        "waiting": [classes[i].name for i in inside],
        "uncached_tokens": total,
        "shares": [
            {"name": classes[i].name, "share": ratio(tokens[i], total), "due": ratio(classes[i].quantum, quanta)}
            for i in inside
        ],
    }
