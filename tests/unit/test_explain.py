"""Why a request is where it is: what is told in each state, and that it is so (DESIGN 3, item 7)."""

from __future__ import annotations

import pytest
from explain_checks import explained, status, view
from stories import Story, arrive, profile, short

from kvcore.admission import AdmissionPolicy, Defer, MakeReady
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import (
    AdmissionReleased,
    OverlapRefreshed,
    PolicyReplaced,
    PrefillCompleted,
    RequestArrived,
    WorkerUpserted,
)
from kvcore.explanation import Explanation
from kvcore.policy import AdmissionSpec, Arbitration, QueuePolicy
from kvcore.request import Rank, Request, WorkerConfig
from kvcore.scheduler import Scheduler

BUSY_ABOVE = {"profile": profile(1000, 2000, prefill_busy_threshold=4096)}


class Hold(AdmissionPolicy):
    """Holds everything back until it is told of the time."""

    def __init__(self, parameters) -> None:
        self.held: list[str] = []
        self.until_ns = parameters["until_ns"]

    def decide(self, view):
        self.held.append(view.request_id)
        return Defer()

    def next_deadline_ns(self):
        return self.until_ns

    def on_time(self, now_ns):
        self.until_ns = None
        return [MakeReady(request_id) for request_id in self.held]

    def dump(self):
        return [self.held, self.until_ns]


def test_nobody_knows_a_request_that_is_not_live():
    story = Story(1)
    assert explained(story, "a") == Explanation(
        "a", "unknown", 0, ("no such request is live, and no decision about it is kept",))
    story.arrive("a")
    story.finish("a", 1)
    assert explained(story, "a").state == "unknown"


def test_a_head_waits_for_the_rank_that_is_nearest():
    story = Story(1, 2, **BUSY_ABOVE)
    story.arrive("x", 6000, pinned=Rank(1))
    story.arrive("y", 5000, pinned=Rank(2))
    story.at(7).arrive("a", 7000, strict_priority=3, deadline_ns=100)
    told = explained(story.at(9), "a")
    assert told == Explanation(
        "a", "waiting", 7,
        ("2 of 2 ranks are busy for class 'c0': the prefill load of worker 2 rank 0 must fall from 5,000 to 4,096 "
         "tokens",
         "class 'c0' has a deficit of 0 tokens: it can pay 7,000 after 7 more of its quantum of 1,000"),
        class_name="c0", class_index=0, key=told.key, strict_priority=3, seq=2, arrival_ns=7, wait_ns=0,
        deadline_ns=100, prompt_tokens=7000, cost_tokens=7000, position=1,
        ranks=(view(1, busy=True, prefill_tokens=6000, busy_above_tokens=4096, requests=1, held_blocks=1500),
               view(2, busy=True, prefill_tokens=5000, busy_above_tokens=4096, requests=1, held_blocks=1250)),
        ranks_count=2, deficit_tokens=0, quantum=1000, rounds_to_go=7)
    assert short(story.prefill("y", 2)) == "D a"


def test_what_must_fall_and_how_far_is_exact():
    """It runs when the load is there, and not before."""
    story = Story(1, **BUSY_ABOVE)
    story.many(arrive(0, "w", 1), arrive(0, "y", 903), arrive(0, "x", 4096))
    story.arrive("a")
    assert "must fall from 5,000 to 4,096 tokens" in explained(story, "a").reasons[0]
    assert story.prefill("y", 2) == ()
    assert "must fall from 4,097 to 4,096 tokens" in explained(story, "a").reasons[0]
    assert short(story.prefill("w", 1)) == "D a"


def test_behind_others_it_is_the_head_that_is_told_of():
    story = Story(1, **BUSY_ABOVE)
    story.arrive("x", 5000)
    story.many(*[arrive(0, name, policy_class="f1") for name in "abc"])
    assert explained(story, "b").reasons[0] == "1 of its lane goes before it, 'a' first"
    told = explained(story, "c")
    assert told.position == 3
    assert told.reasons[:2] == (
        "2 of its lane go before it, 'a' first",
        "'a' waits: 1 of 1 ranks is busy for class 'c1': the prefill load of worker 1 rank 0 must fall from 5,000 to "
        "4,096 tokens")


def test_lanes_have_positions_of_their_own():
    story = Story(1, 2, profile=profile(prefill_busy_threshold=0))
    story.many(arrive(0, "x", pinned=Rank(1)), arrive(0, "y", pinned=Rank(2)))
    story.many(*[arrive(0, f"s{i}") for i in range(3)], *[arrive(0, f"p{i}", pinned=Rank(2)) for i in range(3)])
    assert [explained(story, f"s{i}").position for i in range(3)] == [1, 2, 3]
    assert [explained(story, f"p{i}").position for i in range(3)] == [1, 2, 3]
    assert explained(story, "s1").lane is None
    told = explained(story, "p1")
    assert told.lane == Rank(2)
    assert [(row.worker_id, row.prefill_tokens) for row in told.ranks] == [(2, 8)]
    assert told.ranks_count == 1


