"""The paged KV cache of a mock worker, after vLLM V1's block pool: blocks, who holds them, and what they are called.

The same rules as the cache of `kvcore replay` (drivers/replay/_blockcache.pyx), with which a test compares it: a name
leads to one block, a second one with the same content stays unnamed; named blocks that nobody holds wait in the free
list and can be hit until their turn comes. Order of eviction: blocks never used, then the free list from its front.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockCache:
    """`total` blocks. dropped: names that were evicted and that nobody has asked for yet, in order."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.dropped: list[int] = []
        self._fresh = 0                                # blocks below this number have been used
        self._free: OrderedDict[int, None] = OrderedDict()
        self._refs: list[int] = []
        self._names: list[int | None] = []
        self._index: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return self.total - self._fresh + len(self._free)

    @property
    def named(self) -> int:
        """Blocks that can be hit."""
        return len(self._index)

    def match(self, names: Sequence[int]) -> list[int]:
        """Blocks of the longest cached prefix of these names."""
        found = []
        for name in names:
            block = self._index.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Sequence[int]) -> int:
        """How many of these blocks nobody holds."""
        refs = self._refs
        return sum(not refs[block] for block in blocks)

    def hold(self, block: int) -> None:
        """One more sequence uses this block."""
        if not self._refs[block]:
            del self._free[block]
        self._refs[block] += 1

    def take(self) -> int:
        """The next free block, held once and without a name. There must be one."""
        if self._fresh < self.total:
            block = self._fresh
            self._fresh += 1
            self._refs.append(1)
            self._names.append(None)
            return block
        block, _ = self._free.popitem(last=False)
        name = self._names[block]
        if name is not None:
            del self._index[name]
            self._names[block] = None
            self.dropped.append(name)
        self._refs[block] = 1
        return block

    def release(self, block: int) -> None:
        """One sequence uses this block no more."""
        self._refs[block] -= 1
        if not self._refs[block]:
            self._free[block] = None

    def store(self, block: int, name: int) -> bool:
        """Name a held, unnamed block. False: the name is taken and nothing has changed."""
        if name in self._index:
            return False
        self._index[name] = block
        self._names[block] = name
        return True

    def forget_all(self) -> None:
        """No block has a name any more; nobody is told of the single ones."""
        for block in self._index.values():
            self._names[block] = None
        self._index.clear()
