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
from kvcore.config import IndexMode, OnOverload, PrefillDecay, Role, SchedulerConfig
from kvcore.errors import InvalidConfig, InvalidEvent, InvalidPolicy, InvalidTrace, KvcoreError
from kvcore.events import (
    AnyEvent,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    Event,
    LoadReported,
    Outcome,
    OutputBlockAdded,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    Tier,
    TimerFired,
    WorkerRemoved,
    WorkerStatusChanged,
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
from kvcore.request import Overlap, Rank, Request, SelectionWeights, WorkerConfig
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
    "LoadReported",
    "OnOverload",
    "Outcome",
    "OutputBlockAdded",
    "Overlap",
    "Park",
    "ParkReason",
    "PolicyClass",
    "PolicyDocument",
    "PolicyProfile",
    "PrefillCompleted",
    "PrefillDecay",
    "QueuePolicy",
    "Rank",
    "Reject",
    "RejectReason",
    "Request",
    "RequestArrived",
    "RequestCancelled",
    "RequestFinished",
    "Role",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerStats",
    "SelectionWeights",
    "Tier",
    "TimerFired",
    "WorkerConfig",
    "WorkerRemoved",
    "WorkerStatusChanged",
    "WorkerUpserted",
    "load_policy",
]
