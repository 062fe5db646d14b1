"""An Explanation as text for people: lines of at most 100 columns. Never here: what is true; that is _explain's.

Ids are shown as Python would write them, so that nothing in them can pass for something else, and cut where they are
long; numbers in full up to nine digits.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

from kvcore.explanation import Decision, Explanation, RankView, Score
from kvcore.request import Rank

COLUMNS = 100
_LABEL = 11
_NAMED_MAX = 40
_SHOWN_MAX = 8
_FOR_EVER_NS = 2**62
_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "us"))


def named(name: object) -> str:
    """An id or a class name in a sentence, cut where it is long."""
    shown = repr(name)
    return shown if len(shown) <= _NAMED_MAX else shown[: _NAMED_MAX - 3] + "..."


def span(length_ns: int) -> str:
    """A length of time in its largest unit."""
    for unit_ns, name in _UNITS:
        if length_ns >= unit_ns:
            return f"{length_ns / unit_ns:,.3f} {name}"
    return f"{length_ns} ns"


def text(explanation: Explanation, *, shown: int = _SHOWN_MAX) -> str:
    """The explanation as lines, each with its end. shown: at most so many ranks and candidates are listed."""
    lines: list[str] = []
    for label, content in _parts(explanation):
        lines += _labelled(label, textwrap.wrap(content, COLUMNS - _LABEL, break_on_hyphens=False))
    if explanation.ranks:
        lines += _labelled("ranks", _ranks(explanation, shown))
    if explanation.decision is not None:
        lines += _labelled("decision", _decision(explanation.decision, shown))
    return "".join(line[:COLUMNS].rstrip() + "\n" for line in lines)


def _labelled(label: str, lines: list[str]) -> Iterator[str]:
    for at, line in enumerate(lines):
        yield f"{label if at == 0 else '':{_LABEL}}{line}"


def _parts(told: Explanation) -> Iterator[tuple[str, str]]:
    """What has no table: (label, content)."""
    yield "request", named(told.request_id)
    yield "state", told.state + _place(told)
    if told.class_name is not None:
        yield "class", f"{named(told.class_name)}, index {told.class_index}"
    if told.arrival_ns is not None:
        yield "arrived", f"at {told.arrival_ns} ns, seq {told.seq}, strict priority {told.strict_priority}"
        yield "tokens", (f"{told.prompt_tokens:,} in the prompt, {told.cached_tokens:,} cached; "
                         f"cost {told.cost_tokens:,}")
    if told.rounds_to_go is not None:
        yield "share", (f"deficit {told.deficit_tokens:,}, quantum {told.quantum:,}: "
                        f"{told.rounds_to_go:,} round{'' if told.rounds_to_go == 1 else 's'} to go")
    if told.max_overtake_tokens is not None:
        yield "overtaken", f"by {told.overtaken_tokens:,} of at most {told.max_overtake_tokens:,} tokens"
    times = list(_times(told))
    if times:
        yield "timers", "; ".join(times)
    for at, reason in enumerate(told.reasons):
        yield "" if at else "because", reason


def _place(told: Explanation) -> str:
    waits = "" if told.wait_ns is None else f" for {span(told.wait_ns)}"
    if told.position is not None:
        lane = "the shared lane" if told.lane is None else f"the lane of {_rank(told.lane)}"
        waits += f", position {told.position if told.position_is_exact else f'>{told.position}'} in {lane}"
    if told.rank is not None:
        waits += f" on {_rank(told.rank)}"
    if told.attempts:
        waits += f", dispatched {told.attempts} times" if told.attempts > 1 else ", dispatched once"
    return waits


def _times(told: Explanation) -> Iterator[str]:
    """The ends of its wait that are known."""
    if told.wait_ns is None:
        return
    for what, time_ns in (("deadline", told.deadline_ns), ("grace ends", told.grace_end_ns),
                          ("rejected if overloaded", told.next_look_ns), ("answer due", told.refresh_end_ns)):
        if time_ns is not None and time_ns < _FOR_EVER_NS:
            yield f"{what} in {span(time_ns - told.now_ns)}"


def _rank(rank: Rank) -> str:
    return f"worker {rank.worker_id} rank {rank.dp_rank}"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}" if value < 10**9 else f"{value:.3e}"


def _ranks(told: Explanation, shown: int) -> list[str]:
    views = told.ranks[:shown]
    columns: list[tuple[str, Callable[[RankView], str]]] = [
        ("worker", lambda view: str(view.worker_id)),
        ("rank", lambda view: str(view.dp_rank)),
        ("state", lambda view: "takes it" if view.takes else "busy" if view.busy and view.state == "open"
         else "full" if view.state == "open" else view.state),
        ("prefill", lambda view: _number(view.prefill_tokens)),
        ("busy above", lambda view: _number(view.busy_above_tokens)),
        ("requests", lambda view: _number(view.requests)),
        ("of", lambda view: _number(view.max_requests)),
        ("blocks", lambda view: _number(view.held_blocks)),
        ("of", lambda view: _number(view.total_kv_blocks)),
        ("needs", lambda view: _number(view.needs_blocks)),
    ]
    return _table(columns, views, max(told.ranks_count, len(told.ranks)))


def _decision(decision: Decision, shown: int) -> list[str]:
    margin = ""
    if decision.margin is not None:
        away = "before the next" if decision.margin >= 0 else "behind the cheapest"
        margin = f", {_cost(abs(decision.margin))} blocks {away}"
    columns: list[tuple[str, Callable[[Score], str]]] = [
        ("worker", lambda score: str(score.rank.worker_id)),
        ("rank", lambda score: str(score.rank.dp_rank)),
        ("cost", lambda score: _cost(score.cost)),
        ("overlap", lambda score: _number(score.overlap_blocks)),
        ("cached", lambda score: _number(score.cached_tokens)),
        ("prefill", lambda score: _number(score.prefill_tokens)),
        ("decode", lambda score: _number(score.decode_blocks)),
        ("requests", lambda score: _number(score.requests)),
        ("", lambda score: "chosen" if score.rank == decision.rank else ""),
    ]
    head = f"attempt {decision.attempt} at {decision.now_ns} ns: {_rank(decision.rank)}, {decision.rule}{margin}"
    candidates = decision.candidates[:shown]
    if decision.rank not in [score.rank for score in candidates]:
        candidates += tuple([score for score in decision.candidates if score.rank == decision.rank])
    return [*textwrap.wrap(head, COLUMNS - _LABEL), *_table(columns, candidates, decision.candidates_count)]


def _cost(cost: float) -> str:
    return f"{cost:.10g}"


def _table(columns: list[tuple[str, Callable[..., str]]], rows: tuple[object, ...], count: int) -> list[str]:
    """A header, the rows, and how many more there are."""
    grid = [[name for name, _ in columns], *[[shown(row) for _, shown in columns] for row in rows]]
    widths = [max(len(line[at]) for line in grid) for at in range(len(columns))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in grid]
    return lines if count <= len(rows) else [*lines, f"and {count - len(rows):,} more"]
