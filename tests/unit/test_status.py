"""What is said of workers, and what becomes of requests then: who may be used, in which order, with which reason.

DESIGN D6, D7, D14. Marks by several sources, leases that end by themselves. Waiting for overload to end is in
test_capacity_overload.py.
"""

from __future__ import annotations

from itertools import product

import pytest
from capacity_stories import FOREVER, GONE, LEASED, OPEN, OVERLOADED, SAID, FleetStory, in_states, status, strict
from stories import arrive, profile, short, upsert

from kvcore.actions import Dispatch, Reject, RejectReason
from kvcore.config import OnOverload
from kvcore.events import PrefillCompleted
from kvcore.request import Rank

R = RejectReason
WAITS = {"profile": profile(prefill_busy_threshold=0)}
SITS_OUT = {**WAITS, "on_overload": OnOverload.WAIT}


# The order of refusals.


def test_an_arrival_is_refused_for_the_first_of_its_faults():
    """DESIGN D6: from the last fault to all of them, the reason is always that of the first check that fails."""
    story = FleetStory(profile=strict())
    story.upsert(1, total_kv_blocks=100)
    story.run("live")
    story.at(10)
    none, some = frozenset({"x"}), frozenset()
    faults = [
        (R.TOO_LARGE, {"prompt": 4000}),
        (R.NO_ELIGIBLE_WORKER, {"required_taints": none}),
        (R.PINNED_WORKER_UNAVAILABLE, {"pinned": Rank(1, 5)}),
        (R.PINNED_WORKER_NOT_ALLOWED, {"pinned": Rank(1, 5), "allowed_workers": some}),
        (R.DEADLINE_EXPIRED, {"deadline_ns": 10}),
        (R.DUPLICATE_ID, {"name": "live"}),
    ]
    asked = {"name": "new", "pinned": Rank(1)}
    for reason, fault in faults:
        asked |= fault
        assert story.arrive(**asked) == (Reject(asked["name"], reason),)


@pytest.mark.parametrize("fields", [
    {}, {"pinned": Rank(1)}, {"allowed_workers": frozenset()}, {"required_taints": frozenset({"x"})}])
def test_without_workers_every_arrival_hears_so(fields):
    story = FleetStory(**WAITS)
    assert short(story.arrive("a", **fields)) == "NO_WORKERS a"
    assert short(story.arrive("b", pinned=Rank(1), allowed_workers=frozenset())) == "PINNED_WORKER_NOT_ALLOWED b"


PINS = {
    "not allowed": ({"pinned": Rank(1), "allowed_workers": frozenset({2})}, "PINNED_WORKER_NOT_ALLOWED"),
    "nobody allowed": ({"pinned": Rank(1), "allowed_workers": frozenset()}, "PINNED_WORKER_NOT_ALLOWED"),
    "no such worker": ({"pinned": Rank(7)}, "PINNED_WORKER_UNAVAILABLE"),
    "below its ranks": ({"pinned": Rank(1, 1)}, "PINNED_WORKER_UNAVAILABLE"),
    "above its ranks": ({"pinned": Rank(1, 5)}, "PINNED_WORKER_UNAVAILABLE"),
    "taints": ({"pinned": Rank(1, 3), "required_taints": frozenset({"y"})}, "NO_ELIGIBLE_WORKER"),
    "fine": ({"pinned": Rank(1, 4), "required_taints": frozenset({"x"}), "allowed_workers": frozenset({1})}, "D"),
}


@pytest.mark.parametrize("case", PINS)
@pytest.mark.parametrize("config", [{}, WAITS, SITS_OUT, {"profile": strict()}], ids=["never", "busy", "out", "strict"])
def test_a_pin_is_never_given_to_another(case, config):
    """Worker 2 idles all the time, with every taint."""
    story = FleetStory(**config)
    story.upsert(1, dp_start=2, dp_size=3, taints=frozenset({"x"}))
    story.upsert(2, dp_size=9, taints=frozenset({"x", "y"}))
    fields, wanted = PINS[case]
    assert short(story.arrive("a", **fields)) == f"{wanted} a"


def expected(states, pin, queues, on_overload) -> str:
    """DESIGN D6, D7 in a few lines, for workers that are idle: D, P or a reason."""
    used = [state for number, state in enumerate(states, 1) if pin in (None, number) and state != GONE]
    if not used:
        return "NO_ELIGIBLE_WORKER" if pin is None else "PINNED_WORKER_UNAVAILABLE"
    if OPEN in used:
        return "D"
    if queues and (LEASED in used or on_overload is OnOverload.WAIT):
        return "P"
    if pin is None:
        return "ALL_ELIGIBLE_OVERLOADED" if OVERLOADED in used else "NO_ELIGIBLE_WORKER"
    return "PINNED_WORKER_UNAVAILABLE" if LEASED in used else "PINNED_WORKER_OVERLOADED"


