"""One scenario through every driver: the same events in the same order, the same actions, the same bytes of journal."""

from __future__ import annotations

import io
from typing import get_args

import pytest
from live_hand import Hand
from live_players import HandPlayer, through_threads, through_trio
from live_scenario import ADMISSION, CONFIG, SCENARIO, START_NS, refreshed

from kvcore.actions import Evict, EvictReason, Reject, RejectReason
from kvcore.events import AnyEvent
from kvcore.journal import JournalReader, JournalWriter, replay
from kvcore.scheduler import Scheduler


def by_hand(steps, tap) -> None:
    """The synchronous driver: the owner without a loop."""
    hand = Hand(whole=CONFIG, admission=ADMISSION, tap=tap, now=START_NS, ask=lambda question: hand.owner.answer(
        question, refreshed(question.request_id, question.block_hashes)))
    HandPlayer(hand).play(steps)
    hand.owner.close()


DRIVERS = {"by hand": by_hand, "trio": through_trio, "threads": through_threads}


@pytest.fixture(scope="module")
def journals():
    """What each driver has written, and the batches in it."""
    texts = {}
    for name, driver in DRIVERS.items():
        stream = io.StringIO()
        with JournalWriter(stream, CONFIG, digest_every=10) as journal:
            driver(SCENARIO, journal.batch)
        texts[name] = stream.getvalue()
    return texts


def batches(text: str) -> list:
    return list(JournalReader(io.StringIO(text)))


@pytest.mark.parametrize("driver", ["trio", "threads"])
def test_every_driver_records_the_same(journals, driver):
    assert batches(journals[driver]) == batches(journals["by hand"])
    assert journals[driver] == journals["by hand"]


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_record_replays_to_equal_digests(journals, driver):
    result = replay(JournalReader(io.StringIO(journals[driver])), Scheduler(CONFIG, admission=ADMISSION))
    assert result.digests == result.batches // 10 + 1


def test_it_meets_every_event_and_every_reason(journals):
    whole = batches(journals["by hand"])
    events = {type(event) for batch in whole for event in batch.events}
    assert events == set(get_args(AnyEvent))
    actions = [action for batch in whole for action in batch.actions]
    assert {action.reason for action in actions if isinstance(action, Reject)} == set(RejectReason)
    assert {action.reason for action in actions if isinstance(action, Evict)} == set(EvictReason)
