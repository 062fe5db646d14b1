"""One scenario for all drivers: plain data, a list of steps, that meets every event kind and every reason.

    ("fact", KIND, *fields)             a fact from outside, stamped by the owner
    ("drain", NS)                       no more arrivals; what runs may run so long
    ("admit", NAME, FIELDS)             a request; FIELDS of Request, `id` if it is not NAME
    ("tell", NAME, METHOD, KEYWORDS)    a call of its lease
    ("again", NAME)                     its holder takes over the next booking
    ("leave", NAME, COMPLETED)          its block is left
    ("gone", NAME)                      its caller goes while it waits
    ("hint", RANKS) ("recheck",)
    ("pass", NS)                        so much time passes
    ("expect", NAME, STATE)             runs, waits, evicted, withdrawn, or the reason of a Reject

Workers 100 to 103 are the scenario's own, so it can be played beside other traffic.
"""

from __future__ import annotations

from kvcore.drivers.lease import Lease, Phase
from kvcore.drivers.protocol import Rejected, Withdrawn

from kvcore.admission import AdmissionPolicy, Bypass, Defer, Ready, Refuse
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import (
    AdmissionReleased,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    LoadReported,
    PolicyReplaced,
    RequestCancelled,
    WorkerRemoved,
    WorkerStatusChanged,
    WorkerUpserted,
)
from kvcore.policy import AdmissionSpec, CacheBucket, Capacity, PolicyClass, PolicyProfile
from kvcore.request import Overlap, Rank, Request, WorkerConfig

S = 10**9
#: Time at which a scenario begins where its clock is in hand.
START_NS = 1000 * S


class Door(AdmissionPolicy):
    """Does what a request's session says, and remembers nothing."""

    def decide(self, view):
        return {"refuse": Refuse(), "defer": Defer(), "ready": Ready()}.get(view.session_id, Bypass())

    def dump(self):
        return None


def _class(name: str, quantum: int, **keys) -> PolicyClass:
    return PolicyClass(f"c-{name}", quantum, policy_family=name, cache_bucket="all", **keys)


def policy(quantum: int) -> PolicyProfile:
    """Traffic is in `main`, whose workers are busy late; other classes wait while their worker computes a prompt."""
    classes = (
        _class("main", quantum, prefill_busy_threshold=2_000),
        _class("wait", 100, prefill_busy_threshold=0),
        _class("requests", 100, prefill_busy_threshold=0, request_queue_limit_per_worker=0),
        _class("raw", 100, prefill_busy_threshold=0, raw_isl_token_queue_limit_per_worker=0),
        _class("cached", 100, prefill_busy_threshold=0, cached_token_queue_limit_per_worker=0),
        _class("door", 100, prefill_busy_threshold=0, admission=AdmissionSpec("door")),
    )
    return PolicyProfile(classes, (CacheBucket("all", 0),), "main", capacity=Capacity.STRICT)


ADMISSION = {"door": lambda parameters: Door()}
CONFIG = SchedulerConfig(
    block_size=4, profile=policy(100), booking_ttl_ns=60 * S, attempts_max=3, index=IndexMode.OFF,
    refresh_after_ns=5 * S, refresh_timeout_ns=20 * S)


def refreshed(request_id: str, block_hashes: tuple[int, ...]) -> Overlap:
    """What the outside index of the scenario knows."""
    return Overlap(device=((Rank(100), 1),))


ON_100 = {"pinned": Rank(100), "policy_class": "wait"}
ON_103 = {"pinned": Rank(103), "policy_class": "wait"}

