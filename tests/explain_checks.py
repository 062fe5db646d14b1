"""What holds of explanations after every step, whatever has happened: reading leaves no trace, and it is so."""

from __future__ import annotations

from collections import defaultdict

from stories import Story

from kvcore.events import CapacityHinted, WorkerStatusChanged
from kvcore.explanation import Explanation, QueueEntry, RankView
from kvcore.scheduler import Scheduler

ALL = 2**40
LINES_MAX = 64


def explained(story: Story, request_id: str) -> Explanation:
    """The explanation; looking leaves no trace."""
    before = story.core.digest()
    told = story.core.explain(request_id)
    assert story.core.digest() == before
    assert story.core.explain(request_id) == told
    return told


def view(worker_id: int, dp_rank: int = 0, **fields) -> RankView:
    plain = {"state": "open", "takes": False, "busy": False, "prefill_tokens": 0, "busy_above_tokens": None,
             "requests": 0, "max_requests": None, "held_blocks": 0, "total_kv_blocks": None, "needs_blocks": None}
    return RankView(worker_id=worker_id, dp_rank=dp_rank, **{**plain, **fields})


def status(now_ns: int, worker_id: int, **fields) -> WorkerStatusChanged:
    return WorkerStatusChanged(now_ns, worker_id, 0, "", **fields)


def check(core: Scheduler, names, now_ns: int) -> dict[str, Explanation]:
    """Explain these names and all that waits; compare, then hint that there may be room, which changes nothing."""
    before = core.digest()
    rows = core.queue_dump(ALL)
    waits = {row.request_id: row for row in rows}
    told = {name: core.explain(name) for name in dict.fromkeys([*names, *waits])}
    decisions = core.decisions()
    assert core.digest() == before
    check_dump(core, rows)
    for name, row in waits.items():
        check_wait(core, row, told[name])
    for name in told.keys() - waits.keys():
        check_run(told[name], decisions)
    for explanation in told.values():
        assert explanation.now_ns <= now_ns
        assert explanation.reasons
        check_prices(core, explanation)
    check_heads(told)
    assert core.step(CapacityHinted(now_ns, None)) == ()
    assert core.digest() == before
    return told


def check_dump(core: Scheduler, rows: tuple[QueueEntry, ...]) -> None:
    """In order of seq, all of them, and a shorter one is its beginning."""
    stats = core.stats()
    assert len(rows) == stats.waiting_requests + stats.refreshing_requests
    assert [row.seq for row in rows] == sorted({row.seq for row in rows})
    assert core.queue_dump(len(rows) // 2) == rows[: len(rows) // 2]


def check_wait(core: Scheduler, row: QueueEntry, told: Explanation) -> None:
    """The dump and the explanation agree, and each state has what belongs to it."""
    for name in ("request_id", "state", "class_name", "class_index", "lane", "key", "seq", "wait_ns", "cost_tokens"):
        assert getattr(row, name) == getattr(told, name), name
    assert told.wait_ns == told.now_ns - told.arrival_ns
    assert (told.position is None) == (told.state != "waiting")
    assert (told.deferred_by is None) == (told.state != "deferred")
    assert (told.ticket is None) == (told.state != "refreshing")
    assert told.rank is None
    assert len(told.ranks) == min(told.ranks_count, 64) or (told.ranks_count, told.ranks[0].state) == (0, "gone")
    for view in told.ranks:
        assert not (view.takes and (view.state != "open" or view.busy))
        assert view.busy_above_tokens is None or view.busy == (view.prefill_tokens > view.busy_above_tokens)


def check_run(told: Explanation, decisions) -> None:
    """Of a request that does not wait."""
    assert told.state in ("running", "evicted", "ended", "unknown")
    assert (told.rank is not None) == (told.state == "running")
    assert (told.state == "ended") <= (told.decision is not None)
    if told.decision is not None:
        assert told.decision in decisions
        assert told.decision.attempt == told.attempt
        assert told.rank in (None, told.decision.rank)


def check_prices(core: Scheduler, told: Explanation) -> None:
    if told.quantum is not None:
        assert told.deficit_tokens == core.stats().classes[told.class_index].deficit_tokens
        lacking = max(0, told.cost_tokens - told.deficit_tokens)
        assert told.rounds_to_go == -(-lacking // told.quantum)


def check_heads(told: dict[str, Explanation]) -> None:
    """Positions count out each lane by key. No rank takes a head, unless an older request has to go first."""
    lanes = defaultdict(list)
    for explanation in told.values():
        if explanation.state == "waiting":
            lanes[explanation.class_index, explanation.lane].append(explanation)
    for lane in lanes.values():
        lane.sort(key=lambda explanation: explanation.key)
        assert [explanation.position for explanation in lane] == list(range(1, len(lane) + 1))
        head = lane[0]
        blocked = head.grace_end_ns is not None or not any(view.takes for view in head.ranks)
        assert blocked or "has to go first" in head.reasons[0]
        for explanation in lane[1:]:
            assert f"before it, {head.request_id!r} first" in explanation.reasons[0]
        check_busy(head)


def check_busy(head: Explanation) -> None:
    """The ranks that its views call busy are the ones that its reasons count."""
    busy = sum(view.busy for view in head.ranks)
    said = [reason for reason in head.reasons if f" busy for class {head.class_name!r}: " in reason]
    if head.grace_end_ns is None and "has to go first" not in head.reasons[0] and head.ranks_count <= LINES_MAX:
        assert len(said) == (busy > 0)
        if busy:
            assert said[0].startswith(f"{busy} of {head.ranks_count} ranks ")
