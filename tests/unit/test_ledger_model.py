"""The ledger against a naive model: every weight of every block is explicit, every sum is taken anew (DESIGN D9)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from probe_build import load

Books = load("_probe_ledger").Books

ONE = 2**20
TWO_53 = 2**53
INT64_MAX = 2**63 - 1
NS_END = 2**62
SECOND = 10**9
OPEN = 0
PAIRS = ((10, None), (None, 0.5), (30, 2.0), (0, None), (None, math.inf))
RANKS = 3
SLOTS = 8


@dataclass(eq=False)
class Booking:
    """One running request."""

    slot: int
    prefill: int
    path: tuple[int, ...]
    private: int
    reserve: int
    outputs: list[int] = field(default_factory=list)
    prefilling: bool = True


@dataclass(eq=False)
class Rank:
    """One rank: its bookings, oldest first, and what has been told of it."""

    present: bool = True
    state: int = OPEN
    taints: int = 0
    max_batched: int = 20
    max_blocks: int | None = None
    max_requests: int | None = None
    rate: int = 0
    bookings: list[Booking] = field(default_factory=list)
    weights: dict[int, int] = field(default_factory=dict)
    anchor_ns: int = 0
    reported: tuple[int, int, int, int] = (-1, -1, -1, -1)
    foreign: tuple[int, int, int] = (0, 0, 0)

    def fifo(self) -> list[Booking]:
        """Prefills, front first."""
        return [b for b in self.bookings if b.prefilling and b.prefill]

    def full(self) -> int:
        return sum(b.prefill for b in self.fifo())

    def duration_ns(self, prefill: int) -> int:
        return -(-prefill * SECOND // self.rate)

    def own_tokens(self, now_ns: int, decays: bool) -> int:
        """The front shrinks, nothing else does."""
        if not decays or not self.rate or not self.fifo():
            return self.full()
        prefill = self.fifo()[0].prefill
        whole_ns = self.duration_ns(prefill)
        return self.full() - prefill * min(now_ns - self.anchor_ns, whole_ns) // whole_ns

    def tokens(self, now_ns: int, decays: bool) -> int:
        return min(self.own_tokens(now_ns, decays) + self.foreign[0], INT64_MAX)

    def weight(self) -> int:
        return sum(self.weights.values()) + sum(sum(b.outputs) for b in self.bookings)

    def blocks(self) -> int:
        return (self.weight() + ONE // 2) >> 20

    def held(self) -> int:
        return len(self.weights) + sum(b.private + max(b.reserve, len(b.outputs)) for b in self.bookings)

    def users(self, name: int) -> int:
        """How often a block is counted; a path may name it twice."""
        return sum(b.path.count(name) for b in self.bookings)

    def book(self, booking: Booking, now_ns: int) -> None:
        self.bookings.append(booking)
        for name in booking.path:
            self.weights.setdefault(name, ONE)
        if self.fifo() == [booking]:
            self.anchor_ns = now_ns

    def finish_prefill(self, booking: Booking, completed: bool, now_ns: int) -> bool:
        """Whether there was something to finish."""
        fifo = self.fifo()
        if booking not in fifo:
            booking.prefilling = False
            return False
        booking.prefilling = False
        if booking is fifo[0]:
            self.anchor_ns = now_ns
        elif completed and self.rate:
            self.anchor_ns = min(self.anchor_ns + self.duration_ns(booking.prefill), now_ns)
        return True

    def add_output(self, booking: Booking, weight: int) -> None:
        booking.outputs.append(ONE)
        if weight < 0:
            return
        booking.outputs = [weight for _ in booking.outputs]
        for name in reversed(booking.path):
            if self.users(name) > 1:
                break
            self.weights[name] = weight

    def release(self, booking: Booking, completed: bool, now_ns: int) -> bool:
        relieved = self.finish_prefill(booking, completed, now_ns)
        self.bookings.remove(booking)
        self.weights = {name: weight for name, weight in self.weights.items() if self.users(name)}
        return relieved

    def report(self, sequence: int, told: tuple[int, int, int], counts: bool, now_ns: int, decays: bool) -> bool:
        """Whether it is news."""
        if sequence <= self.reported[0]:
            return False
        self.reported = (sequence, *told)
        own = (self.own_tokens(now_ns, decays), self.blocks(), len(self.bookings))
        self.foreign = tuple(max(0, a - b) if counts else 0 for a, b in zip(told, own, strict=True))
        return True

    def is_busy(self, pair: int, now_ns: int, decays: bool) -> bool:
        absolute, fraction = PAIRS[pair]
        tokens = self.tokens(now_ns, decays)
        return (absolute is not None and tokens > absolute) or (
            fraction is not None and float(tokens) > fraction * float(self.max_batched))

    def has_room(self, need: int) -> bool:
        return (self.max_requests is None or len(self.bookings) + self.foreign[2] < self.max_requests) and (
            self.max_blocks is None or self.held() + self.foreign[1] + need <= self.max_blocks)

    def facts(self) -> tuple:
        """What makes a rank dirty when it changes."""
        return (self.present, self.state, self.taints, self.max_batched, self.max_blocks, self.max_requests, self.rate,
                self.full(), self.weight(), self.held(), len(self.bookings), self.foreign)


class Pair:
    """A ledger and its model, side by side."""

    def __init__(self, decays: bool) -> None:
        self.decays = decays
        self.books = Books(list(PAIRS), decays)
        self.ranks = [Rank() for _ in range(RANKS)]
        self.booked: dict[int, tuple[int, Booking]] = {}
        self.now_ns = 0
        self.seen = [rank.facts() for rank in self.ranks]
        for number in range(RANKS):
            self.books.add_rank(number, 100 + number)
            self.books.configure(number, 20)
        self.books.dirty()

    def step(self, kind: str, *fields) -> None:
        getattr(self, kind)(*fields)
        self.compare(1 if kind not in ("wait", "cross") else RANKS)

    def book(self, slot, number, prefill, path, private, reserve) -> None:
        if slot in self.booked or not self.ranks[number].present:
            return
        self.books.book(slot, number, prefill, path, private, reserve)
        booking = Booking(slot, prefill, path, private, reserve)
        self.ranks[number].book(booking, self.now_ns)
        self.booked[slot] = (number, booking)

    def complete(self, slot) -> None:
        if slot in self.booked:
            number, booking = self.booked[slot]
            fell = self.ranks[number].finish_prefill(booking, True, self.now_ns)
            assert self.books.complete_prefill(slot) == fell

    def output(self, slot, weight) -> None:
        if slot in self.booked:
            number, booking = self.booked[slot]
            self.ranks[number].add_output(booking, weight)
            self.books.add_output(slot, weight)

    def release(self, slot, completed) -> None:
        if slot in self.booked:
            number, booking = self.booked.pop(slot)
            fell = self.ranks[number].release(booking, completed, self.now_ns)
            assert self.books.release(slot, completed) == fell

    def configure(self, number, max_batched, taints, max_blocks, max_requests, rate) -> None:
        rank = self.ranks[number]
        if not rank.present:
            self.books.add_rank(number, 100 + number)
        rank.present = True
        rank.max_batched, rank.taints, rank.rate = max_batched, taints, rate
        rank.max_blocks, rank.max_requests = max_blocks, max_requests
        self.books.configure(number, max_batched, taints, max_blocks, max_requests, rate)

    def state(self, number, state) -> None:
        if self.ranks[number].present:
            self.ranks[number].state = state
            self.books.set_state(number, state)

    def remove(self, number) -> None:
        if self.ranks[number].present:
            for slot in [slot for slot, (of, _) in self.booked.items() if of == number]:
                self.release(slot, False)
            self.ranks[number] = Rank(present=False)
            self.books.remove_rank(number)

    def report(self, number, sequence, told, counts) -> None:
        if self.ranks[number].present:
            news = self.ranks[number].report(sequence, told, counts, self.now_ns, self.decays)
            assert self.books.report(number, sequence, *told, counts) == news

    def forget(self, number) -> None:
        if self.ranks[number].present:
            self.ranks[number].foreign = (0, 0, 0)
            self.books.forget_report(number)

    def wait(self, span_ns) -> None:
        self.to(self.now_ns + span_ns)

    def cross(self, by_ns) -> None:
        """To the announced crossing, or just short of it."""
        if (at_ns := self.books.next_crossing_ns()) is not None:
            self.to(max(self.now_ns, at_ns + by_ns))

    def to(self, now_ns: int) -> None:
        before = self.verdicts(self.now_ns)
        self.now_ns = now_ns
        crossed = self.books.advance(now_ns)
        assert sorted(crossed) == [
            number for number in range(RANKS) if self.verdicts(now_ns)[number] != before[number]]

    def verdicts(self, now_ns: int) -> list[list[bool]]:
        return [[rank.is_busy(pair, now_ns, self.decays) for pair in range(len(PAIRS))] if rank.present else []
                for rank in self.ranks]

    def compare(self, dirty_most: int) -> None:
        books = self.books
        assert books.faults() == []
        for number, rank in enumerate(self.ranks):
            assert books.load(number) == (rank.full(), rank.weight(), rank.blocks(), len(rank.bookings))
            assert books.held(number) == rank.held()
            assert books.own_tokens(number) == rank.own_tokens(self.now_ns, self.decays)
            assert books.effective(number) == (
                rank.tokens(self.now_ns, self.decays), rank.blocks() + rank.foreign[1],
                len(rank.bookings) + rank.foreign[2], rank.held() + rank.foreign[1])
            assert books.reported(number) == rank.reported
            assert books.booked_on(number) == [b.slot for b in reversed(rank.bookings)]
            assert books.fifo(number) == ([b.slot for b in rank.fifo()] if self.decays else [])
            assert books.anchor_ns(number) == (rank.anchor_ns if self.decays and rank.fifo() else 0)
            assert [books.has_room(number, need) for need in range(8)] == [rank.has_room(need) for need in range(8)]
            assert {name: books.weight(number, name) for name in range(7)} == {
                name: rank.weights.get(name) for name in range(7)}
        assert {slot: books.output_weight(slot) for slot in self.booked} == {
            slot: sum(booking.outputs) for slot, (_, booking) in self.booked.items()}
        assert books.pairs_held()[1] == sum(len(rank.weights) for rank in self.ranks)
        self.compare_counters()
        self.compare_crossing()
        self.compare_dirty(dirty_most)

    def compare_counters(self) -> None:
        present = [number for number, rank in enumerate(self.ranks) if rank.present]
        verdicts = self.verdicts(self.now_ns)
        assert {number: [self.books.busy(number, pair) for pair in range(len(PAIRS))] for number in present} == {
            number: verdicts[number] for number in present}
        free = [[number for number in present if self.ranks[number].state == OPEN and not verdicts[number][pair]]
                for pair in range(len(PAIRS))]
        assert self.books.free() == [len(found) for found in free]
        states = [self.ranks[number].state for number in present]
        assert self.books.in_state() == [states.count(state) for state in range(4)]
        for taints in {self.ranks[number].taints for number in present}:
            assert self.books.free_of(taints) == [
                sum(self.ranks[number].taints == taints for number in found) for found in free]
            states = [self.ranks[number].state for number in present if self.ranks[number].taints == taints]
            assert self.books.in_state(taints) == [states.count(state) for state in range(4)]

    def compare_crossing(self) -> None:
        """Verdicts hold until one nanosecond before the announced time; at that time one has changed."""
        at_ns = self.books.next_crossing_ns()
        last_ns = NS_END - 1 if at_ns is None else at_ns - 1
        assert last_ns >= self.now_ns
        assert self.verdicts(last_ns) == self.verdicts(self.now_ns)
        if at_ns is not None:
            assert self.verdicts(at_ns) != self.verdicts(self.now_ns)

    def compare_dirty(self, most: int) -> None:
        """Whoever has changed is dirty; a fact about one rank touches no other."""
        facts = [rank.facts() for rank in self.ranks]
        dirty = self.books.dirty()
        assert len(set(dirty)) == len(dirty) <= most
        assert {number for number in range(RANKS) if facts[number] != self.seen[number]} <= set(dirty)
        self.seen = facts


def of(kind, *fields):
    return st.tuples(st.just(kind), *fields)


slots = st.integers(0, SLOTS - 1)
numbers = st.integers(0, RANKS - 1)
#: Few names, any order: paths that share heads and tails, that are not monotone, that name a block twice.
paths = st.one_of(
    st.integers(0, 6).map(lambda length: tuple(range(length))),
    st.lists(st.integers(0, 6), max_size=5).map(tuple))
weights = st.sampled_from([-1, 0, ONE, ONE // 2, ONE // 3, 1])
tokens = st.integers(0, 40) | st.just(TWO_53)
caps = st.none() | st.integers(1, 12)
#: From a token a nanosecond to one in 2^53 s.
rates = st.sampled_from([0, 1, 7, 10**7, 3 * 10**8, 10**9, 3 * 10**12, TWO_53])
steps = st.one_of(
    of("book", slots, numbers, tokens, paths, st.integers(0, 2), st.integers(0, 3)),
    of("book", slots, st.just(0), st.integers(1, 25), paths, st.just(0), st.just(0)),
    of("complete", slots),
    of("output", slots, weights),
    of("release", slots, st.booleans()),
    of("configure", numbers, st.integers(1, 60), st.integers(0, 3), caps, caps, rates),
    of("state", numbers, st.integers(0, 3)),
    of("remove", numbers),
    of("report", numbers, st.integers(0, 9), st.tuples(tokens, st.integers(0, 9), st.integers(0, 9)), st.booleans()),
    of("forget", numbers),
    of("wait", st.integers(0, 60) | st.integers(0, 10**10)),
    of("cross", st.sampled_from([0, -1, 1])))
bindings = st.one_of(
    of("book", slots, st.just(0), st.just(0), paths, st.just(0), st.just(0)),
    of("output", slots, weights),
    of("output", slots, weights),
    of("release", slots, st.just(True)))
prefills = st.one_of(
    of("book", slots, st.just(0), st.integers(1, 40), st.just(()), st.just(0), st.just(0)),
    of("complete", slots),
    of("release", slots, st.booleans()),
    of("configure", st.just(0), st.integers(1, 60), st.just(0), st.none(), st.none(), rates),
    of("report", st.just(0), st.integers(0, 9), st.tuples(tokens, st.just(0), st.just(0)), st.just(True)),
    of("wait", st.integers(0, 60)),
    of("cross", st.sampled_from([0, -1, 1])))


def told(story, decays: bool) -> None:
    """Tell it to both, then undo all."""
    both = Pair(decays)
    for kind, *fields in story:
        both.step(kind, *fields)
    for slot in list(both.booked):
        both.step("release", slot, False)
    for number in range(RANKS):
        both.step("forget", number)
    present = sum(rank.present for rank in both.ranks)
    assert [both.books.load(number) for number in range(RANKS)] == [(0, 0, 0, 0)] * RANKS
    assert [both.books.held(number) for number in range(RANKS)] == [0] * RANKS
    assert both.books.pairs_held() == (0, 0, 0)
    assert both.books.free() == [both.books.in_state()[OPEN]] * len(PAIRS)
    assert sum(both.books.in_state()) == present
    assert both.books.next_crossing_ns() is None


@given(st.lists(steps, max_size=40), st.booleans())
def test_everything(story, decays):
    told(story, decays)


@given(st.lists(bindings, max_size=40))
def test_suffixes_are_walked_from_the_tail_while_blocks_count_one(story):
    """Binding is never seen: explicit weights, walked block by block, give the same numbers."""
    told(story, False)


@given(st.integers(1, 5), st.sampled_from([7, 10**7, 3 * 10**8, 10**9, 3 * 10**12]), st.lists(prefills, max_size=40))
def test_crossings_are_announced_to_the_nanosecond(max_batched, rate, story):
    told([("configure", 0, max_batched, 0, None, None, rate), *story], True)


@given(st.lists(steps, max_size=20), st.booleans(), tokens, paths, st.integers(0, 2), st.integers(0, 3),
       st.lists(weights, max_size=4), st.booleans())
def test_an_aborted_booking_leaves_no_trace(story, decays, prefill, path, private, reserve, outputs, completes):
    """Book and abort: every total is as before, and so is the prefill load at every later time.

    Fractions touch no block that somebody else counts, so nothing but the blocks that go with it has changed.
    """
    both = Pair(decays)
    for kind, *fields in story:
        both.step(kind, *fields)
    if SLOTS in both.booked or not both.ranks[0].present:
        return
    fifo = both.books.fifo(0)

    def reading():
        return [(both.books.load(n), both.books.held(n), both.books.effective(n), both.books.anchor_ns(n),
                 [both.books.weight(n, name) for name in range(7)]) for n in range(RANKS)] + [
            both.books.free(), both.books.next_crossing_ns(), both.books.pairs_held()]

    before = reading()
    both.step("book", SLOTS, 0, prefill, path, private, reserve)
    for weight in outputs:
        both.step("output", SLOTS, weight)
    if completes and not fifo:
        both.step("complete", SLOTS)
    both.step("release", SLOTS, False)
    assert reading() == before
