"""The oracle on load that changes by itself: prefill that fades, reports, what is expected to be cached."""

from __future__ import annotations

import pytest
from oracle import Oracle
from oracle_ledger import ONE, RankLoad
from stories import arrive, profile, short, upsert

from kvcore.config import IndexMode, PrefillDecay, SchedulerConfig
from kvcore.events import (
    LoadReported,
    Outcome,
    PrefillCompleted,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
)
from kvcore.request import Rank, Request

S = 10**9


def fading(rate: int | None = 10, threshold: int | None = None, quantum: int = 10, **config) -> Oracle:
    """One worker that computes so many tokens a second."""
    keys = {} if threshold is None else {"prefill_busy_threshold": threshold}
    core = Oracle(SchedulerConfig(4, profile(quantum, **keys), prefill_decay=PrefillDecay.LINEAR, **config))
    core.step(upsert(0, 1, prefill_tokens_per_s=rate))
    return core


def tokens(core: Oracle, now_ns: int) -> int:
    core.step(TimerFired(now_ns))
    return core.loads()[0][3]


def test_the_oldest_prefill_fades_and_no_other():
    core = fading()
    core.step(arrive(0, "a", 100))
    assert tokens(core, 2 * S) == 80
    core.step(arrive(2 * S, "b", 60))
    assert [tokens(core, t * S) for t in (2, 5, 10, 12, 100)] == [140, 110, 60, 60, 60]


def test_what_follows_the_oldest_starts_when_that_leaves():
    for leave in (PrefillCompleted(3 * S, "a", 1), RequestCancelled(3 * S, "a"), RequestFinished(3 * S, "a", 1)):
        core = fading()
        core.step_many((arrive(0, "a", 100), arrive(0, "b", 40)))
        core.step(leave)
        assert [tokens(core, t * S) for t in (3, 5, 7, 9)] == [40, 20, 0, 0]


@pytest.mark.parametrize(("at_s", "wanted"), [(5, [90, 80]), (2, [100, 90])])
def test_a_later_prefill_that_is_done_gives_its_time_back(at_s, wanted):
    for leave in (PrefillCompleted(at_s * S, "b", 2), RequestFinished(at_s * S, "b", 2)):
        core = fading()
        core.step_many((arrive(0, "a", 100), arrive(0, "b", 40)))
        core.step(leave)
        assert [tokens(core, (at_s + t) * S) for t in (0, 1)] == wanted


def test_a_later_prefill_that_is_given_up_gives_nothing():
    for leave in (RequestCancelled(5 * S, "b"), RequestFinished(5 * S, "b", 2, Outcome.ABORTED)):
        core = fading()
        core.step_many((arrive(0, "a", 100), arrive(0, "b", 40)))
        core.step(leave)
        assert tokens(core, 5 * S) == 50


def test_a_duration_is_rounded_up_and_what_is_done_down():
    core = fading(2 * 10**9)
    core.step(arrive(0, "a", 3))
    assert [tokens(core, t) for t in (0, 1, 2)] == [3, 2, 0]


def test_a_new_rate_counts_from_the_same_anchor():
    core = fading()
    core.step(arrive(0, "a", 100))
    core.step(upsert(4 * S, 1, prefill_tokens_per_s=20))
    assert tokens(core, 4 * S) == 20
    core.step(upsert(4 * S, 1))
    assert tokens(core, 4 * S) == 100


def test_without_the_option_nothing_fades():
    core = Oracle(SchedulerConfig(4))
    core.step_many((upsert(0, 1, prefill_tokens_per_s=10), arrive(0, "a", 100)))
    assert tokens(core, 5 * S) == 100


def test_the_end_of_a_booking_is_when_the_next_one_starts():
    core = fading(10**9, booking_ttl_ns=20)
    core.step(arrive(0, "a", 100))
    core.step(arrive(5, "b", 40))
    assert short(core.step(TimerFired(22))) == "E a"    # due at 20
    assert core.loads()[0][3] == 38


