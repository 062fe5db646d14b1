"""step_array against step: the same actions, the same digest, whoever steps and in arrays of whatever size."""

from __future__ import annotations

from arrayed import Arrayed
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep import Resolver, play
from oracle import Oracle
from policies import ADMISSION
from strategies import plans

from kvcore.errors import InvalidEvent
from kvcore.scheduler import Scheduler


@settings(max_examples=2 * settings().max_examples)
@given(plans())
def test_arrays_of_one_row_and_the_oracle_agree(plan):
    play(plan, Arrayed, numbered=True)


@given(plans(), st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_arrays_of_any_size_and_single_steps_agree(plan, sizes):
    by_step, by_array = Scheduler(plan.config, ADMISSION), Arrayed(plan.config, ADMISSION)
    oracle = Oracle(plan.config, ADMISSION)
    held, told = [], []

    def flush():
        if held:
            assert by_array.step_all(held) == tuple(told)
            assert by_array.digest() == by_step.digest()
            assert by_array.audit() == []
        held.clear()
        told.clear()

    for number, events in enumerate(Resolver(plan, oracle, numbered=True).batches()):
        for event in events:
            try:
                told += by_step.step(event)
            except InvalidEvent:
                continue
            oracle.step(event)
            held.append(event)
        if len(held) >= sizes[number % len(sizes)]:
            flush()
    flush()
