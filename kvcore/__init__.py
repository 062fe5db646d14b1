"""kvcore: a deterministic, I/O-free scheduler core for large-model inference fleets.

Facts in, commands out: `Scheduler.step(event) -> actions`. See README.md for a first program, ARCHITECTURE.md for
the whole.
"""

from kvcore.actions import (
    Action,
    AnyAction,
    Dispatch,
    Evict,
    EvictReason,
    Ignored,
    IgnoredReason,
    Park,
    ParkReason,
    Reject,
    RejectReason,
)
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.errors import InvalidConfig, InvalidEvent, InvalidPolicy, InvalidTrace, KvcoreError
from kvcore.events import (
    AnyEvent,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    Event,
    Outcome,
    OutputBlockAdded,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.policy import (
    AdmissionSpec,
    Arbitration,
    CacheBucket,
    Capacity,
    PolicyClass,
    PolicyProfile,
    QueuePolicy,
)
from kvcore.policy_file import PolicyDocument, load_policy
from kvcore.request import Overlap, Rank, Request, WorkerConfig
from kvcore.scheduler import Scheduler
from kvcore.stats import ClassStats, SchedulerStats

__version__ = "0.1.0"

__all__ = [
    "Action",
    "AdmissionSpec",
    "AnyAction",
    "AnyEvent",
    "Arbitration",
    "BlocksCleared",
    "BlocksRemoved",
    "BlocksStored",
    "CacheBucket",
    "Capacity",
    "ClassStats",
    "Dispatch",
    "Event",
    "Evict",
    "EvictReason",
    "Ignored",
    "IgnoredReason",
    "IndexMode",
    "InvalidConfig",
    "InvalidEvent",
    "InvalidPolicy",
    "InvalidTrace",
    "KvcoreError",
    "Outcome",
    "OutputBlockAdded",
    "Overlap",
    "Park",
    "ParkReason",
    "PolicyClass",
    "PolicyDocument",
    "PolicyProfile",
    "PrefillCompleted",
    "QueuePolicy",
    "Rank",
    "Reject",
    "RejectReason",
    "Request",
    "RequestArrived",
    "RequestCancelled",
    "RequestFinished",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerStats",
    "TimerFired",
    "WorkerConfig",
    "WorkerRemoved",
    "WorkerUpserted",
    "load_policy",
]
