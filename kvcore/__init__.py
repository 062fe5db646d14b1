"""kvcore: a deterministic, I/O-free scheduler core for large-model inference fleets.

Facts in, commands out: `Scheduler.step(event) -> actions`. See README.md for a first program, ARCHITECTURE.md for
the whole.
"""

try:
    from kvcore.scheduler import Scheduler
except ModuleNotFoundError as error:
    if error.name != "kvcore.scheduler":
        raise
    # A folder with a checkout comes before what is installed wherever Python looks into the current folder first.
    message = f"{__path__[0]} is a source tree without its compiled modules: start Python in another folder"
    raise ImportError(f"{message}, or compile them there: python setup.py build_ext --inplace") from None
from kvcore._explanation_text import text as explanation_text
from kvcore._journal_cut import JournalCut
from kvcore._journal_cut import cut as cut_journal
from kvcore._journal_cut import span as journal_span
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
    Publish,
    RefreshOverlap,
    Reject,
    RejectReason,
)
from kvcore.config import IndexMode, OnOverload, PrefillDecay, Role, SchedulerConfig
from kvcore.errors import (
    AdmissionError,
    InvalidConfig,
    InvalidEvent,
    InvalidJournal,
    InvalidPolicy,
    InvalidSnapshot,
    InvalidTrace,
    JournalMismatch,
    KvcoreError,
)
from kvcore.events import (
    AdmissionReleased,
    AnyEvent,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    CapacityHinted,
    ContextAdvanced,
    DispatchAccepted,
    DispatchFailed,
    Drained,
    Event,
    LoadReported,
    Outcome,
    OutputBlockAdded,
    OverlapRefreshed,
    PeerBooked,
    PeerLost,
    PeerPrefillCompleted,
    PeerReleased,
    PeerSynced,
    PolicyReplaced,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    Tier,
    TimerFired,
    WorkerRemoved,
    WorkerStatusChanged,
    WorkerUpserted,
    peer_event,
)
from kvcore.explanation import Decision, Explanation, QueueEntry, RankView, Score
from kvcore.journal import JournalBatch, JournalReader, JournalReplay, JournalWriter
from kvcore.journal import replay as replay_journal
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
from kvcore.replica import FactKind, PeerFact, ReplicaFacts
from kvcore.request import Overlap, Rank, Request, SelectionWeights, WorkerConfig
from kvcore.stats import ClassStats, SchedulerStats

__version__ = "0.1.0"

__all__ = [
    "Action",
    "AdmissionError",
    "AdmissionReleased",
    "AdmissionSpec",
    "AnyAction",
    "AnyEvent",
    "Arbitration",
    "BlocksCleared",
    "BlocksRemoved",
    "BlocksStored",
    "CacheBucket",
    "Capacity",
    "CapacityHinted",
    "ClassStats",
    "ContextAdvanced",
    "Decision",
    "Dispatch",
    "DispatchAccepted",
    "DispatchFailed",
    "Drained",
    "Event",
    "Evict",
    "EvictReason",
    "Explanation",
    "FactKind",
    "Ignored",
    "IgnoredReason",
    "IndexMode",
    "InvalidConfig",
    "InvalidEvent",
    "InvalidJournal",
    "InvalidPolicy",
    "InvalidSnapshot",
    "InvalidTrace",
    "JournalBatch",
    "JournalCut",
    "JournalMismatch",
    "JournalReader",
    "JournalReplay",
    "JournalWriter",
    "KvcoreError",
    "LoadReported",
    "OnOverload",
    "Outcome",
    "OutputBlockAdded",
    "Overlap",
    "OverlapRefreshed",
    "Park",
    "ParkReason",
    "PeerBooked",
    "PeerFact",
    "PeerLost",
    "PeerPrefillCompleted",
    "PeerReleased",
    "PeerSynced",
    "PolicyClass",
    "PolicyDocument",
    "PolicyProfile",
    "PolicyReplaced",
    "PrefillCompleted",
    "PrefillDecay",
    "Publish",
    "QueueEntry",
    "QueuePolicy",
    "Rank",
    "RankView",
    "RefreshOverlap",
    "Reject",
    "RejectReason",
    "ReplicaFacts",
    "Request",
    "RequestArrived",
    "RequestCancelled",
    "RequestFinished",
    "Role",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerStats",
    "Score",
    "SelectionWeights",
    "Tier",
    "TimerFired",
    "WorkerConfig",
    "WorkerRemoved",
    "WorkerStatusChanged",
    "WorkerUpserted",
    "cut_journal",
    "explanation_text",
    "journal_span",
    "load_policy",
    "peer_event",
    "replay_journal",
]
