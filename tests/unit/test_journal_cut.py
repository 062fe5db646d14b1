"""A journal cut out of another one: it replays as the whole does, and says what is wrong."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace

import pytest
from stories import arrive, profile, upsert

from kvcore import (
    InvalidJournal,
    JournalMismatch,
    Scheduler,
    SchedulerConfig,
    cut_journal,
    journal_span,
    replay_journal,
)
from kvcore.admission import AdmissionPolicy, Defer
from kvcore.events import PeerBooked, PolicyReplaced, PrefillCompleted, RequestFinished, TimerFired
from kvcore.journal import JournalReader, JournalWriter
from kvcore.policy import AdmissionSpec

CONFIG = SchedulerConfig(4, profile(1000, prefill_busy_threshold=0), replica="me")
BATCHES = (
    (upsert(0, 1),), (arrive(1, "x"),), (arrive(2, "a"), arrive(2, "b")),
    (PeerBooked(3, "p", 1, 1, 1, prefill_tokens=8),), (PrefillCompleted(4, "x", 1),),
    (PolicyReplaced(5, profile(500)),), (TimerFired(6),), (RequestFinished(7, "x", 1),),
    (RequestFinished(8, "a", 2),), (TimerFired(9),))


def written(config=CONFIG, batches=BATCHES, admission=None) -> str:
    """A journal with a digest in every second batch."""
    core, stream = Scheduler(config, admission), io.StringIO()
    with JournalWriter(stream, config, digest_every=2) as journal:
        for events in batches:
            journal.batch(events, core.step_many(events), core)
    return stream.getvalue()


def read(text: str) -> JournalReader:
    return JournalReader(text.splitlines(keepends=True), "j")


def cut(text: str, first: int, last: int | None = None, **options):
    """The cut, and what is told of it."""
    stream = io.StringIO()
    told = cut_journal(read(text), stream, first, last, **options)
    return stream.getvalue(), told


def changed(text: str, line: int, **fields) -> str:
    """The journal with other fields in one line; None: without that field."""
    lines = text.splitlines()
    content = {**json.loads(lines[line]), **fields}
    lines[line] = json.dumps({name: value for name, value in content.items() if value is not None})
    return "".join(line + "\n" for line in lines)


def test_every_range_replays_with_the_recorded_lines():
    text = written()
    lines = text.splitlines()
    for first in range(len(BATCHES)):
        for last in range(first, len(BATCHES)):
            part, told = cut(text, first, last)
            assert part.splitlines()[1:-1] == lines[first + 1:last + 2]
            done = replay_journal(read(part))
            assert (done.batches, done.digest, told) == (last - first + 1, told.digest, (first, last, done.digest))


def test_the_whole_is_cut_to_itself_and_a_cut_again():
    text = written()
    assert cut(text, 0)[0] == cut(text, 0, 99)[0] == text
    part = cut(text, 3)[0]
    assert json.loads(part.splitlines()[-1])["digest"] == json.loads(text.splitlines()[-1])["digest"]
    assert cut(part, 2, 4)[0] == cut(text, 5, 7)[0]
    assert cut(part, 0)[0] == part


def test_explain_says_the_same():
    text = written()
    part = read(cut(text, 3)[0])
    core, twin = Scheduler(CONFIG), part.start()
    replay_journal(read(text), core, until=4)
    replay_journal(part, twin, until=1)
    assert twin.explain("b") == core.explain("b")
    assert twin.explain("b").state == "waiting"


def test_decisions_are_kept_if_one_says_so():
    whole, part = read(written()), read(cut(written(), 3)[0])
    core, twin = whole.start(decisions_kept=5), part.start(decisions_kept=5)
    replay_journal(whole, core)
    replay_journal(part, twin)
    assert twin.decisions() == core.decisions()[1:]
    assert len(twin.decisions()) == 2
    assert part.start().decisions() == ()


def test_numbers_of_a_mismatch_are_those_of_the_cut():
    text = written()
    damaged = text.replace('["Dispatch","a",2', '["Dispatch","a",3')
    assert damaged != text
    part, told = cut(damaged, 3, 6)
    assert told.digest is None
    with pytest.raises(JournalMismatch) as caught:
        replay_journal(read(part))
    assert caught.value.index == 2


def test_a_difference_before_the_border_is_no_cut():
    text = changed(written(), 2, actions=None)
    with pytest.raises(JournalMismatch) as caught:
        cut(text, 3)
    assert caught.value.index == 1


@pytest.mark.parametrize("first", [10, 11, 99])
def test_a_range_behind_the_end(first):
    with pytest.raises(InvalidJournal, match=f"there is no batch {first}: the journal has 10"):
        cut(written(), first)


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (3, 2)])
def test_a_range_that_is_none(first, last):
    with pytest.raises(ValueError, match=f"there are no batches {first} to {last}"):
        cut(written(), first, last)


def test_a_journal_that_breaks_off_is_cut_up_to_there():
    text = written()
    part, told = cut(text[:-80], 4)
    assert (told.first, told.last) == (4, 8)
    assert replay_journal(read(part)).digest == told.digest


def test_damage_in_front_and_inside_is_told():
    lines = written().splitlines(keepends=True)
    for at in (2, 6):
        with pytest.raises(InvalidJournal, match=f"^j:{at + 1}: not JSON"):
            cut("".join([*lines[:at], "!" + lines[at], *lines[at + 1:]]), 3)
    assert cut("".join([*lines[:9], "!" + lines[9], *lines[10:]]), 3, 5)[1].last == 5


def test_spans():
    reader = [*read(written())]
    assert [journal_span(reader, name) for name in ("x", "a", "b", "p", "")] == [(1, 7), (2, 8), (2, 5), None, None]


# The first line.


def test_a_header_without_a_snapshot_is_as_ever():
    assert "snapshot" not in written().splitlines()[0]
    assert read(written()).snapshot is None
    assert read(cut(written(), 3)[0]).start().snapshot() == read(cut(written(), 3)[0]).snapshot


def fault(text: str) -> str:
    with pytest.raises(InvalidJournal) as caught:
        read(text).start()
    return str(caught.value)


def test_a_snapshot_that_is_none():
    part = cut(written(), 3)[0]
    for wrong in (5, "?", "AAA", ["AAAA"]):
        assert fault(changed(part, 0, snapshot=wrong)).startswith("j:1: snapshot must be base64, not ")
    assert fault(changed(part, 0, snapshot="")) == "j:1: snapshot: not a snapshot of kvcore"
    data = bytearray(base64.b64decode(json.loads(part.splitlines()[0])["snapshot"]))
    data[100] ^= 1
    assert fault(changed(part, 0, snapshot=base64.b64encode(data).decode())) == "j:1: snapshot: its checksum is wrong"
    assert "must hold" in fault(changed(part, 0, news=1))


def test_a_snapshot_of_another_configuration():
    part = cut(written(), 3)[0]
    other = json.loads(written(replace(CONFIG, seed=5)).splitlines()[0])["config"]
    assert fault(changed(part, 0, config=other)) == "j:1: the snapshot is of another configuration"


# Admission policies.


class Hold(AdmissionPolicy):
    """Holds everybody back, and counts."""

    count = 0

    def decide(self, view):
        self.count += 1
        return Defer()

    def dump(self):
        return self.count

    def load(self, value):
        self.count = value


class Silent(AdmissionPolicy):
    """Cannot be dumped."""

    def decide(self, view):
        return Defer()


HELD = SchedulerConfig(4, replace(CONFIG.profile, classes=(
    replace(CONFIG.profile.classes[0], admission=AdmissionSpec("hold")),)))


def test_types_of_admission_policies_are_given():
    admission = {"hold": lambda parameters: Hold()}
    text = written(HELD, BATCHES[:3], admission)
    part, told = cut(text, 2, admission=admission)
    reader = read(part)
    assert replay_journal(reader, reader.start(admission)).digest == told.digest
    for journal in (text, part):
        assert "unknown type 'hold'" in fault(journal)


def test_a_policy_that_cannot_be_dumped_allows_no_border():
    admission = {"hold": lambda parameters: Silent()}
    stream, core = io.StringIO(), Scheduler(HELD, admission)
    with JournalWriter(stream, HELD) as journal:
        for events in BATCHES[:3]:
            journal.batch(events, core.step_many(events))
    with pytest.raises(NotImplementedError):
        cut(stream.getvalue(), 2, admission=admission)
