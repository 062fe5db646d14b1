"""What other replicas have booked weighs here as own bookings do, and in nothing but load."""

from __future__ import annotations

import pytest
from stories import Story, arrive, profile, short

from kvcore.actions import Dispatch, Publish
from kvcore.config import PrefillDecay
from kvcore.events import (
    LoadReported,
    PeerBooked,
    PeerLost,
    PeerPrefillCompleted,
    PeerReleased,
    PeerSynced,
    WorkerRemoved,
    WorkerUpserted,
    peer_event,
)
from kvcore.policy import Capacity
from kvcore.replica import FactKind, PeerFact, ReplicaFacts
from kvcore.request import Request, WorkerConfig

BOOKED, PREFILLED, RELEASED = FactKind


class Peer(Story):
    """A scheduler that hears of replica "p", generation 1 unless said."""

    def booked(self, attempt: int, worker_id: int = 1, *, name: str = "p", generation: int = 1, dp_rank: int = 0,
               incarnation: int = 0, hashes: tuple[int, ...] = (), unnamed: int = 0, prefill: int = 0,
               reserve: int = 0):
        return self.many(PeerBooked(self.now, name, generation, attempt, worker_id, dp_rank, incarnation, hashes,
                                    unnamed, prefill, reserve))

    def prefilled(self, attempt: int, name: str = "p", generation: int = 1):
        return self.many(PeerPrefillCompleted(self.now, name, generation, attempt))

    def released(self, attempt: int, name: str = "p", generation: int = 1, completed: bool = False):
        return self.many(PeerReleased(self.now, name, generation, attempt, completed))

    def lost(self, name: str = "p", generation: int = 1):
        return self.many(PeerLost(self.now, name, generation))

    def synced(self, next_attempt: int, *facts: PeerFact, generation: int = 1):
        return self.many(PeerSynced(self.now, "p", generation, next_attempt, facts))

    def row(self, worker_id: int = 1) -> tuple[int, ...]:
        """requests, prefill tokens, active and held blocks, and requests of peers."""
        rows = self.core.loads()
        (row,) = rows[rows["worker_id"] == worker_id]
        return tuple(int(row[name]) for name in
                     ("requests", "prefill_tokens", "active_blocks", "held_blocks", "peer_requests"))

    @property
    def stale(self) -> int:
        return self.core.stats().stale_events


def fact(kind: FactKind, attempt: int, worker_id: int = 1, generation: int = 1, **fields) -> PeerFact:
    where = {"worker_id": worker_id} if kind is BOOKED else {}
    return PeerFact(kind, "p", generation, attempt, **where, **fields)


def test_a_booking_comes_and_goes():
    story = Peer(1)
    empty = story.row()
    assert story.booked(1, hashes=(1, 2), unnamed=3, prefill=20, reserve=4) == ()
    assert story.row() == (1, 20, 2, 9, 1)
    assert story.prefilled(1) == ()
    assert story.row() == (1, 0, 2, 9, 1)
    assert story.released(1) == ()
    assert (story.row(), story.stale) == (empty, 0)


def test_what_is_known_already_is_stale_and_changes_nothing_else():
    story = Peer(1, replica="me")
    story.booked(1, prefill=20)
    story.booked(2, prefill=20)
    story.prefilled(1)
    story.released(2)
    story.booked(3, generation=2, prefill=20)
    story.lost("q")
    before = story.core.digest()
    for number, tell in enumerate((
        lambda: story.booked(3, generation=2), lambda: story.booked(4), lambda: story.released(3),
        lambda: story.prefilled(1), lambda: story.lost(generation=1), lambda: story.synced(9),
        lambda: story.booked(1, name="q"), lambda: story.lost("q"), lambda: story.booked(4, 9, generation=2),
        lambda: story.booked(4, generation=2, incarnation=1), lambda: story.booked(4, generation=2, dp_rank=1),
        lambda: story.booked(1, name="me"), lambda: story.lost("me", 7), lambda: story.released(1, "me"),
        lambda: story.many(PeerSynced(0, "me", 5, 9, ()))), 1):
        assert tell() == ()
        assert (number, story.stale, story.core.digest()) == (number, number, before)


