"""Round robin told as bytes: the same pushes, cancels, blockades and pops on the core's queue and on the oracle's.

Four bytes are a letter. Requests of a lane come in groups; a group is blocked and freed as a whole, as if its ranks
were full. Who frees a group has the lanes judged again whose verdict is about it, as the scheduler does, and no others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

from oracle_queue import Entry, PolicyQueue
from probe_build import load
from stories import profile

from kvcore.policy import Arbitration, PolicyProfile

Queue = load("_probe_queue").Queue

QUANTA = (1, 2, 3, 5, 10, 30)
COSTS = (1, 2, 3, 4, 5, 8, 10, 12, 40, 1, 1, 2, 3)
BOUNDS = (None, None, None, 0, 4, 15)
LANES = (None, None, 1, 2)
GROUPS = 2
KINDS = ("push",) * 5 + ("pop",) * 6 + ("cancel", "cancel_head") + ("toggle",) * 3
#: Bytes before the letters: number of classes, then quantum and bound of each.
HEAD = 9


def made(head: bytes, arbitration: Arbitration, bounded: bool) -> PolicyProfile:
    """Two to four classes."""
    count = 2 + head[0] % 3
    plain = profile(*[QUANTA[byte % len(QUANTA)] for byte in head[1 : 1 + count]], arbitration=arbitration)
    bounds = [BOUNDS[byte % len(BOUNDS)] if bounded else None for byte in head[5 : 5 + count]]
    classes = [replace(item, max_overtake_tokens=bound) for item, bound in zip(plain.classes, bounds, strict=True)]
    return replace(plain, classes=tuple(classes))


class Ring:
    """Both queues and what happened to them. served: what each pop gave."""

    def __init__(self, made: PolicyProfile) -> None:
        classes = made.classes
        self.core = Queue(made)
        self.oracle = PolicyQueue([item.quantum for item in classes], made.arbitration,
                                  [item.max_overtake_tokens for item in classes])
        self.entries: list[Entry] = []
        self.groups: list[int] = []
        self.full: set[tuple] = set()
        self.served: list[int | None] = []
        #: Failed tests of the core, and what may have made a verdict worth asking for, by (class, lane).
        self.failed: Counter = Counter()
        self.changes: Counter = Counter()

    def play(self, letters: bytes) -> None:
        """Letter by letter, then everybody is free and all are served."""
        for i in range(0, len(letters) - 3, 4):
            getattr(self, KINDS[letters[i] % len(KINDS)])(*letters[i + 1 : i + 4])
            self.compare()
        for place in sorted(self.full, key=str):
            self.free(place)
        while any(queue.entries for queue in self.oracle.classes):
            self.pop()
            self.compare()

    def push(self, where: int, rank: int, what: int) -> None:
        """Half of the requests are urgent, and may be cheaper than those they go before."""
        class_index, lane = where % len(self.oracle.classes), LANES[where // 4 % len(LANES)]
        seq, tier, time = len(self.entries), (2, 2, 1, 0)[rank % 4], rank // 4 % 4
        entry = Entry((tier, time, seq), COSTS[what % len(COSTS)], lane, seq)
        self.entries.append(entry)
        self.groups.append(what // 16 % GROUPS)
        self.oracle.push(class_index, entry)
        self.core.push(seq, class_index, (tier, time, 0, seq), lane, cost=entry.cost)
        self.changes[class_index, lane] += self.oracle.classes[class_index].head(lane) is entry

    def pop(self, *_) -> None:
        item = self.core.pop(self.asked)
        entry = self.oracle.pop(lambda entry: self.place(entry) not in self.full)
        assert item == (entry and entry.payload)
        self.served.append(item)
        if entry is not None:
            self.changes[self.place(entry)[:2]] += 1

    def cancel(self, where: int, rank: int, what: int) -> None:
        waiting = [entry for queue in self.oracle.classes for entry in queue.entries]
        if waiting:
            self.remove(waiting[(where + 256 * rank) % len(waiting)])

    def cancel_head(self, where: int, *_) -> None:
        heads = sorted(self.heads(), key=lambda entry: entry.payload)
        if heads:
            self.remove(heads[where % len(heads)])

    def remove(self, entry: Entry) -> None:
        self.core.remove(entry.payload)
        queue = self.oracle.classes[entry.class_index]
        self.changes[self.place(entry)[:2]] += entry is queue.head(entry.lane)
        self.oracle.remove(entry)

    def toggle(self, where: int, rank: int, what: int) -> None:
        place = (where % len(self.oracle.classes), LANES[where // 4 % len(LANES)], what % GROUPS)
        if place in self.full:
            self.free(place)
        else:
            self.full.add(place)

    def free(self, place: tuple) -> None:
        class_index, lane, _ = place
        self.full.remove(place)
        lanes = self.core.lanes(class_index)
        judged = lanes.blocked().get(lane)
        if judged is not None and self.place(self.entries[judged]) == place:
            self.changes[class_index, lane] += 1
            if lane is None:
                lanes.recheck_shared()
            else:
                lanes.recheck_lane(lane)

    def heads(self) -> list[Entry]:
        return [queue.head(lane) for queue in self.oracle.classes for lane in {e.lane for e in queue.entries}]

    def place(self, entry: Entry) -> tuple:
        return entry.class_index, entry.lane, self.groups[entry.payload]

    def asked(self, class_index: int, item: int) -> bool:
        """The dispatch test of the core. Who stands in for a head may fail as often as he is asked."""
        entry = self.entries[item]
        passes = self.place(entry) not in self.full
        is_head = self.oracle.classes[class_index].head(entry.lane) is entry
        self.failed[class_index, entry.lane] += is_head and not passes
        return passes

    def compare(self) -> None:
        """Credit and place in the ring are the same, and nobody has been asked in vain twice."""
        assert self.core.deficits() == [queue.deficit for queue in self.oracle.classes]
        assert (self.core.cursor, self.core.visit or "none") == self.oracle.place
        assert not self.failed - self.changes


def poll_everything(core, classes: int) -> None:
    """Polls that find nobody: nothing may come of it. What they have asked is asked again."""
    before = core.deficits(), core.cursor, core.visit, core.size
    assert core.pop(lambda class_index, item: False) is None
    assert (core.deficits(), core.cursor, core.visit, core.size) == before
    for class_index in range(classes):
        core.lanes(class_index).recheck_all()


class PolledRing(Ring):
    """A ring whose core is polled at random moments while nobody may run."""

    def __init__(self, made: PolicyProfile, moments: bytes) -> None:
        super().__init__(made)
        self.moments = iter(moments)

    def compare(self) -> None:
        for _ in range(next(self.moments, 0) % 4):
            poll_everything(self.core, len(self.oracle.classes))
            self.changes.update(dict.fromkeys(product(range(len(self.oracle.classes)), {*LANES}), 1))
        super().compare()
