"""Destinations of reports: files that appear complete or not at all, or standard output."""

from __future__ import annotations

import gzip
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import IO, Any, NoReturn, cast

import click

STDOUT = "-"


def check_output(option: str, path: str, inputs: Iterable[str]) -> None:
    """Refuse, before any work is done, a destination that could not be written or that is one of the inputs.

    Raises: click.ClickException.
    """
    if path == STDOUT:
        return
    if not path:
        raise click.ClickException(f"{option}: the name is empty")
    if os.path.isdir(path):
        raise click.ClickException(f"{option} {path}: is a directory")
    if any(os.path.exists(path) and os.path.exists(other) and os.path.samefile(path, other) for other in inputs):
        raise click.ClickException(f"{option} {path}: is also an input file")
    try:
        if os.path.exists(path) and not os.access(path, os.W_OK):
            raise click.ClickException(f"{option} {path}: is not writable")
        if _has_standard_output(path):
            raise click.ClickException(f"{option} {path}: standard output goes to this file, which would be replaced")
        if _is_special(path):
            return  # opening a pipe only to look would end it for its reader
        part = _part(path)
        with open(part, "x", encoding="utf-8"):
            pass
        os.unlink(part)
    except OSError as error:
        raise click.ClickException(f"{option} {path}: cannot be written: {error.strerror or error}") from error


def check_outputs(
    outputs: Iterable[tuple[str, str | None]], inputs: Sequence[str], files: Collection[str] = (),
) -> None:
    """Do so for all of (option, path); None: not given. files: options that can not have standard output.

    Raises: click.ClickException, also for two that go to the same place.
    """
    given = [(option, path) for option, path in outputs if path is not None]
    places = [os.path.realpath(path) for _, path in given if path != os.devnull]
    if len(set(places)) < len(places):
        *names, last = [option for option, _ in given]
        raise click.UsageError(f"{', '.join(names)} and {last} must go to different places")
    for option, path in given:
        if path == STDOUT and option in files:
            raise click.UsageError(f"{option} needs a file")
        if path == STDOUT and sys.stdout is None:
            raise click.UsageError(f"{option} -: standard output is closed")
        check_output(option, path, inputs)


def write_outputs(outputs: Iterable[tuple[str, Callable[[IO[str]], None]]]) -> None:
    """Write every (path, fill): all are complete before the first takes its name, and none does if one fails.

    Devices and pipes are written in place. Standard output comes last, so that a reader who closes it spoils nothing.
    Raises: OSError that names the path; BrokenPipeError from standard output.
    """
    parts: list[tuple[str, str]] = []
    late: list[Callable[[IO[str]], None]] = []
    try:
        for path, fill in outputs:
            if path == STDOUT:
                late.append(fill)
            elif _is_special(path):
                _write_in_place(path, fill)
            else:
                part = _part(path)
                # Text of file names that are not UTF-8 comes back out as the bytes that it was.
                with (
                    naming(path), _leaving_nothing(),
                    open(part, "x", encoding="utf-8", errors="surrogateescape", newline="") as stream,
                ):
                    parts.append((part, os.path.realpath(path)))
                    fill(stream)
        while parts:
            part, path = parts[0]
            with naming(path):
                if os.path.exists(path):
                    os.chmod(part, stat.S_IMODE(os.stat(path).st_mode))
                os.replace(part, path)
            del parts[0]
    finally:
        for part, _ in parts:
            os.unlink(part)
    for fill in late:
        with naming("standard output"):
            fill(sys.stdout)


def write_text(path: str, write: Callable[[IO[str]], None]) -> None:
    """What `write` writes as a file, gzipped where the name says so; the file appears when it is complete."""

    def write_packed(stream: IO[str]) -> None:
        # Neither a time nor a name inside: the same run gives the same bytes.
        with (
            gzip.GzipFile("", "wb", 6, cast(TextIOWrapper, stream).buffer, 0) as packed,
            TextIOWrapper(cast(Any, packed), "utf-8", newline="") as text,
        ):
            write(text)

    write_outputs([(path, write_packed if path.endswith(".gz") else write)])


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Around what writes: the system names no file when a disk is full, and else the one beside the file."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is not None and error.filename != _part(path):
            raise
        raise OSError(error.errno, error.strerror or str(error), path) from error


@contextmanager
def _leaving_nothing() -> Iterator[None]:
    """SIGTERM and SIGHUP, whose default is to end at once, end the program by an exception, as Ctrl-C does."""
    ours = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        ours = []

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _write_in_place(path: str, fill: Callable[[IO[str]], None]) -> None:
    try:
        with naming(path), open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
            fill(stream)
    except BrokenPipeError as error:
        raise click.ClickException(f"{path}: nobody reads it any more") from error


def _is_special(path: str) -> bool:
    """Whether the path names something that must not be replaced by a file: a device, a pipe."""
    return os.path.exists(path) and not os.path.isfile(path)


def _has_standard_output(path: str) -> bool:
    """Whether what is printed goes to the very file."""
    try:
        return os.path.isfile(path) and os.path.samestat(os.fstat(sys.stdout.fileno()), os.stat(path))
    except (AttributeError, OSError, ValueError):  # standard output is closed, or no file of the system
        return False


def _part(path: str) -> str:
    """Temporary name in the folder of the file itself, so that the last step is a rename."""
    folder, name = os.path.split(os.path.realpath(path))
    return os.path.join(folder, f".{name}.{os.getpid()}.part")
