"""The core's queue against the loop that grants one quantum at a time, under everything that may come in between.

Strict tiers with cheaper heads, lanes and groups that are blocked and freed, cancels, overtaking bounds; the number of
failed tests against the number of changes that were worth one; polls at random moments.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from ring import HEAD, PolledRing, Ring, made

from kvcore.policy import Arbitration

EXACT, REFERENCE = Arbitration.EXACT, Arbitration.REFERENCE
#: A case takes a fraction of a millisecond: tens of thousands of them in profile `ci`.
CASES = settings().max_examples
heads = st.binary(min_size=HEAD, max_size=HEAD)
stories = st.binary(min_size=80, max_size=240) | st.binary(max_size=40)


@settings(max_examples=20 * CASES)
@given(heads, stories)
def test_exact_is_the_naive_loop(head, story):
    Ring(made(head, EXACT, bounded=False)).play(story)


@settings(max_examples=6 * CASES)
@given(heads, stories)
def test_reference_is_the_reference(head, story):
    Ring(made(head, REFERENCE, bounded=False)).play(story)


@settings(max_examples=12 * CASES)
@given(heads, stories, st.sampled_from(list(Arbitration)))
def test_with_overtaking_bounds(head, story, arbitration):
    Ring(made(head, arbitration, bounded=True)).play(story)


@settings(max_examples=4 * CASES)
@given(heads, stories, st.binary(min_size=30, max_size=60))
def test_polling_leaves_the_run_identical(head, story, moments):
    """Mode `exact`; what mode `reference` makes of it is W6 of test_drr_reference."""
    plain, polled = Ring(made(head, EXACT, bounded=False)), PolledRing(made(head, EXACT, bounded=False), moments)
    plain.play(story)
    polled.play(story)
    assert polled.served == plain.served
