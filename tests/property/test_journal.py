"""Random runs: what is written is read back equal and replays; random damage is found, whatever it is."""

from __future__ import annotations

import io
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from policies import ADMISSION
from recording import as_code, record
from strategies import flavours, plans, retries
from strategies_letters import resolved
from strategies_peers import replicas

from kvcore._journal_cut import cut
from kvcore.errors import InvalidJournal, JournalMismatch
from kvcore.journal import JournalReader, JournalWriter, replay
from kvcore.scheduler import Scheduler

SOUND = flavours(broken=False)
DIGEST_EVERY = 3


def journal_of(plan):
    """A run of the plan, and the text of its journal."""
    batches = [events for events, _ in resolved(plan, Oracle(plan.config, ADMISSION)).steps]
    stream, scheduler = io.StringIO(), Scheduler(plan.config, ADMISSION)
    with JournalWriter(stream, plan.config, digest_every=DIGEST_EVERY) as journal:
        for events in batches:
            journal.batch(events, scheduler.step_many(events), scheduler)
    return record(Scheduler(plan.config, ADMISSION), batches), stream.getvalue()


def replayed(text: str):
    """The journal once more, with the policies of proofs where its configuration can have them."""
    reader, scheduler = JournalReader(text.splitlines(keepends=True)), None
    with suppress(ValueError, OverflowError):
        scheduler = Scheduler(reader.config, ADMISSION)
    return replay(reader, scheduler)


def check(plan):
    run, text = journal_of(plan)
    reader = JournalReader(text.splitlines(keepends=True))
    assert repr(reader.config) == repr(plan.config)
    code = as_code(plan.config, [events for events, _ in run.steps])
    # By repr: NaN is not equal to itself. Sets have no order in it, hence the code of both.
    assert as_code(reader.config, [events for events, _, _ in reader]) == code
    assert tuple(batch.actions for batch in JournalReader(text.splitlines(keepends=True))) == tuple(
        actions for _, actions in run.steps)
    result = replayed(text)
    assert (result.batches, result.digests) == (len(run.steps), len(run.steps) // DIGEST_EVERY + bool(run.steps))


@given(plans(SOUND))
def test_what_is_written_is_read_and_replays(plan):
    check(plan)


@given(plans(retries()))
def test_what_is_written_is_read_and_replays_where_dispatches_fail(plan):
    check(plan)


@given(plans(replicas(broken=False)))
def test_what_is_written_is_read_and_replays_where_peers_speak(plan):
    check(plan)


@given(plans(st.one_of(SOUND, replicas(broken=False)), most_batches=30), st.data())
def test_what_is_cut_out_replays_and_explains_the_same(plan, data):
    _, text = journal_of(plan)
    lines = text.splitlines(keepends=True)
    count = len(lines) - 2
    for _ in range(3 if count else 0):
        first = data.draw(st.integers(0, count - 1))
        last = data.draw(st.integers(first, count))
        part = io.StringIO()
        told = cut(JournalReader(lines), part, first, last, admission=ADMISSION)
        whole, twin = Scheduler(plan.config, ADMISSION), JournalReader(part.getvalue().splitlines(keepends=True))
        scheduler = twin.start(ADMISSION)
        done = replay(JournalReader(lines), whole, until=last + 1)
        assert replay(twin, scheduler).digest == done.digest == told.digest
        assert part.getvalue().splitlines(keepends=True)[1:-1] == lines[first + 1 : last + 2][: count - first]
        assert scheduler.snapshot() == whole.snapshot()
        for entry in whole.queue_dump(3):
            assert repr(scheduler.explain(entry.request_id)) == repr(whole.explain(entry.request_id))


@given(plans(SOUND, most_batches=12), st.data())
def test_damage_is_found_or_does_nothing(plan, data):
    """Nothing but the two errors ever comes out: a character more, less or other, a line gone, twice or moved."""
    _, text = journal_of(plan)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        kind = data.draw(st.sampled_from(("insert", "delete", "change", "cut", "line")))
        letter = data.draw(st.sampled_from('0123456789-.eE"[]{},: \n\\tfnaINx\u00e9\ud800'))
        if kind == "line":
            lines = text.splitlines(keepends=True)
            moved = lines.pop(data.draw(st.integers(0, len(lines) - 1))) if lines else ""
            lines.insert(data.draw(st.integers(0, len(lines))), moved * data.draw(st.integers(0, 2)))
            text = "".join(lines)
        elif kind == "cut":
            text = text[:at]
        else:
            text = text[:at] + (letter if kind != "delete" else "") + text[at + (kind != "insert"):]
    with suppress(InvalidJournal, JournalMismatch):
        replayed(text)
