"""The oracle's view of load: what runs on each rank, what a rank would cost, and the generator that breaks ties.

Weights are fixed point, 2^20 = one block (DESIGN D9). Every total is summed anew whenever it is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvcore.request import Request

ONE = 2**20
U64 = 2**64 - 1


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def sequence_hashes(request: Request, block_size: int) -> tuple[int, ...]:
    """Names of the complete prompt blocks."""
    if request.sequence_hashes is not None:
        return request.sequence_hashes
    return request.block_hashes[: request.prompt_tokens // block_size]


def leading(hashes: tuple[int, ...], known) -> int:
    """How many of the first hashes are all known."""
    count = 0
    for name in hashes:
        if name not in known:
            break
        count += 1
    return count


@dataclass
class LiveBlock:
    """A prompt block in use: how often, and what it weighs since the last decay by its only user."""

    users: int = 0
    weight: int = ONE


@dataclass
class Booking:
    """What one dispatched request holds on its rank until it is released."""

    prefill_tokens: int
    blocks: tuple[int, ...]
    outputs: list[int] = field(default_factory=list)
    prefill_done: bool = False


@dataclass
class RankLoad:
    """Load of one (worker_id, dp_rank)."""

    bookings: list[Booking] = field(default_factory=list)
    live: dict[int, LiveBlock] = field(default_factory=dict)

    @property
    def prefill_tokens(self) -> int:
        return sum(b.prefill_tokens for b in self.bookings if not b.prefill_done)

    @property
    def requests(self) -> int:
        return len(self.bookings)

    @property
    def active_blocks(self) -> int:
        prompt = sum(block.weight for block in self.live.values())
        output = sum(sum(b.outputs) for b in self.bookings)
        return (prompt + output + ONE // 2) >> 20

    def book(self, prefill_tokens: int, blocks: tuple[int, ...]) -> Booking:
        booking = Booking(prefill_tokens, blocks)
        self.bookings.append(booking)
        for name in blocks:
            self.live.setdefault(name, LiveBlock()).users += 1
        return booking

    def add_output(self, booking: Booking, fraction: float | None) -> None:
        booking.outputs.append(ONE)
        if fraction is None:
            return
        weight = math.floor(fraction * ONE + 0.5)
        booking.outputs = [weight for _ in booking.outputs]
        for name in booking.blocks:
            if self.live[name].users == 1:
                self.live[name].weight = weight

    def release(self, booking: Booking) -> None:
        self.bookings = [b for b in self.bookings if b is not booking]
        for name in booking.blocks:
            self.live[name].users -= 1
            if self.live[name].users == 0:
                del self.live[name]


def rank_cost(load: RankLoad, request: Request, overlap_blocks: int, block_size: int) -> float:
    """Cost of a rank in blocks, in DESIGN D8's order of operations; the least wins."""
    raw = 0
    if request.track_prefill:
        raw = load.prefill_tokens + max(request.prompt_tokens, overlap_blocks * block_size)
    names = sequence_hashes(request, block_size)
    added = len(names) - leading(names, load.live)
    waiting = float(raw) / float(block_size) - float(overlap_blocks)
    return max(0.0, waiting) + float(load.active_blocks + added)


class WyRand:
    """The core's generator: 64 bits of state, one multiplication a draw."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def next(self) -> int:
        self.state = (self.state + 0x2D358DCCAA6C78A5) & U64
        product = self.state * (self.state ^ 0x8BB84B93962EACC9)
        return (product & U64) ^ (product >> 64)

    def draw(self, n: int) -> int:
        """Uniform in 0..n-1: multiply high, and draw again in the part that would be uneven."""
        while True:
            product = self.next() * n
            low = product & U64
            if low >= n or low >= (2**64 - n) % n:
                return product >> 64