@pytest.mark.parametrize("on_overload", list(OnOverload), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("queues", "made"), [
    (False, profile()), (True, profile(prefill_busy_threshold=0)), (True, strict())], ids=["never", "busy", "strict"])
def test_every_mixture_of_states(queues, made, on_overload):
    for states in product((OPEN, OVERLOADED, LEASED, GONE), repeat=3):
        for pin in (None, 1, 2):
            fields = {} if pin is None else {"pinned": Rank(pin)}
            wanted = expected(states, pin, queues, on_overload)
            story = FleetStory(1, 2, 3, profile=made, on_overload=on_overload)
            in_states(story, states)
            assert story.column("state") == list(states)
            actions = story.arrive("a", **fields)
            assert short(actions) == f"{wanted} a", (states, pin)
            if wanted == "D":
                assert states[actions[0].worker_id - 1] == OPEN
            # The same for one that waits already when all this is said.
            if queues and pin is not None and wanted != "D":
                story = FleetStory(1, 2, 3, profile=made, on_overload=on_overload)
                story.lose(pin, "before", lease_ns=FOREVER)
                assert short(story.arrive("a", **fields)) == "P a"
                said = story.many(status(0, pin, "test", **SAID[states[pin - 1]]), status(0, pin, "before"))
                assert short(said) == ("" if wanted == "P" else f"{wanted} a"), (states, pin)


@pytest.mark.parametrize(("allowed", "wanted"), [
    ({1}, "ALL_ELIGIBLE_OVERLOADED a"), ({2}, "P a"), ({1, 2}, "P a"), ({3}, "NO_ELIGIBLE_WORKER a"), ({4}, "D a"),
    ({1, 3}, "ALL_ELIGIBLE_OVERLOADED a"), ({9}, "NO_ELIGIBLE_WORKER a"), (set(), "NO_ELIGIBLE_WORKER a")])
def test_only_allowed_workers_decide(allowed, wanted):
    story = FleetStory(1, 2, 3, 4, **WAITS)
    in_states(story, (OVERLOADED, LEASED, GONE, OPEN))
    assert short(story.arrive("a", allowed_workers=frozenset(allowed))) == wanted


@pytest.mark.parametrize(("taint", "wanted"), [
    ("a", "ALL_ELIGIBLE_OVERLOADED a"), ("b", "P a"), ("c", "NO_ELIGIBLE_WORKER a"), ("d", "D a"),
    ("e", "NO_ELIGIBLE_WORKER a")])
def test_only_workers_with_the_taints_decide(taint, wanted):
    story = FleetStory(**WAITS)
    for worker_id, own in enumerate("abcd", 1):
        story.upsert(worker_id, taints=frozenset({own, "all"}))
    in_states(story, (OVERLOADED, LEASED, GONE, OPEN))
    assert short(story.arrive("a", required_taints=frozenset({taint, "all"}))) == wanted


def test_a_refusal_after_the_queue_names_its_class():
    story = FleetStory(1, profile=profile(10, 10, prefill_busy_threshold=0))
    story.run("x")
    story.arrive("a", policy_class="f1")
    assert story.overload(1) == (Reject("a", R.ALL_ELIGIBLE_OVERLOADED, 1),)
    assert story.core.stats().classes[1].rejected == 1


# Who waits when something is said.


