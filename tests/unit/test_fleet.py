"""Fleet: ranks come and go in every table at once, facts meet the current incarnation, falls of load are noted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from probe_build import load

from kvcore.config import IndexMode
from kvcore.request import WorkerConfig

Ships = load("_probe_fleet").Ships

DEFAULT_CAP = 10_000_000
OPEN, OVERLOADED, LEASED, GONE = range(4)


def made(*thresholds, workers=(), **config):
    fleet = Ships(list(thresholds), **config)
    for worker_id in workers:
        fleet.upsert(WorkerConfig(worker_id))
    return fleet


def test_a_worker_brings_its_ranks_and_takes_them_away():
    fleet = made((0, None))
    fleet.upsert(WorkerConfig(7, 2, 3))
    assert fleet.order() == [(7, 2), (7, 3), (7, 4)]
    assert fleet.free() == [3]
    fleet.remove(7)
    assert fleet.order() == []
    assert fleet.free() == [0]


def test_every_change_of_the_fleet_judges_everything_again():
    fleet = made((0, None), workers=(1, 2))
    assert fleet.changed() == ([], True)
    fleet.forget_changes()
    assert fleet.changed() == ([], False)
    fleet.upsert(WorkerConfig(1))
    assert fleet.changed() == ([], True)
    fleet.forget_changes()
    fleet.remove(1)
    assert fleet.changed() == ([], True)


def test_falls_of_load_are_noted_by_rank():
    fleet = made((0, None), workers=(1, 2))
    fleet.forget_changes()
    fleet.book(0, 1, 0, 5)
    fleet.book(1, 2, 0, 5)
    fleet.book(2, 2, 0, 0)
    assert fleet.changed() == ([], False)  # a rise frees nobody
    fleet.complete_prefill(1)
    fleet.complete_prefill(2)  # there was no load to fall
    assert fleet.changed() == ([(2, 0)], False)
    fleet.release(0)
    fleet.release(1)
    fleet.release(2)
    assert fleet.changed() == ([(2, 0), (1, 0)], False)


def test_too_many_falls_judge_everything_again():
    """DESIGN D15: 256 are remembered."""
    fleet = made((0, None), workers=(1,))
    fleet.forget_changes()
    for slot in range(257):
        fleet.book(slot, 1, 0, 1)
    for slot in range(256):
        fleet.release(slot)
    assert fleet.changed() == ([(1, 0)] * 256, False)
    fleet.release(256)
    assert fleet.changed() == ([(1, 0)] * 256, True)
    fleet.forget_changes()
    assert fleet.changed() == ([], False)


def test_the_same_incarnation_keeps_ranks_that_stay():
    fleet = made((9, None))
    fleet.upsert(WorkerConfig(1, 0, 4), 3)
    fleet.book(0, 1, 1, 10)
    fleet.store_blocks(1, 1, 3, (5, 6))
    fleet.store_blocks(1, 3, 3, (5,))
    kept = fleet.rank(1, 1)
    assert fleet.leaving(WorkerConfig(1, 1, 2), 3) == [(1, 0), (1, 3)]
    fleet.upsert(WorkerConfig(1, 1, 2), 3)
    assert fleet.order() == [(1, 1), (1, 2)]
    assert fleet.rank(1, 1) == kept
    assert (fleet.busy(1, 1), fleet.free(), fleet.bookings_on([(1, 1)])) == (True, [1], [0])
    assert (fleet.holds(1, 1, 5), fleet.cached()[:2]) == (True, (2, 2))
    fleet.upsert(WorkerConfig(1, 0, 4), 3)
    assert fleet.order() == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert not fleet.holds(1, 3, 5)
    assert fleet.free() == [3]


def test_a_higher_incarnation_is_another_worker():
    fleet = made()
    fleet.upsert(WorkerConfig(1, 0, 2), 3)
    fleet.store_blocks(1, 0, 3, (5,))
    assert fleet.leaving(WorkerConfig(1, 0, 2), 4) == [(1, 0), (1, 1)]
    assert fleet.is_stale(WorkerConfig(1), 2)
    assert not fleet.is_stale(WorkerConfig(1), 3)
    assert not fleet.is_stale(WorkerConfig(2), 0)
    fleet.upsert(WorkerConfig(1, 1, 2), 4)
    assert fleet.order() == [(1, 1), (1, 2)]
    assert fleet.cached() == (0, 0, 0)
    assert [fleet.store_blocks(1, 1, incarnation, (5,)) for incarnation in (3, 4, 5)] == [False, True, False]


def test_a_moved_range_may_leave_nothing_of_the_old_one():
    fleet = made((0, None))
    fleet.upsert(WorkerConfig(1, 0, 2))
    fleet.upsert(WorkerConfig(1, 2**32 - 2, 2))
    assert fleet.order() == [(1, 2**32 - 2), (1, 2**32 - 1)]
    fleet.upsert(WorkerConfig(1, 1, 1))
    assert fleet.order() == [(1, 1)]
    assert fleet.free() == [1]


def test_caps_are_those_of_the_last_configuration():
    fleet = made((None, 0.5))
    fleet.upsert(WorkerConfig(1, max_batched_tokens=10))
    fleet.book(0, 1, 0, 6)
    assert (fleet.busy(1), fleet.free()) == (True, [0])
    fleet.upsert(WorkerConfig(1, max_batched_tokens=12))
    assert (fleet.busy(1), fleet.free()) == (False, [1])
    fleet.upsert(WorkerConfig(1, 0, 2, max_batched_tokens=11))
    assert (fleet.busy(1), fleet.busy(1, 1), fleet.free()) == (True, False, [1])
    fleet.book(1, 1, 1, DEFAULT_CAP // 2)
    fleet.upsert(WorkerConfig(1, 0, 2))
    assert (fleet.busy(1), fleet.busy(1, 1)) == (False, False)
    fleet.book(2, 1, 1, 1)
    assert fleet.busy(1, 1)


def test_block_facts_of_absent_ranks_change_nothing():
    fleet = made()
    fleet.upsert(WorkerConfig(1, 1, 1), 2)
    for worker_id, dp_rank, incarnation in ((1, 0, 2), (1, 2, 2), (2, 1, 2), (1, 1, 1), (1, 1, 3)):
        assert not fleet.store_blocks(worker_id, dp_rank, incarnation, (5,))
        assert not fleet.remove_blocks(worker_id, dp_rank, incarnation, (5,))
        assert not fleet.clear_blocks(worker_id, dp_rank, incarnation)
    assert fleet.cached() == (0, 0, 0)


def test_blocks_are_stored_once_removed_and_cleared():
    fleet = made(workers=(1, 2))
    assert fleet.store_blocks(1, 0, 0, (5, 6, 5, 2**64 - 1))
    assert fleet.store_blocks(2, 0, 0, (5,))
    assert fleet.cached()[:2] == (3, 4)
    assert fleet.remove_blocks(1, 0, 0, (5, 77, 5))
    assert (fleet.holds(1, 0, 5), fleet.holds(2, 0, 5), fleet.cached()[:2]) == (False, True, (3, 3))
    assert fleet.clear_blocks(1, 0, 0)
    assert fleet.cached()[:2] == (1, 1)
    assert fleet.clear_blocks(1, 0, 0)
    assert fleet.store_blocks(1, 0, 0, ())


def test_without_an_index_block_facts_are_taken_and_forgotten():
    fleet = made(index=IndexMode.OFF, workers=(1,))
    for worker_id, incarnation in ((1, 0), (1, 9), (8, 0)):
        assert fleet.store_blocks(worker_id, 0, incarnation, (5,))
        assert fleet.remove_blocks(worker_id, 0, incarnation, (5,))
        assert fleet.clear_blocks(worker_id, 0, incarnation)
    assert fleet.cached() == (0, 0, 0)


def test_bookings_of_some_ranks():
    fleet = made()
    fleet.upsert(WorkerConfig(1, 0, 3))
    for slot, dp_rank in enumerate((0, 1, 2, 1)):
        fleet.book(slot, 1, dp_rank, 1)
    assert sorted(fleet.bookings_on([(1, 1), (1, 2)])) == [1, 2, 3]
    assert fleet.bookings_on([]) == []


rows = st.tuples(st.integers(1, 3), st.integers(0, 1), st.integers(0, 9))


@given(st.permutations((1, 2, 3)), st.permutations((1, 2, 3)), st.sets(rows).flatmap(
    lambda chosen: st.tuples(st.permutations(sorted(chosen)), st.permutations(sorted(chosen)))))
def test_the_sum_of_the_index_knows_names_and_no_order(workers, others, stored):
    """The order in which workers and blocks came gives other slots and the same sum."""
    sums = []
    for ids, blocks in zip((workers, others), stored, strict=True):
        fleet = made()
        for worker_id in ids:
            fleet.upsert(WorkerConfig(worker_id, 0, 2))
        for worker_id, dp_rank, name in blocks:
            fleet.store_blocks(worker_id, dp_rank, 0, (name,))
        sums.append(fleet.cached())
    assert sums[0] == sums[1]


def test_marks_become_states_of_all_ranks_of_a_worker():
    fleet = made((0, None))
    fleet.upsert(WorkerConfig(1, 0, 2))
    fleet.upsert(WorkerConfig(2))
    fleet.forget_changes()
    assert fleet.mark(1, "health", False, False)
    assert [fleet.state(1, 0), fleet.state(1, 1), fleet.state(2)] == [GONE, GONE, OPEN]
    assert (fleet.free(), fleet.changed()) == ([1], ([], True))
    assert fleet.mark(1, "router", True, True)
    assert fleet.state(1) == GONE
    assert fleet.mark(1, "health", True, False)
    assert (fleet.state(1), fleet.free()) == (OVERLOADED, [1])
    assert fleet.mark(1, "router", True, False)
    assert (fleet.state(1), fleet.free(), fleet.faults()) == (OPEN, [3], [])


def test_a_new_rank_has_the_state_of_its_worker_and_a_restart_forgets():
    fleet = made(workers=(1,))
    fleet.mark(1, "x", True, True)
    fleet.upsert(WorkerConfig(1, 0, 3))
    assert [fleet.state(1, rank) for rank in range(3)] == [OVERLOADED] * 3
    fleet.upsert(WorkerConfig(1, 0, 3), 1)
    assert fleet.state(1) == OPEN
    assert not fleet.mark(1, "x", False, False)  # of the incarnation before
    assert not fleet.mark(9, "x", False, False)
    fleet.mark(1, "x", False, False, incarnation=1)
    fleet.remove(1)
    fleet.upsert(WorkerConfig(1), 1)
    assert fleet.state(1) == OPEN


def test_a_lease_ends_at_its_nanosecond():
    fleet = made((0, None), workers=(1, 2))
    fleet.mark(1, "a", False, False, 100)
    fleet.mark(1, "b", False, False, 50)
    fleet.forget_changes()
    assert (fleet.state(1), fleet.due(), fleet.due(awaited=False)) == (LEASED, 50, 50)
    fleet.advance(99)
    assert (fleet.state(1), fleet.due(), fleet.free()) == (LEASED, 100, [1])
    fleet.advance(100)
    assert (fleet.state(1), fleet.due(), fleet.free(), fleet.changed()[1]) == (OPEN, None, [2], True)
    fleet.mark(2, "a", False, False, 2**62)  # a lease that no time reaches is still a lease
    assert (fleet.state(2), fleet.due()) == (LEASED, None)


def test_a_report_counts_for_a_while_beyond_own_bookings():
    """FIELD-REPORTS E35: what has been booked here is never taken away by an older view of the engine."""
    fleet = made((10, None), workers=(1,), reported_load_ttl_ns=100)
    fleet.book(0, 1, 0, 8)
    assert fleet.report(1, 5, 3)  # it has not seen our booking
    assert (fleet.tokens(1), fleet.busy(1)) == (8, False)
    fleet.forget_changes()
    assert fleet.report(1, 6, 20)
    assert (fleet.tokens(1), fleet.busy(1), fleet.due(), fleet.changed()) == (20, True, 100, ([(1, 0)], False))
    fleet.release(0)
    assert fleet.tokens(1) == 12
    assert not fleet.report(1, 6, 0)
    assert not fleet.report(1, 4, 0)
    assert not fleet.report(9, 9, 0)
    fleet.advance(60)
    assert fleet.report(1, 7, 11)
    fleet.advance(159)
    assert (fleet.tokens(1), fleet.due()) == (11, 160)
    fleet.advance(160)
    assert (fleet.tokens(1), fleet.due(), fleet.faults()) == (0, None, [])


def test_reports_that_nobody_asked_for_count_for_nothing():
    fleet = made((10, None), workers=(1,))
    fleet.forget_changes()
    assert fleet.report(1, 5, 300)
    assert (fleet.tokens(1), fleet.busy(1), fleet.due(), fleet.changed()) == (0, False, None, ([], False))


def test_a_rank_that_goes_takes_its_report_along():
    fleet = made((10, None), workers=(1, 2), reported_load_ttl_ns=100)
    fleet.report(1, 5, 300)
    fleet.report(2, 5, 300)
    fleet.advance(1)
    fleet.remove(1)
    fleet.upsert(WorkerConfig(1))
    assert (fleet.tokens(1), fleet.tokens(2), fleet.due()) == (0, 300, 100)
    assert fleet.report(1, 1, 5)  # sequences start anew
    fleet.advance(100)
    assert (fleet.tokens(1), fleet.tokens(2), fleet.due()) == (5, 0, 101)


def test_tiers_are_apart():
    fleet = made(workers=(1,))
    for tier in range(3):
        fleet.store_blocks(1, 0, 0, tuple(range(tier + 1)), tier)
    assert [fleet.cached(tier)[1] for tier in range(3)] == [1, 2, 3]
    fleet.remove_blocks(1, 0, 0, (0,), 1)
    assert [fleet.holds(1, 0, 0, tier) for tier in range(3)] == [True, False, True]
    fleet.clear_blocks(1, 0, 0, 2)
    assert [fleet.cached(tier)[1] for tier in range(3)] == [1, 1, 0]
    fleet.clear_blocks(1, 0, 0)
    assert [fleet.cached(tier)[1] for tier in range(3)] == [0, 0, 0]


def test_what_was_sent_there_is_predicted_for_a_while():
    """FIELD-REPORTS E40, E94: a burst of siblings finds the first one's prompt before any engine says so."""
    for config in ({"index": IndexMode.APPROXIMATE}, {"predict_ttl_ns": 100}):
        fleet = made(**config)
        fleet.upsert(WorkerConfig(1, total_kv_blocks=3))
        fleet.book(0, 1, 0, 1)
        fleet.touch(0, (1, 2, 3, 4))
        assert fleet.predicted(1) == (3 if "index" in config else 4)  # what engines say is not second-guessed
        fleet.advance(99)
        assert fleet.predicted(1) == (3 if "index" in config else 4)
        fleet.advance(100 if "predict_ttl_ns" in config else 120 * 10**9)
        assert fleet.predicted(1) == 0
        fleet.touch(0, (1,))
        fleet.release(0)
        fleet.remove(1)
        fleet.upsert(WorkerConfig(1))
        assert fleet.predicted(1) == 0
    assert made(index=IndexMode.OFF, predict_ttl_ns=5, workers=(1,)).predicted(1) is None
    assert made(workers=(1,)).predicted(1) is None
