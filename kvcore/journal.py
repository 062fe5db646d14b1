"""The journal: what was stepped and what came out, as JSON lines, and the way back (DESIGN 6).

    line 1      {"kvcore_journal": 1, "digest_every": k, "config": {...}}    the configuration in full, with its seed
    then        {"events": [...], "actions": [...], "digest": "..."}         a batch a line, borders kept
    last line   {"batches": n, "digest": "..."}                              missing where the writing was cut short

The first line of a journal that has been cut out of another one also holds "snapshot": base64 of the state that its
first batch was stepped from (kvcore/_journal_cut.py). Batches are counted from its own first one.

`actions` is left out where there are none; a digest of the state after the batch stands in every k-th one. How values
stand is the matter of _journal_values. All text is ASCII. The same run gives the same bytes.

Owns no file: a writer writes to a stream that it is given, a reader reads lines that it is given. Neither holds more
than one batch. A journal starts with the first step of a scheduler that is fresh, or restored. It holds no prompt
text, but request ids, class names and block hashes as the scheduler saw them.

Cost, measured by benchmarks/bench_journal.py: some 5 us an event to write, 4 us to replay (6 with 32 block hashes).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Protocol

from kvcore._journal_codec import shown
from kvcore._journal_values import ACTIONS, CONFIG, EVENTS, read_actions, read_events
from kvcore.actions import AnyAction
from kvcore.admission import Factory
from kvcore.config import SchedulerConfig
from kvcore.errors import InvalidEvent, InvalidJournal, InvalidSnapshot, JournalMismatch
from kvcore.events import AnyEvent
from kvcore.scheduler import Scheduler

VERSION = 1
DIGEST_EVERY = 1000
_DIGEST_LENGTH = 32
_EVENTS_SHOWN_MAX = 400

_HEADER = frozenset(("kvcore_journal", "digest_every", "config"))
_HEADER_MAY = _HEADER | {"snapshot"}
_LINE_ENDS = ("\n", "")
_END = frozenset(("batches", "digest"))


class TextStream(Protocol):
    """What a writer needs of its stream: an io.TextIOBase has it."""

    def write(self, text: str, /) -> object:
        """Take a line."""

    def flush(self) -> object:
        """Pass on what is held back."""


class JournalBatch(NamedTuple):
    """One step: its events, the actions that came out, the digest afterwards where there is one."""

    events: tuple[AnyEvent, ...]
    actions: tuple[AnyAction, ...]
    digest: str | None = None


class JournalWriter:
    """Writes a journal, batch after batch; as a context manager it ends it, unless an exception comes by.

        with JournalWriter(stream, scheduler.config) as journal:
            actions = scheduler.step_many(events)
            journal.batch(events, actions, scheduler)

    digest_every: batches from digest to digest, >= 1. flush: flush the stream after every batch. snapshot: of the
    scheduler before the first batch; None: it is fresh.
    """

    def __init__(
        self, stream: TextStream, config: SchedulerConfig, *, digest_every: int = DIGEST_EVERY, flush: bool = False,
        snapshot: bytes | None = None,
    ) -> None:
        if type(digest_every) is not int or digest_every < 1:
            raise ValueError(f"digest_every must be >= 1, not {digest_every!r}")
        self._stream, self._digest_every, self._flush = stream, digest_every, flush
        self._text = json.JSONEncoder(
            ensure_ascii=True, check_circular=False, allow_nan=False, separators=(",", ":")).encode
        self._scheduler: Scheduler | None = None
        self._ended = False
        self.batches = 0
        header = {"kvcore_journal": VERSION, "digest_every": digest_every, "config": CONFIG.encode(config)}
        if snapshot is not None:
            header["snapshot"] = base64.b64encode(snapshot).decode("ascii")
        self._line(header)

    def batch(
        self, events: Iterable[AnyEvent], actions: Iterable[AnyAction], scheduler: Scheduler | None = None, /,
    ) -> None:
        """Write what one `step` or `step_many` has taken and answered.

        scheduler: asked for its digest where one is due; without it there are none.
        """
        self._scheduler = scheduler
        due = scheduler is not None and (self.batches + 1) % self._digest_every == 0
        self._write(events, actions, scheduler.digest() if scheduler is not None and due else None)

    def copy(self, batch: JournalBatch, /) -> None:
        """Write a batch of another journal, with the digest that it has there."""
        self._scheduler = None
        self._write(*batch)

    def end(self, digest: str | None = None) -> None:
        """Write the last line. digest: of the state at the end, where no scheduler was given. The stream stays open."""
        if self._ended:
            return
        line: dict[str, Any] = {"batches": self.batches}
        if self._scheduler is not None:
            digest = self._scheduler.digest()
        if digest is not None:
            line["digest"] = digest
        self._line(line)
        self._ended = True

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.end()

    def _write(self, events: Iterable[AnyEvent], actions: Iterable[AnyAction], digest: str | None) -> None:
        if self._ended:
            raise ValueError("the journal has ended")
        line: dict[str, Any] = {"events": [EVENTS[type(event)].encode(event) for event in events]}
        told = [ACTIONS[type(action)].encode(action) for action in actions]
        if told:
            line["actions"] = told
        if digest is not None:
            line["digest"] = digest
        self._line(line)
        self.batches += 1

    def _line(self, line: dict[str, Any]) -> None:
        self._stream.write(self._text(line) + "\n")
        if self._flush:
            self._stream.flush()


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


class JournalReader:
    """Reads a journal: the configuration at once, the batches one by one, once.

    lines: with their line ends, as a text file gives them. file: what errors call it.
    config, digest_every, snapshot: from the first line; snapshot None: it starts with a fresh scheduler. line: the one
    last read, 1-based. batches: read so far.
    After the last batch: end_digest, that of the last line, or None; cut: why the journal is not whole, or None. The
    only damage that is let pass is a last line that breaks off, or that is missing.
    Raises: InvalidJournal, from the constructor and from iteration.
    """

    def __init__(self, lines: Iterable[str], file: str = "<journal>") -> None:
        if isinstance(lines, str):
            raise TypeError("lines must be an open file or a sequence of lines, not one text")
        self.file = file
        self.line = 0
        self.batches = 0
        self.end_digest: str | None = None
        self.cut: str | None = None
        self._lines = iter(lines)
        self._parse = json.JSONDecoder(parse_constant=_no_constant).raw_decode
        self.config, self.digest_every, self.snapshot = self._header()

    def fault(self, reason: str) -> InvalidJournal:
        """The error that something is wrong with the line last read."""
        return InvalidJournal(self.file, self.line, reason)

    def start(
        self, admission: Mapping[str, Factory] | None = None, *, decisions_kept: int | None = None,
    ) -> Scheduler:
        """The scheduler that the first batch was stepped with: fresh, or restored from the snapshot.

        admission: types of admission policies, as for Scheduler. decisions_kept: instead of the configuration's.
        Raises: InvalidJournal, also for a type of admission policy that is not known.
        """
        config = self.config if decisions_kept is None else replace(self.config, decisions_kept=decisions_kept)
        try:
            if self.snapshot is None:
                return Scheduler(config, admission)
            scheduler = Scheduler.restore(self.snapshot, admission=admission, decisions_kept=decisions_kept)
        except InvalidSnapshot as error:
            raise InvalidJournal(self.file, 1, str(error)) from None
        except (ValueError, OverflowError) as error:
            raise InvalidJournal(self.file, 1, f"config: {error}") from None
        # By text: a NaN is not equal to itself.
        if CONFIG.encode(scheduler.config) != CONFIG.encode(config):
            raise InvalidJournal(self.file, 1, "the snapshot is of another configuration")
        return scheduler

    def __iter__(self) -> Iterator[JournalBatch]:
        parse = self._parse
        for line in self._lines:
            self.line += 1
            try:
                content, end = parse(line)
                if type(content) is not dict or line[end:] not in _LINE_ENDS or not line.isascii():
                    raise ValueError("it does not hold one object of plain text")
                if "events" not in content:
                    self._end(content)
                    return
                batch = self._batch(content)
            except (ValueError, OverflowError, RecursionError) as error:
                # What breaks off is never whole JSON.
                torn = isinstance(error, json.JSONDecodeError) and not line.endswith("\n")
                if torn and next(self._lines, None) is None:
                    self.cut = f"line {self.line} breaks off"
                    return
                raise self.fault(_reason(error)) from None
            self.batches += 1
            yield batch
        self.cut = "the last line is missing"

    def _header(self) -> tuple[SchedulerConfig, int, bytes | None]:
        self.line = 1
        line = next(self._lines, "")
        if not line:
            raise self.fault("the journal is empty")
        try:
            content, end = self._parse(line)
            if type(content) is not dict or "kvcore_journal" not in content:
                raise ValueError("not a journal of kvcore")
            version, every = content["kvcore_journal"], content.get("digest_every")
            if type(version) is not int or version != VERSION:
                raise ValueError(f"format version {shown(version)}; this program reads {VERSION}")
            if not _HEADER <= content.keys() <= _HEADER_MAY or line[end:].strip() or not line.isascii():
                raise ValueError(f"the first line must hold {', '.join(sorted(_HEADER))} and at most snapshot")
            if type(every) is not int or every < 1:
                raise ValueError(f"digest_every must be an integer above 0, not {shown(every)}")
            if type(content["config"]) is not dict:
                raise ValueError("config must be an object")
            return CONFIG.decode(content["config"]), every, _snapshot(content)
        except (ValueError, OverflowError, RecursionError) as error:
            raise self.fault(_reason(error)) from None

    def _batch(self, content: dict[str, Any]) -> JournalBatch:
        events, actions, digest = content.pop("events"), content.pop("actions", None), content.pop("digest", None)
        if content:
            raise ValueError(f"unknown field {shown(min(content))}")
        if type(events) is not list or (actions is not None and type(actions) is not list):
            raise ValueError("events and actions must be lists")
        if digest is not None:
            _check_digest(digest)
        return JournalBatch(read_events(events), read_actions(actions) if actions else (), digest)

    def _end(self, content: dict[str, Any]) -> None:
        batches, digest = content.get("batches"), content.get("digest")
        if type(batches) is not int or not content.keys() <= _END:
            raise ValueError("neither a batch nor the last line of a journal")
        if batches != self.batches:
            raise ValueError(f"{self.batches} batches were there, not {batches}: lines are missing or too many")
        if digest is not None:
            _check_digest(digest)
        if next(self._lines, None) is not None:
            self.line += 1
            raise ValueError("something stands behind the end of the journal")
        self.end_digest = digest


def _snapshot(header: dict[str, Any]) -> bytes | None:
    if "snapshot" not in header:
        return None
    text = header["snapshot"]
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        raise ValueError(f"snapshot must be base64, not {shown(text)}") from None


def _check_digest(digest: Any) -> None:
    if type(digest) is not str or len(digest) != _DIGEST_LENGTH:
        raise ValueError(f"digest must be {_DIGEST_LENGTH} hexadecimal digits, not {shown(digest)}")


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at character {error.pos + 1}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


@dataclass(frozen=True)
class JournalReplay:
    """What was stepped again without a difference. digests: how many were compared; digest: the one at the end."""

    batches: int
    events: int
    actions: int
    digests: int
    digest: str


def replay(
    journal: JournalReader, scheduler: Scheduler | None = None, *, until: int | None = None,
) -> JournalReplay:
    """Step what a journal holds through a scheduler, comparing actions and digests, up to the first difference.

    scheduler: instead of what `journal.start()` gives. until: so many batches at most; None: all.
    Raises: JournalMismatch at the first difference; InvalidJournal, also for events that the scheduler refuses.
    """
    scheduler = journal.start() if scheduler is None else scheduler
    events = actions = digests = 0
    batch = JournalBatch((), ())
    for batch in islice(journal, until):
        try:
            told = scheduler.step_many(batch.events)
        except InvalidEvent as error:
            raise journal.fault(str(error)) from None
        if told != batch.actions:
            raise _mismatch(journal, batch, batch.actions, told)
        if batch.digest is not None:
            digests += 1
            _compare_digest(journal, batch, batch.digest, scheduler.digest())
        events += len(batch.events)
        actions += len(told)
    digest = scheduler.digest()
    if journal.end_digest is not None:
        digests += 1
        _compare_digest(journal, batch, journal.end_digest, digest)
    return JournalReplay(journal.batches, events, actions, digests, digest)


def _compare_digest(journal: JournalReader, batch: JournalBatch, expected: str, actual: str) -> None:
    if actual != expected:
        raise _mismatch(journal, batch, expected, actual)


def _mismatch(journal: JournalReader, batch: JournalBatch, expected: Any, actual: Any) -> JournalMismatch:
    """The error that names the first action that differs."""
    what, old, new = "digest", expected, actual
    if isinstance(expected, tuple):
        pairs = enumerate(zip_longest(expected, actual))
        at, (old, new) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
        what, old, new = f"action {at}", "none" if old is None else repr(old), "none" if new is None else repr(new)
    index = max(journal.batches - 1, 0)
    events = shown(batch.events, _EVENTS_SHOWN_MAX)
    text = f"batch {index}: {what}: the journal has {old}, now it is {new}; after {events}"
    return JournalMismatch(index, batch.events, expected, actual, text=f"{journal.file}:{journal.line}: {text}")
