"""Every sequence of a few letters on a very small scheduler: core and oracle agree step by step.

One worker that is busy with any prefill, two classes. A letter that finds nothing to act on ends its sequence: without
it the sequence is a shorter one, and that is the beginning of another. Each sequence runs from an idle worker and from
one that is busy, so that its depth is six.
"""

from __future__ import annotations

from itertools import product

import pytest
from lockstep import load_rows
from oracle import Oracle
from recording import as_code

from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import (
    AnyEvent,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    WorkerUpserted,
)
from kvcore.policy import Arbitration, CacheBucket, PolicyClass, PolicyProfile
from kvcore.request import Request, WorkerConfig
from kvcore.scheduler import Scheduler

LENGTH = 5
CHEAP, DEAR = 2, 3
LETTERS = ("cheap to A", "dear to B", "finish the oldest running", "cancel the oldest waiting",
           "complete the oldest prefill")
CONFIGS = [(Arbitration.EXACT, a, b) for a, b in product((1, 2, 3), repeat=2)]
CONFIGS += [(Arbitration.REFERENCE, a, b) for a, b in ((1, 1), (3, 1), (1, 3), (2, 3))]


def event_of(letter: str, oracle: Oracle) -> AnyEvent | None:
    """The event that a letter means now; None if there is nothing for it to act on."""
    now_ns = oracle.now_ns + 1
    if letter == "cheap to A":
        return RequestArrived(now_ns, Request(f"r{now_ns}", CHEAP, "A"))
    if letter == "dear to B":
        return RequestArrived(now_ns, Request(f"r{now_ns}", DEAR, "B"))
    state = "waiting" if letter == "cancel the oldest waiting" else "running"
    live = [x for x in oracle.live.values() if x.state == state]
    if letter == "complete the oldest prefill":
        live = [x for x in live if not x.booking.prefill_done]
    if not live:
        return None
    oldest = min(live, key=lambda x: x.seq)
    if state == "waiting":
        return RequestCancelled(now_ns, oldest.request.request_id)
    kind = RequestFinished if letter == "finish the oldest running" else PrefillCompleted
    return kind(now_ns, oldest.request.request_id, oldest.attempt)


def config(arbitration: Arbitration, a: int, b: int) -> SchedulerConfig:
    classes = tuple(PolicyClass(name, quantum, policy_family=name, cache_bucket="all", prefill_busy_threshold=0)
                    for name, quantum in (("A", a), ("B", b)))
    profile = PolicyProfile(classes, (CacheBucket("all", 0),), "A", arbitration)
    return SchedulerConfig(16, profile, index=IndexMode.OFF)


def play(made: SchedulerConfig, letters: tuple[str, ...]) -> int:
    """Steps of this sequence that were compared."""
    core, oracle, events = Scheduler(made), Oracle(made), [WorkerUpserted(0, WorkerConfig(1))]
    core.step(events[0])
    oracle.step(events[0])
    for letter in letters:
        event = event_of(letter, oracle)
        if event is None:
            break
        events.append(event)
        told, wanted = core.step(event), oracle.step(event)
        if told != wanted:
            raise AssertionError(f"core {told}, oracle {wanted} after\n{as_code(made, [(e,) for e in events])}")
    assert load_rows(core) == oracle.loads()
    deficits = [item.deficit_tokens for item in core.stats().classes]
    assert deficits == [queue.deficit for queue in oracle.queue.classes], as_code(made, [(e,) for e in events])
    return len(events) - 1


@pytest.mark.parametrize(("arbitration", "a", "b"), CONFIGS)
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_every_sequence(arbitration, a, b, busy):
    made = config(arbitration, a, b)
    start = LETTERS[:1] if busy else ()
    steps = sum(play(made, start + letters) for letters in product(LETTERS, repeat=LENGTH))
    assert steps > 3_000
