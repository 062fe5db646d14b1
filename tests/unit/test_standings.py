"""Standings against the plain loop (DESIGN D8): the same rank, cost, ties and generator, after any change of load."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import pytest
from little_memory import little_memory
from selector_cases import DEFAULT, At, Case, probe

INT64_TOP = 2**63 - 1
OPEN, OVERLOADED, LEASED, GONE = range(4)


def overlay(case: Case, rng: random.Random | None = None) -> list[int]:
    """Ranks on which the request has something; with a generator: shuffled, some twice, some more."""
    found = [i for i, at in enumerate(case.ranks) if at.device or at.host or at.disk or at.effective or at.active
             or (at.cached or 0) > case.prompt]
    if rng is not None:
        found += [i for i in found if rng.random() < 0.3]
        found += [rng.randrange(len(case.ranks))] * (rng.random() < 0.3)
        rng.shuffle(found)
    return found


def agree(fleet, case: Case, named: list[int], seed: int, order: list[int] | None = None) -> bool:
    """The plain loop over open ranks says the same. Returns whether the trees could tell."""
    query, candidates = case.query(), fleet.open(order)
    assert fleet.serves(query)
    assert fleet.dirty() == []
    if not candidates:
        assert fleet.cheapest(query, named, seed) == (None, seed)
        return False
    rank, state, tied, best = fleet.plain(query, candidates, seed)
    assert fleet.cheapest(query, named, seed) == (rank, state)
    settled = fleet.settle(query, named)
    assert settled is None or settled == (tied, best)
    return settled is not None


def load_at_random(fleet, rank: int, rng: random.Random, spread: int) -> None:
    """By report: prefill tokens in steps of half a block, blocks, requests."""
    fleet.report(rank, 8 * rng.randrange(2 * spread + 1), rng.randrange(spread + 1), rng.randrange(spread + 1))


def request_at_random(ranks: int, rng: random.Random) -> Case:
    """With little or much overlap, on few ranks or many."""
    share = rng.choice((0.0, 0.05, 0.3, 1.0))
    tiers = rng.choice(((), ("device",), ("device", "host", "disk"), ("effective",), ("active",), ("device", "active"),
                        ("device", "cached")))
    found = [
        At(**{name: (rng.randrange(5) / 2 if name == "effective" else rng.randrange(40) if name == "cached"
                     else rng.randrange(3)) for name in tiers if rng.random() < share})
        for _ in range(ranks)]
    return Case(tuple(found), prompt=rng.choice((1, 8, 16, 40, 64)), sequence_length=2)


@pytest.mark.parametrize("ranks", [*range(1, 41), 300])
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_standings_and_plain_loop_agree(ranks, weight):
    rng = random.Random(1000 * ranks + int(10 * weight))
    fleet = probe.Fleet(ranks, 16, weight)
    told = 0
    for step in range(60):
        spread = rng.choice((0, 1, 3))
        for _ in range(rng.choice((0, 1, 1, 2, ranks))):
            rank = rng.randrange(ranks)
            if rng.random() < 0.25:
                fleet.set_state(rank, rng.choice((OPEN, OPEN, OVERLOADED, LEASED, GONE)))
            else:
                load_at_random(fleet, rank, rng, spread)
        fleet.refresh()
        case = request_at_random(ranks, rng).weighed(
            active_request_weight=weight, overlap_score_credit=rng.choice((1.0, 1.0, 0.5, 2.0, 0.0)))
        told += agree(fleet, case, overlay(case, rng), step)
    assert told >= 10 or ranks == 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 33])
def test_ranks_in_another_order_come_and_go(ranks):
    """Positions are those of the canonical order, not of the slots; slots of ranks that have left stay out."""
    rng = random.Random(ranks)
    fleet = probe.Fleet(ranks)
    for step in range(20):
        order = rng.sample(range(ranks), rng.randint(1, ranks))
        fleet.rebuild(order)
        for rank in range(ranks):
            load_at_random(fleet, rank, rng, 1)
        fleet.refresh()
        case = request_at_random(ranks, rng)
        agree(fleet, case, overlay(case, rng), step, order)


def test_no_rank_no_choice():
    fleet = probe.Fleet(3)
    fleet.rebuild([])
    assert fleet.cheapest(Case((At(),) * 3).query(), [0], 9) == (None, 9)
    fleet.rebuild([0, 1, 2])
    for rank in range(3):
        fleet.set_state(rank, OVERLOADED)
    fleet.refresh()
    assert fleet.cheapest(Case((At(),) * 3).query(), [0], 9) == (None, 9)


def test_one_open_rank_is_taken_without_a_draw():
    fleet = probe.Fleet(3)
    fleet.set_state(0, LEASED)
    fleet.set_state(2, GONE)
    fleet.refresh()
    assert fleet.cheapest(Case((At(),) * 3).query(), [], 9) == (1, 9)


def test_ties_of_tree_and_overlay_stand_in_canonical_order():
    """64 ranks; even ones idle, odd ones one block behind, some of them with one block cached."""
    fleet = probe.Fleet(64)
    for rank in range(1, 64, 2):
        fleet.report(rank, 16, 0, 0)
    fleet.refresh()
    case = Case(tuple(At(device=rank in (3, 31, 63)) for rank in range(64)))
    wanted = sorted([*range(0, 64, 2), 3, 31, 63])
    assert fleet.settle(case.query(), [63, 3, 31, 3]) == (wanted, 4.0)
    for seed in range(200):
        (index,), state = probe.draws(seed, len(wanted), 1)
        assert fleet.cheapest(case.query(), [63, 3, 31, 3], seed) == (wanted[index], state)


def test_an_overlay_that_is_cheaper_than_the_tree_leaves_it_behind():
    fleet = probe.Fleet(64)
    case = Case(tuple(At(device=rank in (5, 40)) for rank in range(64)))
    assert fleet.settle(case.query(), [40, 5]) == ([5, 40], 3.0)


def test_an_overlay_rank_that_leads_the_tree_counts_once():
    """Cold it would be the cheapest alone; with its overlap it still is, at less."""
    fleet = probe.Fleet(64)
    for rank in range(64):
        fleet.report(rank, 0, rank != 7, 0)
    fleet.refresh()
    case = Case(tuple(At(device=rank == 7) for rank in range(64)))
    assert fleet.settle(case.query(), [7]) == ([7], 3.0)
    assert fleet.settle(Case((At(),) * 64).query(), [7, 7]) == ([7], 4.0)


def test_an_overlap_that_makes_a_rank_dearer_is_seen():
    """More cached than the prompt has, and no credit for it: the tree's least rank is not the cheapest."""
    fleet = probe.Fleet(64)
    for rank in range(64):
        fleet.report(rank, 0, rank != 7, 0)
    fleet.refresh()
    case = Case(tuple(At(device=9 * (rank == 7)) for rank in range(64))).weighed(overlap_score_credit=0.0)
    assert fleet.settle(case.query(), [7]) is None
    assert agree(fleet, case, [7], 1) is False
    told = Case(tuple(At(cached=640 * (rank == 7)) for rank in range(64)))
    assert fleet.settle(told.query(), [7]) is None
    assert agree(fleet, told, [7], 1) is False


