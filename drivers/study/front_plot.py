"""The Pareto front of a sweep as a picture: its first two goals against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

from .objective import Objective
from .outcomes import RATES, Figures

#: Colours that stay apart for colour-blind readers (Okabe and Ito).
_OTHER, _FRONT, _BEST = "#999999", "#0072B2", "#D55E00"


def plot_front(
    objective: Objective, figures: Mapping[int, Figures], scored: Sequence[int], front: Sequence[int],
    stream: IO[bytes], form: str,
) -> None:
    """Draw it. figures: of each point. scored: points that meet the constraints. form: svg, png or pdf."""
    import matplotlib
    from matplotlib.figure import Figure

    one, other = objective.goals[:2]
    # A fixed salt and no date: the same sweep gives the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "kvcore", "svg.fonttype": "path"}):
        figure = Figure(figsize=(7, 5), layout="constrained")
        axes: Any = figure.subplots()
        rest = [point for point in figures if point not in scored]
        groups = (
            (rest, {"marker": "x", "color": _OTHER}, "constraints not met"),
            ([point for point in scored if point not in front], {"marker": "o", "color": _OTHER}, "beaten"),
            (list(front), {"marker": "o", "color": _FRONT}, "front"),
            (list(front[:1]), {"marker": "*", "color": _BEST, "s": 160, "zorder": 3}, "best"),
        )
        for points, style, label in groups:
            pairs = [(_scaled(one.figure, figures[p]), _scaled(other.figure, figures[p])) for p in points]
            pairs = [pair for pair in pairs if None not in pair]
            if pairs:
                axes.scatter([x for x, _ in pairs], [y for _, y in pairs], label=label, **style)
        line = sorted((_scaled(one.figure, figures[p]), _scaled(other.figure, figures[p])) for p in front)
        axes.plot([x for x, _ in line], [y for _, y in line], color=_FRONT, linewidth=1, zorder=1)
        for point in front:
            axes.annotate(str(point), (_scaled(one.figure, figures[point]), _scaled(other.figure, figures[point])),
                          textcoords="offset points", xytext=(5, 5), fontsize=8)
        axes.set_xlabel(_axis(one.figure, one.minimise))
        axes.set_ylabel(_axis(other.figure, other.minimise))
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(stream, format=form, metadata={"Date": None} if form == "svg" else None)


def _is_time(name: str) -> bool:
    return any(f".{key}_" in name for key in ("queue_wait", "ttft", "itl", "e2e"))


def _scaled(name: str, figures: Figures) -> Any:
    """Times in ms; everything else as it is."""
    value = figures[name]
    return value if value is None or not _is_time(name) else value / 1e6


def _axis(name: str, minimise: bool) -> str:
    unit = " (ms)" if _is_time(name) else " (part of 1)" if name.rpartition(".")[2] in (*RATES, "share") else ""
    return f"{name}{unit}, {'less' if minimise else 'more'} is better"
