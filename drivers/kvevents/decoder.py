"""From the payload of a message to a Batch: vLLM's and SGLang's events, as maps or as arrays. Pure; msgspec parses.

A payload is `[time, [events], dp_rank]`, msgpack. An event is a map with a key `type` (vLLM since 0.24) or an array
that begins with its type (vLLM before, SGLang); both may stand in one payload. Keys and elements that are not known are
passed over. What does not fit is an InvalidKvEvent, for the whole payload.

A hash is an integer of 64 bits, signed or not, or bytes, of which the last eight count, big end first: so engines
themselves make integers of their digests, and streams of both kinds agree.

What prompts are told apart by, beside tokens: `lora_name` is the adapter. Of `extra_keys`, the adapter's name is passed
over once, 64 hexadecimal digits (alone or before an offset) name an image, and another text on the first block of a
root is a `cache_salt`, hence a namespace. Everything else is kept as bytes: such blocks have names of their own.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from itertools import chain as joined
from typing import Any, TypeAlias

import msgspec

from kvcore.events import Tier

from .values import Batch, Cleared, Foreign, InvalidKvEvent, KvEvent, Removed, Stored, Unknown

#: Longest payload that is looked at.
PAYLOAD_MAX = 64 * 2**20
#: Longest hash given as bytes.
HASH_BYTES_MAX = 64

_MASK = 2**64 - 1
_TIERS = {
    "": Tier.DEVICE, "GPU": Tier.DEVICE, "DEVICE": Tier.DEVICE,
    "CPU": Tier.HOST, "CPU_PINNED": Tier.HOST, "CPU_TIER1": Tier.HOST,
    "CPU_TIER2": Tier.DISK, "DISK": Tier.DISK, "NVME": Tier.DISK, "STORAGE": Tier.DISK,
}
_MAIN_KINDS = ("full_attention", "mla_attention", "sink_full_attention")
#: Before a namespace in extra_keys, where the engine was told it by a router.
_SALT_PREFIX = "dynamo-cache-salt:"
_HEX = frozenset("0123456789abcdefABCDEF")
#: Elements of the arrays before the tail: group_idx, kv_cache_spec_kind, sliding_window, locality, ownership.
_STORED_HEAD, _REMOVED_HEAD, _TAIL = 9, 3, 5

_Hash: TypeAlias = int | bytes
_Tokens: TypeAlias = list[int | tuple[int, int]]


class _Payload(msgspec.Struct, array_like=True):
    """The outer array."""

    time_s: float
    events: list[msgspec.Raw]
    dp_rank: int | None = None


class _Kind(msgspec.Struct):
    """The type of a map, where nothing else of it is understood."""

    type: str


class _StoredFields(msgspec.Struct):
    """Fields of BlockStored that both forms have."""

    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None
    token_ids: _Tokens
    block_size: int
    lora_id: Any = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None


class _StoredMap(_StoredFields, tag="BlockStored", tag_field="type"):
    """A map."""

    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None
    ownership: str | None = None
    cache_salt: str | None = None
    block_mm_infos: list[Any] | None = None


class _RemovedMap(msgspec.Struct, tag="BlockRemoved", tag_field="type"):
    """A map."""

    block_hashes: list[_Hash]
    medium: str | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None
    ownership: str | None = None


class _ClearedMap(msgspec.Struct, tag="AllBlocksCleared", tag_field="type"):
    """A map."""

    ownership: str | None = None


class _StoredArray(_StoredFields, array_like=True, tag="BlockStored"):
    """An array."""


class _RemovedArray(msgspec.Struct, array_like=True, tag="BlockRemoved"):
    """An array."""

    block_hashes: list[_Hash]
    medium: str | None = None


class _ClearedArray(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    """An array."""

    ownership: str | None = None


class _Tail(msgspec.Struct):
    """What stands behind the older fields of an array."""

    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None
    ownership: str | None = None
    block_mm_infos: list[Any] | None = None


_PAYLOAD = msgspec.msgpack.Decoder(_Payload)
_MAP = msgspec.msgpack.Decoder(_StoredMap | _RemovedMap | _ClearedMap)
_ARRAY = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)
_ANY_MAP = msgspec.msgpack.Decoder(_Kind)
_ANY_ARRAY = msgspec.msgpack.Decoder(list[Any])
_KNOWN = ("BlockStored", "BlockRemoved", "AllBlocksCleared")


def decode(payload: bytes) -> Batch:
    """The events of a payload. Raises InvalidKvEvent, nothing else, whatever the bytes are."""
    outer = _outer(payload)
    try:
        events = tuple(_event(raw) for raw in outer.events)
    except InvalidKvEvent:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise InvalidKvEvent(f"an event does not fit: {error}") from None
    return Batch(outer.time_s, events, outer.dp_rank)


def rank_of(payload: bytes) -> int | None:
    """The rank that a payload names, without a look at its events; None: none, or no payload."""
    try:
        return _outer(payload).dp_rank
    except InvalidKvEvent:
        return None


def _outer(payload: bytes) -> _Payload:
    if len(payload) > PAYLOAD_MAX:
        raise InvalidKvEvent(f"a payload has {len(payload)} bytes, more than {PAYLOAD_MAX}")
    try:
        outer = _PAYLOAD.decode(payload)
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidKvEvent(f"no batch of events: {error}") from None
    if not math.isfinite(outer.time_s):
        raise InvalidKvEvent(f"the time of a batch must be finite, not {outer.time_s!r}")
    if outer.dp_rank is not None and not 0 <= outer.dp_rank < 2**32:
        raise InvalidKvEvent(f"data_parallel_rank must be 0..2^32-1, not {outer.dp_rank}")
    return outer


def _event(raw: msgspec.Raw) -> KvEvent:
    """One event; the first byte says whether it is an array or a map."""
    first = bytes(memoryview(raw)[:1])[0]
    if 0x90 <= first <= 0x9F or first in (0xDC, 0xDD):
        return _array(raw)
    try:
        fields = _MAP.decode(raw)
    except msgspec.ValidationError:
        kind = _ANY_MAP.decode(raw).type
        if kind in _KNOWN:
            raise
        return Unknown(kind)
    match fields:
        case _StoredMap():
            tail = _Tail(fields.group_idx, fields.kv_cache_spec_kind, fields.locality, fields.ownership,
                         fields.block_mm_infos)
            return _stored(fields, tail, fields.cache_salt)
        case _RemovedMap():
            return _removed(fields.block_hashes, fields.medium, _Tail(
                fields.group_idx, fields.kv_cache_spec_kind, fields.locality, fields.ownership))
    return Cleared() if fields.ownership is None else Foreign()


def _array(raw: msgspec.Raw) -> KvEvent:
    try:
        fields = _ARRAY.decode(raw)
    except msgspec.ValidationError:
        items = _ANY_ARRAY.decode(raw)
        if not items or not isinstance(items[0], str) or items[0] in _KNOWN:
            raise
        return Unknown(items[0])
    match fields:
        case _StoredArray():
            return _stored(fields, _tail(raw, _STORED_HEAD), None)
        case _RemovedArray():
            return _removed(fields.block_hashes, fields.medium, _tail(raw, _REMOVED_HEAD))
    return Cleared() if fields.ownership is None else Foreign()


def _tail(raw: msgspec.Raw, head: int) -> _Tail:
    """The tail of an array: by position where it is long enough and fits, else by the types of its elements."""
    if _length(raw) <= head:
        return _Tail()
    rest = _ANY_ARRAY.decode(raw)[head:]
    fits = all(
        item is None or (isinstance(item, str) if text else type(item) is int)
        for item, text in zip(rest, (False, True, False, True, True), strict=False))
    if len(rest) >= _TAIL - 1 and fits:
        group, kind, _, locality, ownership = (*rest[:_TAIL], None)[:_TAIL]
        return _Tail(group, kind, locality, ownership)
    numbers = [item for item in rest if type(item) is int]
    texts = [item for item in rest if isinstance(item, str)]
    infos = [item for item in rest if isinstance(item, list)]
    return _Tail(
        numbers[0] if numbers else None, texts[0] if texts else None, block_mm_infos=infos[0] if infos else None)


def _length(raw: msgspec.Raw) -> int:
    """Elements of an array."""
    view = memoryview(raw)
    if view[0] < 0xA0:
        return view[0] - 0x90
    return int.from_bytes(view[1:3 if view[0] == 0xDC else 5], "big")


def _stored(fields: _StoredFields, tail: _Tail, salt: str | None) -> KvEvent:
    tier = _tier(fields.medium, tail)
    if not 0 <= fields.block_size < 2**31:
        raise InvalidKvEvent(f"block_size must be 0..2^31-1, not {fields.block_size}")
    hashes = _hashes(fields.block_hashes)
    tokens = _plain(fields.token_ids)
    adapter = fields.lora_name or ""
    if not adapter and isinstance(fields.lora_id, int) and fields.lora_id > 0:
        adapter = f"lora_id:{int(fields.lora_id)}"  # unlike any name, and so unlike the base model
    if tier is None:
        return Foreign()
    is_root = fields.parent_block_hash is None
    namespace, extras = _extras(fields.extra_keys, tail.block_mm_infos, len(hashes), adapter, is_root)
    return Stored(
        hashes, None if fields.parent_block_hash is None else _hash(fields.parent_block_hash), tokens,
        fields.block_size, adapter, salt or namespace, extras, tier, tail.group_idx, _is_main(tail, tier))


def _removed(hashes: Sequence[_Hash], medium: str | None, tail: _Tail) -> KvEvent:
    tier = _tier(medium, tail)
    known = _hashes(hashes)
    return Foreign() if tier is None else Removed(known, tier, tail.group_idx, _is_main(tail, tier))


def _tier(medium: str | None, tail: _Tail) -> Tier | None:
    """Where a block is, if it is the rank's own."""
    if tail.ownership is not None or tail.locality not in (None, "", "LOCAL"):
        return None
    return _TIERS.get((medium or "").upper())


