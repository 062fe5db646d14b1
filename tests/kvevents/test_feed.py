"""The feed over real sockets: what a publisher says reaches the core, whatever becomes of link and publisher."""

from __future__ import annotations

import logging

import pytest
import trio
import zmq
from kv_engines import Engine
from kv_publisher import CALM, HASTY, free_ports, play
from kvcore.drivers.kvevents.feed import Source, open_feed
from kvcore.drivers.kvevents.names import BlockNames
from kvcore.drivers.kvevents.rank import portions
from kvcore.drivers.kvevents.sockets import of_rank
from kvcore.drivers.kvevents.values import Change, Fact, Trust

from kvcore.events import BlocksCleared, BlocksStored, Tier
from kvcore.request import Request, WorkerConfig

NAMES = BlockNames(4)


def spoken(*prompts) -> Engine:
    """An engine that has computed prompts before anybody listened."""
    engine = Engine()
    for tokens in prompts:
        engine.prompt(*tokens)
    return engine


@pytest.mark.parametrize("form", [3, 4, 5])
def test_what_an_idle_engine_has_said_before_is_heard(form):
    async def story(stage):
        publisher = stage.publisher(engine=spoken(range(12), range(20, 28)), form=form)
        stage.feed.add(publisher.source())
        await stage.blocks(5)
        assert stage.status().trust is Trust.EXACT
        assert publisher.asked == [0]
        (row,) = await stage.router.read(
            lambda core: core.potential_loads(Request("q", 12, block_hashes=NAMES.of(range(12)))))
        assert row["cached_tokens"] == 12

    play(story)


def test_live_messages_and_a_gap():
    async def story(stage):
        publisher = stage.publisher(engine=spoken(range(4)))
        stage.feed.add(publisher.source())
        await stage.linked(publisher)
        publisher.send(publisher.engine.prompt(*range(12)))
        await stage.blocks(3)
        publisher.engine.prompt(*range(20, 32))  # lost on its way
        publisher.send(publisher.engine.evict())
        await stage.blocks(5)
        assert (stage.status().trust, stage.status().lost) == (Trust.EXACT, 0)
        publisher.send(publisher.engine.clear())
        await stage.blocks(0)

    play(story)


def test_without_replays_what_is_missed_is_missed():
    async def story(stage):
        publisher = stage.publisher(engine=spoken(range(4)))
        stage.feed.add(publisher.source(replay=None))
        await stage.linked(publisher)
        publisher.send(publisher.engine.prompt(*range(20, 28)))
        await stage.blocks(2)
        assert stage.status().trust is Trust.DEGRADED
        assert publisher.asked == []

    record = play(story)
    assert {event.tier for event in record.of(BlocksStored)} == {Tier.HOST}


@pytest.mark.parametrize("cuts", [(0,), (1,), (2, 1), (2, 0)])
def test_a_replay_that_breaks_off_is_taken_up_where_it_broke(cuts):
    async def story(stage):
        publisher = stage.publisher(engine=spoken(range(4), range(10, 18), range(30, 42)), cuts=cuts)
        stage.feed.add(publisher.source())
        await stage.blocks(6)
        await stage.until(lambda: stage.status().trust is Trust.EXACT)
        assert publisher.asked[0] == 0
        assert publisher.asked[1] == max(0, cuts[0] - 1)

    play(story, HASTY)


def test_a_publisher_that_dies_in_its_answer_and_one_that_comes_after_it():
    async def story(stage):
        publisher = stage.publisher(engine=spoken(range(4), range(10, 18), range(30, 42)), cuts=[2, 1])
        stage.feed.add(publisher.source())
        await stage.until(lambda: len(publisher.asked) == 2)
        publisher.close()
        assert stage.status().blocks == 3
        publisher.engine.restart()
        publisher.engine.prompt(*range(50, 54))
        await publisher.reopen()
        await stage.until(lambda: stage.status().restarts == 1)
        await stage.blocks(1)
        await stage.until(lambda: stage.status().trust is Trust.EXACT)

    play(story, HASTY)


def test_a_publisher_that_never_ends_its_answers_is_degraded_and_mended_by_a_later_look():
    async def story(stage):
        publisher = stage.publisher(engine=spoken(range(4)))
        stage.feed.add(publisher.source())
        await stage.linked(publisher)
        publisher.cuts = [0] * HASTY.tries
        publisher.engine.prompt(*range(10, 18))
        publisher.send(publisher.engine.prompt(*range(30, 42)))
        await stage.until(lambda: stage.status().trust is Trust.DEGRADED)
        assert stage.status().lost == 1
        await stage.until(lambda: stage.status().trust is Trust.EXACT)
        await stage.blocks(6)

    play(story, HASTY)