PRELUDE = [
    ("admit", "early", {}), ("expect", "early", "NO_WORKERS"),
]
MIDDLE = [
    *(("fact", WorkerUpserted, WorkerConfig(worker_id, total_kv_blocks=100), 1) for worker_id in (100, 101, 102, 103)),
    ("fact", BlocksStored, 100, 0, 1, (1, 2)), ("fact", BlocksRemoved, 100, 0, 1, (2,)),
    ("fact", BlocksCleared, 100, 0, 1), ("fact", LoadReported, 100, 0, 1, 1, 5, 5, 1),
    # One that holds worker 100, and what becomes of others meanwhile.
    ("admit", "a", ON_100), ("expect", "a", "runs"), ("tell", "a", "accepted", {}),
    ("admit", "a again", {"id": "a", **ON_100}), ("expect", "a again", "DUPLICATE_ID"),
    ("admit", "late", {"deadline_ns": 1, **ON_100}), ("expect", "late", "DEADLINE_EXPIRED"),
    ("admit", "not allowed", {"allowed_workers": frozenset((101,)), **ON_100}),
    ("expect", "not allowed", "PINNED_WORKER_NOT_ALLOWED"),
    ("admit", "unknown", {"pinned": Rank(999)}), ("expect", "unknown", "PINNED_WORKER_UNAVAILABLE"),
    ("admit", "nowhere", {"allowed_workers": frozenset((999,))}), ("expect", "nowhere", "NO_ELIGIBLE_WORKER"),
    ("admit", "large", {"prompt_tokens": 1_000, "allowed_workers": frozenset((100, 101))}),
    ("expect", "large", "TOO_LARGE"),
    ("admit", "full", {**ON_100, "policy_class": "requests"}), ("expect", "full", "QUEUE_FULL_REQUESTS"),
    ("admit", "full raw", {**ON_100, "policy_class": "raw"}), ("expect", "full raw", "QUEUE_FULL_RAW_TOKENS"),
    ("admit", "full cached", {**ON_100, "policy_class": "cached"}),
    ("expect", "full cached", "QUEUE_FULL_CACHED_TOKENS"),
    ("admit", "now or never", {"do_not_queue": True, **ON_100}), ("expect", "now or never", "WOULD_QUEUE"),
    ("fact", WorkerStatusChanged, 101, 1, "health", True, True, 30 * S),
    ("admit", "pinned there", {"pinned": Rank(101)}), ("expect", "pinned there", "PINNED_WORKER_OVERLOADED"),
    ("admit", "only there", {"allowed_workers": frozenset((101,))}),
    ("expect", "only there", "ALL_ELIGIBLE_OVERLOADED"),
    ("admit", "w", {"block_hashes": (1, 2, 3), **ON_100}), ("expect", "w", "waits"),
    ("admit", "g", ON_100), ("expect", "g", "waits"), ("gone", "g"),
    ("admit", "x", ON_100), ("expect", "x", "waits"), ("fact", RequestCancelled, "x"), ("expect", "x", "withdrawn"),
    ("pass", 10 * S),
    # Its turn comes, with a question to the outside index; then everything of a run.
    ("tell", "a", "prefill_done", {}), ("expect", "w", "runs"), ("leave", "a", True),
    ("tell", "w", "accepted", {}), ("tell", "w", "prefill_done", {}), ("tell", "w", "output_block", {}),
    ("tell", "w", "output_block", {"decay_fraction": 0.25}), ("tell", "w", "context", {"tokens": 14}),
    ("tell", "w", "completed", {"context_tokens": 16}), ("leave", "w", False),
    # Failed until no attempt is left.
    ("admit", "r", ON_103), ("expect", "r", "runs"),
    ("tell", "r", "failed", {"retry": True}), ("expect", "r", "runs"), ("again", "r"),
    ("tell", "r", "failed", {"retry": True, "shun_ns": 2 * S}), ("expect", "r", "waits"), ("pass", 2 * S),
    ("expect", "r", "runs"), ("again", "r"),
    ("tell", "r", "failed", {"retry": True}), ("expect", "r", "RETRIES_EXHAUSTED"), ("leave", "r", False),
    # Admission policies.
    ("admit", "d1", {"session_id": "refuse", "pinned": Rank(103), "policy_class": "door"}),
    ("expect", "d1", "ADMISSION_REFUSED"),
    ("admit", "d2", {"session_id": "defer", "pinned": Rank(103), "policy_class": "door"}), ("expect", "d2", "waits"),
    ("fact", AdmissionReleased, "d2"), ("expect", "d2", "runs"), ("tell", "d2", "failed", {}), ("leave", "d2", True),
    # A worker that goes, and a booking that nobody keeps alive.
    ("admit", "e", {"pinned": Rank(102)}), ("expect", "e", "runs"),
    ("fact", WorkerRemoved, 102), ("expect", "e", "evicted"), ("leave", "e", False),
    ("admit", "s", ON_103), ("expect", "s", "runs"), ("pass", 60 * S), ("expect", "s", "evicted"),
    ("tell", "s", "failed", {"retry": True}), ("expect", "s", "runs"), ("again", "s"), ("leave", "s", True),
    ("hint", (Rank(100), Rank(103))), ("hint", None), ("recheck",),
    ("fact", PolicyReplaced, policy(200)),
]
FINALE = [
    ("admit", "last", ON_103), ("expect", "last", "runs"), ("admit", "queued", ON_103), ("expect", "queued", "waits"),
    ("drain", 30 * S), ("expect", "queued", "SHUTTING_DOWN"),
    ("pass", 30 * S), ("expect", "last", "evicted"), ("leave", "last", False),
    ("admit", "too late", {}), ("expect", "too late", "SHUTTING_DOWN"),
]
SCENARIO = [*PRELUDE, *MIDDLE, *FINALE]


def request_of(name: str, fields: dict) -> Request:
    """The request of an `admit` step."""
    return Request(**{"request_id": name, "prompt_tokens": 12, **{("request_id" if key == "id" else key): value
                                                                  for key, value in fields.items()}})


def state_of(lease: Lease) -> str:
    """What `expect` compares with; "new" before anything is decided."""
    if isinstance(lease.error, Rejected):
        return lease.error.reason.name
    if isinstance(lease.error, Withdrawn):
        return "withdrawn"
    return {Phase.NEW: "new", Phase.WAITING: "waits", Phase.BOOKED: "runs", Phase.EVICTED: "evicted",
            Phase.ENDED: "ended"}[lease.phase]


class ClockInHand:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.now = START_NS

    def __call__(self) -> int:
        return self.now