def test_a_large_overlay_is_left_to_the_plain_loop():
    """Or one in which many tie: they would have to be sorted."""
    fleet = probe.Fleet(64)
    case = Case(tuple(At(device=1 + (rank == 5)) for rank in range(64)))
    assert fleet.settle(case.query(), list(range(16))) is not None
    assert fleet.settle(case.query(), list(range(17))) is None
    assert agree(fleet, case, list(range(64)), 1) is False
    assert fleet.settle(case.query(), list(range(6, 16))) is not None
    assert fleet.settle(case.query(), list(range(6, 17))) is None
    assert agree(fleet, case, list(range(64)), 1) is False


@pytest.mark.parametrize(("size", "weight", "exact"), [
    (16, 0.0, True), (1, 0.0, True), (2**30, 0.0, True), (24, 0.0, False), (3, 0.0, False), (16, 0.5, True),
    (16, 1 / 16, True), (16, 1 / 32, False), (16, 0.1, False), (16, 65536.0, True), (16, 65537.0, False),
    (1, 2.0**20, True), (1, 2.0**20 + 1, False), (1, 1e300, False),
])
def test_keys_are_exact_or_are_not_used(size, weight, exact):
    fleet = probe.Fleet(3, size, weight)
    query = Case((At(),) * 3, block_size=size).weighed(active_request_weight=weight).query()
    assert fleet.serves(query) is exact


@pytest.mark.parametrize("change", [
    {"prefill_load_scale": 2.0}, {"temperature": 0.5}, {"overlap_score_credit_decay": 1.0},
    {"active_request_weight": 1.0},
])
def test_weights_that_are_not_served(change):
    fleet = probe.Fleet(3)
    case = Case((At(),) * 3)
    assert fleet.serves(case.query())
    assert not fleet.serves(case.weighed(**change).query())


