"""A failing run is saved as a journal with the oracle's answers, which the scheduler then replays to the difference."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from journals import VARIABLE, save_failure
from lockstep import Difference, compare
from oracle import Oracle

from kvcore import events
from kvcore.config import SchedulerConfig
from kvcore.errors import JournalMismatch
from kvcore.journal import JournalReader, replay
from kvcore.request import Request, WorkerConfig

CONFIG = SchedulerConfig(seed=3)
BATCHES = [
    (events.WorkerUpserted(5, WorkerConfig(1)),),
    (events.TimerFired(4),),
    (events.RequestArrived(5, Request("a", 9)), events.RequestArrived(5, Request("b", 9))),
]


class Forgetful(Oracle):
    """Says nothing of the last action."""

    def step_many(self, batch):
        return super().step_many(batch)[:-1]


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "failure.jsonl"))
    return tmp_path / "failure.jsonl"


def saved(path) -> JournalReader:
    return JournalReader(path.read_text(encoding="ascii").splitlines(keepends=True))


def test_a_run_without_difference_replays_without_the_batch_that_was_refused(path):
    save_failure(CONFIG, BATCHES)
    assert replay(saved(path)).batches == 2
    assert saved(path).config == CONFIG


def test_a_difference_is_where_the_oracle_answers_otherwise(path):
    save_failure(CONFIG, BATCHES, Forgetful)
    with pytest.raises(JournalMismatch, match="batch 1: action 1: the journal has none"):
        replay(saved(path))


def test_lockstep_saves_what_differs(path):
    plan = SimpleNamespace(config=CONFIG)
    compare("something", 1, 1, plan, BATCHES)
    assert not path.exists()
    with pytest.raises(Difference):
        compare("something", 1, 2, plan, BATCHES)
    assert replay(saved(path)).events == 3


def test_nothing_is_saved_unasked(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    save_failure(CONFIG, BATCHES)
    assert list(tmp_path.iterdir()) == []
