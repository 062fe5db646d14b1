"""Link: the sockets of one publisher, and the tasks that read them. What is read goes to the rank that it is about.

A publisher has a PUB socket, which may lose messages, and perhaps a ROUTER that sends again what it still has. A replay
has a socket of its own, so that what is late of one is never taken for the next. One that goes silent is tried again
from where it broke off, `Patience.tries` times in all, and given up then; what was lost by that is asked for once more
when everything is looked at again, every `check_s`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import trio
import zmq

from . import frames as wire
from .decoder import rank_of
from .rank import RankFeed
from .sockets import Context, Socket, attach, monitor, question, receive, subscription
from .values import Trust

log = logging.getLogger("kvcore.drivers")

#: Messages of one replay; whoever sends more is not believed to end.
REPLAY_MAX = 2**20
#: Checks in vain are repeated at growing intervals, up to so many times check_s.
CHECKS_APART_MAX = 64


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds. silence_s: for the next answer of a replay. tries: of one replay, >= 1.

    check_s: between looks at whether all was heard. again_s: before what failed is tried again.
    """

    silence_s: float = 5.0
    tries: int = 3
    check_s: float = 30.0
    again_s: float = 1.0


class Link:
    """One publisher. default: the rank that is meant where a message names none of `ranks`. bind: it connects to us."""

    def __init__(
        self, context: Context, endpoint: str, replay: str | None, topic: bytes, bind: bool,
        default: RankFeed, ranks: Mapping[int, RankFeed], patience: Patience,
    ) -> None:
        self._context, self._patience = context, patience
        self._endpoint, self._replay, self._topic, self._bind = endpoint, replay, topic, bind
        self._default, self._ranks = default, ranks
        self._mine = {default: 0}                # ranks heard here, and failed tries of the replay under way
        self._asks: dict[RankFeed, int] = {}     # replays that are wanted
        self._asked = trio.Event()
        self._trouble = ""
        default.on_ask = partial(self._want, default)

    async def run(self) -> None:
        """Read until the core takes nothing more: raises Closed, in a group."""
        with (
            subscription(self._context, self._endpoint, self._topic) as socket,
            monitor(socket) as events,
        ):
            while not self._attach(socket):
                await trio.sleep(self._patience.again_s)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch, events)
                    nursery.start_soon(self._check)
                    nursery.start_soon(self._serve_asks)
                    await self._read(socket)
            finally:
                socket.disable_monitor()

    def _attach(self, socket: Socket) -> bool:
        try:
            attach(socket, self._endpoint, self._bind)
        except zmq.ZMQError as error:
            self._complain(self._endpoint, error)
            return False
        return True

    def _complain(self, where: str, error: zmq.ZMQError) -> None:
        """Once for each kind of trouble."""
        if str(error) != self._trouble:
            self._trouble = str(error)
            log.error("KV events of worker %d: %s: %s", self._default.rank.worker_id, where, error)

    async def _read(self, socket: Socket) -> None:
        while True:
            message = wire.live(await receive(socket))
            if message is not None:
                state = self._about(message)
                await state.tell(partial(state.tracker.live, *message))

    def _about(self, message: wire.Message) -> RankFeed:
        """The rank that a message is about; from now on it asks here."""
        named = rank_of(message.payload) if len(self._ranks) > 1 else None
        state = self._default if named is None else self._ranks.get(named, self._default)
        if state not in self._mine:
            self._mine[state] = 0
            state.on_ask = partial(self._want, state)
        return state

    def _want(self, state: RankFeed, start: int) -> None:
        self._asks[state] = start
        self._asked.set()

    async def _watch(self, events: Socket) -> None:
        """Each time that a connection comes up, something may have been missed before."""
        while True:
            await receive(events)
            await self._verify(was_down=True)

    async def _check(self) -> None:
        """Look again now and then: the last message may be the one that was lost. Rarer where it does not help."""
        apart = 1
        while True:
            await trio.sleep(self._patience.check_s * apart)
            was = self._default.tracker.trust
            apart = min(2 * apart, CHECKS_APART_MAX) if was is Trust.DEGRADED else 1
            await self._verify()

    async def _verify(self, was_down: bool = False) -> None:
        for state in tuple(self._mine):
            await state.tell(partial(state.tracker.verify, was_down))

    async def _serve_asks(self) -> None:
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            while self._asks:
                state = next(iter(self._asks))
                await self._ask(state, self._asks.pop(state))

    async def _ask(self, state: RankFeed, start: int) -> None:
        """One replay: to its end, or until another is wanted instead, or until it breaks off."""
        if self._replay is not None:
            try:
                with question(self._context, self._replay, wire.ask(start)) as socket:
                    if await self._hear(state, socket):
                        self._mine[state] = 0
                        return
            except zmq.ZMQError as error:
                self._complain(self._replay, error)
        self._mine[state] += 1
        if self._mine[state] < self._patience.tries:
            await trio.sleep(self._patience.again_s)
            await state.tell(state.tracker.again)
        else:
            self._mine[state] = 0
            await state.tell(state.tracker.fail)

    async def _hear(self, state: RankFeed, socket: Socket) -> bool:
        """False: it has broken off."""
        for _ in range(REPLAY_MAX):
            with trio.move_on_after(self._patience.silence_s) as silence:
                frames = await receive(socket)
            if silence.cancelled_caught:
                return False
            item = wire.answer(frames)
            if isinstance(item, wire.Message):
                await state.tell(partial(state.tracker.answer, *item))
            elif item is not None:
                await state.tell(state.tracker.end)
                return True
            if state in self._asks:
                return True
        return False