def test_a_restart_on_the_same_address():
    async def story(stage):
        publisher = stage.publisher(engine=spoken(range(12)))
        stage.feed.add(publisher.source())
        await stage.blocks(3)
        publisher.close()
        publisher.engine.restart()
        await publisher.reopen()
        await stage.blocks(0)
        await stage.linked(publisher)
        publisher.send(publisher.engine.prompt(*range(20, 28)))
        await stage.blocks(2)
        assert (stage.status().trust, stage.status().restarts) == (Trust.EXACT, 1)

    play(story)


def test_a_publisher_may_connect_to_us():
    async def story(stage):
        port = free_ports(1)
        stage.feed.add(Source(7, f"tcp://127.0.0.1:{port}", bind=True))
        engine = Engine()
        with zmq.Context() as context, context.socket(zmq.PUB) as pub:
            pub.setsockopt(zmq.LINGER, 0)
            pub.connect(f"tcp://127.0.0.1:{port}")
            while not stage.status().delivered:
                number, data = engine.prompt(*range(4 * engine.sequence, 4 * engine.sequence + 4))
                pub.send_multipart([b"kv", number.to_bytes(8, "big"), data])
                await trio.sleep(0.01)
        assert stage.status().blocks

    play(story)


def test_ranks_have_ports_in_a_row_and_the_payload_names_them():
    async def story(stage):
        port = free_ports(4)
        context = zmq.Context()
        pubs = [context.socket(zmq.PUB) for _ in range(2)]
        for place, pub in enumerate(pubs):
            pub.setsockopt(zmq.LINGER, 0)
            pub.bind(f"tcp://127.0.0.1:{port + place}")
        stage.feed.add(Source(7, f"tcp://127.0.0.1:{port}", dp_size=2))
        engines = [Engine(dp_rank=1), Engine(dp_rank=0)]  # the other way round than their ports
        while not all(status.delivered for status in stage.feed.status()):
            for pub, engine in zip(pubs, engines, strict=True):
                start = 4 * engine.sequence
                number, data = engine.prompt(*range(start, start + 4 * (1 + engine.dp_rank)))
                pub.send_multipart([b"kv", number.to_bytes(8, "big"), data])
            await trio.sleep(0.01)
        assert [(status.dp_rank, status.reason) for status in stage.feed.status() if status.conflicts] == []
        context.destroy(linger=0)

    record = play(story, dp_size=2)
    sizes = {(event.dp_rank, len(event.block_hashes)) for event in record.of(BlocksStored)}
    assert sizes == {(0, 1), (1, 2)} or sizes == {(0, 1), (1, 2), (1, 1)}


def test_a_silent_worker_is_predicted_for_a_while():
    async def story(stage):
        stage.feed.add(Source(7, None, capacity_blocks=4))
        stage.feed.dispatched(7, 0, NAMES.of(range(12)))
        await stage.blocks(3)
        assert (stage.status().trust, stage.status().predicted) == (Trust.APPROX, 3)
        stage.feed.dispatched(7, 0, NAMES.of(range(20, 28)))
        await stage.blocks(4)
        await stage.blocks(0)
        stage.feed.dispatched(7, 1, NAMES.of(range(12)))
        stage.feed.dispatched(8, 0, NAMES.of(range(12)))

    play(story, predict_ttl_ns=300_000_000)


def test_what_was_predicted_goes_when_the_engine_speaks():
    async def story(stage):
        publisher = stage.publisher()
        stage.feed.add(publisher.source())
        stage.feed.dispatched(7, 0, NAMES.of(range(40, 60)))
        await stage.blocks(5)
        await stage.linked(publisher)
        publisher.send(publisher.engine.prompt(*range(8)))
        await stage.blocks(2)
        assert (stage.status().predicted, stage.status().trust) == (0, Trust.EXACT)
        stage.feed.dispatched(7, 0, NAMES.of(range(40, 60)))
        await stage.router.recheck()
        await stage.blocks(2)

    play(story)


def test_an_engine_with_other_blocks_is_predicted_and_says_why():
    async def story(stage):
        publisher = stage.publisher(engine=Engine(block_size=8))
        publisher.engine.prompt(*range(16))
        stage.feed.add(publisher.source())
        await stage.until(lambda: stage.status().delivered)
        assert (stage.status().trust, stage.status().reason) == (Trust.APPROX, "blocks of 8 tokens, not 4")
        stage.feed.dispatched(7, 0, NAMES.of(range(12)))
        await stage.blocks(3)

    play(story)


