"""Sequencer: messages of one publisher in their order, each once; gaps, replays, restarts. Pure: no clock, no socket.

PUB/SUB loses messages, and a reader that comes late has missed the first. Each message has a number, counted from 0 at
the publisher's start, and a publisher answers for a while with what it has sent. So: what is next is delivered, what
comes after a gap is held, and a replay is asked for. It is asked *from the last one delivered*, not from behind it: if
the answer begins with the same bytes, the publisher is the one that we know; if not, or if there is no answer to a
number that it must have, it has been started anew, and everything before is forgotten. So a restart is seen even where
the new publisher has already come beyond the old one's numbers. No wall clock is compared.

    start()  -> ask from 0         live(), answer(), end(), fail(), verify() -> what to do now, in order

One replay is under way at a time (`asked`). What it does not bring is Lost, and the next message that is there is
delivered. A number that we have seen with other bytes is a restart too. One that is too old to remember proves nothing:
the publisher is asked. Who cannot ask takes it for a restart, unless it was Lost just now.

Bounds: HELD_MAX messages and HELD_BYTES_MAX bytes are held, what is beyond is dropped and asked for again; the digests
of the last DIGESTS_MAX messages and the last LOST_MAX gaps are remembered.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, TypeAlias

from xxhash import xxh3_64_intdigest

HELD_MAX = 4096
HELD_BYTES_MAX = 64 * 2**20
DIGESTS_MAX = 1024
LOST_MAX = 16


class Deliver(NamedTuple):
    """The next message."""

    sequence: int
    payload: bytes


class Reset(NamedTuple):
    """Forget what was delivered before: the publisher has been started anew, or begins its tale again."""


class Lost(NamedTuple):
    """These messages never came: first..last."""

    first: int
    last: int


class Broken(NamedTuple):
    """The link was down, and nobody can be asked what was missed."""


class Ask(NamedTuple):
    """Ask the publisher for everything from `start` on."""

    start: int


Step: TypeAlias = Deliver | Reset | Lost | Broken | Ask


class Sequencer:
    """One publisher's messages. can_ask: whether it answers replays. last: number of the last delivered, or None.

    asked: from where the replay that is under way begins, or None. stale: messages that were of no use.
    """

    def __init__(self, can_ask: bool, held_max: int = HELD_MAX) -> None:
        self.can_ask, self._held_max = can_ask, held_max
        self.last: int | None = None
        self.asked: int | None = None
        self.stale = self.dropped = self.restarts = 0
        self._held: dict[int, bytes] = {}
        self._held_bytes = 0
        self._digests: dict[int, int] = {}
        self._lost: deque[Lost] = deque(maxlen=LOST_MAX)
        self._answers = 0         # of the replay under way
        self._highest = -1        # number among them
        self._was = -1            # `last` when it was asked
        self._is_doubted = False  # it was asked because of a message that only a restart explains, or a late repetition
        self._is_broken = False   # it was asked because the link was down
        self._keeps = False       # it has been seen to send something again
        self._stood: tuple[int | None, int] | None = None  # last, and highest held, when the rest was last asked for
        self._empty = 0           # answers with nothing in them, although something was delivered
        self._steps: list[Step] = []

    def start(self) -> list[Step]:
        """The first thing to do, and again whenever what is known is not enough: hear the whole tale."""
        self._ask(0)
        return self._take()

    def verify(self, was_down: bool = False) -> list[Step]:
        """Some time has passed, or the link was down: is the publisher still the same, and was that all?"""
        if was_down:  # what is held, and an answer that is under way, may be those of an earlier publisher
            self.asked = None
            self._drop_held()
            self._is_broken = self.can_ask
        if self.can_ask:
            self._ask(self.last or 0)
        elif was_down and self.last is not None:
            self._steps.append(Broken())
        return self._take()

    def live(self, sequence: int, payload: bytes) -> list[Step]:
        """A message has come by itself."""
        if sequence == self._next and self.asked is None:
            self._deliver(sequence, payload)
            self._go_on()
        elif sequence >= self._next:
            if self._held.get(sequence, payload) != payload:  # whoever said what is held says it no more
                self._drop_held()
                self._restart()
            self._hold(sequence, payload)
            if self.asked is None:
                self._bridge()
        else:
            self._doubt(sequence, payload)
        return self._take()

    def answer(self, sequence: int, payload: bytes) -> list[Step]:
        """One answer of the replay under way."""
        if self.asked is None or sequence < self.asked:
            self.stale += 1
            return []
        self._answers += 1
        self._highest = max(self._highest, sequence)
        if self._answers == 1:
            self._begin(sequence, payload)
        if self.asked is None or sequence < self._next:
            return self._take()
        if sequence > self._next:
            self._hold(sequence, payload)
        else:
            self._deliver(sequence, payload)
        return self._take()

    def end(self) -> list[Step]:
        """The replay under way is complete."""
        if self.asked is None:
            return []
        self.asked = None
        if self._answers:
            self._keeps = True
            if self.last is not None and self._highest < self.last:
                self._restart()  # it has not said so much yet
            else:
                self._settle()
        elif self.last is not None and (self._keeps or self._is_doubted):
            self._restart()  # it would have had its own last message
        elif self._held:
            self._ask_no_more()  # it has sent these, so it keeps nothing
        elif self.last is not None:
            self._empty += 1
            if self._empty < 2:
                self._restart()
            else:
                self._ask_no_more()  # twice, and never anything else
        self._is_doubted = self._is_broken = False
        return self._take()

    def again(self) -> list[Step]:
        """The replay under way has broken off: ask for the rest."""
        if self.asked is not None:
            start = self.asked if not self._answers else self.last or 0
            self.asked = None
            self._ask(start)
        return self._take()

    def fail(self) -> list[Step]:
        """The replay under way gets no answer, or none any more."""
        if self.asked is not None:
            self.asked = None
            if self._is_doubted:
                self.restarts += 1
                self._forget()
                self._steps.append(Reset())
            elif self._is_broken and self.last is not None:
                self._steps.append(Broken())
            self._is_doubted = self._is_broken = False
            self._settle(may_ask=False)
        return self._take()

    @property
    def _next(self) -> int:
        return 0 if self.last is None else self.last + 1

    def _ask(self, start: int) -> None:
        if self.asked is None and self.can_ask:
            self.asked, self._answers, self._highest = start, 0, -1
            self._was = -1 if self.last is None else self.last
            self._steps.append(Ask(start))

    def _begin(self, sequence: int, payload: bytes) -> None:
        """The first answer says who is speaking, and from where on."""
        known = self._digests.get(sequence)
        is_other = self._is_doubted if known is None else known != xxh3_64_intdigest(payload)
        if sequence == 0 == self.asked:
            self.restarts += is_other
            self._forget()
            self._steps.append(Reset())
        elif is_other:
            self._restart()
            return
        elif known is None and self._is_broken and self.last is not None:
            self._steps.append(Broken())
        self._is_doubted = self._is_broken = False
        if sequence > self._next:
            self._lose(sequence - 1)

    def _restart(self) -> None:
        """Another publisher: forget the one before, and hear this one from its beginning."""
        self.restarts += 1
        self.asked, self._is_doubted = None, False
        self._forget()
        self._steps.append(Reset())
        self._ask(0)

    def _ask_no_more(self) -> None:
        """It keeps nothing: there may be holes that nobody has seen, if the link was down."""
        self.can_ask = False
        if self.last is not None and (self._is_broken or not self._held):
            self._steps.append(Broken())
        self._settle()

    def _forget(self) -> None:
        self.last, self._was = None, -1
        self._digests.clear()
        self._lost.clear()

    def _doubt(self, sequence: int, payload: bytes) -> None:
        """A number from before the next one: a repetition, one that came late, or a publisher started anew."""
        known = self._digests.get(sequence)
        self.stale += 1
        if known is not None:
            if known != xxh3_64_intdigest(payload):
                self._restart()
                if not self.can_ask:
                    self._hold(sequence, payload)
                    self._settle()
            return
        if any(first <= sequence <= last for first, last in self._lost):
            return
        if self.can_ask:
            self._is_doubted = True
            self._ask(self.last or 0)
        else:
            self._restart()
            self._hold(sequence, payload)
            self._settle()

    def _deliver(self, sequence: int, payload: bytes) -> None:
        self.last = sequence
        self._digests[sequence] = xxh3_64_intdigest(payload)
        if len(self._digests) > DIGESTS_MAX:
            del self._digests[next(iter(self._digests))]
        self._steps.append(Deliver(sequence, payload))

    def _hold(self, sequence: int, payload: bytes) -> None:
        if sequence in self._held:
            return
        if len(self._held) >= self._held_max or self._held_bytes + len(payload) > HELD_BYTES_MAX:
            self.dropped += 1
            return
        self._held[sequence] = payload
        self._held_bytes += len(payload)

    def _unhold(self, sequence: int) -> bytes | None:
        payload = self._held.pop(sequence, None)
        if payload is not None:
            self._held_bytes -= len(payload)
        return payload

    def _drop_held(self) -> None:
        self._held.clear()
        self._held_bytes = 0

    def _go_on(self) -> None:
        """Deliver what is held and is next now; let go of what has come otherwise meanwhile."""
        while (payload := self._unhold(self._next)) is not None:
            self._deliver(self._next, payload)
        for sequence in [item for item in self._held if item < self._next]:
            self._unhold(sequence)

    def _bridge(self) -> None:
        """There is a gap before what is held."""
        if self.can_ask:
            self._ask(self.last or 0)
        else:
            self._settle()

    def _settle(self, may_ask: bool = True) -> None:
        """Nothing more is under way. Ask on while that brings something, give up what it does not bring."""
        self._go_on()
        while self._held:
            came = (-1 if self.last is None else self.last) > self._was
            stand = self.last, max(self._held)
            if may_ask and self.can_ask and came and stand != self._stood:
                self._stood = stand  # who asks once more and stands where he stood hears the same tale for ever
                self._ask(self.last or 0)
                return
            self._lose(min(self._held) - 1)
            self._go_on()

    def _lose(self, last: int) -> None:
        gap = Lost(self._next, last)
        self._lost.append(gap)
        self._steps.append(gap)
        self.last = last

    def _take(self) -> list[Step]:
        steps, self._steps = self._steps, []
        return steps