def test_peers_are_in_no_number_of_our_own_requests():
    story = Peer(1)
    story.booked(1)
    story.booked(1, name="q")
    stats = story.core.stats()
    assert (stats.peers, stats.peer_bookings) == (2, 2)
    assert (stats.arrived, stats.dispatched, stats.live_requests, stats.running_requests) == (0, 0, 0, 0)
    story.arrive("x")
    stats = story.core.stats()
    assert (stats.live_requests, stats.running_requests, story.row()[0]) == (1, 1, 3)
    story.lost("q")
    assert (story.core.stats().peers, story.core.stats().peer_bookings) == (1, 1)


def test_a_rank_is_busy_with_what_peers_run_and_free_when_they_say_so():
    story = Peer(1, profile=profile(prefill_busy_threshold=10))
    story.booked(1, prefill=11)
    assert short(story.arrive("x")) == "P x"
    assert short(story.prefilled(1)) == "D x"
    story.booked(2, prefill=11)
    assert short(story.arrive("y")) == "P y"
    assert short(story.released(2)) == "D y"
    story.booked(3, prefill=99)
    assert short(story.arrive("z")) == "P z"
    assert short(story.lost()) == ""
    assert short(story.prefill("x", 1)) == "D z"


@pytest.mark.parametrize("tell", ["released", "lost", "synced", "renewed"])
def test_whatever_ends_a_booking_lets_the_next_one_in(tell):
    story = Peer(1, profile=profile(prefill_busy_threshold=10))
    story.booked(1, prefill=11)
    assert short(story.arrive("x")) == "P x"
    answers = {"released": lambda: story.released(1), "lost": story.lost, "synced": lambda: story.synced(2),
               "renewed": lambda: story.prefilled(1, generation=2)}
    assert short(answers[tell]()) == "D x"


def test_a_choice_avoids_what_peers_have_taken():
    story = Peer(1, 2)
    story.booked(1, 1, prefill=100)
    assert story.arrive("x")[0].worker_id == 2
    story.booked(2, 2, hashes=tuple(range(100)))
    assert story.arrive("y")[0].worker_id == 1


def test_blocks_are_shared_with_peers():
    story = Peer(1)
    story.booked(1, hashes=(1, 2, 3))
    (action,) = story.arrive("x", 16, block_hashes=(1, 2, 4, 5))
    assert action.potential_decode_blocks == 5
    assert story.row() == (2, 16, 5, 5, 1)
    story.released(1)
    assert story.row() == (1, 16, 4, 4, 0)


def test_a_weight_given_to_a_block_stays_with_the_peer_that_shares_it():
    story = Peer(1)
    story.arrive("x", 8, block_hashes=(1, 2))
    story.output("x", 1, 0.0)
    story.booked(1, hashes=(1, 2))
    assert story.row()[2] == 0
    story.finish("x", 1)
    assert story.row()[2:4] == (0, 2)


def strict(**caps) -> Peer:
    story = Peer(capacity=Capacity.STRICT)
    story.upsert(1, **caps)
    return story


def test_under_strict_capacity_blocks_of_peers_are_held():
    story = strict(total_kv_blocks=6)
    story.booked(1, hashes=(1, 2), unnamed=1, reserve=2)
    assert short(story.arrive("x", 8)) == "P x"
    assert short(story.released(1)) == "D x"


def test_under_strict_capacity_a_booking_with_the_same_prompt_may_let_somebody_in():
    """Where its first block is all that is missing: then the whole prompt runs there already."""
    story = strict(total_kv_blocks=4)
    story.booked(1, hashes=(2, 3))
    assert short(story.arrive("x", 12, block_hashes=(1, 2, 3))) == "P x"
    assert short(story.booked(2, hashes=(1,))) == "D x"
    assert story.row() == (3, 12, 3, 3, 2)


