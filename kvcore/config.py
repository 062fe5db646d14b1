"""SchedulerConfig: everything a Scheduler is built with (DESIGN 3.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from enum import Enum

from kvcore.errors import InvalidConfig
from kvcore.policy import Capacity, PolicyProfile, QueuePolicy, synthetic_profile
from kvcore.request import SelectionWeights


class IndexMode(Enum):
    """Where cached prefixes are known from: engine events, own dispatches, or nowhere but Request.overlap."""

    EVENTS = "events"
    APPROXIMATE = "approximate"
    OFF = "off"


class Role(Enum):
    """What the fleet does; `decode` changes the cost of requests whose prefill is not tracked (DESIGN D8)."""

    PREFILL = "prefill"
    DECODE = "decode"


class OnOverload(Enum):
    """What becomes of a request when every rank that it may use is overloaded (DESIGN D7)."""

    REJECT = "reject"
    WAIT = "wait"


class PrefillDecay(Enum):
    """Whether the prefill load of a rank shrinks while its oldest prefill runs (DESIGN D9)."""

    NONE = "none"
    LINEAR = "linear"


#: How long a dispatched prompt counts as cached in mode `approximate`, unless predict_ttl_ns says otherwise.
PREDICT_TTL_NS_DEFAULT = 120 * 10**9


#: Weights that are shares of a block.
SHARES = ("host_cache_hit_weight", "disk_cache_hit_weight", "shared_cache_multiplier")


def weights_fault(weights: SelectionWeights) -> str | None:
    """What is wrong with selection weights, or None."""
    for item in fields(weights):
        value = getattr(weights, item.name)
        if not 0.0 <= value < math.inf:
            return f"{item.name} must be finite and >= 0, not {value!r}"
        if item.name in SHARES and value > 1.0:
            return f"{item.name} must be 0..1, not {value!r}"
    return None


def _is_int(value: object) -> bool:
    """A bool is no number here, and a float would be cut short without a word."""
    return type(value) is int


def _is_name(value: object) -> bool:
    """Non-empty text without lone surrogates."""
    return isinstance(value, str) and value != "" and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _wanted(kind: type) -> str:
    """What a value of this type may be, for a message."""
    if issubclass(kind, Enum):
        return f"one of {', '.join([f'{kind.__name__}.{item.name}' for item in kind])}"
    return f"a {kind.__name__}"


@dataclass(frozen=True)
class SchedulerConfig:
    """Configuration of one scheduler. Same configuration and same events: same actions and digest.

    block_size: tokens per KV block, >= 1, the same on every worker.
    profile: policy classes; None: one class `default` with default_queue_policy and default_busy_threshold_frac.
    booking_ttl_ns: a booking without progress for this long is evicted, and an Evict unanswered for this long ends the
        request (DESIGN D9); None: never.
    index: where cached prefixes are known from.
    seed: start of the generator that breaks ties (DESIGN D8), 0..2^64-1.
    weights: cost of a rank; a request may bring its own.
    role: what the fleet does.
    on_overload: what becomes of a request in a class that queues when all its ranks are overloaded; in a class that
        never waits it is always rejected.
    overload_wait_ns: under `wait`, a request is looked at so often after its arrival, and rejected if all its ranks are
        overloaded then.
    prefill_decay: `linear` needs WorkerConfig.prefill_tokens_per_s.
    predict_ttl_ns: how long the prompt of a dispatch counts as cached on its rank without the engine saying so; None:
        120 s in mode `approximate`, not at all in mode `events`. In mode `approximate` a rank with total_kv_blocks
        also forgets the least recently used blocks above that number.
    reported_load_ttl_ns: how long a LoadReported counts; None: reports are shown by `loads` and count for nothing.
    capacity: instead of the profile's, if given (DESIGN D8).
    attempts_max: dispatches of one request, >= 1; another retry is answered RETRIES_EXHAUSTED (DESIGN D11).
    refresh_after_ns: with index `off`, a request with block hashes that has waited so long when its turn comes is asked
        about once more, outside, by RefreshOverlap (DESIGN D13); None: never. 0: always.
    refresh_timeout_ns: how long an answer is waited for; then the request goes on with what is known.
    pin_grace_ns: how long a request waits for a pinned rank that is unknown, gone or unavailable, from its arrival or
        from the loss, whichever is later (DESIGN D14); 0: it is rejected at once.
    empty_fleet_wait_ns: the same for a fleet without workers.
    decisions_kept: the last so many decisions are kept with their score tables, for `explain` and `decisions`,
        0..2^20; at most some 4 kB each, and a look at every candidate for each dispatch. 0: none are.
    replica: the name under which this scheduler tells others of its bookings (Publish); None: it tells nobody. It may
        hear of theirs in both cases. Names should be few: each that was ever heard of is remembered.
    replica_generation: 0..2^63-1, higher at every start under the same name, also from a snapshot, so that attempts
        never collide.
    """

    block_size: int = 16
    profile: PolicyProfile | None = None
    default_queue_policy: QueuePolicy = QueuePolicy.FCFS
    default_busy_threshold_frac: float | None = None
    booking_ttl_ns: int | None = None
    index: IndexMode = IndexMode.EVENTS
    seed: int = 0
    weights: SelectionWeights = field(default_factory=SelectionWeights)
    role: Role = Role.PREFILL
    on_overload: OnOverload = OnOverload.REJECT
    overload_wait_ns: int = 30 * 10**9
    prefill_decay: PrefillDecay = PrefillDecay.NONE
    predict_ttl_ns: int | None = None
    reported_load_ttl_ns: int | None = None
    capacity: Capacity | None = None
    attempts_max: int = 8
    refresh_after_ns: int | None = None
    refresh_timeout_ns: int = 10**9
    pin_grace_ns: int = 0
    empty_fleet_wait_ns: int = 0
    decisions_kept: int = 0
    replica: str | None = None
    replica_generation: int = 0

    def __post_init__(self) -> None:
        if not _is_int(self.block_size) or not 1 <= self.block_size <= 2**31 - 1:
            raise InvalidConfig(f"block_size must be 1..2^31-1, not {self.block_size!r}")
        if not _is_int(self.seed) or not 0 <= self.seed < 2**64:
            raise InvalidConfig(f"seed must be 0..2^64-1, not {self.seed!r}")
        for name in ("booking_ttl_ns", "predict_ttl_ns", "reported_load_ttl_ns"):
            ttl = getattr(self, name)
            if ttl is not None and (not _is_int(ttl) or not 1 <= ttl < 2**62):
                raise InvalidConfig(f"{name} must be 1..2^62-1 or None, not {ttl!r}")
        for name in ("pin_grace_ns", "empty_fleet_wait_ns", "refresh_after_ns"):
            wait_ns = getattr(self, name)
            if wait_ns is None and name == "refresh_after_ns":
                continue
            if not _is_int(wait_ns) or not 0 <= wait_ns < 2**62:
                raise InvalidConfig(f"{name} must be 0..2^62-1, not {wait_ns!r}")
        if not _is_int(self.refresh_timeout_ns) or not 1 <= self.refresh_timeout_ns < 2**62:
            raise InvalidConfig(f"refresh_timeout_ns must be 1..2^62-1, not {self.refresh_timeout_ns!r}")
        if not _is_int(self.decisions_kept) or not 0 <= self.decisions_kept <= 2**20:
            raise InvalidConfig(f"decisions_kept must be 0..2^20, not {self.decisions_kept!r}")
        if not _is_int(self.attempts_max) or not 1 <= self.attempts_max <= 2**31 - 1:
            raise InvalidConfig(f"attempts_max must be 1..2^31-1, not {self.attempts_max!r}")
        if not _is_int(self.overload_wait_ns) or not 1 <= self.overload_wait_ns < 2**62:
            raise InvalidConfig(f"overload_wait_ns must be 1..2^62-1, not {self.overload_wait_ns!r}")
        frac = self.default_busy_threshold_frac
        if frac is not None and (isinstance(frac, bool) or not isinstance(frac, float | int) or not frac >= 0):
            raise InvalidConfig(f"default_busy_threshold_frac must be >= 0, not {frac!r}")
        kinds = {"index": IndexMode, "default_queue_policy": QueuePolicy, "weights": SelectionWeights, "role": Role,
                 "on_overload": OnOverload, "prefill_decay": PrefillDecay}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise InvalidConfig(f"{name} must be {_wanted(kind)}, not {getattr(self, name)!r}")
        fault = weights_fault(self.weights)
        if fault is not None:
            raise InvalidConfig(f"weights: {fault}")
        if self.capacity is not None and not isinstance(self.capacity, Capacity):
            raise InvalidConfig(f"capacity must be None or {_wanted(Capacity)}, not {self.capacity!r}")
        if self.replica is not None and not _is_name(self.replica):
            raise InvalidConfig(f"replica must be None or non-empty text that UTF-8 can carry, not {self.replica!r}")
        if not _is_int(self.replica_generation) or not 0 <= self.replica_generation < 2**63:
            raise InvalidConfig(f"replica_generation must be 0..2^63-1, not {self.replica_generation!r}")
        if self.profile is not None and not isinstance(self.profile, PolicyProfile):
            raise InvalidConfig(f"profile must be a PolicyProfile, not {type(self.profile).__name__}")

    def effective_profile(self) -> PolicyProfile:
        """The profile in force: the given one, or the synthetic one, with the capacity that is asked for."""
        return self.in_force(self.profile)

    def in_force(self, profile: PolicyProfile | None) -> PolicyProfile:
        """What comes into force where this profile is given."""
        if profile is None:
            profile = synthetic_profile(self.default_queue_policy, self.default_busy_threshold_frac)
        if self.capacity is None or self.capacity is profile.capacity:
            return profile
        return replace(profile, capacity=self.capacity)