CHANGES = {
    "gone": (lambda s: s.lose(1), "PINNED_WORKER_UNAVAILABLE pin", "NO_ELIGIBLE_WORKER any"),
    "overloaded": (lambda s: s.overload(1), "PINNED_WORKER_OVERLOADED pin", "ALL_ELIGIBLE_OVERLOADED any"),
    "overloaded for a while": (
        lambda s: s.overload(1, lease_ns=5), "PINNED_WORKER_OVERLOADED pin", "ALL_ELIGIBLE_OVERLOADED any"),
    "leased": (lambda s: s.lose(1, lease_ns=5), "", ""),
    "removed": (lambda s: s.remove(1), "NO_WORKERS pin", "NO_WORKERS any"),
    "other ranks": (lambda s: s.upsert(1, dp_start=1), "PINNED_WORKER_UNAVAILABLE pin", "D any"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_impossible_heads_are_answered_in_the_same_step(change):
    act, pin, free = CHANGES[change]
    story = FleetStory(1, **WAITS)
    story.run("x")
    story.arrive("pin", pinned=Rank(1))
    story.arrive("any")
    told = [short((action,)) for action in act(story) if action.request_id != "x"]
    assert told == [answer for answer in (pin, free) if answer]
    assert story.waiting == 2 - len(told)


def test_who_waits_takes_another_rank_when_its_first_is_gone():
    story = FleetStory(1, 2, **WAITS)
    for worker_id in (1, 2):
        story.run(f"x{worker_id}", pinned=Rank(worker_id))
    story.arrive("a")
    assert story.lose(1) == ()
    (action,) = story.prefill("x2", 2)
    assert (action.request_id, action.worker_id) == ("a", 2)


def test_a_free_rank_that_is_said_to_be_overloaded_takes_nobody():
    """Its prefill ends while it is marked; the waiting pin runs when the mark goes, not before."""
    story = FleetStory(1, **SITS_OUT)
    story.run("x")
    story.arrive("a", pinned=Rank(1))
    story.overload(1)
    assert story.prefill("x", 1) == ()
    assert short(story.say(1)) == "D a"


def test_bookings_stay_whatever_is_said():
    story = FleetStory(1)
    story.run("x", 8, block_hashes=(1, 2))
    before = story.row(1)
    for said in ({"overloaded": True}, {"available": False}, {"available": False, "lease_ns": 1}):
        assert story.say(1, **said) == ()
        assert {**story.row(1), "state": OPEN} == before
    assert short(story.prefill("x", 1)) == short(story.finish("x", 1)) == ""
    assert story.core.stats().completed == 1


def test_the_snapshot_counts_who_may_be_used_later_and_nobody_who_is_gone():
    """DESIGN D1: 16 tokens, 12 of them cached on worker 1."""
    for state, cost in ((OPEN, 4), (OVERLOADED, 4), (LEASED, 4), (GONE, 16)):
        story = FleetStory(1, 2, **WAITS)
        story.store(1, 1, 2, 3)
        in_states(story, (state, OPEN))
        story.run("x", pinned=Rank(2))
        if state == OPEN:
            story.run("y", pinned=Rank(1))
        assert short(story.arrive("a", 16, block_hashes=(1, 2, 3, 4))) == "P a"
        assert story.core.stats().classes[0].waiting_cost_tokens == cost


# Sources and leases.


def test_the_worst_word_of_all_sources_counts():
    story = FleetStory(1)
    words = [("o", {"overloaded": True}, OVERLOADED), ("l", {"available": False, "lease_ns": FOREVER}, LEASED),
             ("g", {"available": False}, GONE)]
    for source, said, state in words:
        story.say(1, source, **said)
        assert story.column("state") == [state]
    for source, state in (("g", LEASED), ("l", OVERLOADED), ("o", OPEN)):
        story.say(1, source)
        assert story.column("state") == [state]


@pytest.mark.parametrize("said", [{"available": False, "overloaded": True, "lease_ns": 10}, {"overloaded": True}])
def test_one_word_may_say_both(said):
    story = FleetStory(1)
    story.say(1, "a", **said)
    assert story.column("state") == [OVERLOADED if "lease_ns" not in said else LEASED]


def test_a_source_replaces_its_own_word_only():
    story = FleetStory(1)
    story.lose(1, "a")
    story.overload(1, "b", lease_ns=30)
    story.overload(1, "a", lease_ns=20)
    assert (story.column("state"), story.core.next_deadline_ns) == ([OVERLOADED], 20)
    story.say(1, "")
    story.say(1, "c")
    assert (story.column("state"), story.core.next_deadline_ns) == ([OVERLOADED], 20)
    story.tick(20)
    assert (story.column("state"), story.core.next_deadline_ns) == ([OVERLOADED], 30)
    story.tick(30)
    assert (story.column("state"), story.core.next_deadline_ns) == ([OPEN], None)


@pytest.mark.parametrize("lease_ns", [1, 7, 10**18])
def test_a_lease_ends_to_the_nanosecond(lease_ns):
    story = FleetStory(1, 2, **WAITS)
    story.run("x", pinned=Rank(2))
    story.at(100).lose(1, lease_ns=lease_ns)
    assert short(story.arrive("a")) == "P a"
    assert story.core.next_deadline_ns == 100 + lease_ns
    assert story.tick(100 + lease_ns - 1) == ()
    assert story.column("state") == [LEASED, OPEN]
    (action,) = story.tick(100 + lease_ns)
    assert (action.request_id, action.worker_id, action.wait_ns) == ("a", 1, lease_ns)


def test_any_fact_lets_time_pass_first():
    """A lease that ended long ago has ended before the fact is looked at."""
    for fact in (arrive(50, "b"), PrefillCompleted(50, "none", 1), upsert(50, 2), status(50, 1, "other")):
        story = FleetStory(1, **WAITS)
        story.lose(1, lease_ns=10)
        story.arrive("a")
        assert short(action for action in story.many(fact) if action.request_id == "a") == "D a"


def test_a_lease_renewed_in_time_does_not_end_and_one_too_late_does():
    story = FleetStory(1, **WAITS)
    story.lose(1, lease_ns=10)
    story.arrive("a")
    for now_ns in (9, 18, 27):
        assert story.at(now_ns).lose(1, lease_ns=10) == ()
        assert story.core.next_deadline_ns == now_ns + 10
    assert short(story.at(37).lose(1, lease_ns=10)) == ""  # it ends, and the worker is lost anew, in one step
    assert story.waiting == 1
    assert short(story.tick(47)) == "D a"


def test_a_lease_may_be_given_up_early_or_made_endless():
    story = FleetStory(1, **WAITS)
    story.lose(1, lease_ns=10)
    story.arrive("a")
    assert short(story.at(5).say(1)) == "D a"
    assert story.core.next_deadline_ns is None
    story.lose(1, lease_ns=10)
    story.lose(1)
    assert story.core.next_deadline_ns is None
    assert short(story.tick(100) + story.arrive("b")) == "NO_ELIGIBLE_WORKER b"


def test_a_lease_beyond_all_time_never_ends():
    story = FleetStory(1, **WAITS)
    story.at(1).lose(1, lease_ns=FOREVER)
    assert short(story.arrive("a")) == "P a"
    assert story.core.next_deadline_ns is None
    assert story.tick(FOREVER) == ()
    assert story.column("state") == [LEASED]


def test_leases_that_end_together_end_in_one_step():
    story = FleetStory(1, 2, 3, **WAITS)
    for worker_id in (3, 1, 2):
        story.lose(worker_id, lease_ns=10)
    for name in "abc":
        story.arrive(name)
    assert short(story.tick(10)) == "D a, D b, D c"


def test_a_lease_ends_before_a_deadline_of_the_same_time():
    """The rank is open again, but the request is too late all the same; a later one has its turn."""
    story = FleetStory(1, **WAITS)
    story.lose(1, lease_ns=10)
    story.arrive("a", deadline_ns=10)
    story.arrive("b", deadline_ns=11)
    assert short(story.tick(10)) == "DEADLINE_EXPIRED a, D b"


def test_all_ranks_of_a_worker_share_its_state():
    story = FleetStory()
    story.upsert(1, dp_size=2)
    story.upsert(2)
    story.overload(1)
    story.upsert(1, dp_start=1, dp_size=3)
    assert story.column("state") == [OVERLOADED] * 3 + [OPEN]
    assert {story.run(f"r{number}").worker_id for number in range(4)} == {2}
    assert short(story.arrive("p", pinned=Rank(1, 3))) == "PINNED_WORKER_OVERLOADED p"


# Identity.


def test_marks_survive_a_change_of_configuration_and_not_a_restart():
    story = FleetStory(1, **WAITS)
    story.lose(1, "a", lease_ns=100)
    story.overload(1, "b")
    story.upsert(1, 0, dp_size=2)
    assert story.column("state") == [LEASED, LEASED]
    story.arrive("x")
    assert short(story.upsert(1, 1)) == "D x"
    assert (story.column("state"), story.core.next_deadline_ns) == ([OPEN], None)


def test_marks_do_not_survive_removal():
    story = FleetStory(1)
    story.overload(1, lease_ns=100)
    story.remove(1)
    assert story.core.next_deadline_ns is None
    story.upsert(1)
    assert story.column("state") == [OPEN]


@pytest.mark.parametrize(("worker_id", "incarnation"), [(1, 1), (1, 3), (2, 2), (7, 0)])
def test_a_word_on_somebody_else_is_stale(worker_id, incarnation):
    story = FleetStory()
    story.upsert(1, 2)
    before = story.core.digest()
    assert story.overload(worker_id, incarnation=incarnation) == ()
    assert (story.core.digest(), story.core.stats().stale_events) == (before, 1)
    assert short(story.arrive("a")) == "D a"


def test_the_same_word_again_is_not_stale_and_changes_nothing():
    story = FleetStory(1)
    story.overload(1, "a", lease_ns=10)
    before = story.core.digest()
    story.overload(1, "a", lease_ns=10)
    story.say(1, "b")
    assert (story.core.digest(), story.core.stats().stale_events) == (before, 0)


def test_taking_every_word_back_leaves_no_trace():
    story = FleetStory(1)
    before = story.core.digest()
    for source in "abc":
        story.overload(1, source, lease_ns=10)
    story.say(1, "b")
    story.tick(10)
    assert story.core.digest() == before


def test_a_word_is_taken_into_account_by_the_arrival_behind_it():
    story = FleetStory(1, 2)
    actions = story.many(status(1, 1, overloaded=True), *[arrive(1, name) for name in "abc"])
    assert [(type(action), action.worker_id) for action in actions] == [(Dispatch, 2)] * 3
