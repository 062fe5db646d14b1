"""Names of KV blocks from token ids: what a prompt's blocks and an engine's blocks are both called in the core.

    names = BlockNames(block_size=16)
    request = Request("r1", len(tokens), block_hashes=names.of(tokens))

A block's local hash is XXH3-64 of its tokens as little-endian 32-bit words; its name chains that with the name of the
block before it (kvcore.hashing). The seed of the local hash tells apart what engines keep apart: adapters (LoRA) and
namespaces (`cache_salt`). Only complete blocks have names. Both sides must use one BlockNames, or equal ones.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from kvcore.hashing import CHAIN_SEED, chain

_MASK = 2**64 - 1


class BlockNames:
    """How blocks are named.

    block_size: tokens of a block, >= 1: SchedulerConfig.block_size. salt: a secret of this deployment, so that names in
    journals say nothing of prompts to who does not know it; empty: names are those that other routers of this kind use.
    """

    def __init__(self, block_size: int, salt: bytes = b"") -> None:
        if type(block_size) is not int or block_size < 1:
            raise ValueError(f"block_size must be an integer >= 1, not {block_size!r}")
        self.block_size = block_size
        self._base = xxh3_64_intdigest(salt, CHAIN_SEED) if salt else CHAIN_SEED

    def seed(self, adapter: str = "", namespace: str = "") -> int:
        """Seed of local hashes: 0..2^64-1."""
        seed = self._base
        if adapter:
            seed += xxh3_64_intdigest(adapter.encode("utf-8", "surrogatepass"), 0)
        if namespace:
            seed += xxh3_64_intdigest(namespace.encode("utf-8", "surrogatepass"), 1)
        return seed & _MASK

    def of(self, tokens: Sequence[int], adapter: str = "", namespace: str = "") -> tuple[int, ...]:
        """Names of the complete blocks of a prompt, root to leaf; tokens: 0..2^32-1. Cost: under 1 us a block.

        Raises OverflowError, TypeError on anything else.
        """
        return self.after(None, tokens, self.seed(adapter, namespace))

    def after(
        self, parent: int | None, tokens: Sequence[int], seed: int, extras: Sequence[bytes] = (),
    ) -> tuple[int, ...]:
        """Names of the complete blocks in `tokens`, which follow the block named `parent` (None: nothing).

        extras: by block, what else an engine tells blocks apart by; hashed behind the tokens.
        """
        words = array("I", tokens)
        if sys.byteorder == "big":
            words.byteswap()
        data, width = words.tobytes(), 4 * self.block_size
        names = []
        for index in range(len(words) // self.block_size):
            block = data[index * width:(index + 1) * width]
            if extras and extras[index]:
                block += extras[index]
            local = xxh3_64_intdigest(block, seed)
            parent = local if parent is None else chain(parent, local)
            names.append(parent)
        return tuple(names)
