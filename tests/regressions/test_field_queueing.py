"""Field reports 2.5: limits, time-outs, outcomes, retries. Each test names the public report that it guards against.

Events have this project's names: "max_wait=0" is do_not_queue, "leased out" a WorkerStatusChanged with a lease, "drain"
and "shutdown" are Drained, a "respill" is DispatchFailed with retry. Rows that need a server are in field_rows.py.
"""

from __future__ import annotations

from dataclasses import fields

import pytest
from capacity_stories import FleetStory, status, strict
from policy_texts import policy, refused
from stories import arrive, profile, short

from kvcore.actions import Dispatch, Park, Reject, RejectReason
from kvcore.config import OnOverload
from kvcore.events import DispatchFailed, LoadReported, WorkerUpserted
from kvcore.policy import Arbitration, Capacity, PolicyClass
from kvcore.policy_file import load_policy
from kvcore.request import Rank, SelectionWeights, WorkerConfig
from kvcore.scheduler import Scheduler

R = RejectReason
WAITS = {"profile": profile(prefill_busy_threshold=0)}


@pytest.mark.parametrize("config", [WAITS, {"profile": strict()}], ids=["busy", "strict"])
@pytest.mark.parametrize("batch", [False, True], ids=["alone", "with its rival"])
def test_E68_a_request_that_may_not_wait_hears_no_at_once(config, batch):
    """dynamo#10573: a client in a hurry prefers a fast no to an unknown wait."""
    story = FleetStory(**config)
    story.upsert(1, max_requests=1)
    rival, asked = arrive(3, "x"), arrive(3, "a", do_not_queue=True)
    told = story.many(rival, asked)[1:] if batch else story.many(rival)[1:] + story.many(asked)
    assert told == (Reject("a", R.WOULD_QUEUE, 0),)
    assert story.core.stats().live_requests == 1
    story.finish("x", 1)
    assert short(story.many(asked)) == "D a"


def test_E70_documented_defaults_are_in_force():
    """llm-d-router#2123: neither time to live nor bounds were applied, whatever the documentation said.

    The values are those of DESIGN 3.3 and of the docstrings of SchedulerConfig and PolicyClass.
    """
    config = Scheduler().config
    documented = {
        "block_size": 16, "profile": None, "booking_ttl_ns": None, "weights": SelectionWeights(), "attempts_max": 8,
        "on_overload": OnOverload.REJECT, "overload_wait_ns": 30 * 10**9, "predict_ttl_ns": None,
        "reported_load_ttl_ns": None, "capacity": None, "seed": 0, "default_busy_threshold_frac": None}
    assert {name: getattr(config, name) for name in documented} == documented
    made = config.effective_profile()
    assert (made.arbitration, made.capacity) == (Arbitration.EXACT, Capacity.ADVISORY)
    (item,) = made.classes
    assert (item.name, item.quantum) == ("default", 1)
    bounds = [field.name for field in fields(PolicyClass) if "limit" in field.name or "threshold" in field.name]
    assert len(bounds) == 5
    assert {getattr(item, name) for name in bounds} == {None}


def test_E70_what_is_not_bounded_by_default_is_not_bounded():
    """llm-d-router#2123: and what is said to be without a bound has none; attempts end after the eighth."""
    story = FleetStory(1)
    told = story.many(*[arrive(0, f"r{number}") for number in range(500)])
    assert all(isinstance(action, Dispatch) for action in told)
    assert story.core.next_deadline_ns is None
    assert story.tick(10**18) == ()
    for attempt in range(1, 9):
        told = story.fail("r0", attempt if attempt == 1 else 499 + attempt, True)
    assert told == (Reject("r0", R.RETRIES_EXHAUSTED, 0),)


