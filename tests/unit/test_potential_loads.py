"""`loads` and `potential_loads`: what they say of every rank, and that saying it changes nothing (DESIGN 3, D8, D9).

The projection is that of the reference: blocks = active + length of the query - its prefix that runs there, tokens =
active + what the request adds (capacity facts 2.1).
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy
import pytest
from capacity_stories import GONE, LEASED, OPEN, OVERLOADED, FleetStory, in_states, status, strict
from hypothesis import given
from hypothesis import strategies as st
from oracle_ledger import WyRand
from stories import arrive, profile, short

from kvcore.config import IndexMode, PrefillDecay
from kvcore.errors import InvalidEvent
from kvcore.events import (
    OutputBlockAdded,
    PrefillCompleted,
    RequestArrived,
    RequestFinished,
    Tier,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.request import Overlap, Rank, Request, SelectionWeights, WorkerConfig
from kvcore.scheduler import LOAD_DTYPE, POTENTIAL_DTYPE, Scheduler

INT64_TOP = 2**63 - 1
PATH = (1, 2, 3, 4)


def test_rows_have_the_documented_fields():
    story = FleetStory(1)
    assert story.core.loads().dtype == LOAD_DTYPE
    assert story.core.potential_loads(Request("q", 1)).dtype == POTENTIAL_DTYPE
    assert set(LOAD_DTYPE.names) == {
        "worker_id", "dp_rank", "requests", "prefill_tokens", "active_blocks", "held_blocks", "state",
        "reported_requests", "reported_prefill_tokens", "reported_blocks", "peer_requests"}
    assert set(POTENTIAL_DTYPE.names) == {
        "worker_id", "dp_rank", "eligible", "requests", "prefill_tokens", "decode_blocks", "cached_tokens", "cost"}


@pytest.mark.parametrize("more", [{"pinned": Rank(9)}, {"allowed_workers": frozenset()}])
def test_nothing_is_eligible_for_a_request_that_no_rank_may_take_and_that_comes_first(more):
    """No list of candidates has been made yet."""
    core = Scheduler()
    core.step_many([WorkerUpserted(0, WorkerConfig(worker)) for worker in range(3)])
    assert core.potential_loads(Request("a", 8, **more))["eligible"].tolist() == [0, 0, 0]


def test_rows_stand_in_canonical_order_whatever_the_order_of_events():
    story = FleetStory()
    for worker_id, start in ((7, 3), (2**64 - 1, 0), (1, 2**32 - 3), (3, 0)):
        story.upsert(worker_id, dp_start=start, dp_size=2)
    wanted = [(1, 2**32 - 3), (1, 2**32 - 2), (3, 0), (3, 1), (7, 3), (7, 4), (2**64 - 1, 0), (2**64 - 1, 1)]
    for rows in (story.core.loads(), story.core.potential_loads(Request("q", 1))):
        assert [(row["worker_id"], row["dp_rank"]) for row in rows] == wanted


def test_rows_follow_the_fleet():
    core, known = Scheduler(), 0
    for count in (1, 300, 2048, 16, 0, 3):
        core.step_many([WorkerUpserted(0, WorkerConfig(w)) for w in range(known, count)])
        core.step_many([WorkerRemoved(0, w) for w in range(count, known)])
        known = count
        for rows in (core.loads(), core.potential_loads(Request("q", 1))):
            assert rows["worker_id"].tolist() == list(range(count))


def test_what_is_returned_belongs_to_the_caller():
    story = FleetStory(1, 2)
    for read in (story.core.loads, lambda: story.core.potential_loads(Request("q", 8))):
        first = read()
        kept = first.copy()
        first["worker_id"] = 99
        story.run(f"r{story.core.stats().arrived}", pinned=Rank(1))
        assert read()["worker_id"].tolist() == [1, 2]
        assert kept["requests"].tolist() != read()["requests"].tolist()


# The values.


def test_tiers_of_the_index_count_as_far_as_each_goes_on():
    story = FleetStory(1, 2, 3)
    story.store_in(Tier.DEVICE, 1, 1, 2)
    story.store_in(Tier.HOST, 1, 3, 9)
    story.store_in(Tier.DISK, 1, 4, 2)
    story.store_in(Tier.HOST, 2, 2, 3)     # does not go on from the device
    story.store_in(Tier.DISK, 2, 1)
    story.store_in(Tier.HOST, 3, 1, 2, 3, 4)
    ask = Request("q", 16, block_hashes=PATH)
    rows = story.core.potential_loads(ask)
    # 2 + 0.75 + 0.25 = 3 blocks of four tokens; 0.25; 4 * 0.75
    assert rows["cached_tokens"].tolist() == [12, 1, 12]
    assert rows["prefill_tokens"].tolist() == [4, 15, 4]
    # credit in the cost is the same here: 16/4 - credit + four blocks
    assert rows["cost"].tolist() == [4 - 3.0 + 4, 4 - 0.25 + 4, 4 - 3.0 + 4]
    assert story.run("a", 16, block_hashes=PATH, pinned=Rank(1)).overlap_blocks == 2


def test_what_is_told_wins_over_the_index():
    story = FleetStory(1, 2)
    story.store(1, *PATH)
    ask = Request("q", 16, block_hashes=PATH, overlap=Overlap(((Rank(2), 1),), ((Rank(2), 2),), ((Rank(1), 1),)))
    assert story.core.potential_loads(ask)["cached_tokens"].tolist() == [1, 10]


@pytest.mark.parametrize(("cached", "shown"), [(0, 0), (15, 15), (16, 16), (17, 16), (2**53, 16)])
def test_cached_tokens_as_told_are_shown_up_to_the_prompt(cached, shown):
    """The cost knows the rest: what is cached beyond the prompt is work of others (selector facts 3.2)."""
    story = FleetStory(1)
    ask = Request("q", 16, overlap=Overlap(cached_tokens=((Rank(1), cached),)))
    row = story.potential(ask, 1)
    assert (row["cached_tokens"], row["prefill_tokens"], row["cost"]) == (shown, 16 - shown, max(16, cached) / 4)


def test_weights_of_tiers_are_those_of_the_request():
    story = FleetStory(1, weights=SelectionWeights(host_cache_hit_weight=0.0))
    told = Overlap(((Rank(1), 1),), ((Rank(1), 2),))
    assert story.potential(Request("q", 16, overlap=told), 1)["cached_tokens"] == 4
    assert story.potential(Request("q", 16, overlap=told, weights=SelectionWeights()), 1)["cached_tokens"] == 10


@pytest.mark.parametrize(("effective", "cached"), [(0.124, 0), (0.125, 1), (2.5, 10), (2.374, 9), (2.375, 10)])
def test_weighted_sums_become_whole_tokens_half_up(effective, cached):
    story = FleetStory(1)
    assert story.potential(Request("q", 16, overlap=Overlap(effective=((Rank(1), effective),))), 1)[
        "cached_tokens"] == cached


def test_load_of_others_counts_in_the_projection_and_not_in_own_load():
    story = FleetStory(1, reported_load_ttl_ns=100)
    story.run("a", 8, block_hashes=(1, 2))
    story.report(1, 1, prefill_tokens=30, blocks=12, requests=4)
    own = story.row(1)
    assert (own["requests"], own["prefill_tokens"], own["active_blocks"], own["held_blocks"]) == (1, 8, 2, 2)
    row = story.potential(Request("q", 12, block_hashes=(1, 2, 7)), 1)
    assert (row["requests"], row["prefill_tokens"], row["decode_blocks"]) == (4, 42, 13)
    assert row["cost"] == (30 + 12) / 4 + 13
    story.tick(100)
    row = story.potential(Request("q", 12, block_hashes=(1, 2, 7)), 1)
    assert (row["requests"], row["prefill_tokens"], row["decode_blocks"]) == (1, 20, 3)


def test_reports_without_a_time_to_live_are_shown_and_count_for_nothing():
    story = FleetStory(1)
    story.report(1, 1, prefill_tokens=30, blocks=12, requests=4)
    assert story.core.next_deadline_ns is None
    row = story.potential(Request("q", 8), 1)
    assert (row["requests"], row["prefill_tokens"], row["decode_blocks"], row["cost"]) == (0, 8, 0, 2.0)
    assert [story.row(1)[f"reported_{name}"] for name in ("prefill_tokens", "blocks", "requests")] == [30, 12, 4]


def test_the_own_load_is_compared_when_the_report_comes():
    """Bookings that end later do not make others grow, and others do not shrink what is booked later."""
    story = FleetStory(1, reported_load_ttl_ns=100)
    story.run("a", 8)
    story.report(1, 1, prefill_tokens=10)
    ask = Request("q", 1)
    assert story.potential(ask, 1)["prefill_tokens"] == 11
    story.prefill("a", 1)
    assert story.potential(ask, 1)["prefill_tokens"] == 3
    story.run("b", 8)
    assert story.potential(ask, 1)["prefill_tokens"] == 11
    story.report(1, 2, prefill_tokens=3)
    assert story.potential(ask, 1)["prefill_tokens"] == 9


def test_decay_shows_to_the_token():
    story = FleetStory(prefill_decay=PrefillDecay.LINEAR)
    story.upsert(1, prefill_tokens_per_s=1)
    story.run("a", 10)
    second = 10**9
    for now_ns, left in ((0, 10), (second - 1, 10), (second, 9), (second + 1, 9), (10 * second - 1, 1),
                         (10 * second, 0), (10**15, 0)):
        story.tick(now_ns)
        assert story.row(1)["prefill_tokens"] == left
        row = story.potential(Request("q", 6), 1)
        assert (row["prefill_tokens"], row["cost"]) == (left + 6, (left + 6) / 4)


def test_untracked_requests_add_no_prefill():
    story = FleetStory(1)
    story.run("a", 12)
    row = story.potential(Request("q", 8, block_hashes=(1, 2), track_prefill=False), 1)
    assert (row["prefill_tokens"], row["decode_blocks"], row["cost"]) == (12, 2, 2.0)


def test_counts_saturate():
    story = FleetStory(1, block_size=2**31 - 1, reported_load_ttl_ns=100, index=IndexMode.OFF)
    story.many(*[arrive(0, f"r{number}", 2**53) for number in range(1030)])
    story.report(1, 1, prefill_tokens=2**53, blocks=2**53, requests=2**53)
    assert story.row(1)["prefill_tokens"] == INT64_TOP
    row = story.potential(Request("q", 2**53, sequence_hashes=(1,)), 1)
    assert (row["prefill_tokens"], row["decode_blocks"], row["requests"]) == (INT64_TOP, 2**53 + 1, 2**53)
    assert row["cost"] == float(INT64_TOP) / float(2**31 - 1) + float(2**53 + 1)
    story.many(*[PrefillCompleted(0, f"r{number}", number + 1) for number in range(1030)])
    assert story.row(1)["prefill_tokens"] == 0


# Eligibility.


def eligible(story: FleetStory, **fields) -> list[int]:
    """Workers that would take it; the cost of all others, and of them alone, is no number."""
    rows = story.core.potential_loads(Request("q", fields.pop("prompt", 8), **fields))
    assert [math.isnan(cost) for cost in rows["cost"]] == [not flag for flag in rows["eligible"]]
    return rows["worker_id"][rows["eligible"].astype(bool)].tolist()


def test_who_would_take_it():
    story = FleetStory(profile=profile(prefill_busy_threshold=0))
    for worker_id, taint in enumerate("xxyxy", 1):
        story.upsert(worker_id, taints=frozenset(taint))
    in_states(story, (OPEN, OVERLOADED, OPEN, GONE, LEASED))
    story.run("busy", pinned=Rank(3))
    assert eligible(story) == [1, 3]          # a busy rank may be placed on, if the queue lets it
    assert eligible(story, allowed_workers=frozenset({2, 3, 9})) == [3]
    assert eligible(story, required_taints=frozenset("x")) == [1]
    assert eligible(story, required_taints=frozenset("xy")) == []
    assert eligible(story, allowed_workers=frozenset()) == []
    assert eligible(story, pinned=Rank(3)) == [3]
    for pin in (Rank(2), Rank(4), Rank(5), Rank(1, 1), Rank(9)):
        assert eligible(story, pinned=pin) == []
    assert eligible(story, pinned=Rank(1), allowed_workers=frozenset({3})) == []
    assert eligible(story, pinned=Rank(1), required_taints=frozenset("y")) == []


def test_who_has_room_for_it():
    story = FleetStory(profile=strict(prefill_busy_threshold=20))
    story.upsert(1, total_kv_blocks=4)
    story.upsert(2, max_requests=1)
    story.upsert(3)
    story.run("a", 8, pinned=Rank(1), block_hashes=(1, 2))
    story.run("b", 4, pinned=Rank(2))
    assert eligible(story) == [1, 3]
    assert eligible(story, prompt=12) == [3]
    assert eligible(story, prompt=12, block_hashes=(1, 7, 8)) == [1, 3]  # shares a block
    assert eligible(story, expected_output_tokens=1) == [3]
    story.run("c", 24, pinned=Rank(3))
    assert eligible(story, prompt=12) == []
    assert eligible(story) == [1]


def test_a_request_whose_id_is_live_may_be_asked_about():
    story = FleetStory(1, 2)
    story.run("a", 8, block_hashes=(1, 2), pinned=Rank(1))
    rows = story.core.potential_loads(Request("a", 8, block_hashes=(1, 2)))
    assert (rows["decode_blocks"].tolist(), rows["prefill_tokens"].tolist()) == ([2, 2], [16, 8])
    assert story.core.peek(Request("a", 8)).reason.name == "DUPLICATE_ID"


def test_a_broken_request_is_refused_as_in_a_step():
    story = FleetStory(1)
    before = story.core.digest()
    for broken in (Request("", 8), Request("q", 0), Request("q", 8, block_hashes=(1, 2, 3))):
        with pytest.raises(InvalidEvent):
            story.core.potential_loads(broken)
    assert story.core.digest() == before
    assert short(story.arrive("a")) == "D a"


# The projection, for every rank.


@given(st.data())
def test_the_projection_of_every_rank(data):
    """Random bookings that grow and end; what is wanted is added up here from what was dispatched."""
    core = Scheduler()
    core.step_many([WorkerUpserted(0, WorkerConfig(w, dp_size=2)) for w in (1, 2)])
    ranks = [(1, 0), (1, 1), (2, 0), (2, 1)]
    running: dict[str, list] = {}
    paths = st.sampled_from([(), (1,), (1, 2), (1, 2, 3), (1, 4), (1, 4, 5), (6,), (6, 7)])
    for number in range(data.draw(st.integers(0, 12))):
        what = data.draw(st.sampled_from("aaapof"))
        if what == "a":
            rank, path = data.draw(st.sampled_from(ranks)), data.draw(paths)
            prompt = 16 * len(path) + data.draw(st.integers(1, 40))
            (action,) = core.step(arrive(0, f"r{number}", prompt, pinned=Rank(*rank), sequence_hashes=path))
            running[f"r{number}"] = [action.attempt, rank, path, prompt, 0]
        elif running:
            name = data.draw(st.sampled_from(sorted(running)))
            attempt = running[name][0]
            if what == "p" and core.step(PrefillCompleted(0, name, attempt)) == ():
                running[name][3] = 0
            elif what == "o":
                core.step(OutputBlockAdded(0, name, attempt))
                running[name][4] += 1
            elif what == "f":
                core.step(RequestFinished(0, name, attempt))
                del running[name]
    query, track = data.draw(paths), data.draw(st.booleans())
    prompt = 16 * len(query) + 5
    rows = core.potential_loads(Request("q", prompt, sequence_hashes=query, track_prefill=track)).tolist()
    names = POTENTIAL_DTYPE.names
    for rank, row in zip(ranks, (dict(zip(names, row, strict=True)) for row in rows), strict=True):
        here = [item for item in running.values() if item[1] == rank]
        live = {name for item in here for name in item[2]}
        depth = next((i for i, name in enumerate(query) if name not in live), len(query))
        active = len(live) + sum(item[4] for item in here)
        tokens = sum(item[3] for item in here)
        assert (row["worker_id"], row["dp_rank"]) == rank
        assert row["requests"] == len(here)
        assert row["decode_blocks"] == active + len(query) - depth
        assert row["prefill_tokens"] == tokens + (prompt if track else 0)


# Reads change nothing, and selection does what they say.


def reads(core: Scheduler, number: int) -> None:
    """Everything that can be asked."""
    for fields in ({}, {"block_hashes": (1, 2)}, {"pinned": Rank(1)}, {"allowed_workers": frozenset({2, 3})},
                   {"weights": SelectionWeights(temperature=1.0)}, {"required_taints": frozenset("x")},
                   {"do_not_queue": True}, {"overlap": Overlap(((Rank(1), 2),))}):
        core.potential_loads(Request(f"r{number}", 8, **fields))
        core.peek(Request(f"q{number}", 8, **fields))
    core.loads()
    core.stats()
    core.audit()


def history(seed: int, count: int) -> list:
    """Arrivals, ends, marks: a little of everything, the same for the same seed."""
    chance = random.Random(seed)
    events: list = [WorkerUpserted(0, WorkerConfig(w, taints=frozenset("x" if w % 2 else ""), max_requests=3,
                                                   total_kv_blocks=12, prefill_tokens_per_s=10**9))
                    for w in range(1, 5)]
    for number in range(count):
        now_ns, one = 4 * number, chance.randrange(1, max(2, number))
        events.append(chance.choice([
            arrive(now_ns, f"r{number}", chance.randrange(1, 24), block_hashes=(1,) * chance.randrange(2)),
            arrive(now_ns, f"r{number}", 8, pinned=Rank(chance.randrange(1, 5))),
            arrive(now_ns, f"r{number}", 8, required_taints=frozenset("x"), deadline_ns=now_ns + 30),
            RequestFinished(now_ns, f"r{one}", chance.randrange(1, number + 2)),
            status(now_ns, chance.randrange(1, 5), overloaded=True, lease_ns=20),
        ]))
    return events


@pytest.mark.parametrize("made", [profile(prefill_busy_threshold=6), strict()], ids=["advisory", "strict"])
@pytest.mark.parametrize("index", [IndexMode.EVENTS, IndexMode.APPROXIMATE], ids=lambda mode: mode.value)
def test_reading_changes_nothing(made, index):
    """The digest is the same after the reads, and so is all that follows."""
    config = {"profile": made, "index": index, "prefill_decay": PrefillDecay.LINEAR, "seed": 9}
    read, unread = FleetStory(**config).core, FleetStory(**config).core
    dispatched = 0
    for number, event in enumerate(history(5, 150)):
        actions = read.step(event)
        assert actions == unread.step(event)
        before, due = read.digest(), read.next_deadline_ns
        reads(read, number)
        assert (read.digest(), read.next_deadline_ns, read.stats()) == (before, due, unread.stats())
        dispatched += short(actions).count("D ")
    assert dispatched > 40


@pytest.mark.parametrize("workers", [3, 47, 48, 49, 130])
def test_selection_takes_one_of_the_cheapest(workers):
    """Few ranks are looked at one by one, many are kept sorted: both choose by the costs that are shown.

    Of n that tie, one number of the generator tells which, in canonical order; a lone one costs none (DESIGN D8).
    """
    chance, generator = random.Random(workers), WyRand(3)
    story = FleetStory(block_size=16, seed=3)
    core = story.core
    core.step_many([WorkerUpserted(0, WorkerConfig(w, taints=frozenset("x" if w % 3 else ""))) for w in range(workers)])
    running, taken = [], set()
    for number in range(300):
        root = 100 * chance.randrange(3)
        path = tuple(range(root, root + chance.randrange(5)))
        fields = chance.choice([{}, {}, {}, {"required_taints": frozenset("x")}, {"preferred_taints": (("x", 0.3),)},
                                {"weights": SelectionWeights(active_request_weight=0.5)}])
        request = Request(f"r{number}", chance.randrange(1, 200) + 16 * len(path), block_hashes=path, **fields)
        rows = core.potential_loads(request)
        foreseen = core.peek(request)
        (action,) = core.step(RequestArrived(number, request))
        cheapest = rows["worker_id"][rows["cost"] == numpy.nanmin(rows["cost"])]
        assert action.worker_id == cheapest[generator.draw(len(cheapest)) if len(cheapest) > 1 else 0]
        assert replace(foreseen, wait_ns=action.wait_ns) == action
        row = rows[rows["worker_id"] == action.worker_id][0]
        assert (row["cached_tokens"], row["eligible"]) == (action.cached_tokens, 1)
        running.append((action.request_id, action.attempt))
        taken.add(action.worker_id)
        if chance.random() < 0.4:
            core.step(RequestFinished(number, *running.pop(chance.randrange(len(running)))))
        if chance.random() < 0.2:
            core.step(status(number, chance.randrange(2, workers), overloaded=chance.random() < 0.5))
        if chance.random() < 0.1:
            story.now = number
            story.store(chance.randrange(workers), *path)
    assert len(taken) >= min(workers, 30) - 1
    assert core.audit() == []
