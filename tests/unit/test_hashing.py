"""Names of KV blocks: golden values of the reference facts (capacity 5.6), and the xxhash package on anything else."""

from __future__ import annotations

import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvcore.hashing import CHAIN_SEED, chain, sequence_hashes

U64 = 2**64 - 1
names = st.integers(0, U64) | st.sampled_from((0, 1, 2**63, U64))


def xxh3(data: bytes, seed: int = 1337) -> int:
    return xxhash.xxh3_64_intdigest(data, seed)


def local_hashes(tokens, block_size: int, seed: int = 1337, *, eagle: bool = False, images=()) -> list[int]:
    """Local hashes as the reference forms them: u32 tokens, then the u64 hashes of the block's images."""
    width = block_size + eagle
    found = []
    for number, start in enumerate(range(0, len(tokens) - width + 1, block_size)):
        more = sorted(images[number]) if number < len(images) else ()
        found.append(xxh3(struct.pack(f"<{width}I{len(more)}Q", *tokens[start:start + width], *more), seed))
    return found


def test_the_seed_of_the_chain():
    assert CHAIN_SEED == 1337


def test_the_function_of_the_package_is_the_function_of_the_reference():
    assert xxh3(b"test data") == 13226331709069118873


@pytest.mark.parametrize(
    ("seed", "local", "last"),
    [
        (1337, (9143094415614847814, 12124091508212882195), 9510318385840434533),
        (8842669519798868182, (6665157333201000639, 11721812545976571723), 13351519314849170528),
        (1948188790972764086, (17009624042690211646, 10000672136415158886), None),
        (10790858310771630931, (8269515957840517240, 11937877779520612889), None),
    ],
    ids=["plain", "adapter", "tenant", "both"],
)
def test_golden_blocks_of_eight_tokens(seed, local, last):
    """Drivers form local hashes; the chain over them always starts from the same seed."""
    assert tuple(local_hashes(range(8), 4, seed)) == local
    assert sequence_hashes(local) == (local[0], chain(*local))
    assert last in (None, chain(*local))


def test_golden_blocks_with_windows_and_images():
    windows = local_hashes(range(6), 2, eagle=True)
    assert windows == [11646242937812223497, 9948816348502404300]
    images = local_hashes(range(4), 2, images=[[42]])
    assert images == [6100948656312251355, 10731123482949079648]
    for local in (windows, images):
        assert sequence_hashes(local) == (local[0], xxh3(struct.pack("<2Q", *local)))


def test_golden_chain_over_small_numbers():
    assert sequence_hashes((11, 22, 33)) == (11, 750553365844651409, 3257565445809651757)


def test_no_blocks_no_names():
    assert sequence_hashes(()) == sequence_hashes(iter([])) == ()


@given(names, names)
def test_a_link_is_the_hash_of_two_words(parent, local):
    assert chain(parent, local) == xxh3(struct.pack("<2Q", parent, local))


@given(st.lists(names, max_size=20))
def test_a_sequence_is_a_chain(local):
    wanted = local[:1]
    for name in local[1:]:
        wanted.append(xxh3(struct.pack("<2Q", wanted[-1], name)))
    assert sequence_hashes(local) == tuple(wanted)
    assert sequence_hashes(iter(local)) == tuple(wanted)


@given(st.lists(names, max_size=8), st.lists(names, max_size=8))
def test_names_of_a_prefix_are_a_prefix_of_the_names(head, tail):
    assert sequence_hashes([*head, *tail])[: len(head)] == sequence_hashes(head)


@pytest.mark.parametrize("wrong", [-1, U64 + 1])
def test_numbers_out_of_range_raise(wrong):
    for call in (lambda: chain(wrong, 0), lambda: chain(0, wrong), lambda: sequence_hashes([1, wrong])):
        with pytest.raises(OverflowError):
            call()


@pytest.mark.parametrize("wrong", [None, "1", b"1", 1.0, 1.5, True])
def test_what_is_no_number_raises(wrong):
    for call in (lambda: chain(wrong, 0), lambda: chain(0, wrong), lambda: sequence_hashes([1, wrong])):
        with pytest.raises(TypeError):
            call()