def _is_main(tail: _Tail, tier: Tier) -> bool | None:
    """Groups matter on the device and in host memory; what is on disk is kept whatever it was for."""
    if tier is Tier.DISK:
        return True
    return None if tail.kv_cache_spec_kind is None else tail.kv_cache_spec_kind in _MAIN_KINDS


def _hash(value: _Hash) -> int:
    if isinstance(value, int):
        return value & _MASK
    if not 1 <= len(value) <= HASH_BYTES_MAX:
        raise InvalidKvEvent(f"a block hash has {len(value)} bytes, not 1..{HASH_BYTES_MAX}")
    return int.from_bytes(value[-8:], "big")


def _hashes(values: Sequence[_Hash]) -> tuple[int, ...]:
    return tuple(map(_hash, values))


def _plain(tokens: _Tokens) -> tuple[int, ...]:
    """Token ids; of pairs (token, the one after it) the first, which is all that prompts are found by."""
    plain = tuple(item if isinstance(item, int) else item[0] for item in tokens)
    if plain and not 0 <= min(plain) <= max(plain) < 2**32:
        raise InvalidKvEvent("token ids must be 0..2^32-1")
    return plain


def _extras(
    keys: list[list[Any] | None] | None, infos: list[Any] | None, count: int, adapter: str, is_root: bool,
) -> tuple[str | None, tuple[bytes, ...]]:
    """(namespace, bytes by block) of what stands in extra_keys and block_mm_infos."""
    if not any(keys or ()) and not any(infos or ()):
        return None, ()
    namespace: str | None = None
    extras: list[bytes] = []
    for index in range(count):
        images: list[int] = []
        others: list[bytes] = []
        texts = list((keys[index] if keys and index < len(keys) else None) or ())
        if adapter and adapter in texts:
            texts.remove(adapter)
        for item in texts:
            image = _image(item[0] if isinstance(item, list) and item else item)
            if image is not None:
                images.append(image)
            elif isinstance(item, str) and is_root and index == 0 and namespace is None:
                namespace = item.removeprefix(_SALT_PREFIX)
            else:
                others.append(msgspec.msgpack.encode(item))
        info = infos[index] if infos and index < len(infos) else None
        if info is not None:
            told = _objects(info)
            images += told
            if not told:
                others.append(msgspec.msgpack.encode(info))
        extras.append(b"".join(joined((struct.pack("<Q", image) for image in sorted(images)), sorted(others))))
    return namespace, tuple(extras) if any(extras) else ()


def _objects(info: Any) -> list[int]:
    """Numbers of images in an entry of block_mm_infos; none, if it does not look like one."""
    objects = info.get("mm_objects") if isinstance(info, dict) else None
    if not isinstance(objects, list):
        return []
    told: list[Any] = [item.get("mm_hash") if isinstance(item, dict) else None for item in objects]
    return [value & _MASK for value in told] if all(type(value) is int for value in told) else []


def _image(value: object) -> int | None:
    """The number of an image's name, if this is one."""
    if isinstance(value, str) and len(value) == 64 and _HEX.issuperset(value):
        return int(value[:16], 16)
    return None
