"""A driver that hangs must not hang the gate: after long enough the process ends, and shows where each thread is."""

from __future__ import annotations

import faulthandler

import pytest

#: Seconds for one test; the longest takes one or two minutes on a busy machine.
PATIENCE_S = 600


@pytest.fixture(autouse=True)
def watchdog():
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
