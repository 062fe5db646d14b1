"""The core and the oracle, step for step: same batches, same actions, same view of the world (DESIGN 6).

A difference is printed as Python code: paste it into a regression test and fix the one that strays from the design.
"""

from __future__ import annotations

from hypothesis import given, settings
from lockstep import play
from strategies import plans

from kvcore.scheduler import Scheduler

#: The widest test of the suite gets more examples than the profile gives to the others.
SHARE = 4


@settings(max_examples=SHARE * settings().max_examples)
@given(plans())
def test_core_and_oracle_agree(plan):
    play(plan, Scheduler)
