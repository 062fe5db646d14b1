from collections.abc import Iterable, Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kvcore.actions import AnyAction
from kvcore.events import AnyEvent

EVENT_DTYPE: np.dtype[np.void]
ACTION_DTYPE: np.dtype[np.void]

class EventKind(IntEnum):
    REQUEST_ARRIVED = 1
    REQUEST_CANCELLED = 2
    DISPATCH_ACCEPTED = 3
    DISPATCH_FAILED = 4
    PREFILL_COMPLETED = 5
    OUTPUT_BLOCK_ADDED = 6
    CONTEXT_ADVANCED = 7
    REQUEST_FINISHED = 8
    BLOCKS_STORED = 9
    BLOCKS_REMOVED = 10
    TIMER_FIRED = 11

class ActionKind(IntEnum):
    DISPATCH = 1
    REJECT = 2
    PARK = 3
    EVICT = 4
    IGNORED = 5
    REFRESH_OVERLAP = 6

def records_from_events(
    events: Iterable[AnyEvent], names: Sequence[str] = (),
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.uint64]]: ...
def actions_from_records(records: npt.NDArray[np.void]) -> tuple[AnyAction, ...]: ...
