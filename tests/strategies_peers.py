"""A theme of plans: other replicas in front of the same workers, on top of any other theme."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from strategies import Flavour, anything, caches, crowds, duels, fadings, overloads, retries
from strategies_peer_letters import OWN_NAME

PEER_WEIGHTS = {"peer_booked": 7, "peer_prefill": 3, "peer_released": 4, "peer_lost": 1, "peer_synced": 3}


@st.composite
def replicas(draw, broken: bool = True) -> Flavour:
    """Peers book and release where own requests run and wait."""
    base = draw(st.one_of(
        anything(broken), crowds(), crowds(), fadings(), fadings(), retries(), overloads(), duels(), caches()))
    names = st.sampled_from((OWN_NAME, OWN_NAME, OWN_NAME, None))
    config = replace(base.config, replica=draw(names), replica_generation=draw(st.sampled_from((0, 1, 7))))
    kinds = {name: weight for name, weight in PEER_WEIGHTS.items()
             if name == "peer_booked" or draw(st.sampled_from((True, True, True, False)))}
    return replace(base, config=config, kinds={**base.kinds, **kinds})
