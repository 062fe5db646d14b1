"""Policy values: classes, buckets, profiles, and which class a request falls into (DESIGN D2).

The text of a policy file becomes these values in policy_file.py; the core reads them once, when it is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from kvcore.errors import InvalidPolicy

NUMBER_MAX = 2**53      # quanta, limits and thresholds (DESIGN D20)
COUNT_KEYS = (
    "prefill_busy_threshold",
    "request_queue_limit_per_worker",
    "raw_isl_token_queue_limit_per_worker",
    "cached_token_queue_limit_per_worker",
    "max_overtake_tokens",
)


class QueuePolicy(Enum):
    """Order of requests inside one class (DESIGN D3)."""

    FCFS = "fcfs"
    WSPT = "wspt"
    EDF = "edf"
    LCFS = "lcfs"


class Arbitration(Enum):
    """How classes share capacity (DESIGN D5): `exact` deficit round robin, or the reference's approximation of it."""

    EXACT = "exact"
    REFERENCE = "reference"


class Capacity(Enum):
    """What a Dispatch promises about the chosen rank (DESIGN D8)."""

    ADVISORY = "advisory"
    STRICT = "strict"


@dataclass(frozen=True)
class CacheBucket:
    """Requests with at least min_tokens uncached prompt tokens, up to the next bucket's floor."""

    name: str
    min_tokens: int


@dataclass(frozen=True)
class AdmissionSpec:
    """An admission policy as a policy file names it (DESIGN D10)."""

    type: str
    parameters: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class PolicyClass:
    """One policy class. Field names are the keys of the policy file.

    quantum: DRR credit per round in uncached tokens, 1..2^53.
    policy_family, cache_bucket: the matrix cell that it serves; both None: an explicit class, chosen by its name.
    prefill_busy_threshold (tokens), prefill_busy_threshold_frac (times max_batched_tokens): a rank above either is busy
        for this class (DESIGN D7); both None: the class never waits.
    *_limit_per_worker: bounds of what may wait, times the number of workers (DESIGN D6).
    max_overtake_tokens: bound on overtaking inside the class (DESIGN D17); None: off.
    """

    name: str
    quantum: int
    queue_policy: QueuePolicy = QueuePolicy.FCFS
    policy_family: str | None = None
    cache_bucket: str | None = None
    prefill_busy_threshold: int | None = None
    prefill_busy_threshold_frac: float | None = None
    request_queue_limit_per_worker: int | None = None
    raw_isl_token_queue_limit_per_worker: int | None = None
    cached_token_queue_limit_per_worker: int | None = None
    max_overtake_tokens: int | None = None
    admission: AdmissionSpec | None = None


@dataclass(frozen=True)
class PolicyProfile:
    """The classes that one scheduler arbitrates, complete and validated.

    default_policy_family: None only in the synthetic profile, whose single class takes every request.
    class_index of a class is its position in `classes`; families are numbered in order of first appearance.
    """

    classes: tuple[PolicyClass, ...]
    buckets: tuple[CacheBucket, ...] = ()
    default_policy_family: str | None = None
    arbitration: Arbitration = Arbitration.EXACT
    capacity: Capacity = Capacity.ADVISORY

    def __post_init__(self) -> None:
        """Refuse what the core could not arbitrate, whoever built it: InvalidPolicy names the class or bucket."""
        _check_profile(self)

    def resolve(self, policy_class: str | None, uncached_tokens: int) -> int:
        """Class index of a request (DESIGN D2). Cost: O(buckets)."""
        return ClassTable(self).resolve(policy_class, uncached_tokens)


def _check_profile(profile: PolicyProfile) -> None:
    if type(profile.classes) is not tuple or type(profile.buckets) is not tuple:
        raise InvalidPolicy("must be tuples", key="policy_classes, uncached_isl_buckets")
    if not isinstance(profile.arbitration, Arbitration) or not isinstance(profile.capacity, Capacity):
        raise InvalidPolicy("must be members of Arbitration and Capacity", key="arbitration, capacity")
    if not profile.classes:
        raise InvalidPolicy("at least one class is needed", key="policy_classes")
    floors = [bucket.min_tokens for bucket in profile.buckets]
    if floors[:1] not in ([], [0]) or any(low >= high for low, high in pairwise(floors)):
        raise InvalidPolicy("min_tokens must start at 0 and rise", key="uncached_isl_buckets")
    names = [item.name for item in profile.classes]
    if len(set(names)) < len(names):
        raise InvalidPolicy("class names must differ", key="policy_classes")
    for item in profile.classes:
        _check_class(item)
    if profile.default_policy_family is None:
        if len(profile.classes) > 1 or profile.classes[0].policy_family is not None:
            raise InvalidPolicy("is needed where there are several classes", key="default_policy_family")
        return
    families = {item.policy_family for item in profile.classes if item.policy_family is not None}
    if profile.default_policy_family not in families:
        raise InvalidPolicy(f"{profile.default_policy_family!r} has no class", key="default_policy_family")
    cells = [(item.policy_family, item.cache_bucket) for item in profile.classes if item.policy_family is not None]
    wanted = [(family, bucket.name) for family in sorted(families) for bucket in profile.buckets]
    if sorted(map(str, cells)) != sorted(map(str, wanted)):
        raise InvalidPolicy("every family needs exactly one class per bucket", key="policy_classes")


