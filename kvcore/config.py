"""SchedulerConfig: everything a Scheduler is built with (DESIGN 3.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from kvcore.errors import InvalidConfig
from kvcore.policy import AdmissionSpec, Capacity, PolicyProfile, QueuePolicy, synthetic_profile


class IndexMode(Enum):
    """Where cached prefixes are known from: engine events, or nowhere but Request.overlap."""

    EVENTS = "events"
    OFF = "off"


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
        if not 1 <= self.block_size <= 2**31 - 1:
            raise InvalidConfig(f"block_size must be 1..2^31-1, not {self.block_size!r}")
        if not 0 <= self.seed < 2**64:
            raise InvalidConfig(f"seed must be 0..2^64-1, not {self.seed!r}")
        if self.booking_ttl_ns is not None and not 1 <= self.booking_ttl_ns < 2**62:
            raise InvalidConfig(f"booking_ttl_ns must be 1..2^62-1 or None, not {self.booking_ttl_ns!r}")
        frac = self.default_busy_threshold_frac
        if frac is not None and (math.isnan(frac) or frac < 0):
            raise InvalidConfig(f"default_busy_threshold_frac must be >= 0, not {frac!r}")
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
