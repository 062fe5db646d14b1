"""What time does: deadlines of waiting requests, bookings without progress, the next deadline (DESIGN D12, D9)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from stories import Story, arrive, profile, short

from kvcore.actions import Dispatch, Evict, EvictReason, Reject, RejectReason
from kvcore.config import OnOverload
from kvcore.events import (
    OutputBlockAdded,
    PrefillCompleted,
    RequestCancelled,
    RequestFinished,
    WorkerStatusChanged,
)
from kvcore.request import Rank

NS_LAST = 2**62 - 1
WAITS = {"profile": profile(prefill_busy_threshold=0)}
EXPIRED = RejectReason.DEADLINE_EXPIRED


def test_a_deadline_that_has_come_is_refused_at_the_door():
    story = Story(1).at(50)
    assert story.arrive("a", deadline_ns=49) == (Reject("a", EXPIRED, -1),)
    assert story.arrive("a", deadline_ns=50) == (Reject("a", EXPIRED, -1),)
    assert short(story.arrive("a", deadline_ns=51)) == "D a"
    assert story.core.next_deadline_ns is None  # it runs: its deadline is over


def test_a_deadline_is_met_to_the_nanosecond():
    story = Story(1, **WAITS)
    story.arrive("x")
    story.arrive("a", deadline_ns=50)
    assert story.core.next_deadline_ns == 50
    assert story.tick(49) == ()
    assert story.core.next_deadline_ns == 50
    assert story.tick(50) == (Reject("a", EXPIRED, 0),)
    assert story.core.next_deadline_ns is None
    assert short(story.cancel("a")) == "I a"


def test_room_at_the_deadline_comes_too_late():
    for now_ns, told in ((49, "D a"), (50, "DEADLINE_EXPIRED a"), (51, "DEADLINE_EXPIRED a")):
        story = Story(1, **WAITS)
        story.arrive("x")
        story.arrive("a", deadline_ns=50)
        assert short(story.at(now_ns).prefill("x", 1)) == told


def test_deadlines_in_order_of_time_then_arrival():
    story = Story(1, **WAITS)
    story.arrive("x")
    for name, deadline_ns in (("c", 30), ("a", 20), ("d", 30), ("b", 20), ("e", 40)):
        story.arrive(name, deadline_ns=deadline_ns, strict_priority=ord(name))
    assert story.core.next_deadline_ns == 20
    assert short(story.tick(39)) == ", ".join(f"DEADLINE_EXPIRED {name}" for name in "abcd")
    assert story.core.next_deadline_ns == 40


def test_any_event_moves_time():
    for event in (
            arrive(50, "b"), RequestCancelled(50, "z"), RequestFinished(50, "x", 9), OutputBlockAdded(50, "x", 1),
            RequestCancelled(50, "a")):
        story = Story(1, **WAITS)
        story.arrive("x")
        story.arrive("a", deadline_ns=50)
        assert short(story.many(event)).startswith("DEADLINE_EXPIRED a")


def test_a_deadline_elsewhere_than_at_the_head():
    """In a lane, behind a head, and at the head of the shared lane: whoever stood behind goes on at once."""
    story = Story(1, 2, **WAITS)
    story.arrive("x", pinned=Rank(1))
    story.arrive("lane", pinned=Rank(1))
    story.arrive("behind", pinned=Rank(1), deadline_ns=30)
    story.arrive("head", allowed_workers=frozenset({1}), deadline_ns=40)
    assert short(story.arrive("free")) == "P free"
    assert short(story.tick(30)) == "DEADLINE_EXPIRED behind"
    assert short(story.tick(40)) == "DEADLINE_EXPIRED head, D free"
    assert short(story.prefill("x", 1)) == "D lane"


def test_the_expired_make_room_before_limits_are_tested():
    story = Story(1, profile=profile(prefill_busy_threshold=0, request_queue_limit_per_worker=1))
    story.arrive("x")
    story.arrive("a", deadline_ns=50)
    assert short(story.at(49).arrive("b")) == "QUEUE_FULL_REQUESTS b"
    assert short(story.at(50).arrive("b")) == "DEADLINE_EXPIRED a, P b"


def test_deadlines_of_cancelled_requests_are_forgotten():
    story = Story(1, **WAITS)
    story.arrive("x")
    story.arrive("a", deadline_ns=50)
    story.arrive("b", deadline_ns=60)
    story.cancel("a")
    assert story.core.next_deadline_ns == 60
    story.cancel("b")
    assert story.core.next_deadline_ns is None
    assert story.tick(100) == ()


def test_a_booking_without_progress_is_evicted_and_then_ends_silently():
    story = Story(1, booking_ttl_ns=100).at(10)
    story.arrive("a", block_hashes=(1, 2))
    assert story.core.next_deadline_ns == 110
    assert story.tick(109) == ()
    assert story.tick(110) == (Evict("a", 1, 1, EvictReason.BOOKING_EXPIRED),)
    assert story.loads() == [(1, 0, 0, 0, 0)]
    assert (story.core.stats().evicted, story.core.stats().live_requests) == (1, 1)
    assert story.core.next_deadline_ns == 210
    assert story.tick(209) == ()
    assert story.tick(210) == ()
    stats = story.core.stats()
    assert (stats.aborted, stats.live_requests) == (1, 0)
    assert story.core.next_deadline_ns is None
    assert short(story.finish("a", 1)) == "I a"


def test_without_a_time_to_live_bookings_stay():
    story = Story(1)
    story.arrive("a")
    assert story.core.next_deadline_ns is None
    assert story.tick(NS_LAST) == ()
    assert story.core.stats().running_requests == 1


def test_one_long_sleep_is_as_good_as_many_short_ones():
    """The second timer starts at the due time, not at the time at which somebody looked."""
    for now_ns in (209, 210, 5_000):
        story = Story(1, booking_ttl_ns=100).at(10)
        story.arrive("a")
        assert story.tick(now_ns) == (Evict("a", 1, 1, EvictReason.BOOKING_EXPIRED),)
        assert story.core.stats().aborted == (now_ns >= 210)


def test_progress_renews_a_booking():
    story = Story(1, booking_ttl_ns=100).at(10)
    story.arrive("a")
    story.at(50).prefill("a", 1)
    assert story.core.next_deadline_ns == 150
    story.at(60).output("a", 1)
    assert story.core.next_deadline_ns == 160
    story.at(60).output("a", 1, 0.5)
    assert story.core.next_deadline_ns == 160
    for fact in (
            lambda: story.prefill("a", 1), lambda: story.output("a", 2), lambda: story.finish("a", 2),
            lambda: story.arrive("a"), lambda: story.output("b", 1)):
        story.at(story.now + 1)
        assert len(fact()) == 1
        assert story.core.next_deadline_ns == 160
    assert short(story.tick(160)) == "E a"


def test_an_evicted_request_waits_for_its_answer():
    answers = {
        "finish": lambda story: story.finish("a", 1), "cancel": lambda story: story.cancel("a"),
        "prefill": lambda story: story.prefill("a", 1), "output": lambda story: story.output("a", 1),
        "arrive": lambda story: story.arrive("a"), "wrong": lambda story: story.finish("a", 2),
    }
    told = {}
    for name, answer in answers.items():
        story = Story(1, booking_ttl_ns=100)
        story.arrive("a")
        story.tick(100)
        actions = answer(story)
        stats = story.core.stats()
        told[name] = (short(actions), stats.completed, stats.aborted, story.core.next_deadline_ns)
    assert told == {
        "finish": ("", 1, 0, None), "cancel": ("", 0, 1, None), "prefill": ("I a", 0, 0, 200),
        "output": ("I a", 0, 0, 200), "arrive": ("DUPLICATE_ID a", 0, 0, 200), "wrong": ("I a", 0, 0, 200)}


def test_bookings_end_in_order_of_their_due_times():
    story = Story(1, booking_ttl_ns=100)
    for name in "abcd":
        story.arrive(name)
    story.at(5).output("b", 2)
    story.at(5).output("a", 1)
    story.at(7).output("c", 3)
    # d is due at 100, a and b at 105 (by attempt), c at 107; d has ended for good before anything else at 200.
    assert short(story.tick(204)) == "E d, E a, E b, E c"
    assert (story.core.stats().aborted, story.core.next_deadline_ns) == (1, 205)
    assert story.tick(205) == ()
    assert (story.core.stats().aborted, story.core.next_deadline_ns) == (3, 207)


def test_at_one_time_deadlines_come_before_bookings():
    story = Story(1, **WAITS, booking_ttl_ns=100)
    story.arrive("x")
    story.arrive("a", deadline_ns=100)
    story.arrive("b", deadline_ns=101)
    assert short(story.tick(100)) == "DEADLINE_EXPIRED a, E x, D b"


def test_an_eviction_makes_room():
    story = Story(1, **WAITS, booking_ttl_ns=100)
    story.arrive("x")
    story.at(40).arrive("a")
    (evict, dispatch) = story.tick(170)
    assert (short([evict]), dispatch.wait_ns, story.core.next_deadline_ns) == ("E x", 130, 200)


def test_the_last_nanosecond():
    story = Story(1, **WAITS, booking_ttl_ns=NS_LAST)
    story.arrive("x")
    story.arrive("a", deadline_ns=NS_LAST)
    assert story.core.next_deadline_ns == NS_LAST
    assert short(story.tick(NS_LAST)) == "DEADLINE_EXPIRED a, E x"
    assert story.core.next_deadline_ns is None  # 2 * NS_LAST, which no event can reach
    assert story.tick(NS_LAST) == ()


def test_a_spurious_timer_changes_nothing():
    story = Story(1, **WAITS, booking_ttl_ns=100)
    story.arrive("x")
    story.arrive("a", deadline_ns=50)
    before = story.core.digest()
    for now_ns in (0, 1, 1, 49):
        assert story.tick(now_ns) == ()
        assert story.core.digest() == before


def event_of(kind: str, now_ns: int, name: str, attempt: int, deadline: int | None):
    match kind:
        case "arrive":
            return arrive(now_ns, name, 5, deadline_ns=None if deadline is None else now_ns + deadline)
        case "prefill":
            return PrefillCompleted(now_ns, name, attempt)
        case "output":
            return OutputBlockAdded(now_ns, name, attempt)
        case "cancel":
            return RequestCancelled(now_ns, name)
        case _:
            return RequestFinished(now_ns, name, attempt)


letters = st.tuples(
    st.sampled_from(("arrive", "arrive", "arrive", "prefill", "output", "cancel", "finish")), st.integers(0, 6),
    st.integers(0, 6), st.none() | st.integers(0, 12))


@given(st.lists(letters, max_size=30), st.none() | st.integers(1, 9), st.integers(0, 9))
def test_the_next_deadline_is_exact(steps, ttl_ns, threshold):
    """Just before it nothing happens, at it something does, after it the next one is later."""
    story = Story(1, profile=profile(prefill_busy_threshold=threshold), booking_ttl_ns=ttl_ns)
    attempts: dict[str, int] = {}
    now_ns = 0
    for kind, number, step_ns, deadline in steps:
        now_ns += step_ns
        actions = []
        while (due_ns := story.core.next_deadline_ns) is not None and due_ns <= now_ns:
            before = story.core.digest()
            assert story.tick(due_ns - 1) == ()
            assert story.core.digest() == before
            actions += story.tick(due_ns)
            assert story.core.digest() != before
        actions += story.many(event_of(kind, now_ns, f"r{number}", attempts.get(f"r{number}", 1), deadline))
        attempts.update({action.request_id: action.attempt for action in actions if isinstance(action, Dispatch)})


@given(st.lists(st.tuples(st.integers(0, 30), st.none() | st.integers(1, 40)), max_size=12), st.integers(1, 25))
def test_time_alone_brings_everything_to_rest(requests, ttl_ns):
    story = Story(1, **WAITS, booking_ttl_ns=ttl_ns)
    now_ns = 0
    for number, (step_ns, deadline) in enumerate(requests):
        now_ns += step_ns
        story.at(now_ns).arrive(f"r{number}", deadline_ns=None if deadline is None else now_ns + deadline)
    for _ in range(3 * len(requests) + 1):
        if (due_ns := story.core.next_deadline_ns) is None:
            break
        story.tick(due_ns)
    stats = story.core.stats()
    assert (story.core.next_deadline_ns, stats.live_requests, story.loads()) == (None, 0, [(1, 0, 0, 0, 0)])
    assert stats.evicted == stats.dispatched


def test_looks_cost_nothing_while_nothing_changes():
    """2^61 looks pass between two events; only those after the end of a lease can find something else."""
    story = Story(
        1, 2, profile=profile(prefill_busy_threshold=0), on_overload=OnOverload.WAIT, overload_wait_ns=1)
    story.arrive("x", pinned=Rank(1))
    story.many(WorkerStatusChanged(0, 2, 0, "a", False, False, 2**60))
    assert short(story.arrive("a")) == "P a"
    assert story.core.next_deadline_ns == 1
    assert story.tick(2**59) == ()
    assert story.core.next_deadline_ns == 2**59 + 1
    story.many(*[WorkerStatusChanged(2**59, worker, 0, "b", True, True) for worker in (1, 2)])
    assert short(story.tick(2**61)) == "ALL_ELIGIBLE_OVERLOADED a"
    assert story.core.next_deadline_ns is None
