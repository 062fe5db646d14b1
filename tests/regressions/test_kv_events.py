"""Field reports 2.6 and E104: what is lost between an engine's cache and the router's picture of it."""

from __future__ import annotations

import random

import pytest
from kv_engines import Engine, World, answer_frames, recording, serve
from kvcore.drivers.kvevents import frames
from kvcore.drivers.kvevents.names import BlockNames
from kvcore.drivers.kvevents.tracker import Tracker
from kvcore.drivers.kvevents.values import Trust

from kvcore.config import SchedulerConfig
from kvcore.events import Tier, WorkerUpserted
from kvcore.request import Rank, Request, WorkerConfig
from kvcore.scheduler import Scheduler

LIVE = "vllm-0.32.0-int-hashes.jsonl.gz"


def heard(messages, engine=None, can_ask=True) -> tuple[Tracker, World]:
    """A tracker that has heard these live messages, and asked the engine, if there is one, for what it missed."""
    tracker, world = Tracker(BlockNames(32 if engine is None else 4), can_ask), World()
    for message in messages:
        world.tell(tracker.live(*message))
        if engine is not None:
            serve(tracker, engine, world)
    return tracker, world


@pytest.mark.parametrize("seed", range(8))
def test_E85_shuffled_dropped_and_repeated_batches_of_a_real_engine(seed):
    """dynamo#7209, Mooncake#3616: the picture equals the engine's, or says that it does not."""
    draw = random.Random(seed)
    whole = [(item.sequence, item.payload) for item in recording(LIVE)[:100]]
    truth, world = heard(whole, can_ask=False)
    assert truth.trust is Trust.EXACT
    told = [item for item in whole if draw.random() > 0.1]
    told += draw.sample(told, 10)
    told = [item for _, item in sorted((place + draw.uniform(0, 6), item) for place, item in enumerate(told))]
    tracker, mine = heard(told, can_ask=False)
    if tracker.trust is Trust.EXACT:
        assert mine.held() == world.held()
    else:
        assert (tracker.trust, mine.tiers.get(Tier.DEVICE)) == (Trust.DEGRADED, None)


@pytest.mark.parametrize("seed", range(8))
def test_E85_with_replays_the_same_storm_costs_nothing(seed):
    """dynamo#7463: what was lost comes again, then live messages go on, in order."""
    draw, engine, messages = random.Random(seed), Engine(), []
    for _ in range(60):
        match draw.randrange(4):
            case 0 if engine.held:
                messages.append(engine.evict(draw.randrange(1, 4)))
            case 1 if not draw.randrange(8):
                messages.append(engine.clear())
            case _:
                start = draw.randrange(5) * 8
                messages.append(engine.prompt(*range(start), *range(100 + start, 108 + start)) or engine.publish())
    told = [item for item in messages if draw.random() > 0.3] + messages[-1:]
    told += draw.sample(told, 8)
    told = [item for _, item in sorted((place + draw.uniform(0, 6), item) for place, item in enumerate(told))]
    tracker, world = heard(told, engine)
    assert (tracker.trust, tracker.lost) == (Trust.EXACT, 0)
    assert world.tiers.get(Tier.DEVICE, set()) == engine.names_held()


def test_E85_batches_before_the_subscriber_was_there_are_missed_and_asked_for():
    """dynamo#7463: the first number that is heard is above 0."""
    engine = Engine()
    engine.prompt(*range(12))
    engine.prompt(*range(20, 28))
    message = engine.prompt(*range(40, 44))
    tracker, world = heard([message], engine)
    assert (tracker.trust, world.held()) == (Trust.EXACT, engine.names_held())
    alone, _ = heard([message], Engine(), can_ask=False)
    assert (alone.trust, alone.lost) == (Trust.DEGRADED, 2)


@pytest.mark.parametrize("form", [3, 4])
def test_E85_answers_without_a_topic_are_answers_too(form):
    """vllm#45174: the answer to a replay had another number of frames than a live message."""
    engine = Engine()
    message = engine.prompt(*range(12))
    read = frames.answer(answer_frames(message, form))
    assert read == message
    assert frames.live([b"topic", *answer_frames(message, 3)[1:]]) == message


@pytest.mark.parametrize("buffer", [0, 1, 3])
def test_E86_a_buffer_shorter_than_the_gap_leaves_a_degraded_source_with_less_credit(buffer):
    """vllm#40363, sglang#39750: a fresh router never learned old roots, and believed that it knew everything."""
    engine = Engine(buffer=buffer)
    for start in range(0, 400, 40):
        engine.prompt(*range(start, start + 12))
    message = engine.prompt(*range(900, 912))
    tracker, world = heard([message], engine)
    assert tracker.trust is Trust.DEGRADED
    assert world.held() < engine.names_held()
    core = Scheduler(SchedulerConfig(block_size=4))
    core.step(WorkerUpserted(0, WorkerConfig(7)))
    again = Tracker(BlockNames(4), can_ask=False)
    core.step_many([fact.event(0, Rank(7, 0), 0) for fact in again.live(*message)])
    request = Request("q", 12, block_hashes=BlockNames(4).of(range(900, 912)))
    assert core.potential_loads(request)["cached_tokens"].tolist() == [9], "three blocks at three quarters"


def test_E104_a_worker_with_another_block_size_is_left_to_prediction_with_the_reason():
    """dynamo#14215: one worker with other flags hid the whole set. Here it is the only one that is not followed."""
    odd, even = Engine(block_size=8), Engine()
    trackers = [Tracker(BlockNames(4), True) for _ in range(2)]
    for tracker, engine in zip(trackers, (odd, even), strict=True):
        world = World()
        world.tell(tracker.live(*engine.prompt(*range(16))))
    assert [tracker.trust for tracker in trackers] == [Trust.APPROX, Trust.EXACT]
    assert [tracker.reason for tracker in trackers] == ["blocks of 8 tokens, not 4", None]