def test_a_source_in_place_of_another_leaves_nothing_of_it():
    async def story(stage):
        first, second = stage.publisher(engine=spoken(range(12))), stage.publisher(engine=spoken(range(20, 28)))
        stage.feed.add(first.source())
        await stage.blocks(3)
        stage.feed.add(second.source())
        await stage.blocks(2)
        stage.feed.remove(7)
        stage.feed.remove(7)
        assert (stage.feed.status(), stage.feed.trust(7)) == ([], Trust.APPROX)
        second.send(second.engine.prompt(*range(60, 64)))
        await stage.router.remove_worker(7)
        await stage.blocks(0)

    play(story)


def test_nonsense_on_the_wire_does_no_more_than_cost_trust():
    async def story(stage):
        publisher = stage.publisher(engine=spoken(range(12)))
        stage.feed.add(publisher.source())
        await stage.linked(publisher)
        for frames in ([b"kv"], [b"kv", b"short", b"data"], [b""] * 9, [b"kv", b"\xff" * 8, b"data"]):
            publisher.pub.send_multipart(frames)
        publisher.send((publisher.engine.sequence, b"\xc1"))
        await stage.until(lambda: stage.status().trust is Trust.DEGRADED)
        await stage.blocks(3)
        assert stage.status().invalid == 1

    play(story)


def test_an_address_in_use_is_its_workers_trouble_alone(caplog):
    async def story(stage):
        publisher = stage.publisher(engine=spoken(range(12)))
        await stage.router.upsert_worker(WorkerConfig(8))
        stage.feed.add(Source(8, publisher.endpoint, bind=True))
        stage.feed.add(publisher.source())
        await stage.blocks(3)
        await stage.until(lambda: caplog.records)
        await trio.sleep(5 * CALM.again_s)
        assert len(caplog.records) == 1, "once, however often it is tried"

    with caplog.at_level(logging.ERROR, "kvcore.drivers"):
        play(story)


def test_a_router_that_fails_takes_its_feed_with_it(caplog):
    class Odd(Exception):
        pass

    async def story(stage):
        publisher = stage.publisher()
        stage.feed.add(publisher.source())
        await stage.linked(publisher)

        def fail(events, actions):
            if isinstance(events[0], BlocksStored):
                raise Odd

        stage.record.on_step = fail
        publisher.send(publisher.engine.prompt(*range(8)))
        await trio.sleep_forever()

    with pytest.raises(Odd):
        play(story)
    assert caplog.records == []


def test_what_a_block_raises_comes_out_as_it_is():
    class Odd(Exception):
        pass

    async def story(stage):
        async with open_feed(stage.router, NAMES):
            raise Odd

    with pytest.raises(Odd):
        play(story)


@pytest.mark.parametrize(("endpoint", "dp_rank", "of"), [
    ("tcp://h:5557", 0, "tcp://h:5557"), ("tcp://h:5557", 3, "tcp://h:5560"), ("tcp://[::1]:1", 1, "tcp://[::1]:2"),
    ("ipc:///tmp/kv", 0, "ipc:///tmp/kv"), ("ipc:///tmp/kv", 2, "ipc:///tmp/kv_dp2"),
])
def test_endpoints_of_ranks(endpoint, dp_rank, of):
    assert of_rank(endpoint, dp_rank) == of


@pytest.mark.parametrize("endpoint", [
    "", "host:5557", "tcp://host", "tcp://:1", "http://h:1", "tcp://h:99999", "ipc://", "tcp://h:x", "tcp://h:1/path",
    "inproc://x"])
def test_what_is_no_endpoint_is_refused_at_once(endpoint):
    with pytest.raises(ValueError, match=r"endpoint|port|Port"):
        Source(7, endpoint)


@pytest.mark.parametrize("wrong", [{"dp_size": 0}, {"dp_start": -1}, {"capacity_blocks": 0},
                                   {"endpoint": "tcp://h:65535", "dp_size": 2}])
def test_what_is_no_source_is_refused(wrong):
    with pytest.raises(ValueError, match=r"rank|capacity"):
        Source(**{"worker_id": 7, "endpoint": None, **wrong})


def test_facts_are_told_in_portions_and_in_order():
    facts = [Fact(Change.STORED, names=(1, 2, 3, 4, 5)), Fact(Change.CLEARED), Fact(Change.REMOVED, Tier.HOST, (6, 7))]
    assert list(portions(facts, 3)) == [
        [Fact(Change.STORED, names=(1, 2, 3))],
        [Fact(Change.STORED, names=(4, 5)), Fact(Change.CLEARED), Fact(Change.REMOVED, Tier.HOST, (6,))],
        [Fact(Change.REMOVED, Tier.HOST, (7,))]]
    assert list(portions([])) == []


def test_a_new_source_clears_first():
    async def story(stage):
        await stage.router.submit(BlocksStored, 7, 0, 0, (1, 2, 3))
        stage.feed.add(Source(7, None))
        await stage.blocks(0)

    assert len(play(story).of(BlocksCleared)) == 1
