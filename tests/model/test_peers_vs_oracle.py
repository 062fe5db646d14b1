"""The core and the oracle, step for step, where other replicas speak in between."""

from __future__ import annotations

from hypothesis import given
from lockstep import play
from strategies import plans
from strategies_peers import replicas

from kvcore.scheduler import Scheduler


@given(plans(replicas()))
def test_core_and_oracle_agree(plan):
    play(plan, Scheduler)
