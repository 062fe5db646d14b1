"""`kvcore kvevents`: look into recordings of engines' KV events. Opens the file; kvcore.drivers.kvevents reads it.

A recording holds one zmq message a line: a JSON object whose `frames` are the message's frames in hexadecimal, as
received live or as the answer to a replay. What else stands in the object is passed over.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from .extras import extra

if TYPE_CHECKING:
    from ..kvevents.frames import Message
    from ..kvevents.values import Batch, KvEvent

_GZIP = b"\x1f\x8b"
#: Counters of what has changed nothing, shown where they are not 0.
_PASSED_OVER = {
    "unknown_removed": "removed without being held", "unnamed": "stored without tokens", "conflicts": "of two names",
    "refused": "beyond what is kept", "filtered": "of other owners", "unknown_events": "of unknown kinds"}
#: Longest line that is read.
LINE_MAX = 2**28


@click.group("kvevents", short_help="Look into recordings of KV events.")
def kvevents_group() -> None:
    """Look into what engines say of their caches."""


@kvevents_group.command("show")
@click.argument("file", metavar="FILE")
@click.option("--block-size", type=click.IntRange(min=1), metavar="N",
              help="Tokens per block of the router; as the first stored blocks have it, if not given.")
def show_command(file: str, block_size: int | None) -> None:
    """Print each message of FILE as it is understood, and what each rank holds at the end, as a router would see it.

    Nobody is asked for what FILE lacks: what is missing shows as lost, and the rank's trust as degraded.
    """
    with extra("gateway", "kvcore kvevents show"):
        from ..kvevents.decoder import decode
        from ..kvevents.names import BlockNames
        from ..kvevents.tracker import Tracker
        from ..kvevents.values import InvalidKvEvent

    trackers: dict[int, Tracker] = {}
    for message in _messages(file):
        if message is None:
            click.echo("end of a replay")
            continue
        try:
            batch = decode(message.payload)
        except InvalidKvEvent as error:
            click.echo(f"{message.sequence:>6}  no events: {error}")
            dp_rank = 0
        else:
            dp_rank = batch.dp_rank or 0
            block_size = block_size or _block_size(batch)
            click.echo(f"{message.sequence:>6}  rank {dp_rank}  {', '.join(map(_text, batch.events)) or 'nothing'}")
        if dp_rank not in trackers:
            trackers[dp_rank] = Tracker(BlockNames(block_size or 1), can_ask=False)
        trackers[dp_rank].live(*message)
    for dp_rank, tracker in sorted(trackers.items()):
        counts = tracker.mirror.counts
        click.echo(f"rank {dp_rank}: {tracker.trust.value}" + (f" ({tracker.reason})" if tracker.reason else ""))
        click.echo(f"  {tracker.delivered} messages, {tracker.lost} lost, {tracker.sequence.stale} of no use; "
                   f"{counts.stored} blocks stored, {counts.removed} removed, {counts.cleared} clears, "
                   f"{counts.duplicates} duplicates, {counts.orphans} orphans; {len(tracker.mirror)} held")
        passed = [f"{count} {text}" for name, text in _PASSED_OVER.items() if (count := getattr(counts, name))]
        if passed:
            click.echo(f"  passed over: {', '.join(passed)}")


def _messages(file: str) -> Iterator[Message | None]:
    """Messages of a recording, None where a replay ends."""
    from ..kvevents import frames

    with open(file, "rb") as raw:
        is_packed = raw.read(2) == _GZIP
        raw.seek(0)
        lines = gzip.GzipFile(fileobj=raw) if is_packed else raw
        number = 0
        try:
            while line := lines.readline(LINE_MAX):
                number += 1
                parts = _frames(line)
                item = None if parts is None else frames.live(parts) or frames.answer(parts)
                if item is None:
                    raise click.ClickException(f"{file}:{number}: this is no message of KV events")
                yield item if isinstance(item, frames.Message) else None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise click.ClickException(f"{file}: line {number + 1}: {error}") from None


def _frames(line: bytes) -> list[bytes] | None:
    """The frames in a line of a recording."""
    try:
        return [bytes.fromhex(part) for part in json.loads(line)["frames"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _block_size(batch: Batch) -> int | None:
    from ..kvevents.values import Stored

    sizes = (event.block_size for event in batch.events if isinstance(event, Stored) and event.block_size)
    return next(sizes, None)


def _text(event: KvEvent) -> str:
    """An event in a few words."""
    from ..kvevents.values import Cleared, Foreign, Removed, Stored

    match event:
        case Stored():
            where = "root" if event.parent is None else f"after {event.parent:016x}"
            return f"{len(event.hashes)} stored on {event.tier.name.lower()} ({where})"
        case Removed():
            return f"{len(event.hashes)} removed from {event.tier.name.lower()}"
        case Cleared():
            return "all cleared"
        case Foreign():
            return "of another owner"
    return f"unknown {event.kind[:40]!r}"
