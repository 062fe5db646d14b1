"""`kvcore journal explain`: where it stops, what it prints, and one line for whatever is wrong."""

from __future__ import annotations

import gzip
import json
import os
import re
from dataclasses import replace

import pytest
from kvcore.drivers.cli import main
from kvcore.drivers.cli.journal_explain import Trail, follow
from stories import Story, arrive, profile, upsert

from kvcore._explanation_text import text
from kvcore.config import IndexMode
from kvcore.events import (
    DispatchFailed,
    OverlapRefreshed,
    PrefillCompleted,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
)
from kvcore.journal import JournalBatch, JournalWriter
from kvcore.request import Rank, SelectionWeights
from kvcore.scheduler import Scheduler

WAITS = {"profile": profile(1000, 2000, prefill_busy_threshold=0)}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def kvcore(capsys):
    """Run the program in this process: (status, stdout, stderr)."""

    def run(*argv):
        status = main([str(item) for item in argv])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def write(batches, **config) -> list[JournalBatch]:
    """A journal j.jsonl of these batches on one worker; what is in it."""
    story = Story(**config)
    told = []
    with open("j.jsonl", "w", encoding="ascii") as stream, JournalWriter(stream, story.core.config) as journal:
        for events in ((upsert(0, 1),), *batches):
            told.append(JournalBatch(events, story.core.step_many(events)))
            journal.batch(*told[-1][:2], story.core)
    return told


def explained(batches: list[JournalBatch], request_id: str, kept: int = 1, **config) -> str:
    """What a scheduler says after these batches."""
    core = Scheduler(replace(Story(**config).core.config, decisions_kept=kept))
    for batch in batches:
        core.step_many(batch.events)
    return text(core.explain(request_id))


def test_a_request_that_waits_is_explained_at_the_end(kvcore):
    told = write([(arrive(1, "x"),), (arrive(2, "a"),), (TimerFired(9),)], **WAITS)
    status, out, err = kvcore("journal", "explain", "j.jsonl", "a")
    assert (status, err) == (0, "")
    assert out == "journal    j.jsonl, after batch 3, at 9 ns\n" + explained(told, "a", **WAITS)
    assert "waiting for 7 ns, position 1" in out


def test_a_request_that_ran_is_explained_at_its_decision(kvcore):
    told = write([(arrive(1, "x"),), (arrive(2, "a"),), (PrefillCompleted(5, "x", 1), TimerFired(6)),
                  (RequestFinished(8, "a", 2),), (arrive(9, "y"),)], **WAITS)
    status, out, _ = kvcore("journal", "explain", "j.jsonl", "a")
    assert status == 0
    assert out == ("journal    j.jsonl, after batch 3, at 6 ns\n" + explained(told[:4], "a", **WAITS)
                   + "later      batch 4, at 8 ns: RequestFinished COMPLETED\n")
    assert "running on worker 1 rank 0, dispatched once" in out
    assert "decision   attempt 2 at 6 ns: worker 1 rank 0, only one" in out


def test_a_wait_that_was_in_vain(kvcore):
    told = write([(arrive(1, "x"),), (arrive(2, "a", deadline_ns=50),), (TimerFired(9),), (TimerFired(60),)], **WAITS)
    _, out, _ = kvcore("journal", "explain", "j.jsonl", "a")
    assert out == ("journal    j.jsonl, after batch 3, at 9 ns\n" + explained(told[:4], "a", **WAITS)
                   + "later      batch 4, at 60 ns: Reject DEADLINE_EXPIRED\n")


def test_at_a_batch(kvcore):
    """Also after decisions about others: as many are kept as it takes."""
    told = write([(arrive(1, "x"),), (arrive(2, "a"),), (PrefillCompleted(5, "x", 1),), (PrefillCompleted(6, "a", 2),),
                  (arrive(7, "y"),), (RequestFinished(8, "a", 2),)], **WAITS)
    for at, now_ns, state in ((2, 2, "waiting"), (3, 5, "running"), (5, 7, "running"), (6, 8, "ended")):
        status, out, _ = kvcore("journal", "explain", "j.jsonl", "a", "--at", at)
        assert status == 0
        assert out == f"journal    j.jsonl, after batch {at}, at {now_ns} ns\n" + explained(
            told[: at + 1], "a", 2, **WAITS)
        assert f"state      {state}" in out