def test_weights_that_touch_only_the_overlay_are_served():
    weights = replace(DEFAULT, overlap_score_credit=0.3, host_cache_hit_weight=0.1, disk_cache_hit_weight=0.0)
    fleet = probe.Fleet(32)
    case = Case(tuple(At(device=rank == 9, host=2 * (rank == 11)) for rank in range(32)), weights=weights)
    assert agree(fleet, case, [9, 11], 5)


def test_what_else_is_not_served():
    case = Case((At(),) * 3)
    fleet = probe.Fleet(3)
    assert not fleet.serves(replace(case, multiplier=(1.0,)).query())
    assert not fleet.serves(replace(case, block_size=8).query())
    shared = replace(case, shared=((0, 2),))
    assert fleet.serves(shared.query())
    assert not fleet.serves(shared.weighed(shared_cache_multiplier=0.5).query())
    assert not probe.Fleet(3, decays=True).serves(case.query())


@pytest.mark.parametrize("decode", [False, True])
def test_untracked_prompts_are_served_while_no_rank_prefills(decode):
    fleet = probe.Fleet(32)
    case = Case(tuple(At(device=2 * (rank in (3, 4)), active=rank == 5) for rank in range(32)), sequence_length=2,
                track_prefill=False, decode_role=decode)
    for rank in range(32):
        fleet.report(rank, 0, 2 + (rank > 6), 0)
    fleet.refresh()
    assert agree(fleet, case, overlay(case), 3)
    fleet.report(8, 1, 0, 0)
    fleet.refresh()
    assert not fleet.serves(case.query())
    assert agree(fleet, replace(case, track_prefill=True), overlay(case), 3)
    fleet.set_state(8, OVERLOADED)
    fleet.refresh()
    assert agree(fleet, case, overlay(case), 3)
    fleet.set_state(8, OPEN)
    fleet.refresh()
    assert not fleet.serves(case.query())
    fleet.report(8, 0, 0, 0)
    fleet.refresh()
    assert agree(fleet, case, overlay(case), 3)


@pytest.mark.parametrize("largest", [2**51, 2**52, 2**53, INT64_TOP])
def test_loads_too_large_for_exact_steps_are_told_apart_or_left_alone(largest):
    """Costs near 2^53 are rounded, so that keys that differ may tie."""
    case = Case((At(),) * 32, prompt=1, sequence_length=1)
    fleet = probe.Fleet(32)
    for rank in range(32):
        fleet.report(rank, max(0, largest - rank % 4), 0, 0)
    fleet.refresh()
    assert agree(fleet, case, [], 5) is False
    fleet.report(9, 0, 0, 0)
    fleet.report(10, 0, 0, 0)
    fleet.refresh()
    assert agree(fleet, case, [], 5) is True
    huge = replace(case, prompt=2**53)
    assert agree(fleet, huge, [], 5) is False
    fleet.report(9, 0, largest // 16, 0)
    fleet.report(10, 0, 0, largest if largest < 2**62 else 2**53)
    fleet.refresh()
    agree(fleet, case, [9, 10], 5)


@pytest.mark.parametrize("load", [(0, 2**53, 0), (0, 0, 2**53), (INT64_TOP, 2**53, 0)])
def test_keys_beyond_64_bits_are_large(load):
    """They are whole multiples of 2^64, or above the largest integer."""
    fleet = probe.Fleet(32, 2**30, 2.0**-10)
    for rank in range(32):
        fleet.report(rank, *(load if rank == 5 else (0, 1, 0)))
    fleet.refresh()
    case = Case((At(),) * 32, block_size=2**30).weighed(active_request_weight=2.0**-10)
    assert agree(fleet, case, [], 5) is True


def test_many_changes_at_once_are_one_rebuild_and_few_are_single_ones():
    """Both ways of taking changes in end alike."""
    rng = random.Random(3)
    few, many = probe.Fleet(100), probe.Fleet(100)
    case = request_at_random(100, rng)
    for _ in range(20):
        changes = [(rng.randrange(100), rng.randrange(64), rng.randrange(3), 0) for _ in range(50)]
        for change in changes:
            few.report(*change)
            few.refresh()
            many.report(*change)
        many.refresh()
        assert few.settle(case.query(), []) == many.settle(case.query(), [])
        assert agree(few, case, overlay(case), 1) == agree(many, case, overlay(case), 1)


def test_e38_a_miss_goes_to_the_least_loaded_by_standings_too():
    fleet = probe.Fleet(2)
    fleet.report(0, 160, 10, 3)
    fleet.refresh()
    assert {fleet.cheapest(Case((At(), At())).query(), [], seed)[0] for seed in range(20)} == {1}


def room(fleet, loads, caps, states, pair, thresholds) -> int:
    """What most_room should say."""
    found = -INT64_TOP
    for rank, (prefill, blocks, requests) in enumerate(loads):
        most_blocks, most_requests = caps[rank]
        if states[rank] != OPEN or (most_requests is not None and requests >= most_requests):
            continue
        if pair is not None and prefill > thresholds[pair][0]:
            continue
        found = max(found, INT64_TOP if most_blocks is None else most_blocks - blocks)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 5, 16, 33])
