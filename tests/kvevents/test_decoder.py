"""Payloads of KV events: every form that engines send, and whatever else may come over a socket."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_engines import CLEARED, FOLDER, RECORDINGS, as_array, payload, recording, removed, stored
from kvcore.drivers.kvevents.decoder import HASH_BYTES_MAX, PAYLOAD_MAX, decode, rank_of
from kvcore.drivers.kvevents.values import Batch, Cleared, Foreign, InvalidKvEvent, Removed, Stored, Unknown

from kvcore.errors import KvcoreError
from kvcore.events import Tier


def one(event, **more):
    """The only event of a payload."""
    (decoded,) = decode(payload(event, **more)).events
    return decoded


def plain(value) -> int:
    """A hash of a recording by the documented rule."""
    return int(value["hex"][-16:], 16) if isinstance(value, dict) else value


@pytest.mark.parametrize("name", RECORDINGS)
def test_recordings_decode_to_what_an_independent_reader_saw(name):
    messages = [item for item in recording(name) if item.batch is not None]
    for message in messages:
        time_s, events, dp_rank = message.batch
        batch = decode(message.payload)
        assert (batch.time_s, batch.dp_rank, len(batch.events)) == (time_s, dp_rank, len(events))
        assert rank_of(message.payload) == dp_rank
        for mine, theirs in zip(batch.events, events, strict=True):
            match theirs["type"]:
                case "BlockStored":
                    parent = theirs["parent_block_hash"]
                    salts = [keys for keys in theirs["extra_keys"] if keys]
                    assert mine == Stored(
                        tuple(map(plain, theirs["block_hashes"])), None if parent is None else plain(parent),
                        tuple(theirs["token_ids"]), 32, "", salts[0][0] if salts else None, (), Tier.DEVICE, 0, True)
                case "BlockRemoved":
                    assert mine == Removed(tuple(map(plain, theirs["block_hashes"])), Tier.DEVICE, 0, None)
                case "AllBlocksCleared":
                    assert mine == Cleared()
    assert messages


def test_dynamos_fixture():
    """Its events carry no more than vLLM's first ones."""
    parts = msgspec.msgpack.decode((FOLDER / "dynamo-fixture.msgpack").read_bytes())
    assert [decode(bytes(part)) for part in parts] == [
        Batch(1000.0, (Stored((1,), None, (10, 20, 30, 40), 4),), 0),
        Batch(2000.0, (Stored((2,), 1, (50, 60, 70, 80), 4),), 0),
        Batch(3000.0, (Removed((1,)),), 0)]


def test_the_vector_of_an_array_payload():
    data = bytes.fromhex("93cb3ff80000000000009298ab426c6f636b53746f7265649101c092010202c0c0c0"
                         "91b0416c6c426c6f636b73436c6561726564c0")
    assert decode(data) == Batch(1.5, (Stored((1,), None, (1, 2), 2), Cleared()), None)


@pytest.mark.parametrize("event", [
    stored([1, 2], None, range(8)), stored([3], 2, range(4), medium="CPU"),
    stored([3], 2, range(4), lora_name="a", extra_keys=[["a", "salt"]]), removed(1, 2, medium="DISK"), CLEARED,
])
def test_maps_and_arrays_say_the_same(event):
    assert one(as_array(event)) == one(event)


def test_both_forms_may_stand_in_one_payload_in_their_order():
    batch = decode(payload(CLEARED, as_array(removed(1)), stored([1], None, range(4))))
    assert [type(event) for event in batch.events] == [Cleared, Removed, Stored]


def test_sglang_sends_the_shortest_arrays():
    assert one(["BlockStored", [1], None, [1, 2, 3, 4], 4, None]) == Stored((1,), None, (1, 2, 3, 4), 4)
    assert one(["BlockRemoved", [1]]) == Removed((1,))
    assert one(["AllBlocksCleared"]) == Cleared()


@pytest.mark.parametrize(("given_hash", "number"), [
    (0, 0), (2**64 - 1, 2**64 - 1), (-1, 2**64 - 1), (-2**63, 2**63), (b"\x07", 7), (b"\x01" + bytes(7), 2**56),
    (bytes(range(32)), int.from_bytes(bytes(range(24, 32)), "big")), (b"\xff" * HASH_BYTES_MAX, 2**64 - 1),
])
def test_hashes_are_64_bits_whatever_their_form(given_hash, number):
    assert one(stored([given_hash], given_hash, range(4))).hashes == (number,)
    assert one(stored([5], given_hash, range(4))).parent == number
    assert one(removed(given_hash)).hashes == (number,)


