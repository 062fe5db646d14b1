"""Field reports 2.7: several routers. Each test names the public report that it guards against."""

from __future__ import annotations

import pytest
from replica_net import Faults, Net

from kvcore.events import peer_event
from kvcore.policy import Capacity
from kvcore.scheduler import Scheduler


def net(routers: int, faults: Faults | None = None, **config) -> Net:
    """Routers in front of two workers."""
    found = Net(Scheduler, routers, faults or Faults(), seed=1, **config)
    for worker_id in (1, 2):
        found.upsert(worker_id, total_kv_blocks=40)
    return found


def requests(found: Net, number: int) -> list[int]:
    return [row[0] for row in found.seen(number).values()]


def test_E100_a_router_that_is_rolled_leaves_no_bookings_behind():
    """dynamo#12778: its bookings stayed on the others for 300 s, and throughput dipped."""
    rolled = net(3)
    for _ in range(4):
        rolled.arrive(0, 16)
    rolled.arrive(1, 16)
    rolled.deliver()
    assert [sum(requests(rolled, number)) for number in range(3)] == [5, 5, 5]
    late = [told for _, receiver, told in rolled.said if receiver == 2]
    rolled.crash(0)
    rolled.notice(0)
    assert [sum(requests(rolled, number)) for number in (1, 2)] == [1, 1]
    rolled.restart(0)
    rolled.sync(1)
    rolled.arrive(0, 16)
    rolled.deliver()
    for told in late:
        rolled.step(2, peer_event(rolled.now_ns, told))
    assert [sum(requests(rolled, number)) for number in range(3)] == [2, 2, 2]
    assert rolled.differences() == []


def test_E100_its_successor_says_so_even_if_nobody_has_noticed():
    """dynamo#12778: the router that comes after it has a newer generation."""
    rolled = net(2)
    rolled.arrive(0, 16)
    rolled.deliver()
    rolled.crash(0)
    rolled.restart(0)
    rolled.sync(0)
    rolled.deliver()
    assert sum(requests(rolled, 1)) == 0


def test_E101_a_release_that_overtakes_its_booking_leaves_nothing():
    """dynamo#11992: a free before its add left load until it expired."""
    pair = net(2)
    pair.arrive(0, 16)
    pair.progress(0, 0, 2)
    booked, released = [told for _, _, told in pair.said]
    for told in (released, booked, released, booked):
        pair.hear(0, 1, told)
    assert sum(requests(pair, 1)) == 0
    assert pair.routers[1].core.stats().stale_events == 3


def test_E101_what_a_link_has_dropped_comes_with_the_next_sync():
    """dynamo#11992: nothing was retried, so a lost add or free stood until it expired."""
    pair = net(2, Faults(lost=0.5, longest_ns=100))
    for number in range(30):
        pair.arrive(number % 2, 8, path=number % 5)
        pair.progress(number % 2, number, number)
    pair.deliver()
    assert pair.differences() != []
    pair.settle()
    assert pair.differences() == []


@pytest.mark.parametrize("faults", [Faults(longest_ns=1_000), Faults(repeated=1.0, longest_ns=1_000)], ids=str)
def test_E125_two_cores_over_a_link_that_turns_the_order_round_count_the_same(faults):
    """llm-d-router#1593 and others: in-flight counts per process; wanted: own facts only, converging, never doubled."""
    pair = net(2, faults)
    for number in range(40):
        pair.arrive(number % 2, 4 + number, path=number % 5)
        pair.progress(number % 2, number, number // 2)
        pair.pass_time(20)
    pair.deliver()
    assert pair.differences() == []
    assert sum(requests(pair, 0)) > 10


def test_E125_two_routers_do_not_fill_the_same_rank_twice():
    """llm-d-router#1593: under strict capacity each sees what the other has taken, as soon as it has been told."""
    pair = net(2, capacity=Capacity.STRICT)
    for number in range(12):
        pair.arrive(number % 2, 40)
        pair.deliver()
    assert requests(pair, 0) == [4, 4]
    assert [router.core.stats().waiting_requests for router in pair.routers] == [2, 2]
    assert [router.core.stats().over_cap_ranks for router in pair.routers] == [0, 0]
