"""What a replay leaves behind: one row of integers per request, and the counters of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvcore.policy import PolicyProfile
from kvcore.stats import SchedulerStats

from . import _table
from ._table import RequestTable

if TYPE_CHECKING:
    from .sessions import SessionNames


class RunOutcome(IntEnum):
    """How a request of the trace ended. OPEN: it has not; never seen in a finished run."""

    OPEN = 0
    COMPLETED = 1
    REJECTED = 2
    EVICTED = 3


#: Columns of RequestTable. class_index: as the core decided, -1 if it never did. reason: RejectReason or 0. worker: -1
#: if it never ran. wait_ns, first_token_ns, finish_ns: -1 until known; the last two are absolute. cached_tokens: what
#: the core expected at dispatch. engine_cached_tokens: what the engine found when it first ran the prompt. session: tag
#: of the session (sessions.SessionNames), 0 if it has none.
COLUMNS = _table.COLUMNS
WIDTH = len(COLUMNS)


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


def shares_of(
    contended: Mapping[int, Sequence[int]], profile: PolicyProfile
) -> list[tuple[int, Fraction | None, Fraction | None]]:
    """ReplayResult.contended_shares of these contended tokens."""
    classes = profile.classes
    served = [0] * len(classes)
    due = [Fraction(0)] * len(classes)
    for waiting, tokens in contended.items():
        quanta = sum(item.quantum for i, item in enumerate(classes) if waiting >> i & 1)
        for i, item in enumerate(classes):
            served[i] += tokens[i]
            if waiting >> i & 1:
                due[i] += Fraction(sum(tokens) * item.quantum, quanta)
    total = sum(served)
    if not total:
        return [(0, None, None)] * len(classes)
    return [(served[i], Fraction(served[i], total), due[i] / total) for i in range(len(classes))]


@dataclass(frozen=True)
class ReplayResult:
    """A finished replay. Nothing in it depends on the machine or on wall-clock time.

    unfit: rows left out because no worker could ever hold them. start_ns, end_ns: first arrival, last instant.
    abandoned: turns that never arrived, because a request that they continue did not complete; None if the sessions
        were not in a closed loop. sessions: their names.
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
    abandoned: int | None
    sessions: SessionNames
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
        return shares_of(self.contended, self.profile)
