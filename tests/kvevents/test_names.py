"""Names of blocks from token ids, against the reference's values and against a plain second writing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvcore.drivers.kvevents.names import BlockNames
from xxhash import xxh3_64_intdigest

GOLDEN = {
    ("", ""): (9143094415614847814, 9510318385840434533),
    ("adapter-a", ""): (6665157333201000639, 13351519314849170528),
}
SEEDS = {("adapter-a", ""): 8842669519798868182, ("", "tenant-a"): 1948188790972764086,
         ("adapter-a", "tenant-a"): 10790858310771630931, ("", ""): 1337}
ROOTS = {("", "tenant-a"): 17009624042690211646, ("adapter-a", "tenant-a"): 8269515957840517240}


def slow(tokens, size, seed) -> list[int]:
    """The same again, one step at a time."""
    names = []
    for start in range(0, len(tokens) - size + 1, size):
        local = xxh3_64_intdigest(b"".join(token.to_bytes(4, "little") for token in tokens[start:start + size]), seed)
        names.append(local if not names else xxh3_64_intdigest(
            names[-1].to_bytes(8, "little") + local.to_bytes(8, "little"), 1337))
    return names


@pytest.mark.parametrize("who", GOLDEN)
def test_names_of_the_reference(who):
    assert BlockNames(4).of(range(8), *who) == GOLDEN[who]


@pytest.mark.parametrize("who", SEEDS)
def test_seeds_of_the_reference(who):
    assert BlockNames(4).seed(*who) == SEEDS[who]


@pytest.mark.parametrize("who", ROOTS)
def test_first_names_of_the_reference(who):
    assert BlockNames(4).of(range(4), *who) == (ROOTS[who],)


def test_an_image_of_the_reference():
    names = BlockNames(2)
    assert names.after(None, range(2), names.seed(), ((42).to_bytes(8, "little"),)) == (6100948656312251355,)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(1, 9), st.sampled_from(sorted(SEEDS)))
def test_names_are_those_of_the_slow_way(tokens, size, who):
    names = BlockNames(size)
    assert list(names.of(tokens, *who)) == slow(tokens, size, names.seed(*who))


@given(st.lists(st.integers(0, 99), max_size=30), st.integers(0, 30))
def test_a_path_can_be_named_in_parts(tokens, cut):
    names = BlockNames(3)
    whole = names.of(tokens)
    cut = min(cut // 3, len(whole))
    rest = names.after(whole[cut - 1] if cut else None, tokens[3 * cut:], names.seed())
    assert whole[:cut] + rest == whole


def test_only_complete_blocks_have_names():
    assert [len(BlockNames(4).of(range(count))) for count in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_a_salt_changes_every_name_and_is_the_same_for_both_sides():
    tokens = range(64)
    plain, salted = BlockNames(4), BlockNames(4, b"secret")
    assert not set(plain.of(tokens)) & set(salted.of(tokens))
    assert salted.of(tokens) == BlockNames(4, b"secret").of(tokens) != BlockNames(4, b"other").of(tokens)


@pytest.mark.parametrize("size", [0, -1, 1.0, True, None])
def test_a_block_has_a_size(size):
    with pytest.raises(ValueError, match="block_size"):
        BlockNames(size)


@pytest.mark.parametrize("tokens", [[-1] * 4, [2**32] * 4, [1.5] * 4, ["a"] * 4])
def test_what_is_no_token_is_refused(tokens):
    with pytest.raises((OverflowError, TypeError)):
        BlockNames(4).of(tokens)
