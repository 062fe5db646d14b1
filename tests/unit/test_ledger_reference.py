"""The reference's own tests of load tracking, with their numbers: capacity, section 6, `block_tracker` and `single`.

Where kvcore decides otherwise (DESIGN D9) the test says so with both numbers. What runs through all of them:

- a fraction comes with an output block, which then weighs it too; the reference's unit tests give it alone;
- the rate is one of the rank, so a rank has durations for all its prefills or for none;
- a booking expires without progress, which the scheduler watches, and is then released as aborted.
"""

from __future__ import annotations

import random

import pytest
from probe_build import load

from kvcore.config import SchedulerConfig
from kvcore.errors import InvalidConfig

Books = load("_probe_ledger").Books

ONE = 2**20
SECOND = 10**9


def made(rate: int = 0):
    books = Books([], True)
    books.add_rank(0, 100)
    books.configure(0, 1, rate=rate)
    return books


def blocks(books) -> int:
    return books.load(0)[2]


def pairs(books) -> int:
    """Live prompt blocks."""
    return books.pairs_held()[1]


def prompt_weight(books, *slots) -> float:
    """In blocks, without the outputs of these bookings."""
    return (books.load(0)[1] - sum(books.output_weight(slot) for slot in slots)) / ONE


def tokens_at(books, *seconds) -> list[int]:
    found = []
    for second in seconds:
        books.advance(second * SECOND)
        found.append(books.effective(0)[0])
    assert books.faults() == []
    return found