def test_json(kvcore):
    write([(arrive(1, "x"),), (arrive(2, "a", deadline_ns=50, pinned=Rank(1)),), (TimerFired(60),)], **WAITS)
    status, out, _ = kvcore("journal", "explain", "j.jsonl", "a", "--json")
    assert status == 0
    content = json.loads(out)
    assert (content["journal"], content["batch"]) == ("j.jsonl", 2)
    assert content["later"] == {"batch": 3, "now_ns": 60, "what": "Reject DEADLINE_EXPIRED"}
    told = content["explanation"]
    assert (told["request_id"], told["state"], told["position"], told["lane"]) == (
        "a", "waiting", 1, {"worker_id": 1, "dp_rank": 0})
    assert told["ranks"][0]["prefill_tokens"] == 8


def test_costs_without_end_are_texts_in_json(kvcore):
    write([(upsert(1, 2), arrive(1, "a")), (arrive(2, "b"),), (arrive(2, "c"),)],
          weights=SelectionWeights(active_request_weight=1e308, prefill_load_scale=1e308))
    _, out, _ = kvcore("journal", "explain", "j.jsonl", "c", "--json")
    assert {score["cost"] for score in json.loads(out)["explanation"]["decision"]["candidates"]} == {"inf"}


def test_rejected_as_it_arrived(kvcore):
    write([(arrive(4, "a", pinned=Rank(7)),)])
    assert kvcore("journal", "explain", "j.jsonl", "a")[:2] == (0, (
        "journal    j.jsonl\nrequest    'a'\nstate      ended\nbecause    it neither waited nor was it dispatched\n"
        "later      batch 1, at 4 ns: Reject PINNED_WORKER_UNAVAILABLE\n"))


def test_of_one_that_failed_the_decision_of_its_last_attempt_is_told(kvcore):
    """Other decisions come in between; as many are kept as it takes."""
    batches = [(arrive(1, "a"),), *[(arrive(2, f"x{i}"),) for i in range(5)], (arrive(2, "y", policy_class="f1"),),
               (DispatchFailed(3, "a", 1, True), WorkerRemoved(3, 1)), (TimerFired(4),)]
    config = {"profile": profile(1000, 2000), "empty_fleet_wait_ns": 10}
    told = write(batches, **config)
    _, out, _ = kvcore("journal", "explain", "j.jsonl", "a")
    assert "decision   attempt 1 at 1 ns" in out
    assert out.startswith("journal    j.jsonl, after batch 9, at 4 ns\n" + explained(told, "a", 7, **config)[:50])
    assert "decision" not in explained(told, "a", 6, **config)


def test_of_a_replica(kvcore):
    """What is told to others names no request."""
    told = write([(arrive(1, "a"),)], replica="me")
    status, out, _ = kvcore("journal", "explain", "j.jsonl", "a")
    assert (status, out) == (
        0, "journal    j.jsonl, after batch 1, at 1 ns\n" + explained(told, "a", replica="me"))


def test_gzipped_or_cut_short(kvcore, folder):
    write([(arrive(1, "x"),), (arrive(2, "a"),)], **WAITS)
    plain = kvcore("journal", "explain", "j.jsonl", "a")[1]
    (folder / "j.jsonl.gz").write_bytes(gzip.compress((folder / "j.jsonl").read_bytes()[:-20]))
    status, out, err = kvcore("journal", "explain", "j.jsonl.gz", "a")
    assert (status, out) == (0, plain.replace("j.jsonl", "j.jsonl.gz"))
    assert re.fullmatch(r"kvcore: note: j\.jsonl\.gz: .*: the journal was cut short\n", err)


