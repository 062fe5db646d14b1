"""A journal cut out of another one: header, snapshot at the border, some of the batches (DESIGN 6).

Everything before the border is stepped once more, and must come out as recorded: the snapshot is of the state in which
the recorded run was. The batches themselves are copied as they stand, so that a cut also shows a difference that is in
it. It begins with batch 0; whoever replays it hears of its own numbers.

What was decided before the border is in the state, but no longer explained: decisions are no state.

Never here: files. Cost: that of replaying the journal up to the end of the cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from kvcore.actions import AnyAction
from kvcore.admission import Factory
from kvcore.errors import InvalidEvent
from kvcore.events import AnyEvent, RequestArrived
from kvcore.journal import JournalBatch, JournalReader, JournalWriter, TextStream, replay
from kvcore.scheduler import Scheduler


class JournalCut(NamedTuple):
    """What has been cut: the first and last batch, as the whole journal counts; digest: of the end, if in the cut."""

    first: int
    last: int
    digest: str | None


def span(batches: Iterable[JournalBatch], request_id: str) -> tuple[int, int] | None:
    """The first and last batch in which an event or action names this request; None: none does."""
    found = [number for number, batch in enumerate(batches)
             if any(_name(item) == request_id for item in (*batch.events, *batch.actions))]
    return (found[0], found[-1]) if found else None


def _name(item: AnyEvent | AnyAction) -> object:
    return item.request.request_id if isinstance(item, RequestArrived) else getattr(item, "request_id", None)


def cut(
    journal: JournalReader, stream: TextStream, first: int, last: int | None = None, *,
    admission: Mapping[str, Factory] | None = None,
) -> JournalCut:
    """Write batches first .. last of a journal that has not been read yet, as a journal of their own.

    last: None, or beyond the end: up to the end. admission: types of admission policies, as for Scheduler.
    Raises: ValueError for an empty range; InvalidJournal; JournalMismatch if what comes before is not what was
    recorded; NotImplementedError if an admission policy cannot be dumped. The stream may then hold a part.
    """
    if first < 0 or (last is not None and last < first):
        raise ValueError(f"there are no batches {first} to {last}")
    scheduler = journal.start(admission)
    replay(journal, scheduler, until=first)
    batches = islice(journal, None if last is None else last - first + 1)
    batch = next(batches, None) if journal.batches == first else None
    if batch is None:
        raise journal.fault(f"there is no batch {first}: the journal has {journal.batches}")
    # Nothing has happened before the first batch.
    snapshot = scheduler.snapshot() if first else journal.snapshot
    writer = JournalWriter(stream, journal.config, digest_every=journal.digest_every, snapshot=snapshot)
    same = True
    while batch is not None:
        writer.copy(batch)
        same = same and _as_recorded(journal, batch, scheduler)
        batch = next(batches, None)
    # What the journal ends with is not judged here either.
    digest = journal.end_digest or (scheduler.digest() if same else None)
    writer.end(digest)
    return JournalCut(first, journal.batches - 1, digest)


def _as_recorded(journal: JournalReader, batch: JournalBatch, scheduler: Scheduler) -> bool:
    """Step a batch: whether it comes out as it did."""
    try:
        told = scheduler.step_many(batch.events)
    except InvalidEvent as error:
        raise journal.fault(str(error)) from None
    return told == batch.actions and (batch.digest is None or batch.digest == scheduler.digest())