#: How one request ends, and the counter that tells of it. Worker 1 is kept busy by x, which ends first in `completed`.
OUTCOMES = {
    "completed": (lambda s: s.finish("x", 1), "completed"),
    "aborted": (lambda s: s.fail("x", 1), "aborted"),
    "cancelled while it runs": (lambda s: s.cancel("x"), "aborted"),
    "cancelled while it waits": (lambda s: (s.arrive("a"), s.cancel("a")), "aborted"),
    "deadline while it waits": (lambda s: (s.arrive("a", deadline_ns=5), s.tick(5)), "DEADLINE_EXPIRED"),
    "deadline at the door": (lambda s: s.arrive("a", deadline_ns=0), "DEADLINE_EXPIRED"),
    "in a hurry": (lambda s: s.arrive("a", do_not_queue=True), "WOULD_QUEUE"),
    "same id": (lambda s: s.arrive("x"), "DUPLICATE_ID"),
    "limit": (lambda s: [s.arrive(name) for name in "abcde"], "QUEUE_FULL_REQUESTS"),
    "nobody": (lambda s: s.arrive("a", allowed_workers=frozenset()), "NO_ELIGIBLE_WORKER"),
    "overload": (lambda s: (s.overload(1), s.arrive("a")), "ALL_ELIGIBLE_OVERLOADED"),
    "shutdown": (lambda s: (s.arrive("a"), s.drain(9)), "SHUTTING_DOWN"),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_E73_each_outcome_has_a_counter_of_its_own(outcome):
    """dynamo#14176: what was shed at a deadline was booked as the client's cancel, and no alert was raised."""
    act, name = OUTCOMES[outcome]
    story = FleetStory(1, profile=profile(prefill_busy_threshold=0, request_queue_limit_per_worker=4))
    story.run("x")
    act(story)
    stats = story.core.stats()
    assert {"completed": stats.completed, "aborted": stats.aborted, **stats.rejected} == {
        "completed": 0, "aborted": 0, name: 1}
    assert stats.arrived == stats.live_requests + 1


@pytest.mark.parametrize("lease_ns", [7, 40])
def test_E77_all_out_of_reach_wait_for_the_first_that_comes_back(lease_ns):
    """litellm#3646: with all deployments cooling down requests failed, though it was known how long."""
    story = FleetStory(1, 2, 3, **WAITS)
    for worker_id, after_ns in ((1, 50), (2, lease_ns), (3, 60)):
        story.lose(worker_id, "router", lease_ns=after_ns)
    assert short(story.arrive("a")) == "P a"
    assert short(story.arrive("b", deadline_ns=lease_ns)) == "P b"
    assert story.core.next_deadline_ns == lease_ns
    assert story.tick(lease_ns - 1) == ()
    (late, action) = story.tick(lease_ns)
    assert late == Reject("b", R.DEADLINE_EXPIRED, 0)
    assert (action.request_id, action.worker_id, action.wait_ns) == ("a", 2, lease_ns)


def test_E79_a_drain_leaves_nobody_without_an_answer():
    """llm-d-router#2156, llm-d-router#2099: queued requests were never answered at shutdown.

    The waiting hear it at once, in order of arrival; the running may end until the deadline, then their drivers hear
    it; whoever does not answer to that ends after booking_ttl_ns.
    """
    story = FleetStory(1, 2, booking_ttl_ns=500, **WAITS)
    for name, worker_id in (("w", 1), ("x", 2)):
        story.run(name, pinned=Rank(worker_id))
    for name, more in (("c", {}), ("b", {"pinned": Rank(1)}), ("a", {"strict_priority": 1, "deadline_ns": 300})):
        assert short(story.arrive(name, **more)) == f"P {name}"
    assert short(story.at(10).drain(100)) == "SHUTTING_DOWN c, SHUTTING_DOWN b, SHUTTING_DOWN a"
    assert short(story.arrive("late")) == "SHUTTING_DOWN late"
    assert story.finish("w", 1) == ()
    assert short(story.tick(100)) == "E x"
    assert story.tick(600) == ()
    stats = story.core.stats()
    assert (stats.completed, stats.aborted, stats.rejected) == (1, 1, {"SHUTTING_DOWN": 4})
    assert (stats.live_requests, story.core.next_deadline_ns) == (0, None)


@pytest.mark.parametrize("idle_ns", [1, 10**9, 2**61])
def test_E80_a_class_without_traffic_is_there_when_it_is_needed(idle_ns):
    """llm-d-router#1608: a band was collected though it was configured, and its requests were turned away."""
    story = FleetStory(1, profile=profile(10, 20, prefill_busy_threshold=0))
    story.run("x", policy_class="f1")
    story.finish("x", 1)
    story.tick(idle_ns)
    assert story.run("a", policy_class="f1").class_index == 1
    assert [row.name for row in story.core.stats().classes] == ["c0", "c1"]
    assert story.arrive("b", policy_class="f1") == (Park("b", 1),)


TROUBLE = {
    "overloaded": status(1, 1, "engine", overloaded=True),
    "unavailable": status(1, 1, "engine", available=False),
    "reported full": LoadReported(1, 1, 0, 0, 1, requests=2),
    "smaller": WorkerUpserted(1, WorkerConfig(1, max_requests=2, total_kv_blocks=1)),
}


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
def test_E82_nothing_is_sent_to_a_worker_that_the_same_step_knows_to_be_in_trouble(trouble, first):
    """sglang#39464, smg#2518: a worker became overloaded between pick and send. In a step there is no between.

    Worker 1 is idle, worker 2 is not: but for the trouble it would be 1.
    """
    story = FleetStory(profile=strict(), reported_load_ttl_ns=1000)
    for worker_id in (1, 2):
        story.upsert(worker_id, max_requests=2, total_kv_blocks=9)
    story.run("x", 16, pinned=Rank(2))
    asked = [arrive(1, "a"), TROUBLE[trouble]]
    (action,) = story.many(*(reversed(asked) if first else asked))
    assert (type(action), action.worker_id) == (Dispatch, 2)


def test_E82_a_refusal_of_the_backend_is_sent_elsewhere_once_and_then_refused():
    """sglang#39464: the second look is the driver's word: a lease and a retry; then the client hears why not."""
    story = FleetStory(1, 2)
    first = story.run("a").worker_id
    (action,) = story.many(status(1, first, "driver", overloaded=True, lease_ns=9), DispatchFailed(1, "a", 1, True))
    assert action.worker_id == 3 - first
    told = story.many(status(2, 3 - first, "driver", overloaded=True, lease_ns=9), DispatchFailed(2, "a", 2, True))
    assert told == (Reject("a", R.ALL_ELIGIBLE_OVERLOADED, 0),)


@pytest.mark.parametrize("typo", ["prefil_busy_threshold", "prefill_busy_treshold", "busy_threshold_frac"])
def test_E83_a_threshold_that_nobody_reads_is_an_error(typo):
    """dynamo#10631: a flag with a wrong key did nothing, without a word. It is refused, with the key that was meant."""
    error = refused(policy(**{typo: "0"}))
    assert typo in str(error)
    assert "prefill_busy_threshold" in str(error)
    profile_ = load_policy(policy(prefill_busy_threshold="0")).root
    story = FleetStory(1, profile=profile_)
    story.run("x")
    assert short(story.arrive("a")) == "P a"
