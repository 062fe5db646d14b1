"""KV events of the mock: on the wire as vLLM sends them, complete, and to be had again."""

from __future__ import annotations

import socket
from contextlib import contextmanager

import msgspec
import pytest
import trio
import zmq
from engine_cases import tight
from kvcore.drivers.kvevents.decoder import decode
from kvcore.drivers.kvevents.values import Stored
from kvcore.drivers.mock.model import EngineModel
from kvcore.drivers.mock.publisher import open_publisher
from kvcore.drivers.mock.tokens import encode

#: Keys and kinds of values of a BlockStored that vLLM 0.32 has sent (seen in a capture).
STORED = {
    "type": str, "block_hashes": list, "parent_block_hash": (int, type(None)), "token_ids": list, "block_size": int,
    "lora_id": type(None), "medium": str, "lora_name": type(None), "extra_keys": list, "group_idx": int,
    "kv_cache_spec_kind": str,
}


def free_endpoint() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


@contextmanager
def publishing(**options):
    """(publisher, its live reader, its replay endpoint)."""
    live, replay = free_endpoint(), free_endpoint()
    with (
        open_publisher(live, replay, "kv@here@mock", 4, **options) as publisher, zmq.Context() as context,
        context.socket(zmq.SUB) as reader,
    ):
        reader.subscribe(b"")
        reader.rcvtimeo = 5_000
        reader.connect(live)
        while not reader.poll(20):      # a subscriber misses what is sent before it has joined
            publisher._pub.send_multipart((b"ping",))
        while reader.poll(50):
            reader.recv_multipart()
        yield publisher, reader, replay


def play(model, publisher) -> None:
    while model.has_work:
        model.begin()
        publisher.publish(model.end())


def read(reader):
    topic, number, payload = reader.recv_multipart()
    assert topic == b"kv@here@mock"
    at_s, events, rank = msgspec.msgpack.decode(payload)
    assert isinstance(at_s, float)
    assert rank == 0
    return int.from_bytes(number, "big"), events


async def replayed(publisher, endpoint, first):
    """Messages from a number on, and what ended them."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(endpoint)
        dealer.send_multipart((b"", first.to_bytes(8, "big")))
        found = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.run)
            with trio.fail_after(10):
                while not found or found[-1][1] != b"":
                    while not dealer.poll(0):
                        await trio.sleep(0.005)
                    found.append(dealer.recv_multipart())
            nursery.cancel_scope.cancel()
    return found[:-1], found[-1]


def test_events_have_the_form_of_vllm():
    model = EngineModel(tight(5))
    with publishing() as (publisher, reader, _):
        model.submit("a", encode("onetwo three fou"), 5)
        play(model, publisher)
        number, (stored,) = read(reader)
        assert number == 0
        assert stored.keys() == STORED.keys()
        for key, kind in STORED.items():
            assert isinstance(stored[key], kind), key
        assert stored["parent_block_hash"] is None
        assert stored["token_ids"] == encode("onetwo three fou").tolist()
        assert (stored["block_size"], stored["medium"], stored["extra_keys"]) == (4, "GPU", [None])
        number, (answer,) = read(reader)
        assert number == 1
        assert answer["parent_block_hash"] == stored["block_hashes"][-1]
        model.submit("b", encode("all " * 19), 1)      # needs every block
        play(model, publisher)
        number, events = read(reader)
        assert number == 2
        assert [event["type"] for event in events] == ["BlockRemoved"] * 2 + ["BlockStored"]
        assert [event["block_hashes"] for event in events[:2]] == [answer["block_hashes"], stored["block_hashes"]]
        assert model.clear_cache()
        model.submit("c", encode("four"), 1)
        play(model, publisher)
        assert [event["type"] for event in read(reader)[1]] == ["AllBlocksCleared"]


def test_wide_hashes_end_with_the_number():
    model = EngineModel(tight(8))
    seq = model.submit("a", encode("four" * 8), 1, salt="tenant")
    with publishing(wide=True) as (publisher, reader, _):
        play(model, publisher)
        _, (stored,) = read(reader)
    assert [len(name) for name in stored["block_hashes"]] == [32, 32]
    assert [int.from_bytes(name[-8:], "big") for name in stored["block_hashes"]] == seq.chain.names
    assert stored["extra_keys"] == [["tenant"], None]


def test_the_gateway_reads_what_the_mock_says():
    model, said = EngineModel(tight(8)), []
    with publishing(wide=True) as (publisher, reader, _):
        for text in ("one prompt of two blocks it is, so", "another that needs all the room there is left. And evicts"):
            model.submit(text, encode(text), 9)
            play(model, publisher)
        while reader.poll(50):
            said += decode(reader.recv_multipart()[2]).events
    stored = [event for event in said if isinstance(event, Stored)]
    held: set[int] = set()
    for event in said:
        held = held | set(event.hashes) if isinstance(event, Stored) else held - set(event.hashes)
    assert held == set(model.cache._index)
    assert stored[0].parent is None
    assert stored[0].tokens == tuple(encode("one prompt of two blocks it is, so")[:8])


def test_what_was_lost_can_be_had_again():
    model = EngineModel(tight(64))
    with publishing() as (publisher, reader, replay):
        for text in ("first prompt, it is", "second, the lost one", "third prompt, of all"):
            publisher.lose = int(text.startswith("second"))
            model.submit(text, encode(text), 1)
            play(model, publisher)
        live = [read(reader), read(reader)]
        assert [number for number, _ in live] == [0, 2]
        messages, end = trio.run(replayed, publisher, replay, 1)
        assert [(frames[0], frames[1], int.from_bytes(frames[2], "big")) for frames in messages] == [
            (b"", b"kv@here@mock", 1), (b"", b"kv@here@mock", 2)]
        assert msgspec.msgpack.decode(messages[1][3])[1] == live[1][1]
        assert end == [b"", b"", (-1).to_bytes(8, "big", signed=True), b""]
        messages, _ = trio.run(replayed, publisher, replay, 3)
        assert messages == []


def test_an_endpoint_that_is_taken_is_told():
    with (
        publishing() as (_, reader, _), pytest.raises(zmq.ZMQError, match="in use"),
        open_publisher(reader.getsockopt(zmq.LAST_ENDPOINT).decode(), None, "t", 4),
    ):
        raise AssertionError