def test_under_strict_capacity_requests_of_peers_count():
    story = strict(max_requests=2)
    story.booked(1)
    assert short(story.arrive("x")) == "D x"
    assert short(story.arrive("y")) == "P y"
    assert short(story.released(1)) == "D y"


def test_limits_and_round_robin_know_nothing_of_peers():
    one = Peer(1, profile=profile(prefill_busy_threshold=0, request_queue_limit_per_worker=1))
    one.booked(1, prefill=1)
    assert short(one.arrive("x")) == "P x"
    assert short(one.arrive("y")) == "QUEUE_FULL_REQUESTS y"
    assert one.core.stats().classes[0].deficit_tokens == 0


def test_a_release_before_the_booking_and_a_prefill_before_it():
    story = Peer(1)
    story.released(2)
    story.prefilled(1)
    assert story.stale == 0
    story.booked(2, prefill=5)
    story.booked(1, prefill=5, hashes=(7,))
    assert (story.row(), story.stale) == ((1, 0, 1, 1, 1), 1)
    story.prefilled(1)
    assert story.stale == 2


def test_a_rank_that_comes_late_gets_its_bookings_from_a_sync():
    story = Peer(1)
    story.booked(1, 2, prefill=5)
    story.upsert(2)
    assert (story.row(2), story.stale) == ((0, 0, 0, 0, 0), 1)
    story.synced(2, fact(BOOKED, 1, 2, prefill_tokens=5))
    assert (story.row(2), story.stale) == ((1, 5, 0, 0, 1), 1)


def test_a_removed_rank_takes_the_bookings_of_peers_along_without_a_word():
    story = Peer(1, 2)
    story.booked(1, 1, prefill=5)
    story.booked(2, 1, prefill=5)
    story.prefilled(2)
    story.booked(3, 2, prefill=5)
    assert story.remove(1) == ()
    assert story.core.stats().peer_bookings == 1
    story.upsert(1)
    story.booked(1, 1, prefill=5)
    assert (story.row(), story.stale) == ((0, 0, 0, 0, 0), 1)
    story.synced(4, *[item for attempt in (1, 2, 3) for item in (fact(BOOKED, attempt, prefill_tokens=5),)])
    assert story.row() == (2, 5, 0, 0, 2)
    assert story.row(2) == (1, 5, 0, 0, 1)


def test_a_restarted_worker_has_lost_them_for_good():
    story = Peer(1)
    story.booked(1, prefill=5)
    story.arrive("x")
    assert short(story.upsert(1, 1)) == "E x"
    story.synced(2, fact(BOOKED, 1, prefill_tokens=5))
    assert (story.row(), story.stale) == ((0, 0, 0, 0, 0), 1)
    story.synced(2)
    assert story.stale == 1


def test_a_range_that_shrinks_takes_its_ranks_along():
    story = Peer()
    story.upsert(1, dp_size=3)
    story.booked(1, 1, dp_rank=2, prefill=5)
    story.booked(2, 1, dp_rank=0, prefill=6)
    story.upsert(1)
    assert story.row() == (1, 6, 0, 0, 1)


def test_a_sync_makes_the_picture_what_it_says():
    story = Peer(1)
    for attempt in (1, 2, 3, 7):
        story.booked(attempt, prefill=attempt)
    story.released(6)
    told = (fact(BOOKED, 2, prefill_tokens=2), fact(PREFILLED, 2), fact(BOOKED, 4, prefill_tokens=40),
            fact(BOOKED, 5, prefill_tokens=50), fact(PREFILLED, 5))
    story.synced(6, *told)
    assert (story.row(), story.stale) == ((4, 47, 0, 0, 4), 0)
    before = story.core.digest()
    story.synced(6, *told)
    story.synced(3, fact(BOOKED, 1), fact(BOOKED, 2))
    assert (story.core.digest(), story.stale) == (before, 0)


def test_a_sync_does_not_bring_back_what_was_released_meanwhile():
    story = Peer(1)
    story.booked(1, prefill=5)
    story.released(1)
    story.released(2)
    story.synced(4, fact(BOOKED, 1), fact(BOOKED, 2), fact(BOOKED, 3))
    assert story.row()[0] == 1


