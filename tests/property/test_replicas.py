"""Replicas agree on what runs where once their link is whole again, whatever it has done before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replica_net import REQUESTS, WORLD, Faults, Net, play
from stand_in import StandIn

from kvcore.policy import Capacity
from kvcore.scheduler import Scheduler

CONFIGS = ({}, {"default_busy_threshold_frac": 1.0}, {"capacity": Capacity.STRICT}, {"booking_ttl_ns": 60})
FAULTS = st.builds(Faults, st.sampled_from((0.0, 0.2, 0.6)), st.sampled_from((0.0, 0.3)), st.sampled_from((0, 10, 50)))
WHOLE = st.builds(Faults, st.just(0.0), st.sampled_from((0.0, 0.3)), st.sampled_from((0, 10, 50)))
LETTER = st.binary(min_size=4, max_size=4)
LETTERS = st.one_of(st.lists(LETTER, max_size=15), st.lists(LETTER, min_size=25, max_size=70))
#: The oracle is the protocol in plain Python: a few runs show that it is sound by itself.
MAKERS = {"core": Scheduler, "oracle": StandIn}


def drawn(data, make, faults=FAULTS) -> Net:
    return Net(make, data.draw(st.sampled_from((2, 5))), data.draw(faults), data.draw(st.integers(0, 999)),
               **data.draw(st.sampled_from(CONFIGS)))


def notice_all(net: Net) -> None:
    for number in range(len(net.routers)):
        net.notice(number)


def up(net: Net) -> list[int]:
    return [number for number, router in enumerate(net.routers) if router.up]


@pytest.mark.parametrize("made", MAKERS)
@given(st.data())
def test_after_one_round_of_syncs_all_see_the_same(made, data):
    net = drawn(data, MAKERS[made])
    play(net, data.draw(LETTERS), WORLD)
    notice_all(net)
    net.settle()
    assert net.differences() == []
    net.end()
    net.settle()
    assert net.differences() == []
    assert {load for number in up(net) for row in net.seen(number).values() for load in row} <= {0}


@given(st.data())
def test_a_link_that_loses_nothing_needs_no_sync(data):
    """However it turns the order round and repeats what it carries."""
    net = drawn(data, Scheduler, WHOLE)
    play(net, data.draw(LETTERS), REQUESTS)
    net.settle(sync=False)
    assert net.differences() == []


@given(st.data())
def test_what_comes_late_changes_nothing(data):
    """Everything that was ever said comes once more, in any order: facts and old syncs, of all generations."""
    net = drawn(data, Scheduler)
    play(net, data.draw(LETTERS), WORLD)
    notice_all(net)
    net.settle()
    said = list(net.said)
    net.random.shuffle(said)
    before = [router.core.digest() for router in net.routers]
    for sender, receiver, told in said:
        net.hear(sender, receiver, told)
    assert net.differences() == []
    assert [router.core.digest() for router in net.routers] == before


@given(st.data())
def test_a_lost_router_leaves_nothing_behind(data):
    """It is gone once that has been noticed, and what it has said before changes nothing any more."""
    net = drawn(data, Scheduler)
    play(net, data.draw(LETTERS), WORLD)
    notice_all(net)
    net.settle()
    net.sync(0)
    net.crash(0)
    net.notice(0)
    net.deliver()           # also what others could let run on the room that it has left
    assert net.differences() == []
    net.restart(0)
    net.settle()
    assert net.differences() == []
