"""What engines say of their caches, as values: batches of events, and how far a publisher can be believed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from kvcore.errors import KvcoreError
from kvcore.events import BlocksCleared, BlocksRemoved, BlocksStored, Tier
from kvcore.request import Rank


class InvalidKvEvent(KvcoreError, ValueError):
    """A payload that is no batch of events; nothing of it has been applied."""


class Trust(Enum):
    """How far what a publisher has said is all that its rank holds.

    EXACT: everything since its start, or since it dropped everything, has been heard. Full credit.
    DEGRADED: something was missed or did not fit; what is known is probably right. Each block counts one tier lower
        than the engine says, so a cached block is worth less (SelectionWeights.host_cache_hit_weight, and so on).
    APPROX: nothing usable was heard; what was sent there counts as cached for a while.
    """

    EXACT = "exact"
    DEGRADED = "degraded"
    APPROX = "approx"


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that follow one another are cached.

    hashes: the engine's own names, unsigned 64-bit. parent: name of the block before the first; None: it is a root.
    tokens: of all blocks, root to leaf; fewer than len(hashes) * block_size where the engine does not say (offloads).
    adapter, namespace: what keeps these blocks apart from others with the same tokens; namespace None: as the parent's.
    extras: by block, bytes of what else does (images); empty: nothing.
    group: of the engine's groups of caches, or None. is_main: whether it is one of full attention, by which prompts are
        found again; None: the event does not say.
    """

    hashes: tuple[int, ...]
    parent: int | None
    tokens: tuple[int, ...]
    block_size: int
    adapter: str = ""
    namespace: str | None = None
    extras: tuple[bytes, ...] = ()
    tier: Tier = Tier.DEVICE
    group: int | None = None
    is_main: bool | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks are not cached any more. Fields as those of Stored."""

    hashes: tuple[int, ...]
    tier: Tier = Tier.DEVICE
    group: int | None = None
    is_main: bool | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing is cached any more."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """An event about blocks that are not the rank's own to keep: another owner's, or elsewhere. It changes nothing."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """An event of a kind that this version does not know."""

    kind: str


KvEvent: TypeAlias = Stored | Removed | Cleared | Foreign | Unknown


@dataclass(frozen=True, slots=True)
class Batch:
    """One payload. time_s: the engine's wall clock. dp_rank: None: the publisher does not say."""

    time_s: float
    events: tuple[KvEvent, ...]
    dp_rank: int | None = None


class Change(Enum):
    """What becomes of a rank's blocks."""

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Fact:
    """What the core is to be told of a rank. names: of blocks, as BlockNames makes them; CLEARED: of all tiers."""

    change: Change
    tier: Tier = Tier.DEVICE
    names: tuple[int, ...] = ()

    def event(self, now_ns: int, rank: Rank, incarnation: int) -> BlocksStored | BlocksRemoved | BlocksCleared:
        """The event that says so."""
        if self.change is Change.CLEARED:
            return BlocksCleared(now_ns, rank.worker_id, rank.dp_rank, incarnation)
        kind = BlocksStored if self.change is Change.STORED else BlocksRemoved
        return kind(now_ns, rank.worker_id, rank.dp_rank, incarnation, self.names, self.tier)
