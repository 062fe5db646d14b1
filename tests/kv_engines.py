"""An engine's cache as its KV events show it, and what recordings of real ones hold. Plain, slow, obvious."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import msgspec
from kvcore.drivers.kvevents.names import BlockNames

FOLDER = Path(__file__).resolve().parent / "data" / "kv-events"
RECORDINGS = sorted(path.name for path in FOLDER.glob("vllm-*"))
MASK = 2**64 - 1


@dataclass(frozen=True)
class Recorded:
    """One message of a recording: its frames, and what an independent reader made of it (None: the end of a replay)."""

    frames: list[bytes]
    sequence: int
    batch: list | None

    @property
    def payload(self) -> bytes:
        return self.frames[-1]


def recording(name: str) -> list[Recorded]:
    path = FOLDER / name
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    return [Recorded([bytes.fromhex(frame) for frame in line["frames"]], line["seq"], line["batch"]) for line in lines]


def payload(*events, dp_rank=None, time_s=1.5) -> bytes:
    return msgspec.msgpack.encode([time_s, list(events), dp_rank])


def stored(hashes, parent=None, tokens=(), block_size=4, **more) -> dict:
    return {"type": "BlockStored", "block_hashes": list(hashes), "parent_block_hash": parent,
            "token_ids": list(tokens), "block_size": block_size, **more}


def removed(*hashes, **more) -> dict:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), **more}


CLEARED = {"type": "AllBlocksCleared"}


def as_array(event: dict) -> list:
    """The same event as engines wrote it before they wrote maps."""
    match event["type"]:
        case "BlockStored":
            return ["BlockStored", event["block_hashes"], event["parent_block_hash"], event["token_ids"],
                    event["block_size"], event.get("lora_id"), event.get("medium"), event.get("lora_name"),
                    event.get("extra_keys")]
        case "BlockRemoved":
            return ["BlockRemoved", event["block_hashes"], event.get("medium")]
    return ["AllBlocksCleared"]


class Engine:
    """A publisher with a prefix cache. held: engine's hash -> (parent, name). buffer: what it can send again.

    arrays, digests: the form of its events and hashes. Every publish gives (sequence, payload).
    """

    def __init__(self, block_size=4, buffer=10_000, arrays=False, digests=False, dp_rank=None) -> None:
        self.names = BlockNames(block_size)
        self.block_size, self.arrays, self.digests, self.dp_rank = block_size, arrays, digests, dp_rank
        self.buffer_max, self.starts = buffer, 0
        self.restart()

    def restart(self) -> None:
        """Empty, numbered from 0; times differ from those before."""
        self.starts += 1
        self.sequence = 0
        self.held: dict = {}
        self.buffer: deque = deque(maxlen=self.buffer_max)

    def publish(self, *events) -> tuple[int, bytes]:
        events = [as_array(event) if self.arrays else event for event in events]
        data = payload(*events, dp_rank=self.dp_rank, time_s=self.starts + self.sequence / 2**20)
        message = (self.sequence, data)
        self.sequence += 1
        self.buffer.append(message)
        return message

    def prompt(self, *tokens) -> tuple[int, bytes] | None:
        """A prompt has been computed: its blocks that were not cached are announced, one event."""
        hashes, parent, above = [], None, None
        chain, names = None, self.names.of(tokens)
        for index, name in enumerate(names):
            block = tuple(tokens[index * self.block_size:(index + 1) * self.block_size])
            digest = hashlib.sha256(repr((chain, block)).encode()).digest()
            chain = digest if self.digests else int.from_bytes(digest[-8:], "big")
            if chain in self.held and not hashes:
                parent = chain
            elif chain not in self.held:
                hashes.append(chain)
                self.held[chain] = (above, name)
            above = chain
        if not hashes:
            return None
        start = (len(names) - len(hashes)) * self.block_size
        return self.publish(stored(hashes, parent, tokens[start:len(names) * self.block_size], self.block_size))

    def evict(self, count=1) -> tuple[int, bytes] | None:
        """Leaves go, the newest first."""
        events = []
        while count and self.held:
            parents = {above for above, _ in self.held.values()}
            leaf = [item for item in self.held if item not in parents][-1]
            del self.held[leaf]
            events.append(removed(leaf))
            count -= 1
        return self.publish(*events) if events else None

    def clear(self) -> tuple[int, bytes]:
        self.held.clear()
        return self.publish(CLEARED)

    def replay(self, start: int) -> list[tuple[int, bytes]]:
        return [message for message in self.buffer if message[0] >= start]

    def names_held(self) -> set[int]:
        return {name for _, name in self.held.values()}


class World:
    """What a core has been told of one rank, by tier."""

    def __init__(self) -> None:
        self.tiers: dict = {}

    def tell(self, facts) -> None:
        for fact in facts:
            match fact.change.value:
                case "stored":
                    assert not self.tiers.setdefault(fact.tier, set()).intersection(fact.names)
                    self.tiers[fact.tier].update(fact.names)
                case "removed":
                    assert self.tiers[fact.tier].issuperset(fact.names)
                    self.tiers[fact.tier].difference_update(fact.names)
                case "cleared":
                    self.tiers.clear()

    def held(self) -> set[int]:
        return set().union(*self.tiers.values())


def serve(tracker, engine, world) -> None:
    """Answer what the tracker asks for until it asks no more."""
    for _ in range(100):
        start = tracker.take_ask()
        if start is None:
            return
        for message in engine.replay(start):
            world.tell(tracker.answer(*message))
            if tracker._ask is not None:
                break  # another is wanted instead
        else:
            world.tell(tracker.end())
    raise AssertionError("it asks for ever")


def answer_frames(message: tuple[int, bytes], form: int, topic: bytes = b"kv") -> list[bytes]:
    """An answer of a replay in its older (3 frames), present (4) and routed (5) form."""
    sequence, data = message
    number = sequence.to_bytes(8, "big") if sequence >= 0 else b"\xff" * 8
    return {3: [b""], 4: [b"", topic], 5: [b"\x00\x01", b"", topic]}[form] + [number, data]


END_MESSAGE = (-1, b"")