def test_a_crossing_is_foreseen_while_something_waits():
    core = fading(10**9, threshold=5)
    core.step(arrive(0, "a", 10))
    assert core.next_deadline_ns is None
    assert short(core.step(arrive(0, "b", 1))) == "P b"
    assert core.next_deadline_ns == 5
    assert short(core.step(TimerFired(4))) == ""
    assert short(core.step(TimerFired(5))) == "D b"
    assert core.next_deadline_ns is None


def test_who_never_gets_below_is_not_foreseen():
    core = fading(10**9, threshold=5)
    core.step(arrive(0, "a", 10))
    core.step(LoadReported(0, 1, 0, 0, 1, 100))
    core.step(arrive(0, "b", 6))
    assert core.next_deadline_ns == 5                   # without a ttl a report counts for nothing
    heavy = fading(10**9, threshold=5, reported_load_ttl_ns=50)
    heavy.step(arrive(0, "a", 10))
    heavy.step_many((LoadReported(0, 1, 0, 0, 1, 16), arrive(0, "b", 6)))
    assert heavy.next_deadline_ns == 50                 # 6 foreign tokens are too many by themselves
    assert short(heavy.step(TimerFired(49))) == ""
    assert short(heavy.step(TimerFired(50))) == "D b"


def test_a_crossing_is_exact_under_slow_and_fast_rates():
    core = fading(3, threshold=7)                       # 10 tokens take 3 333 333 334 ns; 3 are gone after 30%
    core.step_many((arrive(0, "a", 10), arrive(0, "b", 1)))
    assert core.next_deadline_ns == 1_000_000_001       # the least e with 10 e >= 3 * 3 333 333 334
    huge = fading(1, threshold=0, quantum=2**53)        # its prompt takes longer than time lasts
    huge.step_many((arrive(0, "a", 2**53), arrive(0, "b", 1)))
    assert huge.next_deadline_ns is None


def reported(ttl_ns: int | None = 10, **keys) -> Oracle:
    core = Oracle(SchedulerConfig(4, profile(10, **keys), reported_load_ttl_ns=ttl_ns))
    core.step(upsert(0, 1))
    return core


def effective(core: Oracle) -> tuple:
    """requests, prefill tokens and blocks of rank 0, with a request of one untracked token on top."""
    row = core.potential_loads(Request("probe", 1, track_prefill=False))[0]
    return row[2], row[3], row[4]


def test_foreign_load_is_what_a_report_has_above_own_bookings():
    core = reported()
    core.step(arrive(0, "a", 8, block_hashes=(1, 2)))
    core.step(LoadReported(1, 1, 0, 0, 5, 11, 7, 1))
    assert core.loads()[0][2:] == (1, 8, 2, 2, 0, 11, 7, 1, 0)
    assert effective(core) == (1, 11, 7)
    core.step(arrive(2, "b", 4))
    assert effective(core) == (2, 15, 7)
    core.step(RequestFinished(3, "a", 1))
    assert effective(core) == (1, 7, 5)


def test_a_report_ends_and_stays_visible():
    core = reported()
    core.step(LoadReported(1, 1, 0, 0, 0, 11, 7, 1))
    assert core.next_deadline_ns == 11
    core.step(TimerFired(10))
    assert effective(core) == (1, 11, 7)
    core.step(TimerFired(11))
    assert (effective(core), core.loads()[0][7:10], core.next_deadline_ns) == ((0, 0, 0), (11, 7, 1), None)


def test_reports_go_up_or_are_stale():
    core = reported()
    for sequence, stale in ((5, 0), (5, 1), (4, 2), (6, 2)):
        core.step(LoadReported(0, 1, 0, 0, sequence, sequence))
        assert core.stats().stale_events == stale
    core.step_many((LoadReported(0, 1, 1, 0, 9), LoadReported(0, 2, 0, 0, 9), LoadReported(0, 1, 0, 1, 9)))
    assert (core.stats().stale_events, effective(core)[1]) == (5, 6)
    core.step_many((upsert(0, 1, 1), LoadReported(0, 1, 0, 1, 0, 3)))
    assert (core.stats().stale_events, effective(core)[1]) == (5, 3)


