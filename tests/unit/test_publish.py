"""What a scheduler tells other replicas of its bookings, where among its answers, and that others are silent."""

from __future__ import annotations

import pytest
from stories import Story, arrive, upsert

from kvcore.actions import Dispatch, Evict, Park, Publish, Reject
from kvcore.config import SchedulerConfig
from kvcore.events import (
    Outcome,
    PeerBooked,
    PeerPrefillCompleted,
    PeerReleased,
    PeerSynced,
    PrefillCompleted,
    RequestFinished,
    TimerFired,
    peer_event,
)
from kvcore.policy import Capacity
from kvcore.replica import FactKind, PeerFact, ReplicaFacts
from kvcore.request import Request
from kvcore.scheduler import Scheduler

BOOKED, PREFILLED, RELEASED = FactKind


class Router(Story):
    """A story told by replica "a" of generation 3."""

    def __init__(self, *workers: int, **config) -> None:
        super().__init__(*workers, **{"replica": "a", "replica_generation": 3, **config})


def order(actions) -> str:
    """Names of the actions; of Publish what it says and of which attempt."""
    return ", ".join(f"{a.fact.kind.name} {a.fact.attempt}" if isinstance(a, Publish) else type(a).__name__
                     for a in actions)


def fact(kind: FactKind, attempt: int, **fields) -> PeerFact:
    return PeerFact(kind, "a", 3, attempt, **fields)


def test_a_booking_is_told_behind_its_dispatch():
    router = Router()
    router.upsert(7, 5, dp_start=2)
    told = router.arrive("q", 10, block_hashes=(1, 2, 3), expected_output_tokens=5)
    assert [type(action) for action in told] == [Dispatch, Publish]
    assert told[1].fact == fact(
        BOOKED, 1, worker_id=7, dp_rank=2, incarnation=5, sequence_hashes=(1, 2), unnamed_blocks=1, prefill_tokens=10,
        reserve_blocks=2)


def test_names_that_were_given_are_told_and_cached_tokens_are_not_prefill():
    router = Router(1)
    router.store(1, 1, 2)
    told = router.arrive("q", 10, block_hashes=(1, 2, 3), sequence_hashes=(9,))
    assert told[1].fact == fact(BOOKED, 1, worker_id=1, sequence_hashes=(9,), unnamed_blocks=2, prefill_tokens=2)


def test_each_dispatch_of_a_drain_is_followed_by_its_own():
    router = Router(1)
    told = router.many(arrive(0, "x"), arrive(0, "y"))
    assert order(told) == "Dispatch, BOOKED 1, Dispatch, BOOKED 2"


def test_the_end_of_prefill_is_told_once():
    router = Router(1)
    router.arrive("q")
    assert router.prefill("q", 1) == (Publish(fact(PREFILLED, 1)),)
    assert order(router.prefill("q", 1)) == "Ignored"


@pytest.mark.parametrize(("outcome", "completed"), [(Outcome.COMPLETED, True), (Outcome.ABORTED, False)])
def test_a_finished_run_is_released(outcome, completed):
    router = Router(1)
    router.arrive("q")
    assert router.finish("q", 1, outcome=outcome) == (Publish(fact(RELEASED, 1, completed=completed)),)


def test_a_cancelled_run_is_released_and_a_waiting_request_has_nothing_to_tell():
    router = Router(1, default_busy_threshold_frac=0.0)
    router.arrive("q")
    router.arrive("w")
    assert router.cancel("w") == ()
    assert router.cancel("q") == (Publish(fact(RELEASED, 1)),)


def test_a_failed_dispatch_is_released_before_what_becomes_of_it():
    router = Router(1, attempts_max=2)
    router.arrive("q")
    assert order(router.fail("q", 1, retry=True)) == "RELEASED 1, Dispatch, BOOKED 2"
    told = router.fail("q", 2, retry=True)
    assert order(told) == "RELEASED 2, Reject"
    router.arrive("r")
    assert order(router.fail("r", 3)) == "RELEASED 3"


def test_evictions_are_followed_each_by_its_own():
    router = Router(1)
    router.many(arrive(0, "x"), arrive(0, "y"))
    told = router.remove(1)
    assert order(told) == "Evict, RELEASED 1, Evict, RELEASED 2"
    assert [action.attempt for action in told if isinstance(action, Evict)] == [1, 2]
    assert order(router.fail("x", 1)) == ""


