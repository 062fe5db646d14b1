"""Tracker: what one publisher has said of one rank, as facts for the core, and how far it can be believed. Pure.

    for fact in tracker.live(sequence, payload): ...     # also answer, end, again, fail, start, verify
    start = tracker.take_ask()                            # None, or: ask the publisher for everything from here on

Each call takes in one thing and returns at once what the core is to be told, in order. Whoever turns it sends what is
asked for, one replay at a time: when `take_ask` gives a number, an answer that is still being read is no use any more.
"""

from __future__ import annotations

from typing import assert_never

from .decoder import decode
from .mirror import BLOCKS_MAX, Mirror
from .names import BlockNames
from .sequence import HELD_MAX, Ask, Broken, Deliver, Lost, Reset, Sequencer, Step
from .values import Change, Fact, InvalidKvEvent, Trust


class Tracker:
    """One publisher of one rank.

    can_ask: whether it answers replays. blocks_max: blocks that are kept of it. trust: how far it can be believed;
    reason: why not further, or None. lost, invalid: messages that never came, and that were none.
    """

    def __init__(
        self, names: BlockNames, can_ask: bool, blocks_max: int = BLOCKS_MAX, held_max: int = HELD_MAX,
    ) -> None:
        self.mirror = Mirror(names, blocks_max)
        self.sequence = Sequencer(can_ask, held_max)
        self.trust = Trust.APPROX
        self.reason: str | None = "nothing was heard"
        self.delivered = self.lost = self.invalid = 0
        self._ask: int | None = None
        self._is_heard = False

    def start(self) -> list[Fact]:
        """The link is up for the first time, or another beginning is wanted."""
        return self._follow(self.sequence.start())

    def verify(self, was_down: bool = False) -> list[Fact]:
        """All has been quiet, or the link was down: see whether something was missed. Mends what can be mended."""
        if self.trust is Trust.DEGRADED:
            return self._follow(self.sequence.start())
        return self._follow(self.sequence.verify(was_down))

    def live(self, sequence: int, payload: bytes) -> list[Fact]:
        """A message has come by itself."""
        return self._follow(self.sequence.live(sequence, payload))

    def answer(self, sequence: int, payload: bytes) -> list[Fact]:
        """A message of the replay that was asked for."""
        return self._follow(self.sequence.answer(sequence, payload))

    def end(self) -> list[Fact]:
        """The replay is complete."""
        return self._follow(self.sequence.end())

    def again(self) -> list[Fact]:
        """The replay has broken off, and another try is worth it."""
        return self._follow(self.sequence.again())

    def fail(self) -> list[Fact]:
        """The replay has broken off for good."""
        return self._follow(self.sequence.fail())

    def take_ask(self) -> int | None:
        """From where a replay is to be asked for, now; None: nothing is to be asked."""
        start, self._ask = self._ask, None
        return start

    def _follow(self, steps: list[Step]) -> list[Fact]:
        facts: list[Fact] = []
        for step in steps:
            match step:
                case Deliver():
                    self._deliver(step, facts)
                case Reset():
                    facts += self.mirror.reset()
                case Lost():
                    self.lost += step.last - step.first + 1
                    self.mirror.spoil(f"messages {step.first}..{step.last} were lost")
                case Broken():
                    self.mirror.spoil("the link was down, and its publisher sends nothing again")
                case Ask():
                    self._ask = step.start
                case _:
                    assert_never(step)
        self._judge(facts)
        return facts

    def _deliver(self, message: Deliver, facts: list[Fact]) -> None:
        self.delivered += 1
        try:
            batch = decode(message.payload)
        except InvalidKvEvent as error:
            self.invalid += 1
            self.mirror.spoil(f"message {message.sequence}: {error}")
            return
        self._is_heard = True
        if self.mirror.misfit is None:
            facts += self.mirror.apply(batch.events)
            if self.mirror.misfit is not None:
                self.mirror.drop()
                facts.append(Fact(Change.CLEARED))

    def _judge(self, facts: list[Fact]) -> None:
        """Trust follows from what the mirror says of itself."""
        flaw = self.mirror.flaw
        if not self._is_heard or self.mirror.misfit is not None:
            self.trust = Trust.APPROX
            self.reason = flaw or "nothing was heard"
        else:
            self.trust = Trust.EXACT if flaw is None else Trust.DEGRADED
            self.reason = flaw
        facts += self.mirror.lower(self.trust is Trust.DEGRADED)
