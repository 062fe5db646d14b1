"""What the reference tests of selection that takes a whole scheduler (selector facts 7.1 and 7.4; field reports).

Worker ids are those of the reference; block size 16, default weights, nothing else going on.
"""

from __future__ import annotations

from collections import Counter

import pytest

import kvcore as kv
from kvcore import Overlap, Rank, RejectReason, Request, RequestArrived, WorkerConfig, WorkerStatusChanged


def core(*workers: WorkerConfig, **config) -> kv.Scheduler:
    """A scheduler with these workers."""
    made = kv.Scheduler(kv.SchedulerConfig(block_size=16, index=kv.IndexMode.OFF, **config))
    made.step_many([kv.WorkerUpserted(0, worker) for worker in workers])
    return made


def overload(made: kv.Scheduler, *workers: int) -> None:
    made.step_many([WorkerStatusChanged(0, worker, 0, overloaded=True) for worker in workers])


def answer(made: kv.Scheduler, request: Request):
    """The one action that an arrival leads to."""
    (action,) = made.step(RequestArrived(0, request))
    return action


def warm(worker: int, blocks: int) -> Overlap:
    return Overlap(effective=((Rank(worker), float(blocks)),), cached_tokens=((Rank(worker), 16 * blocks),))


def test_6_overloaded_high_overlap_worker_is_skipped():
    made = core(WorkerConfig(0), WorkerConfig(1))
    overload(made, 0)
    assert answer(made, Request("a", 64, overlap=warm(0, 4))).worker_id == 1


def test_7_all_eligible_workers_overloaded_returns_overload_error():
    made = core(WorkerConfig(0), WorkerConfig(1), weights=kv.SelectionWeights(overlap_score_credit_decay=1.0))
    overload(made, 0, 1)
    assert answer(made, Request("a", 64)).reason is RejectReason.ALL_ELIGIBLE_OVERLOADED


def test_8_overloaded_pinned_worker_is_not_rerouted():
    made = core(WorkerConfig(0), WorkerConfig(1))
    overload(made, 0)
    assert answer(made, Request("a", 64, pinned=Rank(0))).reason is RejectReason.PINNED_WORKER_OVERLOADED


def test_9_required_taints_return_no_endpoints_when_no_worker_matches():
    made = core(WorkerConfig(0, taints=frozenset({"mdc-a"})))
    request = Request("a", 16, required_taints=frozenset({"mdc-b"}))
    assert answer(made, request).reason is RejectReason.NO_ELIGIBLE_WORKER


def test_10_required_taints_filter_out_incompatible_workers():
    made = core(WorkerConfig(10, taints=frozenset({"a"})), WorkerConfig(20, taints=frozenset({"b"})))
    for i in range(8):
        assert answer(made, Request(f"r{i}", 16, required_taints=frozenset({"b"}))).worker_id == 20


@pytest.mark.parametrize(("weight", "wanted"), [(0.85, 10), (-0.25, 20)])
def test_12_and_13_preferred_taints(weight, wanted):
    """Ten blocks apart, as in the reference; a preference outweighs them, an aversion does not let them count."""
    made = core(WorkerConfig(10, taints=frozenset({"a"})), WorkerConfig(20, taints=frozenset({"b"})))
    for worker, blocks in (10, 100 if weight > 0 else 90), (20, 90 if weight > 0 else 100):
        answer(made, Request(f"load{worker}", 16 * blocks, pinned=Rank(worker), track_prefill=False,
                             sequence_hashes=tuple(range(1, blocks + 1))))
    assert answer(made, Request("a", 16, preferred_taints=(("a", weight),))).worker_id == wanted


@pytest.mark.parametrize(("prompt", "hashes", "active", "wanted"), [
    (32, 0, 0, 102), (32, 2, 0, 102), (32, 2, 2, 100), (33, 2, 0, 103)])
def test_43_potential_decode_blocks_after_admission(prompt, hashes, active, wanted):
    """100 blocks run; `active` of the prompt's are among them."""
    made = core(WorkerConfig(0))
    sequence = tuple(range(1, hashes + 1))
    answer(made, Request("load", 1600, sequence_hashes=(*sequence[:active], *range(1000, 1100 - active))))
    assert answer(made, Request("a", prompt, sequence_hashes=sequence)).potential_decode_blocks == wanted


def test_e25_unset_is_not_rank_0():
    """Without a rank requests spread over all four, a pin to rank 0 goes to rank 0 only."""
    made = core(WorkerConfig(1, dp_size=4))
    assert Counter(answer(made, Request(f"r{i}", 16)).dp_rank for i in range(40)) == {0: 10, 1: 10, 2: 10, 3: 10}
    assert {answer(made, Request(f"p{i}", 16, pinned=Rank(1, 0))).dp_rank for i in range(10)} == {0}


@pytest.mark.parametrize("workers", [3, 100])
def test_e37_equal_workers_are_all_chosen_and_reproducibly(workers):
    """Every request ends at once, so all stay equal; 100 workers are more than are looked at one by one."""
    def picks(seed: int) -> list[int]:
        made = core(*[WorkerConfig(w) for w in range(workers)], seed=seed)
        found = []
        for i in range(40 * workers):
            action = answer(made, Request(f"r{i}", 16))
            found.append(action.worker_id)
            made.step(kv.RequestFinished(0, action.request_id, action.attempt, kv.Outcome.COMPLETED))
        return found

    assert picks(1) == picks(1) != picks(2)
    counts = Counter(picks(1))
    # The 0.1 % points of the chi-square distribution with 2 and 99 degrees of freedom.
    assert sum((counts[w] - 40) ** 2 / 40 for w in range(workers)) < {3: 13.82, 100: 148.23}[workers]


def test_e38_a_miss_goes_to_the_idle_worker_whatever_it_caches():
    made = kv.Scheduler(kv.SchedulerConfig(block_size=16))
    made.step_many([kv.WorkerUpserted(0, WorkerConfig(w)) for w in (1, 2)])
    made.step(kv.BlocksStored(0, 2, 0, 0, tuple(range(1, 500))))
    answer(made, Request("load", 160, pinned=Rank(1)))
    assert answer(made, Request("a", 64, block_hashes=(900, 901, 902, 903))).worker_id == 2
