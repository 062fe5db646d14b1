"""The engine of a mock worker in real time: the task that lets iterations pass, and the streams of tokens out of it.

An iteration ends at its time by the model, not when this task happens to wake, so a busy machine delays tokens but does
not make the engine slower; only when it is late by more than LATE_S is the lost time let go. trio sleeps in whole
milliseconds, rounded up; here they are rounded to the nearest, so that fast engines stay fast.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from ..replay.presets import EngineSpec
from .model import EngineModel, Seq, Step

#: How far tokens may lag behind the model before its clock is set anew.
LATE_S = 0.5
#: Half of the shortest sleep there is: what is nearer than this is now.
EARLY_S = 0.0005


class Tokens:
    """What one request gets. Made by `Engine.generate`.

    count: tokens made so far. cached: prompt tokens that were hit, once it has been admitted. ended: the last is out.
    """

    __slots__ = ("_news", "_parts", "count", "ended", "seq")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._news: trio.Event | None = None
        self.count = 0
        self.ended = False
        self.seq: Seq | None = None

    @property
    def cached(self) -> int:
        """See above; 0 before the admission."""
        return 0 if self.seq is None else max(0, self.seq.cached)

    async def next(self) -> list[bytes]:
        """The tokens since the last call, at least one. A slow reader gets several at once, as from vLLM."""
        if not self._parts:
            self._news = trio.Event()
            await self._news.wait()
        parts, self._parts = self._parts, []
        return parts

    async def rest(self) -> bytes:
        """All of them, when the last is out."""
        parts: list[bytes] = []
        while not self.ended or self._parts:
            parts += await self.next()
        return b"".join(parts)

    def put(self, part: bytes) -> None:
        """A token is out."""
        self._parts.append(part)
        self.count += 1
        if self._news is not None:
            self._news.set()
            self._news = None


class Engine:
    """One engine. speed: how many times faster than its preset it runs. publish: hears of each step.

    outcomes: how requests have ended, by vLLM's finished_reason.
    """

    def __init__(
        self, spec: EngineSpec, *, speed: float = 1.0, publish: Callable[[Step], object] | None = None,
    ) -> None:
        self.model = EngineModel(spec)
        self.outcomes: Counter[str] = Counter()
        self._seconds = 1e-12 / speed
        self._publish = publish
        self._news = trio.Event()

    @contextmanager
    def generate(self, prompt: array[int], output_tokens: int, salt: str | None = None) -> Iterator[Tokens]:
        """Tokens of an answer. Leaving the block before the last one is out aborts: the slot is free at once.

        Raises: NeverFits.
        """
        tokens = Tokens()
        tokens.seq = self.model.submit(tokens, prompt, output_tokens, salt)
        self._news.set()
        try:
            yield tokens
        finally:
            if not tokens.ended:
                self.model.cancel(tokens.seq)
                self.outcomes["abort"] += 1

    async def run(self) -> None:
        """Let iterations pass, for ever."""
        start_s = trio.current_time()
        while True:
            if not self.model.has_work:
                self._news = trio.Event()
                await self._news.wait()
                start_s = trio.current_time()
            end_s = start_s + self.model.begin() * self._seconds
            await trio.sleep_until(end_s - EARLY_S)
            self._deliver(self.model.end())
            now_s = trio.current_time()
            start_s = end_s if now_s < end_s + LATE_S else now_s

    def _deliver(self, step: Step) -> None:
        if self._publish is not None:
            self._publish(step)
        for seq in step.ended:
            seq.key.ended = True
        for seq, text in step.tokens:
            seq.key.put(text)
