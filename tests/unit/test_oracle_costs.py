"""The reference's numbers of selection, through whole requests: load is booked, caches are told, costs are read."""

from __future__ import annotations

import math

import pytest
from oracle import Oracle
from stories import arrive, upsert

from kvcore.config import IndexMode, Role, SchedulerConfig
from kvcore.events import BlocksCleared, BlocksStored, RequestFinished, Tier
from kvcore.request import Overlap, Rank, Request, SelectionWeights

W = SelectionWeights


def oracle(block_size: int = 16, workers=(0, 1), taints=None, **config) -> Oracle:
    core = Oracle(SchedulerConfig(block_size, **{"seed": 42, **config}))
    for worker_id in workers:
        core.step(upsert(0, worker_id, taints=(taints or {}).get(worker_id, frozenset())))
    return core


def decode(core: Oracle, worker_id: int, blocks: int) -> None:
    """So many blocks run there, without prefill load."""
    size = core.config.block_size
    names = tuple(range(10_000 * (worker_id + 1), 10_000 * (worker_id + 1) + blocks))
    core.step(arrive(0, f"decode{worker_id}", blocks * size, pinned=Rank(worker_id), track_prefill=False,
                     block_hashes=names))


def prefill(core: Oracle, worker_id: int, tokens: int) -> None:
    """So many prompt tokens are computed there; no block has a name."""
    core.step(arrive(0, f"prefill{worker_id}", tokens, pinned=Rank(worker_id)))


def costs(core: Oracle, prompt: int, **fields) -> list[float]:
    return [row[-1] for row in core.potential_loads(Request("r", prompt, **fields))]


def device(**blocks: int) -> Overlap:
    return Overlap(tuple((Rank(int(name[1:])), count) for name, count in blocks.items()))


def test_overrides_change_the_choice():
    core = oracle(1)
    decode(core, 0, 1)
    known = Overlap(((Rank(0), 2),), shared=((0, 4),))
    wanted = {W(): [3.0, 4.0], W(0.0): [5.0, 4.0], W(prefill_load_scale=0.0): [1.0, 0.0],
              W(shared_cache_multiplier=1.0): [1.0, 0.0]}
    assert {weights: costs(core, 4, overlap=known, weights=weights) for weights in wanted} == wanted
    # The first number of seed 42 is 0.7908, and the cheaper one has 0.7311.
    assert core.step(arrive(0, "t", 4, overlap=known, weights=W(temperature=1.0)))[0].worker_id == 1


def test_weights_of_a_request_replace_all_of_the_configuration():
    core = oracle(1, weights=W(0.0, shared_cache_multiplier=1.0))
    assert costs(core, 4, overlap=device(w0=2), weights=W(1.0))[0] == 2.0
    assert costs(core, 4, overlap=device(w0=2))[0] == 4.0


def test_shared_hits_count_beyond_the_device():
    core = oracle(1, weights=W(shared_cache_multiplier=0.5))
    assert costs(core, 4, overlap=Overlap(((Rank(0), 2),), shared=((0, 4),))) == [1.0, 2.0]


def test_scale_applies_after_credits():
    core = oracle(weights=W(prefill_load_scale=2.0))
    decode(core, 0, 3)
    assert costs(core, 64, overlap=device(w0=2)) == [7.0, 8.0]


@pytest.mark.parametrize(("credit", "wanted"), [(1.0, [9.0, 8.0]), (1.5, [7.0, 8.0])])
def test_credit_above_one(credit, wanted):
    core = oracle(weights=W(credit))
    decode(core, 0, 5)
    assert costs(core, 128, overlap=device(w0=4)) == wanted


def test_cached_tokens_beyond_the_prompt_stay_in_the_cost():
    core = oracle(weights=W(prefill_load_scale=2.0))
    prefill(core, 0, 16)
    decode(core, 0, 2)
    known = Overlap(((Rank(0), 6),), cached_tokens=((Rank(0), 96),))
    assert costs(core, 64, overlap=known, sequence_hashes=(1, 2, 3))[0] == 7.0
    assert costs(core, 64, overlap=known, sequence_hashes=(1, 2, 3), track_prefill=False)[0] == 5.0


def test_running_requests_may_be_charged():
    core = oracle(weights=W(active_request_weight=32.0))
    decode(core, 0, 100)
    for name in "abc":
        core.step(arrive(0, name, 16, pinned=Rank(0), track_prefill=False))
    assert costs(core, 16, track_prefill=False) == [228.0, 0.0]


def test_decode_role_credits_overlap_without_prefill():
    for role, wanted in ((Role.DECODE, 7.0), (Role.PREFILL, 10.0)):
        core = oracle(role=role)
        decode(core, 0, 10)
        assert costs(core, 64, overlap=device(w0=3), track_prefill=False)[0] == wanted