def test_an_expired_booking_is_released_when_it_is_due():
    router = Router(1, booking_ttl_ns=10)
    router.arrive("q")
    assert order(router.tick(10)) == "Evict, RELEASED 1"
    assert order(router.tick(20)) == ""


def test_the_end_of_a_drain_is_told():
    router = Router(1)
    router.arrive("q")
    assert order(router.drain(5)) == ""
    assert order(router.tick(5)) == "Evict, RELEASED 1"


def test_a_freed_rank_is_told_before_it_is_used():
    router = Router(1, default_busy_threshold_frac=0.0)
    router.arrive("q")
    assert isinstance(router.arrive("w")[-1], Park)
    assert order(router.prefill("q", 1)) == "PREFILL_COMPLETED 1, Dispatch, BOOKED 2"


def test_reads_tell_nobody():
    router = Router(1)
    before = router.core.digest()
    assert isinstance(router.core.peek(Request("q", 8)), Dispatch)
    assert router.core.replica_facts() == ReplicaFacts("a", 3, 1, ())
    assert router.core.digest() == before


def test_all_that_runs_is_told_by_attempt():
    router = Router(1, 2, default_busy_threshold_frac=0.0)
    told = [action.fact for name in "xyz" for action in router.arrive(name, 9, block_hashes=(1, 2))
            if isinstance(action, Publish)]
    router.prefill("x", 1)
    router.output("y", 2)
    assert [item.attempt for item in told] == [1, 2]
    facts = router.core.replica_facts()
    assert facts == ReplicaFacts("a", 3, 4, (told[0], fact(PREFILLED, 1), told[1], facts.facts[-1]))
    router.finish("x", 1)
    router.remove(facts.facts[-1].worker_id)
    assert router.core.replica_facts().next_attempt == 4


def test_who_has_no_name_says_nothing():
    """Not one action more, and the same state."""
    plain, named = Story(1, booking_ttl_ns=10), Router(1, booking_ttl_ns=10)
    batches = [(arrive(0, "x"), arrive(0, "y")), (PrefillCompleted(1, "x", 1),), (RequestFinished(2, "x", 1),),
               (TimerFired(10),), (upsert(11, 1, 1),)]
    for batch in batches:
        told = named.many(*batch)
        assert plain.many(*batch) == tuple(action for action in told if not isinstance(action, Publish))
        assert plain.core.digest() == named.core.digest()
    with pytest.raises(RuntimeError, match="replica is not set"):
        plain.core.replica_facts()


def test_a_fact_becomes_the_event_that_another_replica_steps():
    booked = fact(BOOKED, 4, worker_id=1, dp_rank=2, incarnation=3, sequence_hashes=(5, 6), unnamed_blocks=7,
                  prefill_tokens=8, reserve_blocks=9)
    assert peer_event(11, booked) == PeerBooked(11, "a", 3, 4, 1, 2, 3, (5, 6), 7, 8, 9)
    assert peer_event(11, fact(PREFILLED, 4)) == PeerPrefillCompleted(11, "a", 3, 4)
    assert peer_event(11, fact(RELEASED, 4, completed=True)) == PeerReleased(11, "a", 3, 4, True)
    assert peer_event(11, ReplicaFacts("a", 3, 5, (booked,))) == PeerSynced(11, "a", 3, 5, (booked,))


def test_a_request_that_cannot_run_is_no_booking():
    router = Router(1, capacity=Capacity.STRICT)
    router.upsert(1, total_kv_blocks=1)
    told = router.arrive("q", 100)
    assert [type(action) for action in told] == [Reject]


@pytest.mark.parametrize("keys", [
    {"replica": ""}, {"replica": "\ud800"}, {"replica": 1}, {"replica": b"a"}, {"replica_generation": -1},
    {"replica_generation": 2**63}, {"replica_generation": 1.0}, {"replica_generation": True},
    {"replica_generation": None}], ids=str)
def test_names_and_generations_that_cannot_be(keys):
    (name,) = keys
    with pytest.raises(ValueError, match=f"^{name} must be"):
        SchedulerConfig(**keys)


def test_the_largest_generation_is_told():
    core = Scheduler(SchedulerConfig(replica="é", replica_generation=2**63 - 1))
    core.step(upsert(0, 1))
    assert core.step(arrive(0, "q"))[1].fact.generation == 2**63 - 1