@pytest.mark.parametrize(("medium", "tier"), [
    (None, Tier.DEVICE), ("", Tier.DEVICE), ("GPU", Tier.DEVICE), ("device", Tier.DEVICE), ("CPU", Tier.HOST),
    ("CPU_PINNED", Tier.HOST), ("CPU_TIER1", Tier.HOST), ("CPU_TIER2", Tier.DISK), ("DISK", Tier.DISK),
    ("NVME", Tier.DISK), ("STORAGE", Tier.DISK),
])
def test_media_are_tiers(medium, tier):
    assert one(stored([1], None, range(4), medium=medium)).tier is tier
    assert one(removed(1, medium=medium)).tier is tier


@pytest.mark.parametrize("more", [
    {"medium": "EXTERNAL"}, {"medium": "SHARED"}, {"medium": "TAPE"}, {"locality": "REMOTE"}, {"locality": "?"},
    {"ownership": "CACHE"},
])
def test_what_is_not_the_ranks_own_is_foreign(more):
    assert one(stored([1], None, range(4), **more)) == Foreign()
    assert one(removed(1, **more)) == Foreign()


def test_a_clear_of_another_owner_is_foreign():
    assert one({"type": "AllBlocksCleared", "ownership": "CACHE"}) == Foreign()
    assert one(["AllBlocksCleared", "CACHE"]) == Foreign()


@pytest.mark.parametrize(("kind", "is_main"), [
    ("full_attention", True), ("mla_attention", True), ("sink_full_attention", True), ("sliding_window", False),
    ("mamba", False), (None, None),
])
def test_kinds_of_caches(kind, is_main):
    event = one(stored([1], None, range(4), group_idx=2, kv_cache_spec_kind=kind))
    assert (event.group, event.is_main) == (2, is_main)
    assert one(stored([1], None, range(4), medium="DISK", kv_cache_spec_kind=kind)).is_main is True


@pytest.mark.parametrize(("tail", "group", "is_main"), [
    ([], None, None), ([3], 3, None), ([3, "full_attention"], 3, True), ([3, "mamba", None, "LOCAL"], 3, False),
    ([3, None, 128, None, None], 3, None), ([None, "mla_attention", None, None, None, "more", {}], None, True),
    (["sliding_window", 1, 128], 1, False), ([[{"mm_objects": []}], 1], 1, None), ([True, 4], 4, None),
])
def test_tails_of_arrays(tail, group, is_main):
    event = one(["BlockStored", [1], None, [1, 2, 3, 4], 4, None, "GPU", None, None, *tail])
    assert (event.group, event.is_main) == (group, is_main)
    event = one(["BlockRemoved", [1], None, *tail])
    assert (event.group, event.is_main) == (group, is_main)


def test_the_tail_of_an_array_can_say_remote():
    assert one(["BlockRemoved", [1], None, 0, None, None, "REMOTE", None]) == Foreign()
    assert one(["BlockRemoved", [1], None, 0, None, None, "LOCAL", "X"]) == Foreign()


def test_of_pairs_the_first_token_counts():
    assert one(stored([1], None, [[1, 2], [2, 3], [3, 4], [4, 5]])).tokens == (1, 2, 3, 4)


def test_salts_adapters_and_images():
    image, offset = "00000000000000ff" + "0" * 48, 5
    keys = [["a", "salt", image], [[image, offset]], None, ["odd"]]
    event = one(stored([1, 2, 3, 4], None, range(16), lora_name="a", extra_keys=keys))
    assert (event.adapter, event.namespace) == ("a", "salt")
    number = (255).to_bytes(8, "little")
    assert event.extras == (number, number, b"", msgspec.msgpack.encode("odd"))
    assert one(stored([1], None, range(4), extra_keys=[["dynamo-cache-salt:t"]])).namespace == "t"
    assert one(stored([1], None, range(4), cache_salt="t")).namespace == "t"
    inner = one(stored([1], 7, range(4), extra_keys=[["salt"]]))
    assert (inner.namespace, inner.extras) == (None, (msgspec.msgpack.encode("salt"),))


def test_images_in_their_own_field_are_those_of_extra_keys():
    keys = one(stored([1], None, range(4), extra_keys=[["00000000000000ff" + "0" * 48]]))
    infos = one(stored([1], None, range(4), block_mm_infos=[{"mm_objects": [{"mm_hash": 255}]}]))
    assert keys.extras == infos.extras == ((255).to_bytes(8, "little"),)
    assert one(stored([1], None, range(4), block_mm_infos=[{"mm_objects": [{"mm_hash": "x"}]}])).extras[0]


def test_an_adapter_that_has_only_a_number_is_not_the_base_model():
    assert one(stored([1], None, range(4), lora_id=3)).adapter == "lora_id:3"
    assert one(stored([1], None, range(4), lora_id=3, lora_name="a")).adapter == "a"
    assert one(stored([1], None, range(4), lora_id=0)).adapter == ""


def test_what_is_not_known_is_passed_over():
    assert decode(msgspec.msgpack.encode([1, [], 3, "more"])) == Batch(1.0, (), 3)
    assert decode(msgspec.msgpack.encode([1, []])) == Batch(1.0, (), None)
    assert one({"type": "BlockRemoved", "block_hashes": [1], "session_id": "s"}) == Removed((1,))
    assert one({"type": "BlockMoved", "block_hashes": [1]}) == Unknown("BlockMoved")
    assert one(["BlockMoved", [1]]) == Unknown("BlockMoved")


