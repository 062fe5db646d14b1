"""What one rank holds, from whole events in their order."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_engines import World
from kvcore.drivers.kvevents.mirror import GROUPS_MAX, Mirror
from kvcore.drivers.kvevents.names import BlockNames
from kvcore.drivers.kvevents.values import Change, Cleared, Fact, Foreign, Removed, Stored, Unknown

from kvcore.events import Tier

NAMES = BlockNames(2)
#: Tokens of three blocks and their names.
PATH = (1, 2, 3, 4, 5, 6)
A, B, C = NAMES.of(PATH)


def path(*hashes, parent=None, tokens=PATH, **more) -> Stored:
    return Stored(hashes, parent, tuple(tokens), 2, **more)


def mirror(*events, **options) -> tuple[Mirror, list[Fact]]:
    made = Mirror(NAMES, **options)
    return made, made.apply(events)


def test_a_path_is_stored_under_its_names_and_goes_one_by_one():
    made, facts = mirror(path(1, 2, 3))
    assert facts == [Fact(Change.STORED, Tier.DEVICE, (A, B, C))]
    assert made.apply([Removed((3,)), Removed((2,))]) == [Fact(Change.REMOVED, Tier.DEVICE, (C, B))]
    assert (len(made), made.held(Tier.DEVICE), made.flaw) == (1, 1, None)


def test_a_path_goes_on_from_its_parent():
    made, _ = mirror(path(1, tokens=PATH[:2]))
    assert made.apply([path(2, 3, parent=1, tokens=PATH[2:])]) == [Fact(Change.STORED, Tier.DEVICE, (B, C))]


def test_the_order_inside_a_batch_counts():
    made, facts = mirror(path(1, 2, 3), Removed((3,)), path(3, parent=2, tokens=PATH[4:]), Removed((3,)), Removed((2,)))
    assert [(fact.change, fact.names) for fact in facts] == [
        (Change.STORED, (A, B, C)), (Change.REMOVED, (C,)), (Change.STORED, (C,)), (Change.REMOVED, (C, B))]
    assert len(made) == 1


def test_a_clear_in_front_of_a_store():
    made, _ = mirror(path(1, 2, 3))
    assert made.apply([Cleared(), path(1, tokens=PATH[:2])]) == [
        Fact(Change.CLEARED), Fact(Change.STORED, Tier.DEVICE, (A,))]


def test_a_clear_of_nothing_tells_nothing():
    made, facts = mirror(Cleared(), Cleared())
    assert (facts, made.counts.cleared) == ([], 2)


def test_what_is_announced_again_changes_nothing():
    made, _ = mirror(path(1, 2, 3))
    assert made.apply([path(1, 2, 3), path(2, 3, parent=1, tokens=PATH[2:])]) == []
    assert (made.counts.duplicates, made.flaw) == (5, None)
    assert made.apply([Removed((3,))]) == [Fact(Change.REMOVED, Tier.DEVICE, (C,))], "presence, not a count"


def test_an_absent_block_does_not_stop_a_batch():
    made, _ = mirror(path(1, 2, 3))
    assert made.apply([Removed((9, 3, 9)), Removed((2,))]) == [Fact(Change.REMOVED, Tier.DEVICE, (C, B))]
    assert (made.counts.unknown_removed, made.flaw) == (2, None)


def test_an_orphan_is_refused_counted_and_a_flaw():
    made, facts = mirror(path(2, 3, parent=1, tokens=PATH[2:]), path(1, tokens=PATH[:2]))
    assert facts == [Fact(Change.STORED, Tier.DEVICE, (A,))]
    assert (made.counts.orphans, made.flaw) == (2, "a block whose parent is unknown")
    assert made.apply([path(4, parent=3, tokens=(7, 8))]) == []


def test_a_clear_mends_every_flaw_before_it_and_none_after():
    made, _ = mirror(path(2, parent=1, tokens=PATH[2:4]))
    made.apply([Cleared()])
    assert made.flaw is None
    made.apply([Cleared(), path(2, parent=1, tokens=PATH[2:4])])
    assert made.flaw == "a block whose parent is unknown"


@pytest.mark.parametrize("event", [path(1, 2, 1), path(2, 3, 2, parent=1), path(2, 1, parent=1, tokens=PATH[2:])])
def test_a_block_that_follows_itself_is_refused(event):
    made, _ = mirror(path(1, tokens=PATH[:2]))
    assert made.apply([event]) == []
    assert (made.counts.conflicts, made.flaw) == (1, "a block that follows itself")


def test_the_first_meaning_of_a_hash_stands():
    made, _ = mirror(path(1, tokens=PATH[:2]))
    assert made.apply([path(1, 2, tokens=(7, 8, 9, 9))]) == []
    assert (made.counts.conflicts, len(made), made.flaw) == (1, 1, "one hash for two blocks")


def test_a_name_stays_until_the_last_of_its_hashes_goes():
    made, facts = mirror(path(1, tokens=PATH[:2]), path(9, tokens=PATH[:2]))
    assert facts == [Fact(Change.STORED, Tier.DEVICE, (A,))]
    assert (len(made), made.held(Tier.DEVICE)) == (2, 1)
    assert made.apply([Removed((1,))]) == []
    assert made.apply([Removed((9,))]) == [Fact(Change.REMOVED, Tier.DEVICE, (A,))]


def test_tiers_are_apart():
    made, _ = mirror(path(1, 2))
    assert made.apply([path(1, 2, tier=Tier.HOST)]) == [Fact(Change.STORED, Tier.HOST, (A, B))]
    assert made.apply([Removed((2,))]) == [Fact(Change.REMOVED, Tier.DEVICE, (B,))]
    assert made.apply([Removed((2,), Tier.DISK)]) == []
    assert (len(made), made.held(Tier.DEVICE), made.held(Tier.HOST)) == (2, 1, 2)


def test_an_offload_without_tokens_takes_the_names_that_are_known():
    made, _ = mirror(path(1, 2))
    facts = made.apply([Stored((2, 7), None, (), 0, tier=Tier.HOST), Stored((1,), None, (1,), 2, tier=Tier.DISK)])
    assert facts == [Fact(Change.STORED, Tier.HOST, (B,)), Fact(Change.STORED, Tier.DISK, (A,))]
    assert (made.counts.unnamed, made.flaw) == (1, None)
    made.apply([Removed((2,))])
    assert made.apply([Stored((3,), 2, PATH[4:], 2)]) == [Fact(Change.STORED, Tier.DEVICE, (C,))]


def test_blocks_of_another_size_are_refused_with_the_reason():
    made, facts = mirror(Stored((1,), None, (1, 2, 3), 3))
    assert (facts, made.misfit, made.flaw, made.counts.refused) == ([], 3, "blocks of 3 tokens, not 2", 1)


def test_adapters_and_namespaces_keep_blocks_apart_and_are_inherited():
    made, facts = mirror(path(1, tokens=PATH[:2], adapter="a", namespace="t"),
                         path(2, parent=1, tokens=PATH[2:4], adapter="a"))
    assert facts == [Fact(Change.STORED, Tier.DEVICE, NAMES.of(PATH[:4], "a", "t"))]
    assert made.apply([path(3, tokens=PATH[:2])]) == [Fact(Change.STORED, Tier.DEVICE, (A,))]


def test_extras_give_a_block_a_name_of_its_own():
    _, (fact,) = mirror(path(1, 2, 3, extras=(b"", b"image", b"")))
    assert fact.names[0] == A
    assert not set(fact.names[1:]) & {B, C}


def test_only_main_groups_count_and_what_is_said_of_one_is_kept():
    made, facts = mirror(
        path(1, tokens=PATH[:2], group=1, is_main=False), path(1, tokens=PATH[:2], group=2, is_main=True),
        path(8, tokens=PATH[2:4], group=3))
    assert facts == [Fact(Change.STORED, Tier.DEVICE, (A,))]
    assert made.apply([Removed((1,), group=1), Removed((1,), group=3)]) == []
    assert made.apply([Removed((1,), group=2)]) == [Fact(Change.REMOVED, Tier.DEVICE, (A,))]
    assert (made.counts.filtered, made.flaw) == (4, None)


def test_group_0_is_main_unless_it_says_otherwise():
    made, facts = mirror(path(1, tokens=PATH[:2], group=0))
    assert len(facts) == 1
    made.apply([path(2, tokens=PATH[2:4], group=0, is_main=False)])
    assert made.apply([Removed((1,), group=0)]) == []


def test_groups_are_bounded():
    made, _ = mirror(*(path(group, tokens=(group, group), group=group, is_main=True) for group in range(200)))
    assert len(made) == 200
    made.apply([Removed((group,), group=group) for group in range(200)])
    assert len(made) == 200 - GROUPS_MAX


def test_foreign_events_change_nothing_and_unknown_ones_are_a_flaw():
    made, facts = mirror(Foreign())
    assert (facts, made.flaw, made.counts.filtered) == ([], None, 1)
    made.apply([Unknown("x" * 1000)])
    assert made.flaw is not None
    assert len(made.flaw) < 100


def test_blocks_are_bounded():
    made, facts = mirror(path(1, 2, 3), blocks_max=2)
    assert facts == [Fact(Change.STORED, Tier.DEVICE, (A, B))]
    assert (len(made), made.flaw, made.counts.refused) == (2, "more than 2 blocks", 1)
    made.apply([Removed((2,)), path(2, parent=1, tokens=PATH[2:4])])
    assert len(made) == 2


def test_lowered_blocks_count_one_tier_below_and_come_back():
    made, _ = mirror(path(1, 2, 3), path(1, 2, tier=Tier.HOST), path(1, tier=Tier.DISK))
    world = World()
    assert made.lower(True)[0] == Fact(Change.CLEARED)
    assert [made.held(tier) for tier in Tier] == [0, 3, 2]
    assert made.lower(True) == []
    assert made.apply([Removed((1,), Tier.HOST)]) == [], "it is still on disk, where both are counted"
    assert made.apply([Removed((1,), Tier.DISK)]) == [Fact(Change.REMOVED, Tier.DISK, (A,))]
    world.tell(made.lower(False))
    assert world.tiers == {Tier.DEVICE: {A, B, C}, Tier.HOST: {B}}


def test_reset_forgets_groups_and_sizes_too():
    made, _ = mirror(path(1, tokens=PATH[:2], group=0, is_main=True), Stored((2,), None, (1, 2, 3), 3))
    assert made.reset() == [Fact(Change.CLEARED)]
    assert (len(made), made.misfit, made.flaw) == (0, None, None)
    assert made.reset() == []


HASHES = st.integers(0, 5)
TIERS = st.sampled_from(Tier)
EVENTS = st.one_of(
    st.builds(lambda hashes, parent, tier: Stored(
        tuple(hashes), parent, tuple(2 * item for item in hashes for _ in (0, 1)), 2, tier=tier),
        st.lists(HASHES, max_size=3), st.none() | HASHES, TIERS),
    st.builds(lambda hashes, tier: Removed(tuple(hashes), tier), st.lists(HASHES, max_size=3), TIERS),
    st.just(Cleared()), st.just(Foreign()), st.builds(Unknown, st.just("k")))


@given(st.lists(st.lists(EVENTS, max_size=4) | st.booleans(), max_size=12), st.integers(1, 6))
def test_facts_and_mirror_never_drift_apart(batches, blocks_max):
    """Any events at all: each fact is news to the core, and told together they are what the mirror holds."""
    made, world = Mirror(NAMES, blocks_max), World()
    is_lowered = False
    for batch in batches:
        if isinstance(batch, bool):
            is_lowered = batch
            world.tell(made.lower(batch))
        else:
            world.tell(made.apply(batch))
        held = defaultdict(set)
        for name, _, tiers in made._blocks.values():
            for tier in Tier:
                if tiers & 1 << tier:
                    held[Tier(min(tier + is_lowered, Tier.DISK))].add(name)
        assert {tier: names for tier, names in world.tiers.items() if names} == held
        assert [made.held(tier) for tier in Tier] == [len(held[tier]) for tier in Tier]
        assert len(made) <= blocks_max