def test_a_sync_of_a_new_generation_replaces_the_old_one():
    story = Peer(1)
    story.booked(1, prefill=5)
    story.booked(9, prefill=6)
    story.synced(2, fact(BOOKED, 1, generation=2, prefill_tokens=7), generation=2)
    assert story.row()[:2] == (1, 7)
    story.released(1)
    assert story.row()[:2] == (1, 7)


def test_a_peer_out_of_reach_comes_back_under_a_newer_generation():
    story = Peer(1)
    story.booked(5, prefill=5)
    story.lost()
    story.synced(6, fact(BOOKED, 5, prefill_tokens=5))
    assert (story.row()[0], story.stale) == (0, 1)
    story.synced(6, fact(BOOKED, 5, generation=2, prefill_tokens=5), generation=2)
    assert (story.row()[0], story.stale) == (1, 1)


def test_two_peers_do_not_mix():
    story = Peer(1)
    story.booked(1, prefill=5)
    story.booked(1, name="q", prefill=7)
    story.lost("q")
    assert story.row()[:2] == (1, 5)


def test_what_an_engine_reports_counts_beyond_own_and_peers_bookings():
    story = Peer(1, reported_load_ttl_ns=100)
    story.booked(1, prefill=5, hashes=(1,))
    story.many(LoadReported(0, 1, 0, 0, 1, 12, 4, 3))
    (row,) = story.core.potential_loads(Request("x", 1, track_prefill=False)).tolist()
    assert row[3:6] == (3, 12, 4)


def test_prefill_of_peers_decays_from_when_it_was_heard_of():
    story = Peer(prefill_decay=PrefillDecay.LINEAR, profile=profile(prefill_busy_threshold=5))
    story.upsert(1, prefill_tokens_per_s=10**9)
    story.at(10).booked(1, prefill=10)
    assert short(story.at(12).arrive("x", 4)) == "P x"
    assert story.core.next_deadline_ns == 15
    assert short(story.tick(15)) == "D x"
    assert story.row()[1] == 5 + 4


def test_a_completed_release_is_credited_and_another_one_is_not():
    for completed, left in ((True, 20), (False, 15)):
        story = Peer(prefill_decay=PrefillDecay.LINEAR)
        story.upsert(1, prefill_tokens_per_s=10**9)
        story.booked(1, prefill=20)
        story.booked(2, prefill=10)
        story.at(5).released(2, completed=completed)
        assert story.row()[1] == left


def test_a_prefill_that_was_over_when_it_was_heard_of_is_no_work_of_the_oldest():
    story = Peer(prefill_decay=PrefillDecay.LINEAR)
    story.upsert(1, prefill_tokens_per_s=10**9)
    story.booked(1, prefill=20)
    story.at(5).prefilled(2)
    story.booked(2, prefill=4)
    story.synced(4, fact(BOOKED, 1), fact(BOOKED, 2), fact(BOOKED, 3, prefill_tokens=4), fact(PREFILLED, 3))
    assert story.row()[:2] == (3, 15)


def test_peek_and_potential_loads_see_peers():
    story = Peer(1, profile=profile(prefill_busy_threshold=10))
    story.booked(1, prefill=11, hashes=(1, 2))
    assert short((story.core.peek(Request("x", 8)),)) == "P x"
    (row,) = story.core.potential_loads(Request("x", 8)).tolist()
    assert row[3:6] == (1, 19, 2)


def test_caps_that_peers_exceed_are_told():
    story = Peer()
    story.upsert(1, max_requests=1)
    story.booked(1)
    assert story.core.stats().over_cap_ranks == 0
    story.booked(2)
    assert story.core.stats().over_cap_ranks == 1


def test_another_policy_leaves_bookings_of_peers_alone():
    """Their slots have been no request's, or that of one which has ended."""
    story = Story(1, profile=profile(10))
    story.many(arrive(0, "a"))
    story.many(*[PeerBooked(0, "p", 1, attempt, 1, prefill_tokens=8) for attempt in range(1, 40)])
    story.finish("a", 1)
    story.many(PeerBooked(0, "p", 1, 40, 1))
    loads = story.loads()
    story.reload(profile(20, 30))
    assert story.loads() == loads
    assert story.core.stats().peer_bookings == 40


