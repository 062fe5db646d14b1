"""The oracle's steps, one small story for each rule of the semantics; the answers were worked out by hand."""

from __future__ import annotations

import pytest
from oracle import Oracle
from strategies_broken import BREAKERS

from kvcore.actions import Dispatch, Evict, EvictReason, Ignored, Park, Reject, RejectReason
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.errors import InvalidEvent
from kvcore.events import (
    BlocksStored,
    Outcome,
    OutputBlockAdded,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.policy import Arbitration, CacheBucket, PolicyClass, PolicyProfile
from kvcore.request import Overlap, Rank, Request, WorkerConfig

R = RejectReason
MS = 1_000_000


def profile(*, quantum=(10,), arbitration=Arbitration.EXACT, **keys) -> PolicyProfile:
    """Classes c0, c1, ... of one family each; keys apply to all of them."""
    keys = {"prefill_busy_threshold": 0, **keys}
    keys["cache_bucket"] = "b"
    classes = tuple(PolicyClass(f"c{i}", q, policy_family=f"f{i}", **keys) for i, q in enumerate(quantum))
    return PolicyProfile(classes, (CacheBucket("b", 0),), "f0", arbitration)


def oracle(workers: int = 1, *, ttl: int | None = None, index=IndexMode.EVENTS, **keys) -> Oracle:
    """An oracle with block size 4 and workers 1..n of one rank each, at time 0."""
    made = Oracle(SchedulerConfig(4, profile(**keys), booking_ttl_ns=ttl, index=index))
    for worker in range(1, workers + 1):
        made.step(WorkerUpserted(0, WorkerConfig(worker)))
    return made


def arrive(now_ns: int, name: str, prompt: int = 8, **fields) -> RequestArrived:
    return RequestArrived(now_ns, Request(name, prompt, **fields))


def short(actions) -> list[str]:
    """The actions in a few letters each."""
    letters = {Dispatch: "D", Park: "P", Evict: "E", Ignored: "I"}
    return [f"{letters.get(type(a)) or a.reason.name} {a.request_id}" for a in actions]


def test_first_runs_second_waits_and_runs_when_the_prompt_is_done():
    core = oracle()
    assert core.step(arrive(5, "a")) == (Dispatch("a", 1, 1, 0, 0, 0, 0, 8, 2, 0),)
    assert core.step(arrive(6, "b", 5)) == (Park("b", 0),)
    assert core.loads() == [(1, 0, 1, 8, 0, 2, 0, -1, -1, -1, 0)]
    assert core.step(PrefillCompleted(9, "a", 1)) == (Dispatch("b", 2, 1, 0, 0, 0, 0, 5, 2, 3),)
    assert core.step(PrefillCompleted(9, "a", 1)) == (Ignored("a", 1),)


def test_arrival_checks_in_order():
    core = oracle()
    assert short(core.step(arrive(5, "a", deadline_ns=5))) == ["DEADLINE_EXPIRED a"]
    pin = {"pinned": Rank(1, 7), "allowed_workers": frozenset({2})}
    assert short(core.step(arrive(5, "a", deadline_ns=5, **pin))) == ["DEADLINE_EXPIRED a"]
    assert short(core.step(arrive(5, "a", **pin))) == ["PINNED_WORKER_NOT_ALLOWED a"]
    assert core.step(arrive(5, "a", pinned=Rank(1, 7))) == (Reject("a", R.PINNED_WORKER_UNAVAILABLE),)
    assert short(core.step(arrive(5, "a", allowed_workers=frozenset()))) == ["NO_ELIGIBLE_WORKER a"]
    assert short(core.step_many((WorkerRemoved(5, 1), arrive(5, "a", pinned=Rank(1))))) == ["NO_WORKERS a"]
    core.step_many((WorkerUpserted(5, WorkerConfig(1)), arrive(5, "a")))
    assert short(core.step(arrive(5, "a", deadline_ns=5))) == ["DUPLICATE_ID a"]
    assert core.stats().arrived == 8


def test_lanes_do_not_hide_each_other():
    core = oracle(workers=2)
    core.step_many((arrive(0, "a", pinned=Rank(1)), arrive(0, "b", pinned=Rank(1))))
    assert short(core.step(arrive(1, "c", pinned=Rank(2)))) == ["D c"]
    assert short(core.step(arrive(2, "d"))) == ["P d"]
    assert short(core.step(arrive(2, "e", pinned=Rank(2)))) == ["P e"]
    assert short(core.step(RequestFinished(3, "c", 2))) == ["D d"]


def test_waiting_head_whose_pin_left_is_answered():
    core = oracle(workers=2)
    core.step_many((arrive(0, "a", pinned=Rank(1)), arrive(1, "b", pinned=Rank(1))))
    assert core.step(WorkerRemoved(2, 1)) == (
        Evict("a", 1, 1, EvictReason.WORKER_REMOVED), Reject("b", R.PINNED_WORKER_UNAVAILABLE, 0))
    assert core.queue.classes[0].deficit == 0
    assert short(core.step(RequestFinished(2, "a", 1, Outcome.ABORTED))) == []
    assert (core.stats().aborted, core.stats().live_requests) == (1, 0)


def test_removal_evicts_by_attempt_and_higher_incarnation_restarts():
    core = oracle(prefill_busy_threshold=100)
    core.step_many((arrive(0, "b"), arrive(0, "a")))
    core.step(BlocksStored(0, 1, 0, 0, (1, 2)))
    assert short(core.step(WorkerUpserted(1, WorkerConfig(1), 2))) == ["E b", "E a"]
    assert (core.loads(), core.stats().index_blocks) == ([(1, 0, 0, 0, 0, 0, 0, -1, -1, -1, 0)], 0)
    assert core.step(WorkerUpserted(1, WorkerConfig(1), 1)) == ()
    assert core.step(BlocksStored(1, 1, 0, 0, (1,))) == ()
    assert core.stats().stale_events == 2
    assert short(core.step(PrefillCompleted(1, "a", 2))) == ["I a"]
    assert short(core.step(RequestCancelled(1, "a"))) == []


def test_shrinking_evicts_only_what_falls_out():
    core = Oracle(SchedulerConfig(4))
    core.step(WorkerUpserted(0, WorkerConfig(1, 0, 2)))
    core.step_many((arrive(0, "a", pinned=Rank(1, 0)), arrive(0, "b", pinned=Rank(1, 1))))
    assert short(core.step(WorkerUpserted(1, WorkerConfig(1, 1, 2)))) == ["E a"]
    assert [row[:4] for row in core.loads()] == [(1, 1, 1, 8), (1, 2, 0, 0)]


def test_due_times_apply_in_order_and_before_the_event():
    core = oracle(ttl=10)
    core.step(arrive(0, "a"))
    core.step(arrive(0, "b", deadline_ns=10))
    assert core.next_deadline_ns == 10
    assert short(core.step(arrive(1, "c", deadline_ns=9))) == ["P c"]
    actions = core.step(arrive(10, "d"))
    assert short(actions) == ["DEADLINE_EXPIRED c", "DEADLINE_EXPIRED b", "E a", "D d"]
    assert core.next_deadline_ns == 20
    assert short(core.step(TimerFired(20))) == ["E d"]
    assert (core.stats().aborted, core.next_deadline_ns) == (1, 30)


def test_progress_renews_a_booking():
    core = oracle(ttl=10)
    core.step(arrive(0, "a"))
    core.step(PrefillCompleted(5, "a", 1))
    assert core.next_deadline_ns == 15
    core.step(OutputBlockAdded(8, "a", 1))
    assert short(core.step(PrefillCompleted(9, "a", 1))) == ["I a"]
    assert core.next_deadline_ns == 18
    assert short(core.step(TimerFired(10**6))) == ["E a"]
    assert core.stats().live_requests == 0


def test_limits_settle_first_then_refuse():
    core = oracle(request_queue_limit_per_worker=1)
    core.step(arrive(0, "a"))
    core.step(arrive(0, "b"))
    assert core.step(arrive(0, "c")) == (Reject("c", R.QUEUE_FULL_REQUESTS, 0, 1, 1, None),)
    batch = (PrefillCompleted(2, "a", 1), arrive(3, "d"))
    assert core.step_many(batch) == (Dispatch("b", 2, 1, 0, 0, 0, 0, 8, 2, 3), Park("d", 0))
    assert core.step(arrive(3, "e")) == (Reject("e", R.QUEUE_FULL_REQUESTS, 0, 1, 1, 2 * MS // 2),)


def test_token_limits_let_the_crossing_request_in():
    core = oracle(raw_isl_token_queue_limit_per_worker=10, cached_token_queue_limit_per_worker=5)
    overlap = Overlap(((Rank(1), 1),))
    core.step(arrive(0, "a"))
    assert short(core.step(arrive(0, "b", 9))) == ["P b"]
    assert short(core.step(arrive(0, "c", 100, overlap=overlap))) == ["P c"]
    assert core.step(arrive(0, "d"))[0] == Reject("d", R.QUEUE_FULL_RAW_TOKENS, 0, 109, 10)
    core.step(WorkerUpserted(0, WorkerConfig(2), 0))
    assert (core.stats().classes[0].waiting_requests, core.stats().classes[0].waiting_cached_tokens) == (1, 4)


def test_zero_limit_and_do_not_queue_take_part_and_are_then_refused():
    core = oracle(raw_isl_token_queue_limit_per_worker=0)
    assert short(core.step(arrive(0, "a"))) == ["D a"]
    batch = (arrive(1, "b", 8), arrive(1, "c", 5, do_not_queue=True))
    assert core.step_many(batch) == (
        Reject("b", R.QUEUE_FULL_RAW_TOKENS, 0, 5, 0), Reject("c", R.QUEUE_FULL_RAW_TOKENS, 0, 0, 0))
    free = oracle()
    free.step(arrive(0, "a"))
    assert free.step(arrive(1, "c", do_not_queue=True)) == (Reject("c", R.WOULD_QUEUE, 0),)


def test_refused_ones_uncover_the_next_head():
    core = oracle(workers=2)
    core.step(arrive(0, "a", pinned=Rank(1)))
    only_first = {"allowed_workers": frozenset({1}), "do_not_queue": True, "strict_priority": 1}
    assert short(core.step_many((arrive(1, "b", **only_first), arrive(1, "c")))) == ["WOULD_QUEUE b", "D c"]


def test_cancel_in_the_batch_of_arrival_leaves_no_trace():
    core = oracle()
    core.step(arrive(0, "a"))
    assert core.step_many((arrive(1, "b"), RequestCancelled(1, "b"), RequestCancelled(1, "b"))) == (Ignored("b", 0),)
    assert (core.stats().aborted, core.stats().live_requests) == (1, 1)


def test_overlap_of_the_request_wins_over_the_index():
    core = Oracle(SchedulerConfig(4))
    for worker in (1, 2):
        core.step(WorkerUpserted(0, WorkerConfig(worker)))
    core.step(BlocksStored(0, 2, 0, 0, (11, 12)))
    first = core.step(arrive(0, "a", 9, block_hashes=(11, 12, 13)))[0]
    assert (first.worker_id, first.cached_tokens, first.overlap_blocks, first.prefill_tokens) == (2, 8, 2, 1)
    assert first.potential_decode_blocks == 3
    known = Overlap(((Rank(1), 1), (Rank(1), 5)))
    second = core.step(arrive(0, "b", 9, block_hashes=(11, 12, 13), overlap=known))[0]
    assert (second.worker_id, second.cached_tokens, second.overlap_blocks, second.prefill_tokens) == (1, 9, 5, 0)


def test_ties_draw_once_and_pins_never():
    core = Oracle(SchedulerConfig(4, seed=42))
    for worker in (1, 2):
        core.step(WorkerUpserted(0, WorkerConfig(worker)))
    names = iter("abcdefgh")
    core.step(arrive(0, next(names), pinned=Rank(1)))
    core.step(arrive(0, next(names), pinned=Rank(2)))
    chosen = []
    for attempt in (3, 4, 5):
        dispatch = core.step(arrive(0, next(names)))[0]
        chosen.append(dispatch.worker_id)
        core.step(RequestFinished(0, dispatch.request_id, attempt))
    assert chosen == [2, 1, 2]


def test_retry_after_by_hand():
    core = oracle()
    core.step_many((arrive(0, "a"), arrive(0, "b", 7), arrive(0, "c", 6)))
    window = core.recent[0]

    def after(current: int, limit: int, *dispatches: tuple[int, int]) -> int | None:
        window.clear()
        window.extend(dispatches)
        return core._retry_after_ns(0, current, limit)

    assert after(5, 5) is None
    assert after(5, 5, (0, 100)) is None
    assert after(5, 5, (3, 100), (3, 10)) is None
    assert after(0, 0, (0, 100), (40 * MS, 10)) is None
    # 13 tokens wait: x = ceil(13 * (2 - 2 + 1) / 2) = 7 of them; 20 tokens, the oldest left out, took 40 ms.
    assert after(2, 2, (0, 100), (0, 10), (40 * MS, 10)) == 14 * MS
    assert after(2, 0, (0, 100), (0, 10), (40 * MS, 10)) == 40 * MS
    assert after(2, 2, (0, 100), (0, 9), (40 * MS, 10)) == 14_736_843
    assert after(2, 2, (0, 100), (1, 10)) == MS
    assert after(2, 2, (0, 100), (10**18, 1)) == 3_600 * 1_000 * MS


def test_retry_window_holds_32_dispatches():
    core = oracle(prefill_busy_threshold=None)
    for number in range(40):
        core.step(arrive(number, f"r{number}"))
    assert [time for time, _ in core.recent[0]] == list(range(8, 40))


def test_classification():
    cells = [PolicyClass(f"{f}{b}", 1, policy_family=f, cache_bucket=b) for f in "fg" for b in "sl"]
    buckets = (CacheBucket("s", 0), CacheBucket("l", 9))
    core = Oracle(SchedulerConfig(4, PolicyProfile((PolicyClass("x", 1), *cells), buckets, "g")))
    wanted = {("x", 1): 0, ("x", 99): 0, ("f", 8): 1, ("f", 9): 2, ("g", 8): 3, (None, 9): 4, ("fs", 1): 3, ("", 1): 3}
    assert {key: core._classify(*key) for key in wanted} == wanted
    assert [core._knows(name) for name in ("x", "f", "g", None, "fs", "")] == [True] * 4 + [False] * 2


def test_charge_is_kept_when_placement_fails():
    core = oracle(workers=2, quantum=(10, 10))
    pins = {"a": (4, Rank(1)), "e": (4, Rank(2)), "b": (4, Rank(1)), "d": (5, Rank(2))}
    batch = [arrive(0, name, cost, pinned=pin) for name, (cost, pin) in pins.items()]
    assert short(core.step_many(batch)) == ["D a", "D e", "P b", "P d"]
    assert core.queue.classes[0].deficit == 10 - 4 - 4
    assert short(core.step(WorkerRemoved(2, 1))) == ["E a", "PINNED_WORKER_UNAVAILABLE b"]
    assert core.queue.classes[0].deficit == 2 + 10 - 4
    assert [getattr(core.stats().classes[0], name) for name in ("dispatched", "dispatched_cost_tokens")] == [2, 8]


def test_index_off_ignores_block_facts():
    core = oracle(index=IndexMode.OFF)
    core.step_many((BlocksStored(0, 1, 0, 0, (1,)), BlocksStored(0, 9, 9, 9, (1,))))
    assert (core.stats().index_blocks, core.stats().stale_events) == (0, 0)


def test_parks_come_last_by_seq():
    core = oracle(quantum=(10, 10))
    batch = (arrive(0, "b", policy_class="f1"), arrive(0, "c"), arrive(0, "a"))
    assert short(core.step_many(batch)) == ["D c", "P b", "P a"]


def test_peek_changes_nothing():
    core = oracle(workers=2, prefill_busy_threshold=8)
    core.step(arrive(3, "a", pinned=Rank(1)))
    state = core.generator.state
    assert core.peek(Request("b", 8)).worker_id == 2
    assert core.peek(Request("b", 8)).attempt == 2
    assert core.peek(Request("a", 8)) == Reject("a", R.DUPLICATE_ID)
    assert (core.generator.state, core.next_attempt, len(core.live)) == (state, 2, 1)
    with pytest.raises(InvalidEvent, match="event 0"):
        core.peek(Request("", 8))


@pytest.mark.parametrize("name", BREAKERS)
def test_broken_events_are_refused_at_their_place(name):
    core = oracle()
    core.step(TimerFired(7))
    with pytest.raises(InvalidEvent) as caught:
        core.step_many((arrive(7, "a"), BREAKERS[name](7)))
    assert (caught.value.index, core.stats().arrived) == (1, 0)


def test_empty_batch_and_time():
    core = oracle()
    core.step(TimerFired(7))
    assert core.step_many(()) == ()
    with pytest.raises(InvalidEvent):
        core.step(TimerFired(6))
    with pytest.raises(InvalidEvent, match="event 1"):
        core.step_many((TimerFired(9), TimerFired(8)))
    assert core.step(TimerFired(7)) == ()