@pytest.mark.parametrize("order", list(QueuePolicy))
def test_positions_are_exact_up_to_a_thousand(order):
    """Whatever the order: sorted by key they stand as they are served."""
    story = Story(1, profile=profile(10**6, queue_policy=order, prefill_busy_threshold=0))
    story.arrive("x")
    events = [arrive(i, f"r{i}", 1 + i * 7 % 13, strict_priority=i % 3, priority_jump=float(i * 5 % 7),
                     deadline_ns=10**6 + i * 11 % 17, track_prefill=False) for i in range(1010)]
    story.core.step_many(events)
    told = {event.request.request_id: story.core.explain(event.request.request_id) for event in events}
    order = sorted(told, key=lambda name: told[name].key)
    assert [told[name].position for name in order] == [*range(1, 1001), *[1000] * 10]
    assert [told[name].position_is_exact for name in order] == [True] * 1000 + [False] * 10
    assert told[order[-1]].reasons[0] == f"more than 999 of its lane go before it, '{order[0]}' first"
    served = [action.request_id for action in story.core.step(PrefillCompleted(2000, "x", 1))]
    assert served == order


def test_under_an_overtaking_bound_the_oldest_is_told_of():
    """b might run on worker 1; but a has been overtaken as far as it may be, and waits for worker 2."""
    story = Story(1, 2, profile=profile(
        100, queue_policy=QueuePolicy.LCFS, prefill_busy_threshold=0, max_overtake_tokens=10))
    story.many(arrive(0, "x", pinned=Rank(1)), arrive(0, "y", pinned=Rank(2)))
    story.at(1).arrive("a", allowed_workers=frozenset({2}))
    story.at(2).arrive("c")
    assert short(story.prefill("x", 1)) == "D c"
    story.at(3).arrive("b")
    assert story.prefill("c", 3) == ()
    told = explained(story, "b")
    assert (told.position, told.overtaken_tokens, told.max_overtake_tokens) == (1, 0, 10)
    assert told.reasons == (
        "'a' is the oldest of its lane and has to go first: it was overtaken by 8 of at most 10 tokens",
        "'a' waits: 1 of 1 ranks is busy for class 'c0': the prefill load of worker 2 rank 0 must fall from 8 to 0 "
        "tokens")
    assert explained(story, "a").reasons == (
        "1 of its lane goes before it, 'b' first",
        "it is the oldest of its lane and has to go first: it was overtaken by 8 of at most 10 tokens",
        "1 of 1 ranks is busy for class 'c0': the prefill load of worker 2 rank 0 must fall from 8 to 0 tokens")
    assert short(story.prefill("y", 2)) == "D a, D b"


@pytest.mark.parametrize(("arbitration", "granted"), [(Arbitration.EXACT, 4), (Arbitration.REFERENCE, 5)])
def test_rounds_to_go_are_those_of_the_worked_example(arbitration, granted):
    """The heads of DESIGN D5: 7000 at 1000 and 9000 at 2000. Behind the winner the last round is not granted."""
    story = Story(1, profile=profile(1000, 2000, arbitration=arbitration, prefill_busy_threshold=0))
    story.arrive("x")
    story.many(arrive(0, "s", 7000, policy_class="f0"), arrive(0, "l", 9000, policy_class="f1"))
    assert [explained(story, name).rounds_to_go for name in "sl"] == [7, 5]
    assert short(story.prefill("x", 1)) == "D l"
    told = explained(story, "s")
    assert (told.deficit_tokens, told.quantum, told.rounds_to_go) == (1000 * granted, 1000, 7 - granted)
    assert told.reasons[-1] == (
        f"class 'c0' has a deficit of {granted},000 tokens: it can pay 7,000 after {7 - granted} more of its quantum "
        "of 1,000")


def test_a_retried_request_costs_nothing_more():
    story = Story(1, 2, profile=profile(3, 5, prefill_busy_threshold=0), decisions_kept=2)
    story.arrive("x", pinned=Rank(1))
    story.arrive("a")
    story.arrive("b", pinned=Rank(2))
    assert short(story.fail("a", 2, retry=True)) == "D a"
    story.arrive("y")
    story.many(status(0, 2, available=False, lease_ns=50))
    assert short(story.fail("a", 3, retry=True)) == "P a"
    told = explained(story, "a")
    assert (told.cost_tokens, told.rounds_to_go, told.attempts, told.attempt) == (0, 0, 2, 3)
    assert told.decision.attempt == 3
    assert told.rank is None


def test_a_deferred_request_is_told_by_whom():
    only = profile(1000, 1, admission=AdmissionSpec("hold", {"until_ns": 1000}))
    core = Scheduler(SchedulerConfig(block_size=4, profile=only), admission={"hold": Hold})
    core.step_many((WorkerUpserted(0, WorkerConfig(1)), RequestArrived(0, Request("a", 8)),
                    RequestArrived(0, Request("b", 8, pinned=Rank(1)))))
    before = core.digest()
    told = core.explain("b")
    assert (told.state, told.deferred_by, told.lane, told.position) == ("deferred", "hold", Rank(1), None)
    assert told.reasons == ("admission policy 'hold' holds it back",)
    assert [row.takes for row in told.ranks] == [True]
    assert [(row.request_id, row.state, row.seq) for row in core.queue_dump(9)] == [
        ("a", "deferred", 0), ("b", "deferred", 1)]
    assert core.digest() == before
    assert short(core.step(AdmissionReleased(5, "b"))) == "D b"
    assert core.explain("b").deferred_by is None


