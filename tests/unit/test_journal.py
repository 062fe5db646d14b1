"""The journal: every value comes back equal, the same run gives the same bytes, damage is found where it is."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from typing import get_args

import pytest

from kvcore import actions, events
from kvcore._journal_values import ACTIONS, CONFIG, EVENTS
from kvcore.config import IndexMode, OnOverload, PrefillDecay, Role, SchedulerConfig
from kvcore.errors import InvalidJournal, JournalMismatch
from kvcore.journal import JournalBatch, JournalReader, JournalWriter, replay
from kvcore.policy import AdmissionSpec, Arbitration, CacheBucket, Capacity, PolicyClass, PolicyProfile, QueuePolicy
from kvcore.replica import FactKind, PeerFact
from kvcore.request import Overlap, Rank, Request, SelectionWeights, WorkerConfig
from kvcore.scheduler import Scheduler

TOP = 2**64 - 1
RANK = Rank(TOP, 2**32 - 1)
FULL = Request(
    "r\u00e9\n\"", 2**53, "class", 2**32 - 1, math.inf, 2**62 - 1, True, RANK, frozenset((TOP, 0, 9)), (TOP, 0), (TOP,),
    Overlap(((RANK, 3),), ((RANK, 2),), ((RANK, 1),), ((RANK, 0.1),), ((RANK, 5),), ((0, 2), (4, 5))), 7, False,
    frozenset(("b", "a")), (("a", -0.0), ("b", 0.1)), SelectionWeights(temperature=0.7), "s", False)
WORKER = WorkerConfig(TOP, 3, 2, 4096, 10**6, 12, frozenset(("b", "a")), 5)
PROFILE = PolicyProfile(
    (PolicyClass("a", 3, QueuePolicy.WSPT, "f", "all", 5, 1.5, 6, 7, 8, 9), PolicyClass("b", 1, QueuePolicy.EDF)),
    (CacheBucket("all", 0),), "f", Arbitration.REFERENCE, Capacity.STRICT)
AGENTS = PolicyProfile(
    (PolicyClass("a", 3, policy_family="f", cache_bucket="all", admission=AdmissionSpec("t", {"n": 1, "m": [2.5]})),),
    (CacheBucket("all", 0),), "f")
FACTS = (
    PeerFact(FactKind.BOOKED, "p", 2, 1, TOP, 5, 6, (TOP, 0), 7, 8, 9), PeerFact(FactKind.PREFILL_COMPLETED, "p", 2, 1),
    PeerFact(FactKind.RELEASED, "p", 2, 1, completed=True))
EVENT_SAMPLES = (
    events.RequestArrived(2**62 - 1, FULL), events.RequestArrived(0, Request("r", 1)),
    events.RequestArrived(0, Request("r", 1, allowed_workers=frozenset(), sequence_hashes=(), overlap=Overlap())),
    events.RequestCancelled(1, "r"), events.DispatchAccepted(1, "r", 2**62), events.DispatchFailed(1, "r", 2),
    events.DispatchFailed(1, "r", 2, True), events.PrefillCompleted(1, "r", 2), events.OutputBlockAdded(1, "r", 2),
    events.OutputBlockAdded(1, "r", 2, 0.1), events.RequestFinished(1, "r", 2),
    events.RequestFinished(1, "r", 2, events.Outcome.ABORTED, 9), events.WorkerUpserted(1, WORKER, 2**62),
    events.WorkerUpserted(1, WorkerConfig(0)), events.WorkerRemoved(1, TOP), events.BlocksStored(1, 2, 3, 4, (TOP, 0)),
    events.BlocksStored(1, 2, 3, 4, (), events.Tier.DISK), events.BlocksRemoved(1, 2, 3, 4, (1,), events.Tier.HOST),
    events.BlocksCleared(1, 2, 3, 4), events.BlocksCleared(1, 2, 3, 4, events.Tier.DEVICE),
    events.WorkerStatusChanged(1, 2, 3), events.WorkerStatusChanged(1, 2, 3, "health", False, True, 9),
    events.LoadReported(1, 2, 3, 4, 5), events.LoadReported(1, 2, 3, 4, 5, 6, 7, 8), events.CapacityHinted(1),
    events.CapacityHinted(1, ()), events.CapacityHinted(1, (RANK, Rank(0))), events.Drained(1, 2**62 - 1),
    events.ContextAdvanced(1, "r", 2, 2**53), events.AdmissionReleased(1, "r"), events.AdmissionReleased(1, "r", RANK),
    events.OverlapRefreshed(1, "r", 2), events.OverlapRefreshed(1, "r", 2, Overlap(((RANK, 3),))),
    events.PolicyReplaced(1, PROFILE), events.PolicyReplaced(1, AGENTS), events.TimerFired(0),
    events.PeerBooked(1, "p", 2, 3, TOP), events.PeerBooked(1, "p", 2, 3, 4, 5, 6, (TOP, 0), 7, 8, 9),
    events.PeerPrefillCompleted(1, "p", 2, 3), events.PeerReleased(1, "p", 2, 3),
    events.PeerReleased(1, "p", 2, 3, True), events.PeerLost(1, "p", 2**62), events.PeerSynced(1, "p", 2, 3),
    events.PeerSynced(1, "p", 2, 3, FACTS),
)
ACTION_SAMPLES = (
    actions.Dispatch("r", 1, TOP, 3, 4, 5, 6, 7, 8, 9), actions.Park("r", 1),
    *[actions.Reject("r", reason) for reason in actions.RejectReason],
    actions.Reject("r", actions.RejectReason.QUEUE_FULL_REQUESTS, 1, 2, 3, 4),
    *[actions.Evict("r", 1, TOP, reason) for reason in actions.EvictReason], actions.Ignored("r", 0),
    actions.RefreshOverlap("r", 1, (TOP, 0)), actions.Park("r", 1, actions.ParkReason.DEFERRED),
    *[actions.Publish(fact) for fact in FACTS],
)
CONFIG_SAMPLES = (
    SchedulerConfig(), SchedulerConfig(default_busy_threshold_frac=math.inf, seed=TOP),
    SchedulerConfig(32, None, QueuePolicy.LCFS, 0.1, 5, IndexMode.APPROXIMATE, TOP, SelectionWeights(0.1, 0.2),
                    Role.DECODE, OnOverload.WAIT, 7, PrefillDecay.LINEAR, 8, 9, Capacity.STRICT, 3, 4, 5, 6, 7, 8,
                    "p\u00e9", 2**63 - 1),
    SchedulerConfig(profile=PROFILE), SchedulerConfig(profile=AGENTS),
)


def sheet(value) -> str:
    """All of a value; NaN is like NaN, 0.0 is not like -0.0, 1 not like True."""
    if isinstance(value, frozenset):
        return repr(sorted(value))
    if isinstance(value, tuple):
        return f"({', '.join(map(sheet, value))})"
    if dataclasses.is_dataclass(value):
        parts = [sheet(getattr(value, item.name)) for item in dataclasses.fields(value)]
        return f"{type(value).__name__}({', '.join(parts)})"
    return repr(value)


def through_json(row):
    return json.loads(json.dumps(row, allow_nan=False))


BATCHES = (
    (events.WorkerUpserted(1, WorkerConfig(1)),),
    (events.RequestArrived(2, Request("a", 9)), events.RequestArrived(2, Request("b", 9, policy_class="x"))),
    (events.PrefillCompleted(3, "a", 1),),
    (),
    (events.RequestCancelled(4, "nobody"),),
)


def written(batches=BATCHES, **options) -> str:
    """The text of a journal of these batches."""
    stream, scheduler = io.StringIO(), Scheduler(SchedulerConfig(seed=5))
    with JournalWriter(stream, scheduler.config, **options) as journal:
        for batch in batches:
            journal.batch(batch, scheduler.step_many(batch), scheduler)
    return stream.getvalue()


def lines_of(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def read(text: str) -> tuple[JournalReader, list[JournalBatch]]:
    reader = JournalReader(lines_of(text), "j")
    return reader, list(reader)


def fault(text: str) -> InvalidJournal:
    with pytest.raises(InvalidJournal) as caught:
        read(text)
    assert str(caught.value) == f"j:{caught.value.line}: {caught.value.reason}"
    return caught.value


def replaced(number: int, line) -> str:
    """A journal with another line in this place, counted from 1."""
    lines = lines_of(written())
    lines[number - 1] = line if isinstance(line, str) else json.dumps(line) + "\n"
    return "".join(lines)


def with_event(*row) -> str:
    return replaced(2, {"events": [list(row)]})


def test_every_kind_and_every_field_is_known():
    assert set(EVENTS) == set(get_args(events.AnyEvent)) == {type(event) for event in EVENT_SAMPLES}
    assert set(ACTIONS) == set(get_args(actions.AnyAction)) == {type(action) for action in ACTION_SAMPLES}
    for kind, row in [*EVENTS.items(), *ACTIONS.items()]:
        assert {item.name for item in dataclasses.fields(kind)} == set(row.layouts)
    assert {item.name for item in dataclasses.fields(SchedulerConfig)} == set(CONFIG.layouts)


@pytest.mark.parametrize("value", [*EVENT_SAMPLES, *ACTION_SAMPLES], ids=lambda value: type(value).__name__)
def test_events_and_actions_come_back(value):
    row = (EVENTS | ACTIONS)[type(value)]
    assert sheet(row.decode(through_json(row.encode(value)))) == sheet(value)


@pytest.mark.parametrize("config", CONFIG_SAMPLES, ids=range(len(CONFIG_SAMPLES)))
def test_configurations_come_back(config):
    assert sheet(CONFIG.decode(through_json(CONFIG.encode(config)))) == sheet(config)


@pytest.mark.parametrize("jump", [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308, 0.1])
def test_numbers_come_back_to_the_last_bit(jump):
    event = events.RequestArrived(0, Request("r", 1, priority_jump=jump))
    row = EVENTS[events.RequestArrived]
    assert repr(row.decode(through_json(row.encode(event))).request.priority_jump) == repr(jump)


def test_sets_are_sorted():
    text = json.dumps(EVENTS[events.RequestArrived].encode(EVENT_SAMPLES[0]))
    assert f"[0, 9, {TOP}]" in text
    assert '["a", "b"]' in text


def test_the_same_run_gives_the_same_bytes_of_plain_text():
    assert written() == written()
    assert written().isascii()


def test_batches_borders_and_digests_come_back():
    reader, batches = read(written(digest_every=2))
    assert [batch.events for batch in batches] == list(BATCHES)
    assert [batch.digest is not None for batch in batches] == [False, True, False, True, False]
    assert (reader.config, reader.digest_every, reader.batches) == (SchedulerConfig(seed=5), 2, 5)
    assert (reader.cut, len(reader.end_digest or "")) == (None, 32)


def test_a_file_name_is_no_journal():
    with pytest.raises(TypeError, match="not one text"):
        JournalReader("run.jsonl")


def test_a_reader_asks_for_no_line_before_its_time():
    def lines():
        yield from lines_of(written())[:2]
        raise AssertionError("too early")

    assert next(iter(JournalReader(lines()))).events == BATCHES[0]


@pytest.mark.parametrize("digest_every", [0, -1, True, 1.0])
def test_digest_every_is_above_zero(digest_every):
    with pytest.raises(ValueError, match="digest_every"):
        JournalWriter(io.StringIO(), SchedulerConfig(), digest_every=digest_every)


def test_nothing_is_written_behind_the_end():
    stream = io.StringIO()
    journal = JournalWriter(stream, SchedulerConfig())
    journal.end()
    text = stream.getvalue()
    journal.end()
    with pytest.raises(ValueError, match="ended"):
        journal.batch((), ())
    assert stream.getvalue() == text


def test_an_exception_leaves_the_journal_without_its_end():
    stream = io.StringIO()
    with pytest.raises(KeyError), JournalWriter(stream, SchedulerConfig()):
        raise KeyError
    assert read(stream.getvalue())[0].cut == "the last line is missing"


def test_a_last_line_that_breaks_off_is_told_and_let_pass():
    text = written()
    last = lines_of(text)[-2]
    whole = len(text) - len(lines_of(text)[-1]) - len(last)
    for length in range(1, len(last) - 1):
        reader, batches = read(text[: whole + length])
        assert (reader.cut, len(batches)) == ("line 6 breaks off", 4)
    assert read(text[:whole])[0].cut == "the last line is missing"


def test_what_is_cut_replays():
    text = written()
    journal = JournalReader(lines_of(text[:-20]))
    assert replay(journal).batches == 5
    assert journal.cut == "line 7 breaks off"


@pytest.mark.parametrize(("text", "line", "reason"), [
    ("", 1, "the journal is empty"),
    ("{}\n", 1, "not a journal"),
    ("[]\n", 1, "not a journal"),
    ("nonsense\n", 1, "not JSON"),
    (replaced(1, {"kvcore_journal": 2}), 1, "format version 2"),
    (replaced(1, {"kvcore_journal": True}), 1, "format version True"),
    (replaced(1, {"kvcore_journal": 1, "digest_every": 0, "config": {}}), 1, "digest_every"),
    (replaced(1, {"kvcore_journal": 1, "digest_every": 1, "config": []}), 1, "config must be an object"),
    (replaced(1, {"kvcore_journal": 1, "digest_every": 1, "config": {"blocks": 1}}), 1, "unknown field 'blocks'"),
    (replaced(1, {"kvcore_journal": 1, "digest_every": 1, "config": {"seed": 1.5}}), 1, "seed: must be an integer"),
    (replaced(1, {"kvcore_journal": 1, "digest_every": 1, "config": {"seed": -1}}), 1, "seed must be"),
    (replaced(3, "{\"events\": [\n"), 3, "not JSON"),
    (replaced(3, "{\"events\": [NaN]}\n"), 3, "NaN is no JSON"),
    (replaced(3, "{\"events\": " + "[" * 100_000 + "\n"), 3, ""),
    (replaced(3, {"events": [], "other": 1}), 3, "unknown field 'other'"),
    (replaced(3, {"events": {}}), 3, "must be lists"),
    (replaced(3, {"events": [], "actions": {}}), 3, "must be lists"),
    (replaced(3, {"events": [], "actions": [["Flee"]]}), 3, "action 0: unknown kind 'Flee'"),
    (replaced(3, {"events": [], "digest": "abc"}), 3, "digest must be"),
    (replaced(4, {"batches": 2}), 5, "something stands behind the end"),
    (replaced(7, {"batches": 4}), 7, "lines are missing"),
    (replaced(7, {"batches": True}), 7, "neither a batch"),
    (written() + "{}\n", 8, "something stands behind the end"),
])
def test_damage_is_located(text, line, reason):
    error = fault(text)
    assert error.line == line
    assert reason in error.reason


@pytest.mark.parametrize(("row", "reason"), [
    ((), "begins with a name"),
    ((1,), "begins with a name"),
    (("Nothing", 1), "unknown kind 'Nothing'"),
    (("TimerFired",), "must hold now_ns"),
    (("TimerFired", 1, 2), "must hold now_ns"),
    (("TimerFired", 1.5), "now_ns: must be an integer, not 1.5"),
    (("TimerFired", True), "now_ns: must be an integer, not True"),
    (("TimerFired", "1"), "now_ns: must be an integer"),
    (("TimerFired", None), "now_ns: must be an integer"),
    (("TimerFired", 1, {"more": 1}), "unknown field 'more'"),
    (("WorkerRemoved", 1, 2**64), ""),
    (("WorkerRemoved", 1, -1), ""),
    (("DispatchFailed", 1, "r", 1, {"retry": 1}), "retry: must be true or false, not 1"),
    (("RequestFinished", 1, "r", 1, {"outcome": "LOST"}), "outcome: must be one of COMPLETED, ABORTED"),
    (("OutputBlockAdded", 1, "r", 1, {"decay_fraction": "much"}), "decay_fraction: must be a number"),
    (("BlocksStored", 1, 1, 1, 1, "00"), "block_hashes: must be 16 hexadecimal digits a hash"),
    (("BlocksStored", 1, 1, 1, 1, "0" * 15 + " "), "block_hashes: "),
    (("BlocksStored", 1, 1, 1, 1, "x" * 16), "block_hashes: "),
    (("CapacityHinted", 1, {"ranks": [[1]]}), "ranks: must hold lists of 2"),
    (("CapacityHinted", 1, {"ranks": [[1, 1.5]]}), "ranks: must be an integer"),
    (("RequestArrived", 1, ["r", 1, {"allowed_workers": [1.5]}]), "request: allowed_workers: must be an integer"),
    (("RequestArrived", 1, ["r", 1, {"overlap": {"moon": []}}]), "request: overlap: unknown field 'moon'"),
    (("RequestArrived", 1, ["r", 1, {"pinned": [1, None]}]), "request: pinned: must be an integer"),
    (("RequestArrived", 1, ["r"]), "request: must hold request_id, prompt_tokens"),
])
def test_wrong_values_are_refused_before_anything_is_built(row, reason):
    error = fault(with_event(*row))
    assert error.line == 2
    assert error.reason.startswith("event 0")
    assert reason in error.reason


def test_a_journal_replays():
    result = replay(JournalReader(lines_of(written(digest_every=2))))
    assert (result.batches, result.events, result.actions, result.digests) == (5, 5, 3, 3)


def test_the_first_difference_is_told():
    text = written().replace('["Dispatch","b",2', '["Dispatch","b",3')
    with pytest.raises(JournalMismatch) as caught:
        replay(JournalReader(lines_of(text), "j"))
    error = caught.value
    assert (error.index, error.event) == (1, BATCHES[1])
    assert (error.expected[1].attempt, error.actual[1].attempt) == (3, 2)
    assert str(error).startswith("j:3: batch 1: action 1: the journal has Dispatch(request_id='b', attempt=3")


def test_an_action_too_many_and_one_too_few_are_differences():
    ignored = written().replace('"actions":[["Ignored","nobody",0]]', '"actions":[]')
    with pytest.raises(JournalMismatch, match="batch 4: action 0: the journal has none"):
        replay(JournalReader(lines_of(ignored)))
    more = written().replace('["Ignored","nobody",0]', '["Ignored","nobody",0],["Ignored","nobody",0]')
    with pytest.raises(JournalMismatch, match=r"batch 4: action 1: .* now it is none"):
        replay(JournalReader(lines_of(more)))


@pytest.mark.parametrize("number", [3, 7])
def test_another_digest_is_a_difference(number):
    lines = lines_of(written(digest_every=2))
    line = json.loads(lines[number - 1])
    line["digest"] = "0" * 32
    lines[number - 1] = json.dumps(line) + "\n"
    with pytest.raises(JournalMismatch, match="digest") as caught:
        replay(JournalReader(lines))
    assert caught.value.expected == "0" * 32


def test_an_event_that_the_scheduler_refuses_is_damage():
    with pytest.raises(InvalidJournal) as caught:
        replay(JournalReader(lines_of(with_event("TimerFired", 2**62)), "j"))
    assert caught.value.line == 2
