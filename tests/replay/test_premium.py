"""The premium experiment: how two classes share one worker, request by request (DESIGN D5, D7).

One worker runs four sequences. Prompts of 512 tokens that share nothing, one output token each, so that a slot is free
again as soon as a prompt is computed. Thresholds of 1,536 tokens: with four prompts under way (2,048 tokens) the worker
is busy, with three (1,536) it is not.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from kvcore.drivers.replay import simulate as loop
from kvcore.drivers.replay.presets import PRESETS
from kvcore.drivers.replay.result import RunOutcome
from kvcore.drivers.replay.simulate import simulate
from kvcore.drivers.replay.traces import TraceRow

from kvcore.actions import Dispatch, Park
from kvcore.config import SchedulerConfig
from kvcore.policy import CacheBucket, PolicyClass, PolicyProfile
from kvcore.scheduler import Scheduler

SPEC = replace(PRESETS["generic"], max_num_seqs=4, kv_blocks=100_000)
EACH = 320
PREMIUM, REGULAR = 0, 1
ORDERS = ["alternating", "premium first", "regular first", 1, 2, 3]


def two_classes(premium: int, regular: int) -> PolicyProfile:
    return PolicyProfile(
        tuple(
            PolicyClass(name, quantum, policy_family=name, cache_bucket="all", prefill_busy_threshold=1536)
            for name, quantum in (("premium", premium), ("regular", regular))
        ),
        (CacheBucket("all", 0),), "regular",
    )


def names_in(order) -> list[str]:
    """320 + 320 class names, in an order or shuffled with a seed."""
    if order == "alternating":
        return ["premium", "regular"] * EACH
    names = ["premium"] * EACH + ["regular"] * EACH
    if order == "regular first":
        names.reverse()
    elif order != "premium first":
        random.Random(order).shuffle(names)
    return names


def burst(names, prompt_tokens=lambda i: 512, gap_ns=0):
    """All rows at time 0, or gap_ns apart so that each is a step of its own."""
    return [
        TraceRow(i * gap_ns, prompt_tokens(i), 1, (2 * i + 1,), policy_class=name, row=i + 1)
        for i, name in enumerate(names)
    ]


def run(premium, regular, rows):
    return simulate(rows, SchedulerConfig(block_size=512, profile=two_classes(premium, regular)), SPEC, 1)


def completions(result) -> list[int]:
    """Class of every request in order of completion; those of one instant in order of dispatch."""
    table = result.table
    order = np.lexsort((table.column("wait_ns") + table.column("arrival_ns"), table.column("finish_ns")))
    assert (table.column("outcome") == RunOutcome.COMPLETED).all()
    return table.column("class_index")[order].tolist()


# With each arrival a step of its own and regular first, four of regular run before the first of premium is there.
@pytest.mark.parametrize(
    ("order", "gap_ns"), [(order, gap) for order in ORDERS for gap in (0, 1) if (order, gap) != ("regular first", 1)]
)
@pytest.mark.parametrize(
    ("premium", "regular", "low", "high"),
    [(512, 128, 254, 258), (2048, 512, 250, 262), (4096, 1024, 250, 262), (512, 512, 158, 162), (128, 128, 158, 162)],
)
def test_first_half_of_the_completions(premium, regular, low, high, order, gap_ns):
    result = run(premium, regular, burst(names_in(order), gap_ns=gap_ns))
    done = completions(result)
    assert low <= done[:EACH].count(PREMIUM) <= high
    assert result.audit == []


@pytest.mark.parametrize("order", ORDERS)
def test_regular_progresses_all_the_way(order):
    done = completions(run(512, 128, burst(names_in(order))))
    at = [i for i, index in enumerate(done) if index == PREMIUM]
    assert done[: at[79] + 1].count(REGULAR) >= 12
    assert set(done[at[-1] + 1 :]) == {REGULAR}, "once premium has ended, regular gets everything"
    assert len(done) - at[-1] - 1 >= 230


@pytest.mark.parametrize("gap_ns", [0, 1])
def test_exactly_four_run_before_the_first_waits(gap_ns, monkeypatch):
    actions = []

    class Recorder:
        def __init__(self, config):
            self._core = Scheduler(config)

        def __getattr__(self, name):
            return getattr(self._core, name)

        def step_many(self, events):
            answer = self._core.step_many(events)
            actions.extend(answer)
            return answer

    monkeypatch.setattr(loop, "Scheduler", Recorder)
    run(512, 128, burst(names_in(1), gap_ns=gap_ns))
    first = next(i for i, action in enumerate(actions) if isinstance(action, Park))
    assert [type(action) for action in actions[:first]] == [Dispatch] * 4


@pytest.mark.parametrize("seed", range(5))
def test_mixed_prompts_split_tokens_by_quantum(seed):
    """While both classes wait, their served tokens per quantum differ by less than D5's bound at every dispatch."""
    sizes = random.Random(seed)
    tokens = [sizes.choice([16, 100, 512, 700, 1500, 4000]) for _ in range(2 * EACH)]
    result = run(512, 128, burst(names_in(seed), lambda i: tokens[i]))
    table = result.table
    classes, prompts = table.column("class_index"), table.column("prompt_tokens")
    # Inside one instant the order of dispatch shows only within a class, so the bound is tested between instants.
    moments = table.column("wait_ns")
    bound = 1 + prompts[classes == PREMIUM].max() / 512 + prompts[classes == REGULAR].max() / 128
    last = min(moments[classes == index].max() for index in (PREMIUM, REGULAR))
    served = np.zeros(2)
    start = np.zeros(2)
    for moment in np.unique(moments[moments < last]):
        now = moments == moment
        served += [prompts[now & (classes == index)].sum() for index in (PREMIUM, REGULAR)]
        if moment == 0:
            start = served.copy()
        gap = (served - start) / (512, 128)
        assert abs(gap[PREMIUM] - gap[REGULAR]) <= bound
    split = served[PREMIUM] / served.sum()
    assert abs(split - 0.8) <= 2 * bound * 128 / served.sum()


def test_report_shows_the_share_against_the_quantum_share():
    result = run(512, 128, burst(names_in(1)))
    (premium, share, due), (regular, _, _) = result.contended_shares()
    assert due == 4 * (1 - due), "80 : 20"
    assert abs(share - due) < 0.01
    assert premium + regular > 0.9 * EACH / 0.8 * 512
