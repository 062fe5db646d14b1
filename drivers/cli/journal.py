"""`kvcore journal`: look into what a scheduler was told and has answered. Opens the files; the core reads and writes.

A journal whose name ends in .gz is gzipped; reading goes by the file's first bytes.
"""

from __future__ import annotations

import gzip
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO, TextIOWrapper
from typing import IO, TYPE_CHECKING

import click

from .output import STDOUT, check_output, write_text

if TYPE_CHECKING:
    from kvcore.config import SchedulerConfig
    from kvcore.explanation import Explanation
    from kvcore.journal import JournalReader

    from ..replay.simulate import Tap

_GZIP = b"\x1f\x8b"


def write_journal(path: str, config: SchedulerConfig, fill: Callable[[Tap], None]) -> None:
    """Write a journal of what `fill` hands to the tap that it is given; the file appears when it is complete.

    Raises: OSError, and whatever fill raises; no file is touched then.
    """
    from kvcore.journal import JournalWriter

    def write(stream: IO[str]) -> None:
        with JournalWriter(stream, config) as journal:
            fill(journal.batch)

    write_text(path, write)


@click.group("journal", short_help="Look into journals.")
def journal_group() -> None:
    """Look into journals: every event that a scheduler was told and every action that it answered, batch by batch.

    `kvcore replay --journal OUT` writes one. Files may be gzipped. A journal that breaks off is used up to there.
    """


@journal_group.command("replay")
@click.argument("file", metavar="FILE")
@click.pass_context
def replay_command(ctx: click.Context, file: str) -> None:
    """Step the events in FILE through a fresh scheduler and compare all actions and digests with those in FILE.

    The exit status is 0 if all are the same, 1 at the first difference, which is printed, and 2 if FILE cannot be used.
    """
    from kvcore.errors import JournalMismatch
    from kvcore.journal import replay

    with _opened(file) as journal:
        start = time.perf_counter()
        try:
            done = replay(journal)
        except JournalMismatch as error:
            click.echo(f"different  {error}")
            ctx.exit(1)
        spent_s = time.perf_counter() - start
    click.echo(f"same       {done.events:,} events in {done.batches:,} batches, {done.actions:,} actions")
    click.echo(f"digests    {done.digests:,} compared")
    click.echo(f"run        {spent_s:.3f} s, {done.events / max(spent_s, 1e-9):,.0f} events/s")
    click.echo(f"digest     {done.digest}")
    _tell_cut(journal)


@journal_group.command("stats")
@click.argument("file", metavar="FILE")
def stats_command(file: str) -> None:
    """Count what is in FILE: events and actions by kind, rejects by reason, actions by policy class."""
    with _opened(file) as journal:
        lines = _count(journal)
    for line in lines:
        click.echo(line)
    _tell_cut(journal)


@journal_group.command("explain")
@click.argument("file", metavar="FILE")
@click.argument("request_id", metavar="REQUEST_ID")
@click.option("--at", type=click.IntRange(min=0), metavar="BATCH", help="Stop after this batch, the first is 0.")
@click.option("--json", is_flag=True, help="Print JSON instead of text.")
def explain_command(file: str, request_id: str, at: int | None, json: bool) -> None:
    """Step the events in FILE up to the last batch in which REQUEST_ID waited or was dispatched, and say why.

    What is printed is what Scheduler.explain told there: what it waited for, or what its decision was made on.
    """
    from kvcore import Explanation

    from .journal_explain import as_json, as_text, follow, waits

    with _opened(file) as journal:
        trail = follow(journal, request_id, at, waits(journal, request_id))
        last = journal.batches - 1
        _tell_cut(journal)
    if at is not None and last < at:
        raise click.ClickException(f"--at {at}: the batches of {file} are 0 to {last}")
    if trail.batch is not None:
        told = _explained(file, request_id, trail.batch, trail.decisions)
        if told.state == "unknown":
            raise click.ClickException(
                f"{file}: no request {request_id!r} is live after batch {at}, nor was it dispatched before")
    elif trail.later is not None:
        since = "" if journal.snapshot is None else " since the border of the cut"
        told = Explanation(request_id, "ended", trail.later[1], (f"it neither waited nor was it dispatched{since}",))
    else:
        raise click.ClickException(f"{file}: no request {request_id!r} waited or was dispatched")
    click.echo((as_json if json else as_text)(file, trail, told), nl=False)


def _explained(file: str, request_id: str, batch: int, decisions: int) -> Explanation:
    """What a scheduler says of a request after this batch, if it keeps so many decisions."""
    from kvcore import replay_journal

    with _opened(file) as journal:
        scheduler = journal.start(decisions_kept=decisions)
        replay_journal(journal, scheduler, until=batch + 1)
    return scheduler.explain(request_id)


@journal_group.command("cut")
@click.argument("file", metavar="FILE")
@click.option("--around", metavar="REQUEST_ID", help="The batches in which this request is named, and those between.")
@click.option("--before", type=click.IntRange(min=0), metavar="N", help="N more before them.  [default: 0]")
@click.option("--after", type=click.IntRange(min=0), metavar="N", help="N more behind them.  [default: 0]")
@click.option("--from", "first", type=click.IntRange(min=0), metavar="BATCH", help="First batch; FILE's first is 0.")
@click.option("--to", "last", type=click.IntRange(min=0), metavar="BATCH", help="Last batch, or beyond the end.")
@click.option(
    "-o", "--output", default=STDOUT, metavar="OUT", help="Where to; gzipped if it ends in .gz.  [default: -]")