def test_most_room_is_that_of_a_look_at_all(ranks):
    rng = random.Random(ranks)
    thresholds = [(20, None), (60, None)]
    fleet = probe.Fleet(ranks, strict=True, thresholds=thresholds)
    loads, caps, states = [(0, 0, 0)] * ranks, [(None, None)] * ranks, [OPEN] * ranks
    assert fleet.most_room() == INT64_TOP
    for _ in range(80):
        for _ in range(rng.choice((0, 1, 2, ranks))):
            rank = rng.randrange(ranks)
            kind = rng.randrange(3)
            if kind == 0:
                loads[rank] = (rng.randrange(100), rng.randrange(12), rng.randrange(5))
                fleet.report(rank, *loads[rank])
            elif kind == 1:
                caps[rank] = (rng.choice((None, 5, 10, 10)), rng.choice((None, 1, 3)))
                fleet.set_caps(rank, *caps[rank])
            else:
                states[rank] = rng.choice((OPEN, OPEN, OVERLOADED, LEASED, GONE))
                fleet.set_state(rank, states[rank])
        fleet.refresh()
        for pair in (None, 0, 1):
            assert fleet.most_room(pair) == room(fleet, loads, caps, states, pair, thresholds)


def test_room_counts_held_blocks_of_bookings():
    fleet = probe.Fleet(2, strict=True)
    fleet.set_caps(0, 10, None)
    fleet.set_caps(1, 7, None)
    fleet.book(0, 0, 64, 4)
    fleet.refresh()
    assert fleet.most_room() == 7
    fleet.book(1, 1, 64, 5)
    fleet.refresh()
    assert fleet.most_room() == 6
    assert fleet.release(0)
    fleet.refresh()
    assert fleet.most_room() == 10


def test_room_opens_when_decay_makes_a_rank_less_busy():
    """64 tokens at 64 a second are no more than 20 after 44/64 of a second."""
    fleet = probe.Fleet(2, strict=True, thresholds=[(20, None)], decays=True)
    for rank in range(2):
        fleet.set_caps(rank, 10 - rank, None, 64)
        fleet.book(rank, rank, 64 + rank, 4)
    for now_ns, wanted in (0, -INT64_TOP), (687_499_999, -INT64_TOP), (687_500_000, 6), (10**9, 6):
        fleet.advance(now_ns)
        fleet.refresh()
        assert (fleet.most_room(), fleet.most_room(0)) == (6, wanted)


def test_bookings_move_a_rank_in_the_standings():
    fleet = probe.Fleet(3)
    query = Case((At(),) * 3).query()
    fleet.book(0, 0, 64, 4)
    fleet.book(1, 1, 48, 4)
    fleet.refresh()
    assert fleet.settle(query, []) == ([2], 4.0)
    fleet.book(2, 2, 80, 5)
    fleet.refresh()
    assert fleet.settle(query, []) == ([1], 7.0)
    assert fleet.release(2)
    fleet.refresh()
    assert fleet.settle(query, []) == ([2], 4.0)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a limit of the address space")
@pytest.mark.parametrize("spare", [2**20, 24 * 2**20, 40 * 2**20])
def test_a_rebuild_without_memory_has_not_happened(spare):
    """Three trees of 2^20 leaves take 32 MB each: some fit, not all."""
    fleet = probe.Fleet(40, strict=True, thresholds=[(20, None)])
    for rank in range(40):
        fleet.report(rank, 16 * rank, 40 - rank, 1)
    fleet.refresh()
    case = Case((At(),) * 40)
    before = fleet.settle(case.query(), []), fleet.most_room(), fleet.most_room(0)
    with little_memory(spare), pytest.raises(MemoryError):
        fleet.rebuild_huge(2**20)
    assert (fleet.settle(case.query(), []), fleet.most_room(), fleet.most_room(0)) == before
    fleet.report(7, 0, 0, 0)
    fleet.refresh()
    assert agree(fleet, case, [], 3)
    assert fleet.settle(case.query(), []) == ([7], 4.0)
