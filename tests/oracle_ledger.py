"""The oracle's view of load: what runs on each rank, how a prompt in progress fades, and the generator of choices.

Weights are fixed point, 2^20 = one block (DESIGN D9). Every total is summed anew whenever it is asked for. What an
engine reports of itself stands beside the bookings and never changes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvcore.request import Request

ONE = 2**20
U64 = 2**64 - 1
NS_PER_S = 10**9


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


@dataclass(eq=False)
class Booking:
    """What one dispatched request holds on its rank until it is released.

    private: prompt blocks without a name, which nobody shares. reserve: blocks kept for its outputs.
    """

    prefill_tokens: int
    blocks: tuple[int, ...]
    private: int = 0
    reserve: int = 0
    outputs: list[int] = field(default_factory=list)
    prefill_done: bool = False

    @property
    def held(self) -> int:
        """Whole blocks that only this booking holds."""
        return self.private + max(self.reserve, len(self.outputs))


@dataclass
class Report:
    """What the engine of a rank has said last. foreign: what of it counts beyond own bookings, until end_ns."""

    sequence: int
    prefill_tokens: int
    blocks: int
    requests: int
    foreign: tuple[int, int, int] = (0, 0, 0)
    end_ns: int | None = None


@dataclass
class RankLoad:
    """Load of one (worker_id, dp_rank). anchor_ns: since when its oldest prefill is taken to run (DESIGN D9)."""

    bookings: list[Booking] = field(default_factory=list)
    live: dict[int, LiveBlock] = field(default_factory=dict)
    anchor_ns: int = 0
    report: Report | None = None

    @property
    def prefilling(self) -> list[Booking]:
        """Bookings with prefill tokens to go, oldest first."""
        return [b for b in self.bookings if b.prefill_tokens > 0 and not b.prefill_done]

    @property
    def prefill_tokens(self) -> int:
        """Without decay."""
        return sum(b.prefill_tokens for b in self.prefilling)

    @property
    def requests(self) -> int:
        return len(self.bookings)

    @property
    def active_blocks(self) -> int:
        prompt = sum(block.weight for block in self.live.values())
        output = sum(sum(b.outputs) for b in self.bookings)
        return (prompt + output + ONE // 2) >> 20

    @property
    def held_blocks(self) -> int:
        """Whole blocks that are taken or spoken for."""
        return len(self.live) + sum(b.held for b in self.bookings)

    @property
    def foreign(self) -> tuple[int, int, int]:
        """Prefill tokens, blocks and requests of others, as far as a report counts now."""
        return (0, 0, 0) if self.report is None else self.report.foreign

    def prefill_tokens_at(self, now_ns: int, rate: int | None) -> int:
        """What is left at this time if the oldest prefill has run at this rate since the anchor."""
        prefilling = self.prefilling
        full = sum(b.prefill_tokens for b in prefilling)
        if rate is None or not prefilling:
            return full
        front, takes_ns = prefilling[0].prefill_tokens, duration_ns(prefilling[0], rate)
        return full - front * min(now_ns - self.anchor_ns, takes_ns) // takes_ns

    def front_ns(self, rate: int) -> int:
        """How long the oldest prefill takes."""
        return duration_ns(self.prefilling[0], rate)

    def book(self, prefill_tokens: int, blocks: tuple[int, ...], private: int = 0, reserve: int = 0,
             now_ns: int = 0) -> Booking:
        booking = Booking(prefill_tokens, blocks, private, reserve)
        if not self.prefilling:
            self.anchor_ns = now_ns
        self.bookings.append(booking)
        for name in blocks:
            self.live.setdefault(name, LiveBlock()).users += 1
        return booking

    def complete_prefill(self, booking: Booking, now_ns: int, rate: int | None) -> None:
        self._leave_front(booking, now_ns, rate, completed=True)
        booking.prefill_done = True

    def add_output(self, booking: Booking, fraction: float | None) -> None:
        """One more output block. A fraction: all outputs, and the end of the path that is nobody else's, weigh it."""
        booking.outputs.append(ONE)
        if fraction is None:
            return
        weight = math.floor(fraction * ONE + 0.5)
        booking.outputs = [weight for _ in booking.outputs]
        for name in reversed(booking.blocks):
            if self.live[name].users > 1:
                break
            self.live[name].weight = weight

    def release(self, booking: Booking, now_ns: int = 0, rate: int | None = None, completed: bool = False) -> None:
        self._leave_front(booking, now_ns, rate, completed)
        self.bookings.remove(booking)
        for name in booking.blocks:
            self.live[name].users -= 1
            if self.live[name].users == 0:
                del self.live[name]

    def _leave_front(self, booking: Booking, now_ns: int, rate: int | None, completed: bool) -> None:
        """The anchor moves when a prefill ends: what follows the oldest starts now; another one's work is done."""
        prefilling = self.prefilling
        if booking not in prefilling:
            return
        if booking is prefilling[0]:
            self.anchor_ns = now_ns
        elif completed and rate is not None:
            self.anchor_ns = min(self.anchor_ns + duration_ns(booking, rate), now_ns)


def duration_ns(booking: Booking, rate: int) -> int:
    """How long its prefill takes at so many tokens a second, rounded up."""
    return ceil_div(booking.prefill_tokens * NS_PER_S, rate)


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

    def uniform(self) -> float:
        """Uniform in [0, 1), a multiple of 2^-53."""
        return float(self.next() >> 11) * 2.0**-53