@pytest.mark.parametrize(("decay", "wanted"), [(0.0, 3.0), (1.0, 7.0 - 4.0 / 1.75)])
def test_credit_decays_with_the_load_above_the_least(decay, wanted):
    core = oracle(weights=W(overlap_score_credit_decay=decay))
    prefill(core, 0, 48)
    assert costs(core, 64, overlap=device(w0=4)) == [pytest.approx(wanted, rel=1e-12), 4.0]
    assert costs(core, 64, overlap=device(w0=4), pinned=Rank(0))[0] == 3.0


def test_effective_overlap_counts_where_no_tier_is_told():
    core = oracle()
    decode(core, 0, 1)
    assert costs(core, 64, overlap=Overlap(effective=((Rank(0), 4),))) == [1.0, 4.0]
    other_tier = Overlap(effective=((Rank(0), 4),), disk=((Rank(1), 0),))
    assert costs(core, 64, overlap=other_tier) == [5.0, 4.0]


@pytest.mark.parametrize(("weight", "loads", "wanted"), [
    (0.85, (100, 90), [50.6050, 91.0]), (-0.25, (90, 100), [116.254, 101.0])])
def test_preferred_taints(weight, loads, wanted):
    core = oracle(workers=(10, 20), taints={10: frozenset({"a"}), 20: frozenset({"b"})})
    decode(core, 10, loads[0])
    decode(core, 20, loads[1])
    assert costs(core, 16, preferred_taints=(("a", weight),)) == pytest.approx(wanted, abs=1e-3)
    pinned = costs(core, 16, preferred_taints=(("a", weight),), pinned=Rank(10))
    assert pinned[0] == loads[0] + 1.0
    assert math.isnan(pinned[1])


def test_drawn_by_lot_among_equals():
    core = oracle(workers=(10, 20, 30), weights=W(temperature=0.7))
    taken = []
    for number in range(16):
        action = core.step(arrive(0, f"r{number}", 16))[0]
        taken.append(action.worker_id)
        core.step(RequestFinished(0, action.request_id, action.attempt))
    assert taken == [30, 20, 30, 10, 20, 20, 30, 20, 30, 10, 10, 30, 30, 20, 30, 30]


def test_tiers_are_weighed_once_into_cached_tokens():
    core = oracle(weights=W(host_cache_hit_weight=0.5, disk_cache_hit_weight=0.25))
    known = Overlap(((Rank(0), 2),), ((Rank(0), 3),), ((Rank(0), 9),))
    action = core.step(arrive(0, "r", 400, overlap=known))[0]
    assert (action.cached_tokens, action.overlap_blocks, action.prefill_tokens) == (92, 2, 308)


def test_tokens_that_are_told_win_and_a_rank_that_is_not_named_has_none():
    core = oracle()
    known = Overlap(((Rank(0), 2), (Rank(1), 3)), cached_tokens=((Rank(0), 7), (Rank(0), 9)))
    assert [row[5] for row in core.potential_loads(Request("r", 64, overlap=known))] == [9, 0]


def test_half_a_token_is_one():
    core = oracle(1)
    half = Overlap(effective=((Rank(0), 2.5), (Rank(1), 2.4)))
    assert [row[5] for row in core.potential_loads(Request("r", 64, overlap=half))] == [3, 2]


@pytest.mark.parametrize(("prompt", "names", "wanted"), [(32, 0, 102), (32, 2, 102), (33, 2, 103)])
def test_potential_decode_blocks(prompt, names, wanted):
    core = oracle(workers=(0,))
    decode(core, 0, 100)
    assert core.step(arrive(0, "r", prompt, sequence_hashes=(1, 2)[:names]))[0].potential_decode_blocks == wanted


def test_a_running_prompt_adds_nothing():
    core = oracle(workers=(0,))
    decode(core, 0, 100)
    names = (10_000, 10_001)
    assert core.step(arrive(0, "r", 32, sequence_hashes=names))[0].potential_decode_blocks == 100


def test_tiers_of_the_index_go_on_from_one_another():
    core = oracle(4, workers=(0,))
    for tier, names in ((Tier.DEVICE, (1, 2)), (Tier.HOST, (1, 3, 4)), (Tier.DISK, (2, 5, 7))):
        core.step(BlocksStored(0, 0, 0, 0, names, tier))
    assert core.stats().index_blocks == 8
    # 2 on the device, 2 more in host memory, 1 more on disk, then a hole: 2 + 1.5 + 0.25 blocks of 4 tokens.
    request = Request("r", 28, block_hashes=(1, 2, 3, 4, 5, 6, 7))
    assert core.potential_loads(request)[0][5] == 15
    core.step(BlocksCleared(0, 0, 0, 0, Tier.HOST))
    assert core.potential_loads(request)[0][5] == 8
    core.step(BlocksCleared(0, 0, 0, 0))
    assert (core.potential_loads(request)[0][5], core.stats().index_blocks) == (0, 0)


def test_engine_facts_are_no_news_without_an_index_of_events():
    for mode in (IndexMode.OFF, IndexMode.APPROXIMATE):
        core = oracle(index=mode)
        core.step(BlocksStored(0, 9, 9, 9, (1,), Tier.HOST))
        assert (core.stats().index_blocks, core.stats().stale_events) == (0, 0)
