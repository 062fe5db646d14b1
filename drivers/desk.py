"""What callers ask of an owner: facts from outside, hints, barriers, drains. Jobs out of its inbox, most of them.

Whatever is wrong with what a caller gives is his mistake alone: it is found before anything is stepped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcore.actions import Ignored
from kvcore.events import (
    AnyEvent,
    ContextAdvanced,
    DispatchAccepted,
    DispatchFailed,
    Drained,
    Event,
    OutputBlockAdded,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.policy import Capacity
from kvcore.request import Rank

from .lease import NS_MAX
from .owner import LATER, Owner
from .protocol import Answer, Make, Misuse, Reply
from .told import Barrier, Hints

#: Facts about requests that only a lease may tell, because it must know of them.
LEASES_ONLY = (
    RequestArrived, DispatchAccepted, DispatchFailed, PrefillCompleted, OutputBlockAdded, ContextAdvanced,
    RequestFinished,
)


class Desk(Owner):
    """An owner, and what its callers can ask for."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.hints = Hints()

    def submit(self, makes: Sequence[Make]) -> Answer:
        """Facts from outside, one step. NO_CHANGE: the core has ignored one about a request.

        Raises InvalidEvent; Misuse for what only leases may tell, and for another time than the one that is given.
        """
        now_ns = self.now_ns()
        events = tuple(make(now_ns) for make in makes)
        for event in events:
            if isinstance(event, LEASES_ONLY):
                raise Misuse(f"{type(event).__name__} is told by leases only")
            if not isinstance(event, Event) or event.now_ns != now_ns:
                raise Misuse(f"a fact must bear the time that it is given: {now_ns}, not {event!r}")
        actions = self.step(events)
        ignored = {action.request_id for action in actions if isinstance(action, Ignored)}
        for event in events:
            self._follow(event, ignored)
        self.apply(actions)
        return Answer.NO_CHANGE if ignored else Answer.APPLIED

    def _follow(self, event: AnyEvent, ignored: set[str]) -> None:
        """What the owner must know itself of facts from outside."""
        match event:
            case WorkerUpserted():
                worker_id = event.config.worker_id
                self.incarnations[worker_id] = max(self.incarnations.get(worker_id, 0), event.incarnation)
            case WorkerRemoved():
                self.incarnations.pop(event.worker_id, None)
            case RequestCancelled():
                lease = self.live.get(event.request_id)
                if lease is not None and event.request_id not in ignored:
                    lease.withdraw()
            case _:
                pass

    def hint(self, ranks: Sequence[Rank] | None) -> None:
        """Somebody has seen room on these ranks; None: anywhere. Raises ValueError for what is no Rank."""
        if ranks is not None and not all(isinstance(rank, Rank) for rank in ranks):
            raise ValueError(f"ranks must be Ranks, not {ranks!r}")
        self.hints.add(ranks)
        self.told.tell(self.hints)

    def recheck(self, reply: Reply) -> None:
        """True once a full recheck and all that was told before it have been stepped; False: nothing ever queues."""
        if self.queues:
            self.told.tell(Barrier(reply))
        else:
            reply.set_result(False)

    def drain(self, grace_ns: int, reply: Reply) -> object:
        """Let nothing more in; the answer comes when no booking is left, at the latest when the grace is over."""
        self.submit([lambda now_ns: Drained(now_ns, min(now_ns + grace_ns, NS_MAX))])
        if not self.live.booked:
            return None
        self.idlers.append(reply)
        return LATER

    @property
    def queues(self) -> bool:
        """Whether some class waits for capacity: without, no recheck can change anything."""
        profile = self.core.profile
        return profile.capacity is Capacity.STRICT or any(
            item.prefill_busy_threshold is not None or item.prefill_busy_threshold_frac is not None
            for item in profile.classes)
