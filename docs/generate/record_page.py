"""Fields of the arrays that kvcore takes and gives, from their types."""

from __future__ import annotations

import numpy as np

from kvcore import records, scheduler


def _table(kind: np.dtype[np.void]) -> str:
    rows = [f"| `{name}` | `{kind[name]}` |" for name in kind.names or ()]
    return "\n".join(["| field | type |", "| --- | --- |", *rows])


def page() -> str:
    """Rows of `step_array`."""
    return "\n\n".join([
        "## EVENT_DTYPE", _table(records.EVENT_DTYPE), "## ACTION_DTYPE", _table(records.ACTION_DTYPE)])


def loads() -> str:
    """Rows of `loads` and `potential_loads`."""
    return "\n\n".join([
        "## LOAD_DTYPE", "What `loads()` gives, a row for each rank.", _table(scheduler.LOAD_DTYPE),
        "## POTENTIAL_DTYPE", "What `potential_loads(request)` gives, a row for each rank.",
        _table(scheduler.POTENTIAL_DTYPE)])
