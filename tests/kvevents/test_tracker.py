"""From messages to a core: recordings of real engines, trust and what it costs, and an engine behind any link."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kv_engines import RECORDINGS, Engine, World, payload, recording, removed, serve, stored
from kvcore.drivers.kvevents.decoder import rank_of
from kvcore.drivers.kvevents.names import BlockNames
from kvcore.drivers.kvevents.tracker import Tracker
from kvcore.drivers.kvevents.values import Change, Fact, Trust

from kvcore.config import SchedulerConfig
from kvcore.events import Tier, WorkerUpserted
from kvcore.request import Rank, Request, WorkerConfig
from kvcore.scheduler import Scheduler

#: Recording -> blocks that are stored, that are still there at its end, by rank.
BLOCKS = {
    "vllm-0.32.0-int-hashes.jsonl.gz": {0: (455, 22)},
    "vllm-0.32.0-dp2-sha256cbor.jsonl": {0: (27, 27), 1: (28, 28)},
    "vllm-0.32.0-dp2-rank0-replay-with-clear.jsonl": {0: (31, 4)},
    "vllm-0.32.0-replay-from-180.jsonl": {0: (22, 22)},
}


def core(block_size, dp_size=2) -> Scheduler:
    made = Scheduler(SchedulerConfig(block_size=block_size))
    made.step(WorkerUpserted(0, WorkerConfig(7, dp_size=dp_size)))
    return made


def tell(scheduler, facts, dp_rank=0) -> None:
    scheduler.step_many([fact.event(0, Rank(7, dp_rank), 0) for fact in facts])
    assert scheduler.stats().stale_events == 0


def cached_tokens(scheduler, names, dp_rank=0, block_size=4) -> int:
    """What a prompt of these blocks would find there."""
    request = Request("q", max(1, len(names)) * block_size, block_hashes=tuple(names))
    rows = scheduler.potential_loads(request)
    return int(next(row["cached_tokens"] for row in rows if row["dp_rank"] == dp_rank))


def replayed(name) -> tuple[Scheduler, dict[int, Tracker]]:
    """A recording through trackers into a core; after each message both hold what the recording says is held."""
    scheduler, trackers, held, paths = core(32), {}, {}, {}
    for item in recording(name):
        if item.batch is None:
            continue
        dp_rank = rank_of(item.payload)
        tracker = trackers.setdefault(dp_rank, Tracker(BlockNames(32), can_ask=False))
        tell(scheduler, tracker.live(item.sequence, item.payload), dp_rank)
        mine = held.setdefault(dp_rank, {})
        for event in item.batch[1]:
            match event["type"]:
                case "BlockStored":
                    parent = str(event["parent_block_hash"])
                    if event["parent_block_hash"] is None or parent in mine:
                        tokens = mine.get(parent, ())
                        salts = [keys for keys in event["extra_keys"] if keys]
                        for index, block in enumerate(event["block_hashes"]):
                            tokens = (*tokens, *event["token_ids"][32 * index:32 * index + 32])
                            mine[str(block)] = tokens
                            if not salts:
                                paths[str(block)] = tokens
                case "BlockRemoved":
                    for block in event["block_hashes"]:
                        del mine[str(block)]
                case "AllBlocksCleared":
                    mine.clear()
        assert len(tracker.mirror) == len(mine)
        assert scheduler.stats().index_blocks == sum(map(len, held.values()))
    for dp_rank, mine in held.items():
        for block, tokens in mine.items():
            if block in paths:
                names = BlockNames(32).of(tokens)
                assert cached_tokens(scheduler, names, dp_rank, 32) == len(tokens)
    return scheduler, trackers


@pytest.mark.parametrize("name", BLOCKS)
def test_recordings_through_tracker_and_core(name):
    _, trackers = replayed(name)
    assert {rank: (item.mirror.counts.stored, len(item.mirror)) for rank, item in trackers.items()} == BLOCKS[name]
    assert {item.trust for item in trackers.values()} == {Trust.EXACT}, "the last begins late, but has a clear in it"
    assert set(BLOCKS) == set(RECORDINGS)


def test_a_recorded_answer_from_the_middle_is_an_orphan_until_the_clear():
    tracker = Tracker(BlockNames(32), can_ask=False)
    messages = [item for item in recording("vllm-0.32.0-replay-from-180.jsonl") if item.batch is not None]
    trusts = []
    for item in messages:
        tracker.live(item.sequence, item.payload)
        trusts.append(tracker.trust)
    assert (trusts[0], trusts[-1]) == (Trust.DEGRADED, Trust.EXACT)
    assert (tracker.lost, tracker.mirror.counts.orphans) == (180, 1)


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_recording_whose_beginning_is_lost_is_degraded_and_never_wrong(cut):
    whole, part = World(), World()
    first, second = (Tracker(BlockNames(32), can_ask=False) for _ in range(2))
    for item in recording("vllm-0.32.0-int-hashes.jsonl.gz")[:100]:
        whole.tell(first.live(item.sequence, item.payload))
        if item.sequence >= cut:
            part.tell(second.live(item.sequence, item.payload))
            assert part.held() <= whole.held()
            assert second.trust is (Trust.EXACT if second.mirror.counts.cleared else Trust.DEGRADED)


@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize("digests", [False, True])
def test_every_form_leads_to_the_same_blocks(arrays, digests):
    engine, tracker, world = Engine(arrays=arrays, digests=digests), Tracker(BlockNames(4), True), World()
    for message in (engine.prompt(*range(12)), engine.prompt(*range(8), *range(90, 98)), engine.evict(2)):
        world.tell(tracker.live(*message))
    assert world.tiers == {Tier.DEVICE: engine.names_held()}
    assert BlockNames(4).of(range(12))[0] in world.held()


def started(**options) -> tuple[Engine, Tracker, World]:
    """An engine with two prompts, and a tracker that has heard them."""
    engine, tracker, world = Engine(**options), Tracker(BlockNames(4), True), World()
    world.tell(tracker.start())
    serve(tracker, engine, world)
    for tokens in (range(12), range(20, 28)):
        world.tell(tracker.live(*engine.prompt(*tokens)))
    return engine, tracker, world


def test_trust_begins_with_the_first_message():
    tracker = Tracker(BlockNames(4), True)
    assert (tracker.trust, tracker.reason) == (Trust.APPROX, "nothing was heard")
    tracker.start()
    assert tracker.take_ask() == 0
    assert tracker.take_ask() is None
    tracker.end()
    tracker.live(0, payload())
    assert (tracker.trust, tracker.reason) == (Trust.EXACT, None)


def test_a_gap_that_a_replay_fills_costs_nothing():
    engine, tracker, world = started()
    engine.evict()
    world.tell(tracker.live(*engine.prompt(*range(40, 44))))
    assert tracker.trust is Trust.EXACT
    serve(tracker, engine, world)
    assert (tracker.trust, tracker.lost) == (Trust.EXACT, 0)
    assert world.tiers == {Tier.DEVICE: engine.names_held()}


def test_a_buffer_shorter_than_the_gap_discounts_all_credit_until_a_clear():
    engine, tracker, world = started(buffer=1)
    scheduler = core(4, dp_size=1)
    tell(scheduler, [Fact(Change.STORED, tier, tuple(names)) for tier, names in world.tiers.items()])
    names = BlockNames(4).of(range(12))
    assert cached_tokens(scheduler, names) == 12
    engine.prompt(*range(60, 64))
    message = engine.prompt(*range(40, 44))
    facts = tracker.live(*message)
    assert tracker.take_ask() == 1
    facts += tracker.answer(*message) + tracker.end()
    assert (tracker.trust, tracker.reason, tracker.lost) == (Trust.DEGRADED, "messages 2..2 were lost", 1)
    tell(scheduler, facts)
    assert cached_tokens(scheduler, names) == 9, "three blocks at three quarters"
    tell(scheduler, tracker.live(*engine.clear()))
    assert (tracker.trust, cached_tokens(scheduler, names)) == (Trust.EXACT, 0)
    tell(scheduler, tracker.live(*engine.prompt(*range(12))))
    assert cached_tokens(scheduler, names) == 12


def test_what_is_degraded_is_mended_by_hearing_the_whole_tale():
    engine, tracker, world = started()
    engine.prompt(*range(40, 44))
    world.tell(tracker.live(*engine.prompt(*range(50, 54))))
    tracker.take_ask()
    world.tell(tracker.fail())
    assert (tracker.trust, world.tiers.get(Tier.DEVICE)) == (Trust.DEGRADED, None)
    assert world.held() < engine.names_held()
    world.tell(tracker.verify())
    serve(tracker, engine, world)
    assert (tracker.trust, world.tiers) == (Trust.EXACT, {Tier.DEVICE: engine.names_held()})


def test_a_link_that_was_down_degrades_who_sends_nothing_again():
    engine, tracker, world = Engine(), Tracker(BlockNames(4), can_ask=False), World()
    world.tell(tracker.live(*engine.prompt(*range(12))))
    world.tell(tracker.verify(was_down=True))
    assert (tracker.trust, world.tiers) == (Trust.DEGRADED, {Tier.HOST: engine.names_held()})


def test_a_restart_forgets_what_was_before():
    engine, tracker, world = started()
    engine.restart()
    world.tell(tracker.live(*engine.prompt(*range(70, 78))))
    serve(tracker, engine, world)
    assert (tracker.trust, world.tiers) == (Trust.EXACT, {Tier.DEVICE: engine.names_held()})
    assert tracker.sequence.restarts == 1


@pytest.mark.parametrize("bad", [b"\xc1", payload(removed("x")), payload(stored([1], None, [-1]))])
def test_a_message_that_is_none_degrades_and_applies_nothing(bad):
    engine, tracker, world = started()
    held = world.held()
    world.tell(tracker.live(engine.sequence, bad))
    assert (tracker.trust, tracker.invalid, world.held()) == (Trust.DEGRADED, 1, held)
    assert tracker.reason.startswith("message 2: ")


def test_half_a_bad_message_is_not_applied():
    engine, tracker, world = started()
    held = world.held()
    leaf = list(engine.held)[-1]
    world.tell(tracker.live(engine.sequence, payload(removed(leaf), removed("x"))))
    assert world.held() == held


def test_blocks_of_another_size_leave_the_rank_to_prediction():
    tracker = Tracker(BlockNames(16), True)
    engine = Engine(block_size=4)
    facts = tracker.live(*engine.prompt(*range(12))) + tracker.live(*engine.prompt(*range(20, 28)))
    assert [fact.change for fact in facts] == [Change.CLEARED]
    assert (tracker.trust, tracker.reason) == (Trust.APPROX, "blocks of 4 tokens, not 16")
    assert len(tracker.mirror) == 0


def test_an_engine_that_comes_back_with_the_right_size_is_heard_again():
    tracker, world = Tracker(BlockNames(4), True), World()
    world.tell(tracker.live(*Engine(block_size=8).prompt(*range(16))))
    assert tracker.trust is Trust.APPROX
    engine = Engine()
    engine.restart()
    world.tell(tracker.live(*engine.prompt(*range(12))))
    serve(tracker, engine, world)
    assert (tracker.trust, world.held()) == (Trust.EXACT, engine.names_held())


MOVES = st.lists(st.tuples(
    st.sampled_from(["prompt", "prompt", "evict", "clear", "again", "junk", "restart", "swap", "look"]),
    st.integers(0, 5), st.sampled_from(["reach", "reach", "reach", "lose", "late", "twice"])), max_size=25)


#: An answer brings the same tale once more: asking again for the rest would have no end.
SAME_TALE = [("prompt", 1, "lose"), ("prompt", 2, "lose"), ("prompt", 3, "reach"), ("swap", 0, "reach")]


@example(1, True, SAME_TALE, 1)
@given(st.sampled_from([0, 1, 2, 100]), st.booleans(), MOVES, st.integers(0, 9))
def test_an_engine_behind_any_link(buffer, can_ask, moves, patience):
    """Messages get lost, come late, twice, or are none; engines restart. In the end the core has it all, or is told
    that it has not; and what counts in full is cached for sure."""
    engine, tracker, world = Engine(buffer=buffer), Tracker(BlockNames(4), can_ask), World()
    late: list = []

    def hear(message) -> None:
        world.tell(tracker.live(*message))
        if late and patience % 2:
            world.tell(tracker.live(*late.pop(0)))
        if patience % 3 == 0:
            serve(tracker, engine, world)

    world.tell(tracker.start())
    for move, which, fate in moves:
        message = None
        match move:
            case "prompt":
                message = engine.prompt(*range(which * 2), *range(50 + which, 58 + which))
            case "evict":
                message = engine.evict(which)
            case "clear":
                message = engine.clear()
            case "again" if engine.buffer:
                hear(engine.buffer[which % len(engine.buffer)])
            case "junk":
                message = engine.publish({"type": "BlockStored"})
            case "restart":
                serve(tracker, engine, world)
                engine.restart()
                late.clear()
                world.tell(tracker.verify(was_down=True))
            case "swap" if buffer:  # a new engine whose first message says so, and nothing else
                engine.restart()
                late.clear()
                hear(engine.prompt(*range(30 + which, 38 + which)))
            case "look":
                serve(tracker, engine, world)
                world.tell(tracker.verify())
        if message is not None and fate == "late":
            late.append(message)
        elif message is not None and fate != "lose":
            hear(message)
            if fate == "twice":
                hear(message)
    for _ in range(3):
        serve(tracker, engine, world)
        world.tell(tracker.verify())
    serve(tracker, engine, world)
    if tracker.sequence.can_ask and buffer:
        assert tracker.sequence.last == (engine.sequence - 1 if engine.sequence else None)
        if tracker.trust is Trust.EXACT:
            assert world.held() == engine.names_held()
    if tracker.trust is not Trust.EXACT:
        assert not world.tiers.get(Tier.DEVICE)
    assert world.held() == {name for name, _, _ in tracker.mirror._blocks.values()}
