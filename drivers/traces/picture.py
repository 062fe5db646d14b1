"""The statistics of a trace as a picture, drawn by matplotlib: SVG or PNG, by the name of the file."""

from __future__ import annotations

from io import BytesIO

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullFormatter, PercentFormatter

from ..replay.values import SECOND_NS
from .statistics import Collected, Integers

__all__ = ["draw"]

#: Blue and vermilion of Okabe and Ito: told apart also by those who see few colours.
_BLUE, _VERMILION = "#0072b2", "#d55e00"
_BINS = 40


def draw(trace: Collected, title: str, kind: str) -> bytes:
    """The picture as a file of this kind, `svg` or `png`: the same trace and matplotlib give the same bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "kvcore", "font.family": "DejaVu Sans", "svg.fonttype": "path"}):
        figure = Figure(figsize=(10, 7), layout="constrained")
        figure.suptitle(title, parse_math=False)
        rate, prefixes, prompts, outputs = figure.subplots(2, 2).flat
        _rate(rate, trace)
        _prefixes(prefixes, trace)
        _lengths(prompts, trace.prompts, "prompt tokens")
        _lengths(outputs, trace.outputs, "output tokens")
        file = BytesIO()
        figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return file.getvalue()


def _rate(axes: Axes, trace: Collected) -> None:
    width_ns, counts = trace.windows()
    seconds = width_ns / SECOND_NS
    axes.stairs(counts / seconds, np.arange(len(counts) + 1) * seconds, color=_BLUE, fill=True)
    axes.set(title="Arrivals", xlabel="time (s)", ylabel="requests per second", ylim=(0, None))


def _prefixes(axes: Axes, trace: Collected) -> None:
    """Share of blocks seen before, of all blocks so far."""
    axes.set(title="Prefix sharing", xlabel="time (s)", ylabel="of all blocks so far, seen before", ylim=(0, 1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    total = np.cumsum(trace.blocks)
    if not total.size or not total[-1]:
        axes.text(0.5, 0.5, "no block hashes", ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    there = total > 0
    axes.plot(trace.arrivals[there] / SECOND_NS, np.cumsum(trace.shared)[there] / total[there], color=_VERMILION)


def _lengths(axes: Axes, values: Integers, what: str) -> None:
    axes.set(title=f"Lengths: {what}", xlabel=what, ylabel="requests", xscale="log")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(NullFormatter())
    if len(values):
        edges = np.geomspace(int(values.min()) * 0.999, max(2, int(values.max())) * 1.001, _BINS)
        axes.hist(values, bins=edges.tolist(), color=_BLUE)
