"""The oracle's waiting room: keys, lanes, both forms of deficit round robin, written for the eye and not for speed.

Nothing here is cached and no verdict is remembered: the head of a lane is the least of its entries, found by looking at
all of them, and who is served is a function of what waits and may run. Mode `exact` of DESIGN D5 is the loop that the
rule describes in words, one quantum at a time. Mode `reference` follows the numbered steps of the reference facts (one
call of its round robin), with their separate cursor and carry marker, and not D5's restatement of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from kvcore.policy import Arbitration, QueuePolicy

JUMP_NS_MAX = 2**62 - 1
NO_DEADLINE = 2**63 - 1
#: Turns of the naive loop in one pop; strategies keep cost / quantum far below it.
TURNS_MAX = 2_000_000


def jump_ns(priority_jump: float) -> int:
    """Head start in whole nanoseconds (DESIGN D3): negative and NaN are 0, too much is the cap."""
    if not priority_jump > 0:
        return 0
    wanted = priority_jump * 1e9 + 0.5
    return JUMP_NS_MAX if wanted >= JUMP_NS_MAX else math.floor(wanted)


def sort_key(policy: QueuePolicy, strict: int, jump: float, arrival_ns: int, deadline_ns: int | None, cost: int,
             seq: int) -> tuple:
    """Ascending key: the least entry of a lane is its head."""
    if policy is QueuePolicy.WSPT:
        weight = jump if jump > 0 else 0.0
        return (-strict, -((1.0 + weight) / float(cost)), seq)
    if policy is QueuePolicy.LCFS:
        return (-strict, -(jump_ns(jump) + arrival_ns), seq)
    fcfs = jump_ns(jump) - arrival_ns
    if policy is QueuePolicy.FCFS:
        return (-strict, -fcfs, seq)
    return (-strict, NO_DEADLINE if deadline_ns is None else deadline_ns, -fcfs, seq)


@dataclass(eq=False)
class Entry:
    """One stored request. lane: the exact rank it is pinned to, or None for the shared heap."""

    key: tuple
    cost: int
    lane: object = None
    payload: object = None
    class_index: int = -1
    overtaken: int = 0


CanRun = Callable[[Entry], bool]


@dataclass
class ClassQueue:
    """The entries of one policy class, oldest first. bound: max_overtake_tokens."""

    quantum: int
    bound: int | None = None
    deficit: int = 0
    entries: list[Entry] = field(default_factory=list)

    def head(self, lane: object) -> Entry:
        return min((e for e in self.entries if e.lane == lane), key=lambda e: e.key)

    def push(self, entry: Entry) -> None:
        self.entries.append(entry)

    def remove(self, entry: Entry) -> None:
        self.entries.remove(entry)

    def serve(self, entry: Entry) -> None:
        """It leaves past all that are older."""
        for older in self.entries[: self.entries.index(entry)]:
            older.overtaken += entry.cost

    def candidate(self, can_run: CanRun) -> Entry | None:
        """The best head that passes, or who stands in for it (DESIGN D17); a head that fails hides only its own lane.

        Who would stand in and fails leaves its lane out of this choice, and of this one only.
        """
        passing = {lane for lane in {e.lane for e in self.entries} if can_run(self.head(lane))}
        while passing:
            best = min((self.head(lane) for lane in passing), key=lambda e: e.key)
            oldest = next(e for e in self.entries if e.lane in passing)
            if self.bound is None or oldest is best or oldest.overtaken + best.cost <= self.bound:
                return best
            if can_run(oldest):
                return oldest
            passing.remove(oldest.lane)
        return None


class PolicyQueue:
    """Policy classes and the round robin between them. One call of `pop` takes at most one entry."""

    def __init__(self, quanta: list[int], arbitration: Arbitration = Arbitration.EXACT,
                 bounds: list[int | None] | None = None) -> None:
        bounds = bounds if bounds is not None else [None] * len(quanta)
        self.classes = [ClassQueue(quantum, bound) for quantum, bound in zip(quanta, bounds, strict=True)]
        self.arbitration = arbitration
        self.cursor = 0
        self.open = False          # exact: whether the class under the cursor has been served in this visit
        self.paid = False          # whether the quantum of this visit has been granted
        self.carry = None          # reference: class that may spend what it kept before the ring goes on

    @property
    def place(self) -> tuple[int, str]:
        """The class under the cursor and its visit as DESIGN D5 has them: none, unpaid or paid."""
        if self.arbitration is Arbitration.EXACT:
            cursor, is_open = self.cursor, self.open
        else:
            is_open = self.carry is not None
            cursor = self.carry if is_open else self.cursor
        return cursor, ("paid" if self.paid else "unpaid") if is_open else "none"

    @place.setter
    def place(self, place: tuple[int, str]) -> None:
        self.cursor, visit = place
        self.open, self.paid, self.carry = visit != "none", visit == "paid", None
        if self.arbitration is Arbitration.REFERENCE and self.open:
            self.carry, self.cursor = self.cursor, (self.cursor + 1) % len(self.classes)

    def push(self, class_index: int, entry: Entry) -> None:
        entry.class_index = class_index
        self.classes[class_index].push(entry)

    def remove(self, entry: Entry) -> None:
        """Cancel, expiry, refusal: nothing is charged; a class that this empties gives its deficit back."""
        queue = self.classes[entry.class_index]
        queue.remove(entry)
        if not queue.entries:
            queue.deficit = 0
            if self.carry == entry.class_index:
                self.carry = None
            if self.arbitration is Arbitration.EXACT and self.cursor == entry.class_index:
                self._go_on()

    def pop(self, can_run: CanRun) -> Entry | None:
        """The next entry to run, removed and charged; None if no head of any class may run."""
        if self.arbitration is Arbitration.EXACT:
            return self._pop_exact(can_run)
        return self._pop_reference(can_run)

    def _go_on(self) -> None:
        self.cursor = (self.cursor + 1) % len(self.classes)
        self.open = self.paid = False

    def _pop_exact(self, can_run: CanRun) -> Entry | None:
        heads: dict[int, Entry | None] = {}
        start = self.cursor, self.open, self.paid
        for _ in range(TURNS_MAX):
            queue = self.classes[self.cursor]
            if self.cursor not in heads:
                heads[self.cursor] = queue.candidate(can_run)
            head = heads[self.cursor]
            if len(heads) == len(self.classes) and not any(heads.values()):
                self.cursor, self.open, self.paid = start
                return None
            if head is not None:
                if head.cost > queue.deficit and not self.paid:
                    queue.deficit += queue.quantum
                    self.paid = True
                if head.cost <= queue.deficit:
                    self.open = True
                    queue.deficit -= head.cost
                    queue.serve(head)
                    self.remove(head)
                    return head
            self._go_on()
        raise AssertionError("cost / quantum is too large for the naive loop")

    def _pop_reference(self, can_run: CanRun) -> Entry | None:
        count = len(self.classes)
        carried, self.carry = self.carry, None
        if carried is not None:
            head = self.classes[carried].candidate(can_run)
            if head is not None and head.cost <= self.classes[carried].deficit:
                return self._take_reference(head)
        ring = [(self.cursor + step) % count for step in range(count)]
        heads = {}
        for index in ring:
            queue = self.classes[index]
            head = queue.candidate(can_run)
            if head is None:
                continue
            heads[index] = head
            self.paid = head.cost > queue.deficit
            if self.paid:
                queue.deficit += queue.quantum
            if head.cost <= queue.deficit:
                return self._take_reference(head)
        if not heads:
            return None
        rounds = min(-((self.classes[i].deficit - head.cost) // self.classes[i].quantum) for i, head in heads.items())
        for index in heads:
            self.classes[index].deficit += self.classes[index].quantum * rounds
        return self._take_reference(next(h for i, h in heads.items() if h.cost <= self.classes[i].deficit))

    def _take_reference(self, head: Entry) -> Entry:
        queue = self.classes[head.class_index]
        self.cursor = (head.class_index + 1) % len(self.classes)
        queue.deficit -= head.cost
        queue.serve(head)
        self.remove(head)
        self.carry = head.class_index if queue.deficit > 0 else None
        return head
