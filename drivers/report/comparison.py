"""The report of a comparison: each candidate's replay once more, watched over the same time, and from them the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..replay.simulate import Tap
from ..replay.text import duration
from ..study.case import check_traces, replay
from ..study.comparison import Candidate, Replayed
from ..study.comparison_text import (
    BOUND_COLUMNS,
    SHARE_COLUMNS,
    bound_rows,
    difference_columns,
    difference_rows,
    losses,
    percent_text,
    share_rows,
)
from .contrasts import Tables, distributions, drifts, forests, hits_over_time, shares_over_time
from .figures import values_of
from .meters import Grid as TimeGrid
from .page import Grid, Page, Section, render
from .replay import config_text, load_text, policy_grid, watch_again
from .tables import BINS, Table

#: Stretches of time that are listed where a candidate loses shares, and what a class must lose in one to be listed.
_STRETCHES_MAX = 10
_LOST_SHARE = 0.01


@dataclass(frozen=True)
class ComparisonReport:
    """What is known of a comparison once its replays have been watched. found: as JSON has it, with `config`."""

    found: dict[str, Any]
    requests: int
    tables: Tables
    start_ns: int

    def html(self) -> str:
        """The page."""
        return render(_page(self))


def compared(
    found: dict[str, Any], candidates: Sequence[Candidate], runs: Sequence[Replayed],
    progress: Callable[[str], Callable[[int, int], None]],
) -> ComparisonReport:
    """Run all replays again and look. progress: told of each candidate; returns what simulate tells how far it is.

    Raises: RunsDiffer; and as case.replay does.
    """
    start_ns = min(run.result.start_ns for run in runs)
    grid = TimeGrid.over(start_ns, max(start_ns, *(run.result.end_ns for run in runs)), BINS)
    return ComparisonReport(found, len(runs[0].outcomes), [
        _watched(candidate, run, grid, progress(candidate.label))
        for candidate, run in zip(candidates, runs, strict=True)], start_ns)


def _watched(
    candidate: Candidate, run: Replayed, grid: TimeGrid, progress: Callable[[int, int], None]
) -> dict[str, Table]:
    case = candidate.case

    def again(tap: Tap) -> Any:
        return replay(case, tap, progress)[0]

    return watch_again(run.result, grid, case.workers, check_traces(case.load), again, [])[1]


def _page(report: ComparisonReport) -> Page:
    found, config = report.found, report.found["config"]
    candidates = found["candidates"]
    labels = _short([item["label"] for item in candidates])
    names = ", ".join(trace["path"].rpartition("/")[2] for trace in config["traces"])
    return Page(
        title=f"Policies compared on {names}",
        subtitle=f"{report.requests:,} requests under each of {len(candidates)} policies: the same arrivals, seeds and "
                 "fleet. Virtual time, modelled engines.",
        facts=_facts(found, config),
        sections=[
            Section("Candidates", [_candidates(found, config)]),
            _differences(found, labels),
            Section("Distributions side by side", drawings=distributions(labels, report.tables)),
            _shares(report, labels),
            Section("The bound of deficit round robin", _bounds(candidates), drifts(labels, candidates)),
            Section("Caches", drawings=hits_over_time(labels, report.tables, report.start_ns)),
            Section("Differences in numbers", _numbers(found)),
            Section("Policies in effect", [policy_grid(item["label"], item["policy"]) for item in candidates]),
        ],
        config=config_text(config | {"candidates": {item["label"]: item["policy"] for item in candidates}}),
    )


def _short(labels: Sequence[str]) -> list[str]:
    """As pictures call candidates: files without their folders, where that tells them apart."""
    names = [label.rpartition("/")[2] for label in labels]
    return names if len(set(names)) == len(names) else list(labels)


def _facts(found: dict[str, Any], config: dict[str, Any]) -> list[tuple[str, str]]:
    bootstrap = found["bootstrap"]
    return [
        ("Workers", f"{config['workers']:,} of {config['engine']['preset']}"),
        ("Load", load_text(config["speedup"], config["concurrency"])),
        ("Class mix", config["classes"] or "as in the trace"),
        ("Seed", str(config["seed"])),
        ("Intervals", f"{bootstrap['confidence_percent']} % of {bootstrap['resamples']:,} resamples of the requests"),
        *[("Trace", f"{trace['path']}, SHA-256 {(trace['sha256'] or 'unknown')[:16]}") for trace in config["traces"]],
    ]


def _candidates(found: dict[str, Any], config: dict[str, Any]) -> Grid:
    rows = []
    for item, file in zip(found["candidates"], config["policies"], strict=True):
        figures = item["classes"][-1]["figures"]
        rows.append((
            item["label"], item["fairness"]["arbitration"], percent_text(figures["completed"]),
            percent_text(figures["prefix_hit"]), duration(item["simulated_ns"]), item["digest"],
            (file["sha256"] or "unknown")[:16]))
    group = found["candidates"][0]["classes"][-1]["name"]
    columns = ("candidate", "arbitration", f"completed ({group})", f"prefix hit ({group})", "simulated time",
               "digest of the run", "SHA-256 of the file")
    note = "The others are compared with the first. Equal digests: the same run."
    return Grid("What is compared", columns, rows, note)


def _differences(found: dict[str, Any], labels: Sequence[str]) -> Section:
    entries = found["differences"]
    remarks = [
        f"{entry['candidate']} against {entry['base']}: every request had the same class, worker and times under both, "
        "so all differences are 0." for entry in entries if entry["same_outcomes"]]
    return Section(f"Differences from {entries[0]['base']}", drawings=forests(labels[1:], entries), remarks=remarks)


def _numbers(found: dict[str, Any]) -> list[Grid]:
    columns = difference_columns(found["bootstrap"]["confidence_percent"])
    return [
        Grid(f"{entry['candidate']} against {entry['base']}", columns, [*difference_rows(entry)],
             "A star: the interval leaves 0 out.") for entry in found["differences"]]


def _bounds(candidates: Sequence[dict[str, Any]]) -> list[Grid]:
    rows = [*bound_rows(candidates)]
    return [Grid("Drift and bound", BOUND_COLUMNS, rows)] if rows else []


def _shares(report: ComparisonReport, labels: Sequence[str]) -> Section:
    candidates = report.found["candidates"]
    grids = [Grid("Shares while several classes waited", SHARE_COLUMNS, [*share_rows(candidates)],
                  "Due: what the quanta say of those that waited. What they promise is about these tokens only.")]
    remarks = []
    for item, tables in zip(candidates, report.tables, strict=True):
        if item["fairness"]["is_promised"]:
            continue
        remarks += losses(item)
        rows = _stretches(tables["shares"], report.start_ns)
        if rows:
            grids.append(Grid(
                f"When classes lost their shares: {item['label']} ({item['fairness']['arbitration']})",
                ("class", "from", "until", "tokens lost", "share", "due"), rows,
                "Times since the first arrival; the stretches with most tokens lost, in order of time."))
        else:
            remarks.append(f"{item['label']} promises no shares; none was lost.")
    return Section("Shares over time", grids, shares_over_time(labels, report.tables, report.start_ns), remarks)


def _stretches(table: Table, start_ns: int) -> list[tuple[str, ...]]:
    """Windows one after the other in which a class was given less than it was due."""
    found: list[tuple[float, int, tuple[str, ...]]] = []
    starts = sorted(set(table.column("start_ns")))
    width_ns = starts[1] - starts[0] if len(starts) > 1 else 0
    totals = {at: sum(table.where("start_ns", at).column("contended_tokens")) for at in starts}
    for name in values_of(table, "class"):
        part = table.where("class", name)
        columns = zip(*(part.column(key) for key in ("start_ns", "contended_tokens", "due_share")), strict=True)
        windows = [(at, tokens, (due or 0) * totals[at]) for at, tokens, due in columns]
        for loses, group in groupby(windows, key=lambda window: window[2] > window[1]):
            times, given, due = zip(*group, strict=True)
            total = sum(totals[at] for at in times)
            if loses and sum(due) - sum(given) >= _LOST_SHARE * total:
                found.append((sum(due) - sum(given), times[0], (
                    name, duration(times[0] - start_ns), duration(times[-1] + width_ns - start_ns),
                    f"{sum(due) - sum(given):,.0f}", percent_text(sum(given) / total), percent_text(sum(due) / total))))
    worst = sorted(found, key=lambda item: -item[0])[:_STRETCHES_MAX]
    return [row for _, _, row in sorted(worst, key=lambda item: item[1])]
