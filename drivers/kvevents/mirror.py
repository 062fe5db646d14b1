"""Mirror: which blocks the engine of one rank holds, by the engine's names and by the core's. Pure.

Owns the engine's hashes with the name, the seed and the tiers of each, and by tier how many hashes have a name: two
may, where an engine tells apart what we do not, and the name goes with the last of them.

What it is given is whole events in their order; what it gives back are facts for the core, each only when something
changes. An event that does not fit is passed over as far as it does not, and the Mirror says why (`flaw`): from then on
what it holds is not all that there is.

Bounds: `blocks_max` hashes; GROUPS_MAX groups of caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvcore.events import Tier

from .names import BlockNames
from .values import Change, Cleared, Fact, Foreign, KvEvent, Removed, Stored, Unknown

BLOCKS_MAX = 2**20
GROUPS_MAX = 64

#: Where a block counts of which we are not sure.
_LOWER = {Tier.DEVICE: Tier.HOST, Tier.HOST: Tier.DISK, Tier.DISK: Tier.DISK}


@dataclass(slots=True)
class Counts:
    """What has come by: blocks stored and removed, and events or blocks that changed nothing, by reason."""

    stored: int = 0
    removed: int = 0
    cleared: int = 0
    duplicates: int = 0
    unknown_removed: int = 0
    orphans: int = 0
    conflicts: int = 0
    unnamed: int = 0
    refused: int = 0
    filtered: int = 0
    unknown_events: int = 0


class Mirror:
    """The blocks of one rank. flaw: why it is not exact, or None. misfit: the engine's block size, if it is another."""

    def __init__(self, names: BlockNames, blocks_max: int = BLOCKS_MAX) -> None:
        self._names, self._blocks_max = names, blocks_max
        self._blocks: dict[int, tuple[int, int, int]] = {}  # hash -> name, seed, tiers as bits
        self._held: tuple[dict[int, int], ...] = ({}, {}, {})  # by tier as told to the core: name -> hashes
        self._groups: dict[int, bool] = {}  # group -> whether it is a main one
        self._is_lowered = False
        self._facts: list[Fact] = []
        self._run: list[int] = []
        self._run_kind = (Change.STORED, Tier.DEVICE)
        self.counts = Counts()
        self.flaw: str | None = None
        self.misfit: int | None = None

    def __len__(self) -> int:
        """Hashes that the engine holds, in whatever tier."""
        return len(self._blocks)

    def held(self, tier: Tier) -> int:
        """Names that count in a tier."""
        return len(self._held[tier])

    def apply(self, events: Sequence[KvEvent]) -> list[Fact]:
        """Take in a batch; what the core is to be told."""
        for event in events:
            match event:
                case Stored():
                    self._store(event)
                case Removed():
                    self._remove(event)
                case Cleared():
                    self.counts.cleared += 1
                    self._clear()
                case Foreign():
                    self.counts.filtered += 1
                case Unknown():
                    self.counts.unknown_events += 1
                    self.spoil(f"an event of unknown kind {event.kind[:40]!r}")
        return self._take()

    def lower(self, is_lowered: bool) -> list[Fact]:
        """Count every block one tier lower, or where it is."""
        if is_lowered is self._is_lowered:
            return []
        self._is_lowered = is_lowered
        if self._blocks:
            for held in self._held:
                held.clear()
            self._flush()
            self._facts.append(Fact(Change.CLEARED))
            for tier in Tier:
                for name, _, tiers in self._blocks.values():
                    if tiers & 1 << tier:
                        self._hold(name, tier)
        return self._take()

    def reset(self) -> list[Fact]:
        """Forget everything: another engine stands in this one's place."""
        self._groups.clear()
        self.misfit = None
        self._clear()
        return self._take()

    def drop(self) -> None:
        """Forget all blocks, and only them: they are of no use."""
        self._blocks.clear()
        for held in self._held:
            held.clear()

    def _clear(self) -> None:
        """The engine holds nothing: that much is certain, whatever was missed before."""
        self._flush()
        if self._blocks:
            self._facts.append(Fact(Change.CLEARED))
        self.drop()
        self.flaw = None

    def spoil(self, why: str) -> None:
        """From now on, until everything is dropped, what is known is not all that there is."""
        self.flaw = self.flaw or why

    def _is_main(self, group: int | None, said: bool | None) -> bool:
        """Whether prompts are found again by the blocks of this group. What is said of one holds for later events."""
        if said is not None:
            if group is not None and (group in self._groups or len(self._groups) < GROUPS_MAX):
                self._groups[group] = said
            return said
        return group is None or self._groups.get(group, group == 0)

    def _store(self, event: Stored) -> None:
        if not self._is_main(event.group, event.is_main):
            self.counts.filtered += 1
            return
        hashes, size = event.hashes, self._names.block_size
        if len(event.tokens) < len(hashes) * event.block_size or not event.block_size:
            self._store_unnamed(event)
            return
        if event.block_size != size:
            self.misfit = event.block_size
            self.spoil(f"blocks of {event.block_size} tokens, not {size}")
            self.counts.refused += len(hashes)
            return
        if len(set(hashes)) < len(hashes) or event.parent in hashes:
            self.counts.conflicts += 1
            self.spoil("a block that follows itself")
            return
        parent, seed = None, 0
        if event.parent is None:
            seed = self._names.seed(event.adapter, event.namespace or "")
        else:
            above = self._blocks.get(event.parent)
            if above is None:
                self.counts.orphans += len(hashes)
                self.spoil("a block whose parent is unknown")
                return
            parent, seed, _ = above
        names = self._names.after(parent, event.tokens[:len(hashes) * size], seed, event.extras)
        for block_hash, name in zip(hashes, names, strict=True):
            if not self._add(block_hash, name, seed, event.tier):
                return

    def _store_unnamed(self, event: Stored) -> None:
        """Blocks without tokens have the names that are known already: they are copies in another tier."""
        for block_hash in event.hashes:
            known = self._blocks.get(block_hash)
            if known is None:
                self.counts.unnamed += 1
            else:
                self._add(block_hash, known[0], known[1], event.tier)

    def _add(self, block_hash: int, name: int, seed: int, tier: Tier) -> bool:
        """Whether what follows this block may be added too."""
        known = self._blocks.get(block_hash)
        if known is None:
            if len(self._blocks) >= self._blocks_max:
                self.counts.refused += 1
                self.spoil(f"more than {self._blocks_max} blocks")
                return False
            self._blocks[block_hash] = (name, seed, 1 << tier)
        elif known[0] != name:
            self.counts.conflicts += 1
            self.spoil("one hash for two blocks")
            return False
        elif known[2] & 1 << tier:
            self.counts.duplicates += 1
            return True
        else:
            self._blocks[block_hash] = (name, seed, known[2] | 1 << tier)
        self.counts.stored += 1
        self._hold(name, tier)
        return True

    def _remove(self, event: Removed) -> None:
        if not self._is_main(event.group, event.is_main):
            self.counts.filtered += 1
            return
        for block_hash in event.hashes:
            known = self._blocks.get(block_hash)
            if known is None or not known[2] & 1 << event.tier:
                self.counts.unknown_removed += 1
                continue
            name, seed, tiers = known
            tiers &= ~(1 << event.tier)
            if tiers:
                self._blocks[block_hash] = (name, seed, tiers)
            else:
                del self._blocks[block_hash]
            self.counts.removed += 1
            self._release(name, event.tier)

    def _hold(self, name: int, tier: Tier) -> None:
        tier = _LOWER[tier] if self._is_lowered else tier
        held = self._held[tier]
        held[name] = held.get(name, 0) + 1
        if held[name] == 1:
            self._tell(Change.STORED, tier, name)

    def _release(self, name: int, tier: Tier) -> None:
        tier = _LOWER[tier] if self._is_lowered else tier
        held = self._held[tier]
        held[name] -= 1
        if not held[name]:
            del held[name]
            self._tell(Change.REMOVED, tier, name)

    def _tell(self, change: Change, tier: Tier, name: int) -> None:
        """Neighbours of one kind make one fact; the order stays."""
        if self._run_kind != (change, tier):
            self._flush()
            self._run_kind = change, tier
        self._run.append(name)

    def _flush(self) -> None:
        if self._run:
            self._facts.append(Fact(*self._run_kind, tuple(self._run)))
            self._run = []

    def _take(self) -> list[Fact]:
        self._flush()
        facts, self._facts = self._facts, []
        return facts
