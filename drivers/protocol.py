"""What live drivers share with their surroundings: clock, facts and tap, and what callers are told.

The contract of a driver. One owner calls `step_many`. It stamps `now_ns` when it *takes* a fact, so time never goes
back and the journal is a total order. After each step it hands (events, actions, core) to the tap, then carries out the
actions in their order. While idle it sleeps until `next_deadline_ns`, then steps TimerFired; a spurious one does no
harm. Effects never call the core: what comes of them is a new fact. Every request is answered once: by a lease, or by
an exception that names the reason. No policy: a driver compares no loads, counts no retries and reorders no actions.

Never here: queues, tasks, threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias

from kvcore.actions import AnyAction, Evict, EvictReason, Reject, RejectReason
from kvcore.errors import KvcoreError
from kvcore.events import AnyEvent, Event

P = ParamSpec("P")
#: Nanoseconds of a clock that never goes back, 0..2^62-1, any origin.
Clock: TypeAlias = Callable[[], int]
#: Makes a fact, given the time at which its owner takes it.
Make: TypeAlias = Callable[[int], AnyEvent]
#: Hears of each step before its actions are carried out: events, actions, core. JournalWriter.batch is one. It must
#: not step the core; one that raises ends its router. One tap serves one router at a time.
Tap: TypeAlias = Callable[[Sequence[AnyEvent], Sequence[AnyAction], Any], object]


class Reply(Protocol):
    """Where an answer goes; concurrent.futures.Future is one."""

    def set_result(self, result: Any, /) -> None:
        """The answer."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Why there is none."""


class Answer(Enum):
    """Whether a fact changes anything. True as a condition: APPLIED."""

    APPLIED = True
    NO_CHANGE = False

    def __bool__(self) -> bool:
        return self is Answer.APPLIED


class DriverError(KvcoreError):
    """Base of what live drivers raise."""


class Rejected(DriverError):
    """The request has ended without running, or without running to its end. reason and the rest: see Reject."""

    def __init__(self, action: Reject) -> None:
        super().__init__(f"request {action.request_id!r}: {action.reason.name}")
        self.action = action

    @property
    def request_id(self) -> str:
        """Which request."""
        return self.action.request_id

    @property
    def reason(self) -> RejectReason:
        """Why."""
        return self.action.reason

    @property
    def retry_after_ns(self) -> int | None:
        """When room is expected (QUEUE_FULL_* only), or None."""
        return self.action.retry_after_ns


class Evicted(DriverError):
    """The request's booking has been taken away while it ran: its worker is gone, or silent, or the drain is over."""

    def __init__(self, action: Evict) -> None:
        super().__init__(f"request {action.request_id!r} on worker {action.worker_id}: {action.reason.name}")
        self.action = action

    @property
    def request_id(self) -> str:
        """Which request."""
        return self.action.request_id

    @property
    def reason(self) -> EvictReason:
        """Why."""
        return self.action.reason


class Withdrawn(DriverError):
    """Somebody else has ended the request, by RequestCancelled."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {request_id!r} has been withdrawn")
        self.request_id = request_id


class Closed(DriverError, RuntimeError):
    """The router takes nothing more. Where it has failed, __cause__ says how."""


class Misuse(DriverError, RuntimeError):
    """A call that the interface does not allow: on a lease that is over, from another thread, with a tap in use."""


def maker(kind: Callable[Concatenate[int, P], AnyEvent], *args: P.args, **kwargs: P.kwargs) -> Make:
    """Makes a fact of this kind with these fields, all but its time. Raises Misuse for one that is made already."""
    if isinstance(kind, Event):
        name = type(kind).__name__
        raise Misuse(f"facts are stamped here: submit({name}, ...), not submit({name}(now_ns, ...))")
    return lambda now_ns: kind(now_ns, *args, **kwargs)


#: Who has which tap, by the identity of what the tap belongs to. Its owner keeps it alive.
_CLAIMED: dict[int, object] = {}


def claim(tap: Tap | None, owner: object) -> None:
    """Take a tap. Raises Misuse while another owner has it, or another method of the same object."""
    if tap is not None and _CLAIMED.setdefault(_key(tap), owner) is not owner:
        raise Misuse("this tap belongs to another router: two runs in one journal cannot be told apart")


def disclaim(tap: Tap | None, owner: object) -> None:
    """Give a tap back; one that somebody else has stays with them."""
    if tap is not None and _CLAIMED.get(_key(tap)) is owner:
        del _CLAIMED[_key(tap)]


def _key(tap: Tap) -> int:
    return id(getattr(tap, "__self__", tap))