def test_the_order_of_facts_leaves_no_trace():
    """Slots, tables and the digest: two that have heard the same in another order are the same."""
    one, other = Peer(1, 2), Peer(1, 2)
    for story, attempts in ((one, (1, 2, 3)), (other, (3, 1, 2))):
        for attempt in attempts:
            story.booked(attempt, 1 + attempt % 2, hashes=(attempt, 7), prefill=attempt)
    other.booked(5)
    assert one.core.digest() != other.core.digest()
    for story in (one, other):
        story.synced(6, *[fact(BOOKED, attempt, 1 + attempt % 2) for attempt in (1, 2, 3)])
        story.arrive("x", 8)
    assert one.core.digest() == other.core.digest()


def test_every_part_of_a_booking_is_in_the_digest():
    usual = {"hashes": (1, 2), "unnamed": 1, "prefill": 5, "reserve": 2}
    digests = set()
    for changes in ({}, {"hashes": (1, 3)}, {"unnamed": 2}, {"prefill": 6}, {"reserve": 3}, {"name": "q"},
                    {"generation": 2}, {"worker_id": 2}, {"attempt": 2}):
        story = Peer(1, 2)
        story.booked(**{"attempt": 1, **usual, **changes})
        digests.add(story.core.digest())
    assert len(digests) == 9


def test_routers_talk_to_each_other():
    """What one publishes, the other steps: afterwards both see the same load."""
    one, other = Peer(1, 2, replica="p", replica_generation=1), Peer(1, 2, replica="o")
    for actions in (one.arrive("x", 30, block_hashes=(1, 2)), one.arrive("y", 9), one.prefill("y", 2),
                    one.fail("x", 1, retry=True), one.finish("y", 2)):
        other.many(*[peer_event(0, action.fact) for action in actions if isinstance(action, Publish)])
    assert [row[:4] for row in (one.row(1), one.row(2))] == [row[:4] for row in (other.row(1), other.row(2))]
    told = one.core.replica_facts()
    assert [item.attempt for item in told.facts] == [3]
    before = other.core.digest()
    other.many(peer_event(0, told))
    assert other.core.loads()["requests"].sum() == 1
    assert other.core.digest() == before
    assert (type(told), told.next_attempt) == (ReplicaFacts, 4)


@pytest.mark.parametrize(("batched", "answer"), [(True, ""), (False, "D w")])
def test_facts_of_one_step_belong_into_one_batch(batched, answer):
    """Room that has been taken again in the same step is then not given away twice."""
    one, other = Peer(1, replica="p", replica_generation=1, default_busy_threshold_frac=0.0), Peer(
        1, replica="o", default_busy_threshold_frac=0.0)

    def tell(actions) -> str:
        events = [peer_event(0, action.fact) for action in actions if isinstance(action, Publish)]
        batches = [events] if batched else [[event] for event in events]
        told = [action for batch in batches for action in other.many(*batch)]
        return short([action for action in told if not isinstance(action, Publish)])

    assert tell(one.arrive("x")) == ""
    assert short(other.arrive("w")) == "P w"
    assert short(one.arrive("y")) == "P y"
    assert tell(one.finish("x", 1)) == answer


def test_own_bookings_end_before_those_of_peers_when_a_worker_goes():
    story = Peer(1, replica="o")
    story.booked(1, prefill=5, hashes=(1, 2))
    story.many(arrive(0, "x", block_hashes=(1, 2)))
    (dispatch, *_), told = story.arrive("y", 4), story.many(WorkerRemoved(0, 1))
    assert isinstance(dispatch, Dispatch)
    assert [type(action).__name__ for action in told] == ["Evict", "Publish", "Evict", "Publish"]
    story.many(WorkerUpserted(0, WorkerConfig(1)))
    assert story.row() == (0, 0, 0, 0, 0)
