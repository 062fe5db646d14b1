"""SchedulerConfig: everything a Scheduler is built with (DESIGN 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvcore.errors import InvalidConfig
from kvcore.policy import AdmissionSpec, Capacity, PolicyProfile, QueuePolicy, synthetic_profile


class IndexMode(Enum):
    """Where cached prefixes are known from: engine events, or nowhere but Request.overlap."""

    EVENTS = "events"
    OFF = "off"


def _is_int(value: object) -> bool:
    """A bool is no number here, and a float would be cut short without a word."""
    return type(value) is int


@dataclass(frozen=True)
class SchedulerConfig:
    """Configuration of one scheduler. Same configuration and same events: same actions and digest.

    block_size: tokens per KV block, >= 1, the same on every worker.
    profile: policy classes; None: one class `default` with default_queue_policy and default_busy_threshold_frac.
    booking_ttl_ns: a booking without progress for this long is evicted, and an Evict unanswered for this long ends the
        request (DESIGN D9); None: never.
    index: whether the core keeps an index of cached blocks.
    seed: start of the generator that breaks ties (DESIGN D8), 0..2^64-1.
    """

    block_size: int = 16
    profile: PolicyProfile | None = None
    default_queue_policy: QueuePolicy = QueuePolicy.FCFS
    default_busy_threshold_frac: float | None = None
    booking_ttl_ns: int | None = None
    index: IndexMode = IndexMode.EVENTS
    seed: int = 0

    def __post_init__(self) -> None:
        if not _is_int(self.block_size) or not 1 <= self.block_size <= 2**31 - 1:
            raise InvalidConfig(f"block_size must be 1..2^31-1, not {self.block_size!r}")
        if not _is_int(self.seed) or not 0 <= self.seed < 2**64:
            raise InvalidConfig(f"seed must be 0..2^64-1, not {self.seed!r}")
        ttl = self.booking_ttl_ns
        if ttl is not None and (not _is_int(ttl) or not 1 <= ttl < 2**62):
            raise InvalidConfig(f"booking_ttl_ns must be 1..2^62-1 or None, not {ttl!r}")
        frac = self.default_busy_threshold_frac
        if frac is not None and (isinstance(frac, bool) or not isinstance(frac, float | int) or not frac >= 0):
            raise InvalidConfig(f"default_busy_threshold_frac must be >= 0, not {frac!r}")
        for name, kind in (("index", IndexMode), ("default_queue_policy", QueuePolicy)):
            if not isinstance(getattr(self, name), kind):
                raise InvalidConfig(f"{name} must be a member of {kind.__name__}, not {getattr(self, name)!r}")
        if self.profile is not None and not isinstance(self.profile, PolicyProfile):
            raise InvalidConfig(f"profile must be a PolicyProfile, not {type(self.profile).__name__}")
        for item in self.effective_profile().classes:
            if isinstance(item.admission, AdmissionSpec):
                raise InvalidConfig(f"class {item.name!r}: no admission policy is available in this version")
        if self.effective_profile().capacity is not Capacity.ADVISORY:
            raise InvalidConfig("capacity: strict is not available in this version")

    def effective_profile(self) -> PolicyProfile:
        """The profile in force: the given one, or the synthetic one."""
        if self.profile is not None:
            return self.profile
        return synthetic_profile(self.default_queue_policy, self.default_busy_threshold_frac)