class TestBlockTracker:
    def test_1_duplicate_prompt_tracks_terminal_owners(self):
        books = made()
        books.book(0, 0, 0, (1, 2, 3))
        assert pairs(books) == 3
        books.book(1, 0, 0, (1, 2, 3))
        assert pairs(books) == 3
        books.release(0)
        assert pairs(books) == 3
        books.release(1)
        assert pairs(books) == 0

    def test_2_shorter_prompt_splits_without_invalidating_longer_handle(self):
        books = made()
        books.book(0, 0, 0, (1, 2, 3, 4))
        books.book(1, 0, 0, (1, 2))
        assert pairs(books) == 4
        books.release(1)
        assert pairs(books) == 4
        books.release(0)
        assert pairs(books) == 0

    def test_3_branch_release_preserves_split_and_survivor_handle(self):
        """The reference keeps two nodes; here blocks are no tree: 1, 2 and 4 remain."""
        books = made()
        books.book(0, 0, 0, (1, 2, 3))
        books.book(1, 0, 0, (1, 2, 4))
        assert pairs(books) == 4
        books.release(0)
        assert [books.weight(0, name) for name in (1, 2, 3, 4)] == [ONE, ONE, None, ONE]
        books.release(1)
        assert pairs(books) == 0

    def test_4_longer_prompt_reports_only_the_new_suffix(self):
        books = made()
        books.book(0, 0, 0, (1, 2))
        books.book(1, 0, 0, (1, 2, 3, 4))
        assert (pairs(books), blocks(books)) == (4, 4)
        books.release(1)
        assert (pairs(books), blocks(books)) == (2, 2)
        books.release(0)
        assert (pairs(books), blocks(books)) == (0, 0)

    def test_5_output_blocks_stay_outside_prompt_arena(self):
        books = made()
        books.book(0, 0, 0, (1, 2))
        books.add_output(0)
        assert (pairs(books), blocks(books)) == (2, 3)
        books.release(0)
        assert (pairs(books), blocks(books)) == (0, 0)

    def test_6_fractional_unique_suffix_preserves_shared_prefix(self):
        """Prompt weight 2.5 in both. b = round(2.5) = 3 there; here with the output block of the fraction 3.0: 3."""
        books = made()
        books.book(0, 0, 0, (1, 2, 3))
        books.book(1, 0, 0, (1, 2))
        books.add_output(0, ONE // 2)
        assert [books.weight(0, name) for name in (1, 2, 3)] == [ONE, ONE, ONE // 2]
        assert (prompt_weight(books, 0), blocks(books)) == (2.5, 3)
        books.release(0)
        assert blocks(books) == 2
        books.release(1)
        assert blocks(books) == 0

    def test_7_fraction_mismatch_preserves_split_and_totals(self):
        """Prompt weight 3.0 in both. b = 3 there; here 3.0 + 0.5 for the output block: 4."""
        books = made()
        books.book(0, 0, 0, (1, 2, 3, 4))
        books.book(1, 0, 0, (1, 2))
        books.add_output(0, ONE // 2)
        assert (prompt_weight(books, 0), blocks(books)) == (3.0, 4)
        books.release(1)
        assert (pairs(books), prompt_weight(books, 0)) == (4, 3.0)
        books.release(0)
        assert books.load(0)[:3] == (0, 0, 0)

    def test_8_equal_fractional_edges_remain_split_and_preserve_child_handle(self):
        """Weight 2.0 in both; there are no nodes to stay split here."""
        books = made()
        books.book(0, 0, 0, (1, 2, 3, 4))
        books.add_output(0, ONE // 2)
        books.book(1, 0, 0, (1, 2))
        assert prompt_weight(books, 0) == 2.0
        books.release(1)
        assert prompt_weight(books, 0) == 2.0
        books.release(0)
        assert books.load(0)[1] == 0

    def test_9_running_totals_follow_prompt_output_and_fraction_lifecycle(self):
        """Outputs: one there throughout; here one more with each fraction. (there) | here:

        plain: (4.0 + 1, b 5) | the same; fraction .5: (3.5 + .5, b 4) | 3.5 + 1.0, b = round(4.5) = 5;
        fraction .25: (3.25 + .25, b = round(3.5) = 4) | 3.25 + .75, b 4.
        """
        books = made()
        books.book(0, 0, 0, (1, 2, 3))
        books.book(1, 0, 0, (1, 2, 4))
        books.book(2, 0, 0, (1, 2, 3))
        books.release(2)
        assert prompt_weight(books) == 4.0
        books.add_output(0)
        assert (prompt_weight(books, 0), blocks(books)) == (4.0, 5)
        books.add_output(0, ONE // 2)
        assert (prompt_weight(books, 0), books.output_weight(0), blocks(books)) == (3.5, ONE, 5)
        books.add_output(0, ONE // 4)
        assert (prompt_weight(books, 0), books.output_weight(0), blocks(books)) == (3.25, 3 * ONE // 4, 4)
        books.release(0)
        assert (prompt_weight(books), blocks(books)) == (3.0, 3)
        books.release(1)
        assert books.load(0) == (0, 0, 0, 0)

    def test_10_output_only_chain_releases_without_membership_delta(self):
        books = made()
        books.book(0, 0, 0, ())
        books.add_output(0)
        assert (pairs(books), blocks(books)) == (0, 1)
        books.release(0)
        assert (pairs(books), blocks(books)) == (0, 0)

    def test_11_randomized_lifecycle_matches_reference_model(self):
        """32 slots, 10 000 steps, 7 prompts, against counted references."""
        prompts = [(1,), (1, 2), (1, 2, 3), (1, 2, 4), (1, 5, 6, 7), (8, 9), (8, 9, 10, 11, 12)]
        rng = random.Random(11)
        books = made()
        live: dict[int, tuple[int, ...]] = {}
        counts: dict[int, int] = {}
        for _ in range(10_000):
            slot = rng.randrange(32)
            if slot in live:
                books.release(slot)
                for name in live.pop(slot):
                    counts[name] -= 1
                counts = {name: count for name, count in counts.items() if count}
            else:
                live[slot] = rng.choice(prompts)
                books.book(slot, 0, 0, live[slot])
                for name in live[slot]:
                    counts[name] = counts.get(name, 0) + 1
            assert books.load(0)[1:] == (len(counts) * ONE, len(counts), len(live))
            assert {name for name in range(1, 13) if books.weight(0, name) is not None} == counts.keys()
        assert books.faults() == []

    def test_12_ownership_count_overflow_panics(self):
        """A panic at 2^32 owners there. Here each reference is an element of a live path: 2^31 of them need 16 GiB of
        paths, and slots are 31 bits; what is counted stays exact beyond 2^16."""
        books = made()
        books.book(0, 0, 0, (7,) * 70_000)
        books.book(1, 0, 0, (7,))
        assert (pairs(books), blocks(books)) == (1, 1)
        books.release(0)
        assert (pairs(books), blocks(books)) == (1, 1)
        books.release(1)
        assert (pairs(books), blocks(books)) == (0, 0)

    def test_13_long_chain_release_is_iterative(self):
        books = made()
        books.book(0, 0, 0, range(65_536))
        assert blocks(books) == 65_536
        books.release(0)
        assert blocks(books) == 0


class TestSingle:
    def test_1_active_sequences_remains_send_and_sync(self):
        """A type check there; here two ledgers share nothing."""
        one, other = made(), made()
        one.book(0, 0, 5, (1,))
        assert (one.load(0), other.load(0)) == ((5, ONE, 1, 1), (0, 0, 0, 0))

    def test_2_active_worker_teardown_with_a_live_long_chain_is_iterative(self):
        books = made()
        books.book(0, 0, 0, range(65_536))
        del books

    def test_3_prompt_membership_delta_only_reports_first_add_and_last_remove(self):
        books = made()
        books.book(0, 0, 0, (1, 2))
        assert pairs(books) == 2
        books.book(1, 0, 0, (1, 2, 3))
        assert pairs(books) == 3
        books.release(0)
        assert pairs(books) == 3
        books.release(1)
        assert pairs(books) == 0

    def test_4_generic_block_membership_includes_output_blocks(self):
        """Hashes {1, 2, 3, output} there; here an output block has no name: it counts and nobody can match it."""
        books = made()
        books.book(0, 0, 12, (1, 2, 3))
        books.add_output(0, ONE // 2)
        books.complete_prefill(0)
        assert (books.load(0)[0], pairs(books), blocks(books)) == (0, 3, 2)
        books.release(0)
        assert (pairs(books), blocks(books)) == (0, 0)

    def test_5_active_sequences_shared_blocks(self):
        books = made()
        read = [(books.book(slot, 0, prefill, path), books.load(0)[2], books.load(0)[0])[1:]
                for slot, prefill, path in ((1, 12, (1, 2, 3)), (2, 4, (5,)), (3, 0, (1, 2, 3, 4)))]
        assert read == [(3, 12), (4, 16), (5, 16)]
        assert [(books.release(slot), books.load(0)[2], books.load(0)[0])[1:] for slot in (2, 3, 1)] == [
            (4, 12), (3, 12), (0, 0)]

    def test_6_output_blocks_with_fractional_decay(self):
        books = made()
        books.book(0, 0, 12, (1, 2, 3))
        assert blocks(books) == 3
        books.add_output(0, ONE // 2)
        assert blocks(books) == 2
        books.book(1, 0, 0, (1, 2))  # the blocks stay fractional
        assert blocks(books) == 2
        books.add_output(0, 0)
        assert blocks(books) == 1
        books.release(0)
        books.release(1)
        assert books.load(0)[:3] == (0, 0, 0)

    def test_7_mark_prefill_completed(self):
        books = made()
        books.book(0, 0, 12, ())
        books.complete_prefill(0)
        assert books.load(0)[0] == 0
        books.complete_prefill(0)
        assert books.load(0)[0] == 0
        books.book(1, 0, 8, ())
        assert books.load(0)[0] == 8
        books.release(1)
        assert books.load(0)[0] == 0

    def test_8_add_request_without_prefill_tracking_keeps_active_tokens_zero(self):
        books = made(10)
        books.book(0, 0, 0, (1,))
        assert (books.load(0)[0], books.fifo(0)) == (0, [])
        assert books.complete_prefill(0) is False
        assert books.release(0) is False
        assert (books.load(0)[0], blocks(books)) == (0, 0)

    def test_9_prefill_queue_and_sum_invariants_survive_idempotent_cleanup(self):
        """A booking is released once here: whoever asks twice holds an attempt that is over."""
        books = made(10)
        books.book(0, 0, 50, ())
        books.book(1, 0, 30, ())
        books.complete_prefill(0)
        books.complete_prefill(0)
        books.release(0)
        assert (books.load(0)[0], books.fifo(0)) == (30, [1])
        books.release(1)
        assert (books.load(0)[0], books.fifo(0)) == (0, [])

    def test_10_force_expiry(self):
        """By age there: both gone at 301 s, at 332 s an add works. Here the scheduler releases what is not heard of."""
        books = made()
        books.book(0, 0, 4, (1,))
        books.book(1, 0, 4, (2,))
        books.advance(301 * SECOND)
        books.release(0)
        books.release(1)
        assert (blocks(books), books.load(0)[0]) == (0, 0)
        books.advance(332 * SECOND)
        books.book(0, 0, 4, (1,))
        assert (blocks(books), books.load(0)[0]) == (1, 4)

    def test_11_force_expiry_uses_custom_duration(self):
        """60 s, expired at 61 there; here booking_ttl_ns is the scheduler's and the ledger knows no age."""
        books = made()
        books.book(0, 0, 4, (1,))
        books.advance(61 * SECOND)
        assert (blocks(books), books.load(0)[0]) == (1, 4)
        books.release(0)
        assert (blocks(books), books.load(0)[0]) == (0, 0)

    def test_12_custom_expiry_rejects_zero_duration(self):
        """A panic there."""
        with pytest.raises(InvalidConfig, match="booking_ttl_ns"):
            SchedulerConfig(booking_ttl_ns=0)

    def test_13_force_expiry_reanchors_new_oldest_request(self):
        """40 t/100 s@0, 30 t/100 s@250, the first expires at 310: 30 t, anchor 310, 24 t at 330. Here in hundreds of
        tokens, and the rate is what the present front has."""
        books = made(40)
        books.book(0, 0, 4000, ())
        books.advance(250 * SECOND)
        books.book(1, 0, 3000, ())
        books.advance(310 * SECOND)
        books.release(0)
        books.configure(0, 1, rate=30)
        assert (books.anchor_ns(0), tokens_at(books, 310, 330)) == (310 * SECOND, [3000, 2400])