@click.pass_context
def cut_command(
    ctx: click.Context, file: str, around: str | None, before: int | None, after: int | None, first: int | None,
    last: int | None, output: str,
) -> None:
    """Write some batches of FILE as a journal of their own, with the state before them in its first line.

    Either --around, or --from and --to. The batches before are stepped once more; the exit status is 1 if something
    else comes out than FILE says. The cut counts its batches from 0 again. Policies of admission must be built in or
    installed.

    \b
    Examples:
      kvcore journal cut run.jsonl.gz --around r7 --before 20 -o r7.jsonl.gz
      kvcore journal cut run.jsonl.gz --from 1000 --to 1100 -o part.jsonl
    """
    from kvcore.errors import JournalMismatch

    check_output("--output", output, [file])
    if around is not None:
        if first is not None or last is not None:
            raise click.UsageError("--around goes without --from and --to")
        first, last = _around(file, around, before or 0, after or 0)
    elif before is not None or after is not None:
        raise click.UsageError("--before and --after need --around")
    elif first is None or last is None:
        raise click.UsageError("give --around, or --from and --to")
    try:
        _cut(file, first, last, output)
    except JournalMismatch as error:
        click.echo(f"different  {error}", err=output == STDOUT)
        ctx.exit(1)


def _around(file: str, request_id: str, before: int, after: int) -> tuple[int, int]:
    from kvcore import journal_span

    with _opened(file) as journal:
        found = journal_span(journal, request_id)
    if found is None:
        raise click.ClickException(f"{file}: no request {request_id!r}")
    return max(0, found[0] - before), found[1] + after


def _cut(file: str, first: int, last: int, output: str) -> None:
    """Cut, and say what. Standard output, too, gets all or nothing."""
    from kvcore import JournalCut, cut_journal

    if last < first:
        raise click.ClickException(f"--from {first} --to {last}: no batch is in there")
    done: list[JournalCut] = []
    with _opened(file) as journal:

        def write(stream: IO[str]) -> None:
            done.append(cut_journal(journal, stream, first, last))

        try:
            if output == STDOUT:
                held = StringIO()
                write(held)
                click.echo(held.getvalue(), nl=False)
            else:
                write_text(output, write)
        except NotImplementedError:
            raise click.ClickException(f"{file}: an admission policy has no dump: there is no snapshot") from None
    if output != STDOUT:
        click.echo(f"cut        batches {done[0].first} to {done[0].last} of {file}")
        click.echo(f"digest     {done[0].digest or '(none: something comes out otherwise than recorded)'}")
    _tell_cut(journal)


def _tell_cut(journal: JournalReader) -> None:
    if journal.cut is not None:
        click.echo(f"kvcore: note: {journal.file}: {journal.cut}: the journal was cut short", err=True)


@contextmanager
def _opened(file: str) -> Iterator[JournalReader]:
    """A reader of the file. Raises: InvalidJournal, click.ClickException, OSError."""
    from kvcore.errors import InvalidJournal
    from kvcore.journal import JournalReader

    with open(file, "rb") as raw:
        packed = raw.peek(2)[:2] == _GZIP
        # What is not ASCII becomes a character that the reader refuses.
        with TextIOWrapper(gzip.GzipFile(fileobj=raw) if packed else raw, "ascii", "replace", newline="\n") as text:
            journal: JournalReader | None = None
            try:
                journal = JournalReader(_whole_lines(text), file)
                yield journal
            except (gzip.BadGzipFile, zlib.error) as error:
                line = 1 if journal is None else journal.line + 1
                raise InvalidJournal(file, line, f"the gzip data is damaged: {error}") from None


def _whole_lines(text: IO[str]) -> Iterator[str]:
    """The lines of a file; gzip data that ends too early ends them."""
    try:
        yield from text
    except EOFError:
        return


def _count(journal: JournalReader) -> list[str]:
    """The counts as text, a line each."""
    from kvcore.actions import Reject

    events: dict[str, int] = {}
    actions: dict[str, int] = {}
    rejects: dict[str, int] = {}
    classes: dict[int, dict[str, int]] = {}
    first_ns: int | None = None
    last_ns = 0
    for batch in journal:
        for event in batch.events:
            first_ns, last_ns = event.now_ns if first_ns is None else first_ns, event.now_ns
            _add(events, type(event).__name__)
        for action in batch.actions:
            kind = type(action).__name__
            _add(actions, kind)
            index = getattr(action, "class_index", None)
            if index is not None:
                _add(classes.setdefault(index, {}), kind)
            if isinstance(action, Reject):
                _add(rejects, action.reason.name)
    lines = [f"batches    {journal.batches:,}"]
    if first_ns is not None:
        lines.append(f"time       {first_ns} .. {last_ns} ns, {(last_ns - first_ns) / 1e9:,.3f} s")
    for title, counts in (("events", events), ("actions", actions), ("rejects", rejects)):
        lines.append(f"{title:10} {_listed(counts)}")
    profile = journal.config.effective_profile()
    for index, counts in sorted(classes.items()):
        known = 0 <= index < len(profile.classes)
        lines.append(f"class      {profile.classes[index].name if known else '(none)'}: {_listed(counts)}")
    return lines


def _add(counts: dict[str, int], key: str) -> None:
    counts[key] = counts.get(key, 0) + 1


def _listed(counts: dict[str, int]) -> str:
    """The total, and the parts in order of name."""
    parts = [f"{counts[key]:,} {key}" for key in sorted(counts)]
    return f"{sum(counts.values()):,}" + (f" ({', '.join(parts)})" if parts else "")