@pytest.mark.parametrize(("options", "message"), [
    (("b",), "j.jsonl: no request 'b' waited or was dispatched"),
    (("a", "--at", 1), "j.jsonl: no request 'a' is live after batch 1, nor was it dispatched before"),
    (("a", "--at", 4), "--at 4: the batches of j.jsonl are 0 to 3"),
    (("a", "--at", -1), "Invalid value for '--at': -1 is not in the range x>=0 (see kvcore journal explain --help)"),
    ((), "Missing argument 'REQUEST_ID' (see kvcore journal explain --help)"),
])
def test_what_cannot_be_explained_is_one_line_and_status_2(kvcore, options, message):
    write([(arrive(1, "x"),), (arrive(2, "a"),), (TimerFired(3),)], **WAITS)
    assert kvcore("journal", "explain", "j.jsonl", *options) == (2, "", f"kvcore: error: {message}\n")


def test_a_journal_that_does_not_replay_explains_nothing(kvcore, folder):
    write([(arrive(1, "x"),), (arrive(2, "a"),)], **WAITS)
    text_of = (folder / "j.jsonl").read_text()
    (folder / "j.jsonl").write_text(text_of.replace('["Dispatch","x",1,', '["Dispatch","x",7,'))
    status, out, err = kvcore("journal", "explain", "j.jsonl", "a")
    assert (status, out) == (2, "")
    assert err.startswith("kvcore: error: j.jsonl:3: batch 1: action 0: the journal has Dispatch(")
    assert os.listdir() == ["j.jsonl"]


def test_what_replicas_are_told_is_about_nobody(kvcore):
    told = write([(arrive(1, "x"),), (arrive(2, "a"),), (RequestFinished(8, "x", 1),)], replica="me", **WAITS)
    status, out, _ = kvcore("journal", "explain", "j.jsonl", "a")
    assert (status, [type(action).__name__ for action in told[-1].actions]) == (0, ["Publish", "Dispatch", "Publish"])
    assert "decision   attempt 2 at 8 ns: worker 1 rank 0, only one" in out


def test_a_trail_follows_waits_decisions_and_ends():
    """By hand: a wait, a question, a decision, a failure, a cancellation, and another request of the same name."""
    config = {"index": IndexMode.OFF, "refresh_after_ns": 1, **WAITS}
    batches = write([
        (arrive(1, "x"), arrive(1, "a", block_hashes=(1,))), (TimerFired(2),), (PrefillCompleted(3, "x", 1),),
        (OverlapRefreshed(4, "a", 1),), (DispatchFailed(5, "a", 2, True),), (RequestCancelled(6, "a"),),
        (arrive(7, "a"),), (arrive(8, "a"),), (RequestFinished(9, "nobody", 3),), (RequestFinished(10, "a", 2),),
        (RequestFinished(11, "a", 3),)], **config)
    trails = [follow(batches[: end + 1], "a") for end in range(len(batches))]
    assert [(trail.batch, trail.decisions, trail.later) for trail in trails] == [
        (None, 1, None), (1, 1, None), (2, 1, None), (3, 1, None), (4, 1, None), (5, 1, None),
        (5, 1, (6, 6, "RequestCancelled")), *[(7, 1, None)] * 4, (7, 1, (11, 11, "RequestFinished COMPLETED"))]
    assert follow(batches, "a", 5) == trails[5]
    assert follow(batches, "nobody") == Trail()


def test_what_replicas_are_told_is_passed_over(kvcore):
    told = write([(arrive(1, "a"),), (RequestFinished(2, "a", 1),)], replica="me")
    assert [type(action).__name__ for batch in told for action in batch.actions] == ["Dispatch", "Publish", "Publish"]
    _, out, _ = kvcore("journal", "explain", "j.jsonl", "a")
    assert out.endswith("later      batch 2, at 2 ns: RequestFinished COMPLETED\n")


def test_a_journal_from_before_decisions_were_kept(kvcore, folder):
    write([(arrive(1, "x"),), (arrive(2, "a"),)], **WAITS)
    expected = kvcore("journal", "explain", "j.jsonl", "x")
    old = (folder / "j.jsonl").read_text().replace(',"decisions_kept":0', "")
    assert "decisions_kept" not in old
    (folder / "j.jsonl").write_text(old)
    assert kvcore("journal", "explain", "j.jsonl", "x") == expected
    assert kvcore("journal", "replay", "j.jsonl")[0] == 0
