"""A failing run as a journal with the oracle's answers: `kvcore journal replay` shows where the scheduler differs.

KVCORE_FAILURE=FILE names the file. Hypothesis plays its smallest example last, so that one remains.
"""

from __future__ import annotations

import os

from oracle import Oracle
from policies import ADMISSION

from kvcore.errors import InvalidEvent
from kvcore.journal import JournalWriter

VARIABLE = "KVCORE_FAILURE"


def save_failure(config, batches, make_oracle=Oracle) -> None:
    """Write the batches, but for those that are refused, if a file is asked for."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    oracle = make_oracle(config, ADMISSION)
    with open(path, "w", encoding="ascii", newline="") as stream, JournalWriter(stream, config) as journal:
        for events in batches:
            try:
                actions = oracle.step_many(events)
            except InvalidEvent:
                continue
            journal.batch(events, actions)