def _check_class(item: PolicyClass) -> None:
    location = f'root, class "{item.name}"'
    if (item.policy_family is None) != (item.cache_bucket is None):
        raise InvalidPolicy("policy_family and cache_bucket go together", location=location)
    if not isinstance(item.queue_policy, QueuePolicy):
        raise InvalidPolicy(f"must be a QueuePolicy, not {item.queue_policy!r}", location=location, key="queue_policy")
    if type(item.quantum) is not int or not 1 <= item.quantum <= NUMBER_MAX:
        raise InvalidPolicy(f"must be 1..2^53, not {item.quantum}", location=location, key="quantum")
    frac = item.prefill_busy_threshold_frac
    if frac is not None and (isinstance(frac, bool) or not isinstance(frac, float | int) or not frac >= 0.0):
        raise InvalidPolicy(f"must be >= 0, not {frac}", location=location, key="prefill_busy_threshold_frac")
    for key in COUNT_KEYS:
        value = getattr(item, key)
        if value is not None and (type(value) is not int or not 0 <= value <= NUMBER_MAX):
            raise InvalidPolicy(f"must be 0..2^53, not {value}", location=location, key=key)


def synthetic_profile(queue_policy: QueuePolicy, busy_threshold_frac: float | None) -> PolicyProfile:
    """The profile in force without a policy file: one class `default`, quantum 1, no limits (DESIGN D2)."""
    only = PolicyClass("default", 1, queue_policy, prefill_busy_threshold_frac=busy_threshold_frac)
    return PolicyProfile((only,))


class ClassTable:
    """A profile compiled for look-up inside `step`: explicit names, families, bucket floors, family x bucket table."""

    def __init__(self, profile: PolicyProfile) -> None:
        self.explicit: dict[str, int] = {}
        self.families: dict[str, int] = {}
        self.floors = tuple([bucket.min_tokens for bucket in profile.buckets])
        column = {bucket.name: i for i, bucket in enumerate(profile.buckets)}
        cells: dict[tuple[int, int], int] = {}
        for index, item in enumerate(profile.classes):
            if item.policy_family is None:
                self.explicit[item.name] = index
            elif item.cache_bucket is not None:
                family = self.families.setdefault(item.policy_family, len(self.families))
                cells[family, column[item.cache_bucket]] = index
        self.synthetic = profile.default_policy_family is None
        self.default_family = self.families.get(profile.default_policy_family or "", 0)
        buckets = len(self.floors)
        self.table = tuple([cells[i // buckets, i % buckets] for i in range(len(self.families) * buckets)])

    def names(self, policy_class: str) -> bool:
        """Whether a caller's class name names an explicit class or a family; always true of a synthetic profile."""
        return self.synthetic or policy_class in self.explicit or policy_class in self.families

    def resolve(self, policy_class: str | None, uncached_tokens: int) -> int:
        """Class index of a request with this many uncached prompt tokens, >= 0 (DESIGN D2). Cost: O(buckets)."""
        index: int = self.lookup(policy_class, max(0, uncached_tokens))
        return index

    def lookup(self, policy_class, uncached_tokens):
        """`resolve` for the core, which calls it through C; its types stand in policy.pxd."""
        if self.synthetic:
            return 0
        family = self.default_family
        if policy_class is not None:
            explicit = self.explicit.get(policy_class)
            if explicit is not None:
                return explicit
            family = self.families.get(policy_class, family)
        bucket = len(self.floors) - 1
        while self.floors[bucket] > uncached_tokens:
            bucket -= 1
        return self.table[family * len(self.floors) + bucket]