BAD = {
    "no bytes": b"", "cut": payload(removed(1))[:-1], "more": payload() + b"\x00", "no array": b"\x01",
    "an endless array": b"\xdd\xff\xff\xff\xff", "an endless map": b"\xdf\xff\xff\xff\xff",
    "nested for ever": b"\x91" * 100_000,
    "events nested for ever": b"\x93\x01\x91" + b"\x91" * 100_000 + b"\xc0\xc0",
    "no time": msgspec.msgpack.encode(["now", [], None]), "nan": payload(time_s=float("nan")),
    "inf": payload(time_s=float("inf")), "a rank below": payload(dp_rank=-1), "a rank above": payload(dp_rank=2**32),
    "a rank that is none": payload(dp_rank="0"), "no events": msgspec.msgpack.encode([1.0]),
    "an event that is none": payload(7), "an empty event": payload([]), "a map without a type": payload({}),
    "an array without a type": payload([1, [1]]), "a type that is none": payload({"type": 1}),
    "no hashes": payload({"type": "BlockRemoved"}), "a text for a hash": payload(removed("1")),
    "a bool for a hash": payload(removed(True)), "a float for a hash": payload(removed(1.0)),
    "an empty hash": payload(removed(b"")), "a long hash": payload(removed(bytes(HASH_BYTES_MAX + 1))),
    "no parent": payload({"type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": 1}),
    "a token below": payload(stored([1], None, [-1])), "a token above": payload(stored([1], None, [2**32])),
    "a block size below": payload(stored([1], None, [], -1)),
    "a block size above": payload(stored([1], None, [], 2**31)),
    "a triple": payload(stored([1], None, [[1, 2, 3]])), "keys that are none": payload(stored([1], extra_keys=[1])),
    "a short array": payload(["BlockStored", [1], None]), "a medium that is none": payload(removed(1, medium=1)),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_what_does_not_fit_is_refused_whole(data):
    with pytest.raises(InvalidKvEvent) as caught:
        decode(data)
    assert isinstance(caught.value, KvcoreError)
    assert len(str(caught.value)) < 300


def test_one_bad_event_refuses_its_payload():
    with pytest.raises(InvalidKvEvent):
        decode(payload(removed(1), removed("x"), removed(2)))


def test_a_payload_has_a_longest_length():
    with pytest.raises(InvalidKvEvent, match="more than"):
        decode(bytes(PAYLOAD_MAX + 1))


def decodes_or_refuses(data: bytes) -> None:
    try:
        batch = decode(data)
    except InvalidKvEvent:
        return
    for event in batch.events:
        match event:
            case Stored():
                assert all(0 <= item < 2**64 for item in event.hashes)
                assert all(0 <= item < 2**32 for item in event.tokens)
                assert len(event.extras) in (0, len(event.hashes))
            case Removed():
                assert all(0 <= item < 2**64 for item in event.hashes)
            case _:
                assert isinstance(event, Cleared | Foreign | Unknown)


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data):
    decodes_or_refuses(data)
    rank_of(data)


DAMAGES = st.lists(st.tuples(st.integers(0), st.binary(max_size=3)), max_size=3)


@given(st.sampled_from(RECORDINGS), st.integers(0), DAMAGES)
def test_damaged_recordings_decode_or_are_refused(name, which, damages):
    messages = [item for item in recording(name) if item.batch is not None]
    data = bytearray(messages[which % len(messages)].payload)
    for place, patch in damages:
        place %= len(data) + 1
        data[place:place + len(patch)] = patch
    decodes_or_refuses(bytes(data))
    decodes_or_refuses(bytes(data[:which % (len(data) + 1)]))


SCALARS = st.none() | st.booleans() | st.integers(-2**63, 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(
    max_size=9)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8)
FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
          "extra_keys", "group_idx", "kv_cache_spec_kind", "locality", "ownership", "cache_salt", "block_mm_infos")
KINDS = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])


@given(st.lists(st.tuples(KINDS, st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8)), max_size=3), VALUES)
def test_any_map_decodes_or_is_refused(events, dp_rank):
    base = stored([1, 2], None, range(8))
    decodes_or_refuses(msgspec.msgpack.encode(
        [1.0, [{**base, **fields, "type": kind} for kind, fields in events], dp_rank]))


@given(KINDS, st.lists(st.integers(0, 12)), st.lists(VALUES, max_size=12))
def test_any_array_decodes_or_is_refused(kind, places, values):
    event = [*as_array(stored([1, 2], None, range(8))), 0, None, None, None, None]
    for place, value in zip(places, values, strict=False):
        event[1 + place] = value
    decodes_or_refuses(payload([kind, *event[1:]]))