def test_a_report_makes_a_rank_busy():
    core = reported(prefill_busy_threshold=0)
    core.step(LoadReported(0, 1, 0, 0, 1, 1))
    assert short(core.step(arrive(0, "a"))) == "P a"
    assert short(core.step(LoadReported(1, 1, 0, 0, 2, 0))) == "D a"


def test_only_the_end_of_a_path_that_is_nobody_elses_fades():
    load = RankLoad()
    first = load.book(0, (1, 2, 3))
    load.book(0, (3,))
    load.add_output(first, 0.0)
    assert [load.live[name].weight for name in (1, 2, 3)] == [ONE] * 3
    other = RankLoad()
    alone = other.book(0, (1, 2, 3))
    other.book(0, (1,))
    other.add_output(alone, 0.5)
    assert [other.live[name].weight for name in (1, 2, 3)] == [ONE, ONE // 2, ONE // 2]


def expecting(index=IndexMode.APPROXIMATE, ttl_ns: int | None = 10, **worker) -> Oracle:
    core = Oracle(SchedulerConfig(4, index=index, predict_ttl_ns=ttl_ns))
    core.step(upsert(0, 1, **worker))
    return core


def cached(core: Oracle, now_ns: int, *names: int) -> int:
    core.step(TimerFired(now_ns))
    return core.potential_loads(Request("probe", 4 * len(names), block_hashes=names))[0][5] // 4


def test_a_dispatch_is_expected_to_be_cached_for_a_while():
    for index in (IndexMode.APPROXIMATE, IndexMode.EVENTS):
        core = expecting(index)
        core.step(arrive(0, "a", 12, block_hashes=(1, 2, 3)))
        assert (core.next_deadline_ns, core.stats().index_blocks) == (None, 0)
        assert [cached(core, t, 1, 2, 3, 4) for t in (0, 9, 10)] == [3, 3, 0]


def test_the_end_of_a_run_renews_it_and_an_eviction_does_not():
    core = expecting()
    core.step(arrive(0, "a", 8, block_hashes=(1, 2)))
    core.step(RequestFinished(6, "a", 1))
    assert [cached(core, t, 1, 2) for t in (15, 16)] == [2, 0]
    gone = expecting()
    gone.step(arrive(0, "a", 8, block_hashes=(1, 2)))
    gone.step_many((WorkerRemoved(5, 1), upsert(5, 1), RequestFinished(6, "a", 1)))
    assert cached(gone, 6, 1, 2) == 0


def test_events_expect_nothing_unless_told_and_off_never_does():
    for index, ttl_ns in ((IndexMode.EVENTS, None), (IndexMode.OFF, 10)):
        core = expecting(index, ttl_ns)
        core.step(arrive(0, "a", 4, block_hashes=(1,)))
        assert cached(core, 0, 1) == 0
    core = expecting(IndexMode.APPROXIMATE, None)
    core.step(arrive(0, "a", 4, block_hashes=(1,)))
    assert [cached(core, t, 1) for t in (120 * S - 1, 120 * S)] == [1, 0]


def test_a_full_rank_forgets_the_leaf_first_and_the_least_recently_used():
    core = expecting(ttl_ns=None, total_kv_blocks=3)
    core.step(arrive(0, "a", 16, block_hashes=(1, 2, 3, 4)))
    assert cached(core, 0, 1, 2, 3, 4) == 3
    core.step(arrive(1, "b", 4, block_hashes=(9,)))
    assert (cached(core, 1, 1, 2, 3), cached(core, 1, 9)) == (2, 1)
    core.step(arrive(2, "c", 4, block_hashes=(1,), pinned=Rank(1)))
    core.step(arrive(3, "d", 4, block_hashes=(8,)))
    assert (cached(core, 3, 1, 2), cached(core, 3, 9)) == (1, 1)
