"""What a trace is like: arrivals, lengths, shared prefixes, sessions."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..replay.quantiles import Spread
from ..replay.rows import TraceRow
from ..replay.values import SECOND_NS

__all__ = ["Collected"]

PERCENTS = (50, 90, 99)
#: Pieces of a trace's time whose rates are told apart.
WINDOWS = 60

Integers = npt.NDArray[np.int64]


class Collected:
    """Figures of the rows of one trace, which are read when it is made.

    Memory: 48 bytes a row, and an entry for each distinct block name and session.
    """

    def __init__(self, rows: Iterable[TraceRow]) -> None:
        columns = [array("q") for _ in range(6)]
        arrivals, prompts, outputs, blocks, shared, delays = columns
        names: set[int] = set()
        sessions: Counter[tuple[int, str]] = Counter()
        self.classes: Counter[str] = Counter()
        self.joins = 0
        for row in rows:
            arrivals.append(row.arrival_ns)
            prompts.append(row.prompt_tokens)
            outputs.append(row.output_tokens)
            # A name commits to all blocks before it: those seen before are the beginning of the prompt.
            known = sum(name in names for name in row.block_hashes)
            names.update(row.block_hashes)
            blocks.append(len(row.block_hashes))
            shared.append(known)
            if row.session_id is not None:
                sessions[row.file_index, row.session_id] += 1
            if row.delay_ns is not None:
                delays.append(row.delay_ns)
            self.joins += row.after is not None and len(row.after) > 1
            if row.policy_class is not None:
                self.classes[row.policy_class] += 1
        self.arrivals, self.prompts, self.outputs, self.blocks, self.shared, self.delays = (
            np.frombuffer(column, dtype=np.int64) if column else np.zeros(0, dtype=np.int64) for column in columns)
        self.distinct_blocks = len(names)
        self.turns = np.array(list(sessions.values()), dtype=np.int64)

    def windows(self) -> tuple[int, Integers]:
        """Length of each of WINDOWS equal pieces of the trace's time in ns, and how many rows arrive in each."""
        width_ns = (int(self.arrivals[-1]) if len(self.arrivals) else 0) // WINDOWS + 1
        return width_ns, np.bincount(self.arrivals // width_ns, minlength=WINDOWS)

    def figures(self) -> dict[str, Any]:
        """All figures as JSON values; None where the trace has nothing of the kind."""
        return {
            "requests": len(self.arrivals),
            "arrivals": self._arrivals(),
            "prompt_tokens": _lengths(self.prompts),
            "output_tokens": _lengths(self.outputs),
            "prefixes": self._prefixes(),
            "sessions": self._sessions(),
            "classes": dict(sorted(self.classes.items())) or None,
        }

    def _arrivals(self) -> dict[str, Any]:
        duration_ns = int(self.arrivals[-1]) if len(self.arrivals) else 0
        width_ns, counts = self.windows()
        gaps = np.diff(self.arrivals)
        mean = float(gaps.mean()) if len(gaps) else 0.0
        return {
            "duration_ns": duration_ns,
            "per_s": (len(self.arrivals) - 1) * SECOND_NS / duration_ns if duration_ns else None,
            "busiest_per_s": int(counts.max()) * SECOND_NS / width_ns if duration_ns else None,
            "window_ns": width_ns,
            "windows": [int(count) for count in counts],
            # 1 for a Poisson stream; above, arrivals come in bursts.
            "gap_variation": float(gaps.std()) / mean if mean else None,
        }

    def _sessions(self) -> dict[str, Any] | None:
        """Requests of a session, pauses of their turns, and how many wait for several others."""
        if not len(self.turns):
            return None
        return _lengths(self.turns, "requests") | {
            "delay_ns": _lengths(self.delays) if len(self.delays) else None, "joining_requests": self.joins}

    def _prefixes(self) -> dict[str, Any] | None:
        total = int(self.blocks.sum())
        if not total:
            return None
        return {
            "requests": int(np.count_nonzero(self.blocks)),
            "blocks": total,
            "distinct_blocks": self.distinct_blocks,
            # What a cache that forgets nothing would have had.
            "seen_before": int(self.shared.sum()),
            "seen_before_share": int(self.shared.sum()) / total,
            "sharing_requests": int(np.count_nonzero(self.shared)),
        }


def _lengths(values: Integers, total: str = "total") -> dict[str, Any]:
    spread = Spread(PERCENTS)
    spread.add_all(values)
    whole = sum(values.tolist())  # exact, where int64 could overflow
    return spread.figures() | {total: whole, "mean": whole / len(values) if len(values) else None}
