"""What a replay leaves behind: one row of integers per request, and the counters of the run."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from kvcore.policy import PolicyProfile
from kvcore.stats import SchedulerStats


class RunOutcome(IntEnum):
    """How a request of the trace ended. OPEN: it has not; never seen in a finished run."""

    OPEN = 0
    COMPLETED = 1
    REJECTED = 2
    EVICTED = 3


#: Columns of RequestTable. class_index: as the core decided, -1 if it never did. reason: RejectReason or 0. worker: -1
#: if it never ran. wait_ns, first_token_ns, finish_ns: -1 until known; the last two are absolute. cached_tokens: what
#: the core expected at dispatch. engine_cached_tokens: what the engine found when it first ran the prompt.
COLUMNS = (
    "file_index", "row", "arrival_ns", "prompt_tokens", "output_tokens",
    "class_index", "outcome", "reason", "worker", "wait_ns", "cached_tokens",
    "first_token_ns", "finish_ns", "engine_cached_tokens", "preemptions",
)
WIDTH = len(COLUMNS)
CLASS_INDEX, OUTCOME, REASON, WORKER, WAIT_NS, CACHED_TOKENS = range(5, 11)
FIRST_TOKEN_NS, FINISH_NS, ENGINE_CACHED_TOKENS, PREEMPTIONS = range(11, 15)
_UNKNOWN = (-1, RunOutcome.OPEN.value, 0, -1, -1, 0, -1, -1, 0, 0)


class RequestTable:
    """All requests in order of arrival, 120 bytes each.

    cells: the rows end to end; row i starts at WIDTH * i.
    """

    def __init__(self) -> None:
        self.cells = array("q")

    def __len__(self) -> int:
        return len(self.cells) // WIDTH

    def add(self, file_index: int, row: int, arrival_ns: int, prompt_tokens: int, output_tokens: int) -> int:
        """Append a request that has just arrived. Returns the position of its first cell."""
        cells = self.cells
        start = len(cells)
        cells.extend((file_index, row, arrival_ns, prompt_tokens, output_tokens, *_UNKNOWN))
        return start

    def column(self, name: str) -> npt.NDArray[np.int64]:
        """One column. Shape: (requests,). Cost: O(requests), a copy."""
        rows = np.frombuffer(self.cells, dtype=np.int64).reshape(-1, WIDTH)
        return rows[:, COLUMNS.index(name)].copy()

    def rows(self) -> npt.NDArray[np.int64]:
        """The whole table. Shape: (requests, WIDTH). A view: the table cannot grow while it lives."""
        return np.frombuffer(self.cells, dtype=np.int64).reshape(-1, WIDTH)


def latencies_ns(rows: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
    """Queue wait, TTFT, ITL and E2E of rows of a table, -1 where a request has none. Shape of each: (rows,).

    queue_wait: arrival to Dispatch. ttft: arrival to first token. e2e: arrival to the last token.
    itl: floor((last token - first token) / (output_tokens - 1)), for completed requests of two output tokens or more.
    """
    names = ("arrival_ns", "output_tokens", "wait_ns", "first_token_ns", "finish_ns")
    arrival, output, wait, first, finish = (rows[:, COLUMNS.index(name)] for name in names)
    gaps = np.maximum(output - 1, 1)
    return {
        "queue_wait": wait,
        "ttft": np.where(first >= 0, first - arrival, -1),
        "itl": np.where((finish >= 0) & (output > 1), (finish - first) // gaps, -1),
        "e2e": np.where(finish >= 0, finish - arrival, -1),
    }


@dataclass(frozen=True)
class ReplayResult:
    """A finished replay. Nothing in it depends on the machine or on wall-clock time.

    unfit: rows left out because no worker could ever hold them. start_ns, end_ns: first arrival, last instant.
    workers: the engine's counters by worker, see Fleet.counters.
    events, steps: facts stepped into the core, and batches. ignored: facts that the core called stale.
    contended: uncached tokens dispatched while several classes had parked requests: per set of such classes (bit i =
        class i waits) a list by class. What DRR promises is about these tokens only.
    audit: what `Scheduler.audit()` found at the end; empty unless kvcore has a bug.
    """

    table: RequestTable
    profile: PolicyProfile
    stats: SchedulerStats
    workers: Sequence[Mapping[str, int]]
    unfit: int
    ignored: int
    start_ns: int
    end_ns: int
    events: int
    steps: int
    contended: Mapping[int, list[int]]
    digest: str
    audit: list[str]

    def contended_shares(self) -> list[tuple[int, Fraction | None, Fraction | None]]:
        """Per class: contended tokens, its share of all of them, and the share that its quantum entitles it to.

        The entitlement weighs each set of waiting classes with the tokens that were dispatched while exactly it waited.
        Short bursts may miss it by a request each. Both shares are None if there are no contended tokens.
        """
        classes = self.profile.classes
        served = [0] * len(classes)
        due = [Fraction(0)] * len(classes)
        for waiting, tokens in self.contended.items():
            quanta = sum(item.quantum for i, item in enumerate(classes) if waiting >> i & 1)
            for i, item in enumerate(classes):
                served[i] += tokens[i]
                if waiting >> i & 1:
                    due[i] += Fraction(sum(tokens) * item.quantum, quanta)
        total = sum(served)
        if not total:
            return [(0, None, None)] * len(classes)
        return [(served[i], Fraction(served[i], total), due[i] / total) for i in range(len(classes))]
