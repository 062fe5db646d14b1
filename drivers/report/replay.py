"""The report of a replay: a second, watched run, and from it the tables, the figures and the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..replay.report import LATENCIES, PERCENTILES
from ..replay.result import ReplayResult
from ..replay.simulate import Tap
from ..replay.text import duration
from .drawing import Drawing
from .figures import draw
from .meters import Grid as TimeGrid
from .page import Grid, Page, Section, Story, render
from .tables import BINS, NO_CLASS, Slow, Table, gather, looks, slowest
from .watch import Watch

_LABELS = {"queue_wait": "in the queue", "ttft": "to first token", "itl": "between tokens", "e2e": "to last token"}
_QUANTILES = (*(f"p{percent}" for percent in PERCENTILES), "max")


class RunsDiffer(Exception):
    """The second run was not the first one again: a trace has changed in between."""


@dataclass(frozen=True)
class ReplayReport:
    """What is known of a replay once it has been watched. report: summarize(), with `config`."""

    report: dict[str, Any]
    tables: dict[str, Table]
    drawings: Sequence[Drawing]
    watch: Watch

    def html(self) -> str:
        """The page."""
        return render(_page(self))


def watched(
    first: ReplayResult, report: dict[str, Any], workers: int, block_size: int, again: Callable[[Tap], ReplayResult]
) -> ReplayReport:
    """Run a replay again with a tap, and report on it.

    first: the run that has ended. report: its numbers, with `config`; nothing of the machine. again: the same run with
    a tap, and with `decisions_kept` in its configuration.
    Raises: RunsDiffer.
    """
    grid = TimeGrid.over(first.start_ns, max(first.start_ns, first.end_ns), BINS)
    watch, tables = watch_again(first, grid, workers, block_size, again, slowest(first))
    return ReplayReport(report, tables, draw(tables, grid.start_ns), watch)


def watch_again(
    first: ReplayResult, grid: TimeGrid, workers: int, block_size: int, again: Callable[[Tap], ReplayResult],
    slow: Slow,
) -> tuple[Watch, dict[str, Table]]:
    """The second run: what was seen of it, and the tables. grid: holds all of its time. Raises: RunsDiffer."""
    watch = Watch(grid, len(first.profile.classes), workers, block_size, looks(slow))
    second = again(watch.tap)
    if second.digest != first.digest or second.events != first.events:
        raise RunsDiffer
    watch.finish(second.end_ns)
    return watch, gather(second, watch, slow)


def _page(found: ReplayReport) -> Page:
    report, config = found.report, found.report["config"]
    names = ", ".join(trace["path"].rpartition("/")[2] for trace in config["traces"])
    requests = report["requests"]
    kinds = [key for key in ("completed", "rejected", "evicted", "abandoned") if key in requests]
    ends = ", ".join(f"{requests[key]:,} {key}" for key in kinds)
    rows = f"{requests['read']:,} rows read, {requests['skipped']:,} skipped"
    return Page(
        title=f"Replay of {names}",
        subtitle=f"{ends}; {rows}. Virtual time, modelled engines.",
        facts=_facts(report, config),
        sections=[
            Section("Figures of the run", [*_grids(report, config), _slowest(found)]),
            Section("Pictures", drawings=found.drawings, remarks=_remarks(found)),
        ],
        config=config_text(config),
        stories_title="The slowest requests to their first token",
        stories=_stories(found),
    )


def _facts(report: dict[str, Any], config: dict[str, Any]) -> list[tuple[str, str]]:
    load = config["load"]
    policy = config["policy_file"]
    return [
        ("Digest of the run", report["digest"]),
        ("Workers", f"{config['workers']:,} of {config['engine']['preset']}"),
        ("Policy", "built in" if policy is None else policy["path"]),
        ("Load", load_text(load.get("speedup"), load.get("concurrency"), load["mode"] != "open")),
        ("Class mix", config["classes"] or "as in the trace"),
        ("Seed", str(config["seed"])),
        ("Simulated time", duration(report["simulated_ns"])),
        ("Events, steps", f"{report['events']:,} in {report['steps']:,} steps"),
        *[("Trace", f"{trace['path']} ({trace['format']}), SHA-256 {(trace['sha256'] or 'unknown')[:16]}")
          for trace in config["traces"]],
    ]


def load_text(speedup: str | None, concurrency: int | None, sessions: bool = False) -> str:
    """How requests arrive. sessions: turns follow each other."""
    if concurrency is not None:
        return f"closed loop, {concurrency} in flight"
    return f"{'closed loop of sessions' if sessions else 'open loop'}, speed {float(Fraction(speedup or 1)):g}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.1f} %"


def _grids(report: dict[str, Any], config: dict[str, Any]) -> list[Grid]:
    entries = report["classes"]
    grids = [
        Grid("Classes: requests and cached prompts",
             ("class", "requests", "completed", "rejected", "evicted", "expected hit", "hit in engine"),
             [_requests(entry) for entry in entries]),
        Grid("Classes: shares of computed prompt tokens",
             ("class", "quantum", "uncached tokens", "share", "quantum share", "contended tokens", "share", "due"),
             [(_name(entry), f"{entry['quantum']:,}", f"{entry['served_uncached_tokens']:,}",
               _percent(entry["served_share"]), _percent(entry["quantum_share"]),
               f"{entry['contended']['uncached_tokens']:,}", _percent(entry["contended"]["share"]),
               _percent(entry["contended"]["quantum_share"])) for entry in entries if entry["name"] is not None],
             "Contended: dispatched while several classes waited. What a quantum promises is about these tokens only."),
        Grid("Latencies", ("class", "time", *_QUANTILES),
             [(_name(entry), _LABELS[key], *(duration(entry["latency_ns"][key][name]) for name in _QUANTILES))
              for entry in entries for key in LATENCIES if entry["latency_ns"][key]["count"]]),
    ]
    if report["sessions"] is not None:
        grids.append(_sessions(report["sessions"]["classes"]))
    rejects = [(_name(entry), reason, f"{count:,}") for entry in entries for reason, count in entry["rejected"].items()]
    if rejects:
        grids.append(Grid("Refused requests", ("class", "reason", "requests"), rejects))
    return [*grids, policy_grid("Policy in effect", config["policy"])]


def policy_grid(title: str, policy: dict[str, Any]) -> Grid:
    """The classes of a policy, as `describe` gives it."""
    classes = policy["policy_classes"]
    keys = list(dict.fromkeys(key for item in classes for key, value in item.items() if not isinstance(value, dict)))
    return Grid(title, keys, [[_value(item.get(key)) for key in keys] for item in classes])


def config_text(config: dict[str, Any]) -> str:
    """A configuration in full."""
    return json.dumps(config, indent=2, ensure_ascii=False)


def _sessions(entries: Sequence[dict[str, Any]]) -> Grid:
    rows = [
        [_name(entry), f"{entry['sessions']:,}", f"{entry['completed']:,}", _value(entry["requests"]["p50"]),
         *(duration(entry[key][name]) for key in ("duration_ns", "mean_queue_wait_ns") for name in ("p50", "max")),
         _value(entry["slowdown"]["p99"]), _value(entry["jain_index"])]
        for entry in entries]
    return Grid(
        "Sessions",
        ("class", "sessions", "completed", "requests p50", "lasted p50", "max", "mean wait p50", "max", "slowdown p99",
         "Jain's index"),
        rows, "A session is of the class of its first request. Slowdown: time in the system over the part of it that "
              "was not spent in the queue. The index is of the rates at which sessions were served: 1 if all were "
              "equal.")


def _requests(entry: dict[str, Any]) -> list[str]:
    counts = [entry["requests"], entry["completed"], sum(entry["rejected"].values()), entry["evicted"]]
    rates = [entry["prefix_hit"]["expected_rate"], entry["prefix_hit"]["engine_rate"]]
    return [_name(entry), *(f"{count:,}" for count in counts), *(_percent(rate) for rate in rates)]


def _name(entry: dict[str, Any]) -> str:
    return NO_CLASS if entry["name"] is None else str(entry["name"])


def _value(value: object) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _slowest(found: ReplayReport) -> Grid:
    table = found.tables["slowest"]
    rows = []
    for row in table.rows:
        request = dict(zip(table.columns, row, strict=True))
        rows.append([
            str(request["id"]), str(request["class"]),
            *(duration(_whole(request[f"{key}_ns"])) for key in ("ttft", "queue_wait", "e2e")),
            *(_value(request[key]) for key in ("prompt_tokens", "engine_cached_tokens", "output_tokens", "worker")),
        ])
    columns = ("request", "class", "first token", "in the queue", "last token", "prompt", "cached", "output", "worker")
    return Grid("The slowest to their first token", columns, rows)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _remarks(found: ReplayReport) -> list[str]:
    """What is not shown, and why."""
    shown = {drawing.name for drawing in found.drawings}
    remarks = []
    if "queue_requests" not in shown:
        remarks.append("No request ever waited, so there is no picture of the queue.")
    if "shares" not in shown:
        remarks.append("There is one class, so there are no shares to compare.")
    if "hits" not in shown:
        remarks.append("The trace does not say what its prompts contain, so nothing could be found in a cache.")
    if "rejects" not in shown:
        remarks.append("No request was refused.")
    return remarks


def _stories(found: ReplayReport) -> list[Story]:
    table, watch = found.tables["slowest"], found.watch
    stories = []
    for row in table.rows:
        request = dict(zip(table.columns, row, strict=True))
        name = str(request["id"])
        title = (f"{name}, {request['class']}: first token after {duration(_whole(request['ttft_ns']))}, "
                 f"{duration(_whole(request['queue_wait_ns']))} of it in the queue")
        texts = []
        if name in watch.waited:
            texts.append(("Half-way through its wait", watch.waited[name]))
        if name in watch.chosen:
            texts.append(("When it was dispatched", watch.chosen[name]))
        stories.append(Story(title, texts))
    return stories
