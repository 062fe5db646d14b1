"""Prefill load that fades while a prompt runs (DESIGN D9), seen from the queue: who waits runs at the crossing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from capacity_stories import FleetStory, status, strict
from hypothesis import given
from hypothesis import strategies as st
from stories import arrive, profile, short

from kvcore.config import PrefillDecay
from kvcore.events import Outcome, PrefillCompleted, TimerFired
from kvcore.request import Rank, Request

S = 10**9


def fading(threshold: int | None = 5, rate: int | None = 1, workers: int = 1, **config) -> FleetStory:
    """Workers that compute so many prompt tokens a second; a rank above the threshold is busy."""
    made = profile() if threshold is None else profile(prefill_busy_threshold=threshold)
    story = FleetStory(**{"profile": made, "prefill_decay": PrefillDecay.LINEAR, **config})
    for worker_id in range(1, workers + 1):
        story.upsert(worker_id, prefill_tokens_per_s=rate)
    return story


def crossing_ns(tokens: int, rate: int, threshold: int) -> int:
    """When tokens that started at 0 are down to the threshold: the first e with floor(tokens * e / d) >= the rest."""
    takes = -(-tokens * S // rate)
    return -(-(tokens - threshold) * takes // tokens)


@pytest.mark.parametrize(("tokens", "rate", "threshold"), [
    (10, 1, 5), (10, 3, 5), (10, 3, 9), (10, 3, 0), (7, 10**9, 3), (7, 2**53, 3), (1000, 7, 999), (2**40, 12345, 17),
    (3, 2, 1), (1, 1, 0), (2**53, 2**53, 2**52)])
def test_who_waits_runs_exactly_at_the_crossing(tokens, rate, threshold):
    story = fading(threshold, rate)
    story.run("x", tokens, sequence_hashes=())
    assert story.core.next_deadline_ns is None      # nobody waits for it
    assert short(story.arrive("a")) == "P a"
    due_ns = crossing_ns(tokens, rate, threshold)
    assert story.core.next_deadline_ns == due_ns
    assert story.tick(due_ns - 1) == ()
    assert story.row(1)["prefill_tokens"] > threshold
    (action,) = story.tick(due_ns)
    assert (action.request_id, action.wait_ns) == ("a", due_ns)


@given(st.integers(1, 10**6), st.integers(1, 10**9), st.integers(0, 10**6), st.integers(0, 10**9))
def test_any_crossing_is_exact(tokens, rate, threshold, start_ns):
    story = fading(threshold, rate)
    story.at(start_ns).run("x", tokens, sequence_hashes=())
    (action,) = story.arrive("a")
    if tokens <= threshold:
        assert short((action,)) == "D a"
        return
    due_ns = start_ns + crossing_ns(tokens, rate, threshold)
    assert story.core.next_deadline_ns == due_ns
    assert story.tick(due_ns - 1) == ()
    assert short(story.tick(due_ns)) == "D a"


@pytest.mark.parametrize("polls", [(), (1,), (S, 2 * S, 3 * S), (5 * S - 2, 5 * S - 1), tuple(range(0, 5 * S, S // 7))])
def test_polling_in_between_changes_nothing(polls):
    story, twin = fading(), fading()
    for each in (story, twin):
        each.run("x", 10)
        each.arrive("a")
    digest = story.core.digest()
    for now_ns in polls:
        assert story.tick(now_ns) == ()
        assert (story.core.digest(), story.core.next_deadline_ns) == (digest, 5 * S)
    assert story.tick(5 * S) == twin.tick(5 * S) != ()
    assert story.core.digest() == twin.core.digest()


def test_a_step_long_after_the_crossing_finds_it_done():
    story = fading()
    story.run("x", 10)
    story.arrive("a")
    assert short(story.many(arrive(100 * S, "b", 4))) == "D a, P b"


def test_without_waiting_requests_time_passes_in_silence():
    story = fading()
    story.run("x", 10)
    digest = story.core.digest()
    assert story.tick(20 * S) == ()
    assert (story.core.digest(), story.row(1)["prefill_tokens"]) == (digest, 0)
    assert short(story.arrive("a", 4)) == "D a"


@pytest.mark.parametrize("change", [{"rate": None}, {"prefill_decay": PrefillDecay.NONE}])
def test_without_a_rate_or_the_option_nothing_fades(change):
    story = fading(**change)
    story.run("x", 10)
    story.arrive("a")
    assert story.core.next_deadline_ns is None
    assert story.tick(10**6 * S) == ()
    assert story.row(1)["prefill_tokens"] == 10
    assert short(story.prefill("x", 1)) == "D a"


def test_fractions_of_the_batch_are_crossed_exactly_too():
    story = FleetStory(profile=profile(prefill_busy_threshold_frac=0.25), prefill_decay=PrefillDecay.LINEAR)
    story.upsert(1, prefill_tokens_per_s=1, max_batched_tokens=10)
    story.run("x", 10)
    story.arrive("a")
    assert story.core.next_deadline_ns == 8 * S     # 3 tokens are above 2.5, 2 are not


def test_each_class_has_its_own_crossing():
    made = profile(10, 10)
    classes = tuple(replace(item, prefill_busy_threshold=threshold)
                    for item, threshold in zip(made.classes, (2, 8), strict=True))
    story = fading(profile=replace(made, classes=classes))
    story.run("x", 10)
    story.arrive("low", 1, policy_class="f0")
    story.arrive("high", 1, policy_class="f1")
    assert story.core.next_deadline_ns == 2 * S
    assert short(story.tick(2 * S)) == "D high"
    # One token of "high" stands behind. For its class the rank is calm at 3 s, where nobody waits any more.
    assert story.core.next_deadline_ns == 3 * S
    assert story.tick(3 * S) == ()
    assert story.core.next_deadline_ns == 9 * S
    assert story.tick(9 * S - 1) == ()
    assert short(story.tick(9 * S)) == "D low"


def test_only_the_oldest_prefill_fades_and_the_next_begins_when_it_leaves():
    """What comes after it waits for the engine, however long the oldest takes."""
    story = fading()
    story.run("x", 10)
    for name in ("a", "b"):
        story.arrive(name, 10)
    assert short(story.tick(5 * S)) == "D a"
    assert story.row(1)["prefill_tokens"] == 15
    assert story.core.next_deadline_ns is None      # x will fade to nothing, and a stays above the threshold
    assert story.tick(100 * S) == ()
    assert story.row(1)["prefill_tokens"] == 10
    assert story.at(100 * S).prefill("x", 1) == ()
    assert story.core.next_deadline_ns == 105 * S
    assert story.tick(105 * S - 1) == ()
    assert short(story.tick(105 * S)) == "D b"


@pytest.mark.parametrize(("end", "left"), [("complete", 10), ("finish", 10), ("abort", 9), ("cancel", 9)])
def test_credit_comes_with_completion_only(end, left):
    """x takes 10 s, y behind it 4 s, and y is gone at 1 s. Has it been computed, x has been waiting for it: it begins
    at min(0 + 4, 1). Has it failed, x has run all along."""
    story = fading(None)
    story.run("x", 10)
    story.run("y", 4)
    story.at(1 * S)
    if end == "complete":
        story.prefill("y", 2)
    elif end == "cancel":
        story.cancel("y")
    else:
        story.finish("y", 2, outcome=Outcome.COMPLETED if end == "finish" else Outcome.ABORTED)
    assert story.row(1)["prefill_tokens"] == left
    story.tick(2 * S)
    assert story.row(1)["prefill_tokens"] == left - 1


def test_the_credit_of_a_long_prefill_moves_the_start_by_its_duration():
    """x 10 s, y 4 s, done together with 6 s gone: x is taken to run since 4 s."""
    story = fading(None)
    story.run("x", 10)
    story.run("y", 4)
    story.at(6 * S).prefill("y", 2)
    assert story.row(1)["prefill_tokens"] == 8
    story.tick(12 * S)
    assert story.row(1)["prefill_tokens"] == 2


@pytest.mark.parametrize("end", ["complete", "cancel", "evict"])
def test_when_the_front_leaves_the_next_begins_now(end):
    story = fading(None, booking_ttl_ns=3 * S)
    story.run("x", 10)
    story.at(1 * S).run("y", 4)
    if end == "evict":
        assert short(story.tick(3 * S)) == "E x"
    elif end == "cancel":
        story.at(3 * S).cancel("x")
    else:
        story.at(3 * S - 1).prefill("x", 1)
    assert story.row(1)["prefill_tokens"] == 4
    story.at(3 * S + S // 2).output("y", 2)         # a sign of life
    story.tick(5 * S)
    assert story.row(1)["prefill_tokens"] == 2


def test_a_rate_that_changes_counts_from_the_start_of_the_prefill():
    story = fading()
    story.run("x", 10)
    story.arrive("a")
    story.at(2 * S).upsert(1, prefill_tokens_per_s=2)
    assert story.row(1)["prefill_tokens"] == 6
    assert story.core.next_deadline_ns == 5 * S // 2
    story.upsert(1)
    assert (story.row(1)["prefill_tokens"], story.core.next_deadline_ns) == (10, None)
    assert short(story.upsert(1, prefill_tokens_per_s=5)) == "D a"


def test_a_rate_that_becomes_known_counts_from_the_start_of_the_prefill():
    story = fading(rate=None)
    story.run("x", 10)
    story.arrive("a")
    story.at(4 * S).upsert(1, prefill_tokens_per_s=1)
    assert (story.row(1)["prefill_tokens"], story.core.next_deadline_ns) == (6, 5 * S)


def test_the_first_rank_to_cross_takes_who_waits():
    story = fading(workers=3)
    story.upsert(3, prefill_tokens_per_s=4)
    for worker_id, prompt in ((1, 10), (2, 8), (3, 100)):
        story.run(f"x{worker_id}", prompt, pinned=Rank(worker_id))
    for name in ("a", "b"):
        story.arrive(name, 2)
    story.arrive("pin", 2, pinned=Rank(1))
    assert story.core.next_deadline_ns == 3 * S     # the second: 8 - 3
    (action,) = story.tick(3 * S)
    assert (action.request_id, action.worker_id) == ("a", 2)
    # 5 + 2 of them are above the threshold again, until two more have been computed; so is the first rank.
    assert story.core.next_deadline_ns == 5 * S
    assert [(action.request_id, action.worker_id) for action in story.tick(5 * S)] in (
        [("b", 2), ("pin", 1)], [("pin", 1), ("b", 2)])


def test_an_open_rank_is_needed_beside_a_calm_one():
    story = fading()
    story.run("x", 10)
    story.arrive("a")
    story.many(status(1, 1, available=False, lease_ns=7 * S - 1))
    assert story.tick(5 * S) == ()
    assert story.core.next_deadline_ns == 7 * S
    assert short(story.tick(7 * S)) == "D a"


def test_a_deadline_at_the_crossing_is_too_late_and_one_after_it_is_not():
    for deadline_ns, wanted in ((5 * S, "DEADLINE_EXPIRED a"), (5 * S + 1, "D a")):
        story = fading()
        story.run("x", 10)
        story.arrive("a", deadline_ns=deadline_ns)
        assert story.core.next_deadline_ns == 5 * S
        assert short(story.tick(5 * S)) == wanted


def test_load_of_others_does_not_fade():
    """3 of others and 10 of its own: busy above 5 until 2 are left; when the report ends 5 are enough."""
    for ttl_s, due_s in ((100, 8), (6, 6), (4, 5)):
        story = fading(reported_load_ttl_ns=ttl_s * S)
        story.run("x", 10)
        story.report(1, 1, prefill_tokens=13)
        story.arrive("a")
        while story.core.next_deadline_ns < due_s * S:
            assert story.tick(story.core.next_deadline_ns) == ()
        assert story.core.next_deadline_ns == due_s * S
        assert short(story.tick(due_s * S)) == "D a"


def test_a_report_is_compared_with_what_is_left():
    """The engine says seven when four are left here: three are of others."""
    story = fading(reported_load_ttl_ns=1000 * S)
    story.run("x", 10)
    story.at(6 * S).report(1, 1, prefill_tokens=7)
    assert story.potential(Request("q", 1), 1)["prefill_tokens"] == 8
    story.tick(10 * S)
    assert story.potential(Request("q", 1), 1)["prefill_tokens"] == 4


def test_prompts_that_add_no_prefill_are_not_in_the_way():
    story = fading(None)
    story.store(1, 1, 2)
    story.run("cached", 8, block_hashes=(1, 2))
    story.run("untracked", 8, track_prefill=False)
    story.at(3 * S).run("x", 10)
    story.tick(5 * S)
    assert story.row(1)["prefill_tokens"] == 8


def test_under_strict_capacity_a_crossing_needs_room_too():
    story = fading(profile=strict(prefill_busy_threshold=5))
    story.upsert(1, prefill_tokens_per_s=1, total_kv_blocks=4)
    story.run("x", 10)
    story.arrive("a", 8)
    assert story.core.next_deadline_ns == 5 * S
    assert story.tick(5 * S) == ()
    assert story.core.next_deadline_ns is None
    assert short(story.finish("x", 1)) == "D a"


def test_the_first_fact_after_the_crossing_lets_it_through():
    """Whatever the fact is: time goes first."""
    for fact in (TimerFired(5 * S), PrefillCompleted(5 * S, "x", 1), status(5 * S, 9), arrive(5 * S, "b", 9)):
        story = fading()
        story.run("x", 10)
        story.arrive("a")
        assert short(action for action in story.many(fact) if action.request_id == "a") == "D a"


def test_costs_go_by_what_is_left():
    """The rank with more to do at first has less to do later."""
    story = fading(None, workers=2)
    story.upsert(2, prefill_tokens_per_s=10)
    story.run("x", 10, pinned=Rank(1))
    story.run("y", 20, pinned=Rank(2))
    ask = Request("q", 4)
    assert story.costs(ask) == [14 / 4, 24 / 4]
    assert story.core.peek(ask).worker_id == 1
    story.tick(2 * S)
    assert story.costs(ask) == [12 / 4, 4 / 4]
    assert story.run("a", 4).worker_id == 2