def test_a_refreshing_request_is_told_what_is_asked():
    story = Story(1, profile=profile(1, 1, prefill_busy_threshold=0), index=IndexMode.OFF, refresh_after_ns=10,
                  refresh_timeout_ns=7_000)
    story.arrive("x")
    story.arrive("a", block_hashes=(1, 2))
    story.at(20).prefill("x", 1)
    told = explained(story, "a")
    assert (told.state, told.ticket, told.refresh_end_ns, told.wait_ns) == ("refreshing", 1, 7_020, 20)
    assert told.reasons == ("it waits for the answer to RefreshOverlap, ticket 1, another 7.000 us at most",)
    assert (told.position, told.rounds_to_go) == (None, None)
    assert story.core.queue_dump(1)[0].state == "refreshing"
    story.many(OverlapRefreshed(30, "a", 1))
    assert explained(story, "a").state == "running"


def test_a_running_request_and_an_evicted_one():
    story = Story(1, booking_ttl_ns=1_000)
    story.at(5).arrive("a", 10)
    told = explained(story.at(6), "a")
    assert told == Explanation(
        "a", "running", 5, ("attempt 1 runs",), class_name="default", class_index=0, key=told.key, seq=0,
        arrival_ns=5, prompt_tokens=10, cost_tokens=10, attempt=1, attempts=1, rank=Rank(1))
    story.at(200).remove(1)
    told = explained(story, "a")
    assert (told.state, told.rank, told.reasons) == (
        "evicted", None, ("the booking of attempt 1 is gone, and its driver has 1.000 us left to answer the Evict",))
    assert story.core.next_deadline_ns == 1_200


def test_an_evicted_request_without_a_time_limit():
    story = Story(1)
    story.arrive("a")
    story.remove(1)
    assert explained(story, "a").reasons == (
        "the booking of attempt 1 is gone, and its driver has not answered the Evict",)


def test_after_a_reload_classes_have_their_new_names():
    story = Story(1, profile=profile(1, prefill_busy_threshold=0), decisions_kept=9)
    story.arrive("x")
    story.arrive("a")
    new = profile(5, 7, prefill_busy_threshold=3, max_overtake_tokens=50)
    story.many(PolicyReplaced(0, type(new)((*new.classes[1:], new.classes[0]), new.buckets, "f0")))
    told = explained(story, "a")
    assert (told.class_name, told.class_index, told.quantum, told.max_overtake_tokens) == ("c0", 1, 5, 50)
    assert told.ranks[0].busy_above_tokens == 3
    story.prefill("x", 1)
    assert [(row.class_name, row.class_index) for row in story.core.decisions()] == [("c0", 0), ("c0", 1)]


def test_reading_inside_a_step_is_refused():
    """One owner: a policy, which runs inside the step, must not ask."""
    asked = []

    class Curious(Hold):
        def decide(self, view):
            for read in (lambda: core.explain("a"), lambda: core.queue_dump(1), lambda: core.decisions()):
                with pytest.raises(RuntimeError, match="inside step"):
                    read()
                asked.append(1)
            return super().decide(view)

    only = profile(admission=AdmissionSpec("hold", {"until_ns": None}))
    core = Scheduler(SchedulerConfig(profile=only), admission={"hold": Curious})
    core.step_many((WorkerUpserted(0, WorkerConfig(1)), RequestArrived(0, Request("a", 8))))
    assert len(asked) == 3


def test_a_dump_is_in_order_of_seq_and_bounded():
    story = Story(1, 2, profile=profile(5, 7, queue_policy=QueuePolicy.LCFS, prefill_busy_threshold=0))
    assert story.core.queue_dump(10) == ()
    story.many(arrive(0, "x"), arrive(0, "y", policy_class="f1"))
    for number in range(6):
        story.at(10 * number).arrive(f"r{number}", 4 + number, policy_class=f"f{number % 2}",
                                     pinned=Rank(2) if number == 3 else None)
    story.at(70).cancel("r1")
    before = story.core.digest()
    rows = story.core.queue_dump(10)
    assert [(row.request_id, row.state, row.class_name, row.class_index, row.lane, row.seq, row.wait_ns,
             row.cost_tokens) for row in rows] == [
        ("r0", "waiting", "c0", 0, None, 2, 70, 4), ("r2", "waiting", "c0", 0, None, 4, 50, 6),
        ("r3", "waiting", "c1", 1, Rank(2), 5, 40, 7), ("r4", "waiting", "c0", 0, None, 6, 30, 8),
        ("r5", "waiting", "c1", 1, None, 7, 20, 9)]
    assert [row.key for row in rows] == [story.core.explain(row.request_id).key for row in rows]
    for limit in range(7):
        assert story.core.queue_dump(limit) == rows[:limit]
    assert story.core.queue_dump(-1) == ()
    assert story.core.digest() == before
