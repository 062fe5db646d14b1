"""A theme of plans: other replicas in front of the same workers, on top of any other theme."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from strategies import Flavour, anything, caches, crowds, duels, fadings, overloads, retries
from strategies_peer_letters import OWN_NAME

PEER_WEIGHTS = {"peer_booked": 7, "peer_prefill": 3, "peer_released": 4, "peer_lost": 1, "peer_synced": 3}
#: Workers that leave and come back, and take bookings of peers along.
COME_AND_GO = {"upsert": 3, "remove": 2}


@st.composite
def replicas(draw, broken: bool = True, base: st.SearchStrategy[Flavour] | None = None, calm: bool = True) -> Flavour:
    """Peers book and release where own requests run and wait. calm: in most plans few workers leave."""
    below = draw(base if base is not None else st.one_of(
        anything(broken), crowds(), crowds(), fadings(), fadings(), retries(), overloads(), duels(), caches()))
    names = st.sampled_from((OWN_NAME, OWN_NAME, OWN_NAME, None))
    config = replace(below.config, replica=draw(names), replica_generation=draw(st.sampled_from((0, 1, 7))))
    kinds = {name: weight for name, weight in PEER_WEIGHTS.items()
             if name == "peer_booked" or draw(st.sampled_from((True, True, True, False)))}
    moves = draw(st.sampled_from(({}, {}, COME_AND_GO))) if calm else COME_AND_GO
    return replace(below, config=config, kinds={**below.kinds, **moves, **kinds})
