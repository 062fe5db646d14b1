"""Trace readers on files that are refused as a whole, or whose lines end in odd ways."""

from __future__ import annotations

import errno
import gzip
import io
import os
from pathlib import Path
from typing import Any

import pytest
from kvcore.drivers.replay import lines
from kvcore.drivers.replay.traces import open_traces
from trace_files import ARXIV, AZURE, GOOD, VIDUR, Write, bad_row, whole_file

from kvcore.errors import InvalidTrace


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(content) -> path of a new file; text is written as UTF-8."""

    def make(content: str | bytes) -> str:
        path = tmp_path / f"trace{len(list(tmp_path.iterdir()))}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return make


# Lines and files.


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\r\n"])
def test_line_ends_and_marks_that_are_accepted(write: Write, end: str) -> None:
    for text in (GOOD + end + GOOD + end, "\ufeff" + GOOD + end + GOOD, end + GOOD + end + " \t" + end + GOOD + "  "):
        assert len(list(open_traces([write(text)]))) == 2
        assert len(list(open_traces([write(gzip.compress(text.encode()))]))) == 2
    assert len(list(open_traces([write("\ufeff" + VIDUR + end + "0,1,1" + end)]))) == 1


def test_a_line_longer_than_the_bound(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_MAX", 200)
    exact = GOOD + " " * (199 - len(GOOD)) + "\n"
    assert len(list(open_traces([write(exact)]))) == 1
    for tail in (" " * 200, "x" * 300_000):
        reason, rows = bad_row(write(GOOD + "\n" + GOOD + tail + "\n" + exact), 2)
        assert reason == "longer than 200 bytes"
        assert [row.row for row in rows] == [1, 3]
        assert bad_row(write(GOOD + "\n" + GOOD + tail), 2)[0] == "longer than 200 bytes"


def test_a_line_of_20_mib_is_never_held(write: Write) -> None:
    path = write(gzip.compress(GOOD.encode() + b"\n" + b" " * (20 << 20) + b"\n" + GOOD.encode(), 1))
    reason, rows = bad_row(path, 2)
    assert (reason, [row.row for row in rows]) == ("longer than 16777216 bytes", [1, 3])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (gzip.compress(b""), "the file is empty"),
        (b"\n \r\n\t\n", "no data: only blank lines"),
        (b"\xef\xbb\xbf", "no data: only blank lines"),
        (f"{AZURE}\r\n\r\n".encode(), "no data: a header alone"),
        (f"{GOOD}\r{GOOD}\r".encode(), "carriage returns alone end the lines"),
        (f"{AZURE}\r2023-11-16 18:15:46,1,1".encode(), "carriage returns alone end the lines"),
        (GOOD.encode("utf-16"), "UTF-16 text"),
        (b"\xfe\xff" + GOOD.encode("utf-16-be"), "UTF-16 text"),
        (GOOD.encode("utf-16-le"), "cannot tell the format"),
        (GOOD.encode("utf-32"), "UTF-32 text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "a Git LFS pointer, not the data"),
        (gzip.compress(b"version https://git-lfs.github.com/spec/v1\n"), "a Git LFS pointer, not the data"),
        (gzip.compress(gzip.compress(GOOD.encode())), "gzip inside gzip"),
        (b"BZh91AY&SY", "bzip2 data"),
        (b"\x28\xb5\x2f\xfd\x00", "zstd data"),
        (b"PAR1\x15\x04", "a Parquet file"),
        (f"[{GOOD}]\n".encode(), "one JSON array"),
        (f"[\n{GOOD},\n{GOOD}\n]\n".encode(), "one JSON array"),
        (b"[]", "one JSON array"),
        (f"\ufeff{AZURE}\n".replace(",", ";").encode(), "the columns are separated by ';', not by commas"),
        (f"{VIDUR}\n".replace(",", "\t").encode(), "the columns are separated by '\\t', not by commas"),
        (f"{ARXIV}\n1,2,3,0.5\n".encode(), "a vidur file of lengths without times"),
        (f"{AZURE},contexttokens\n1,2,3,4\n".encode(), "column ContextTokens stands twice in the header"),
        (b"\x1f\x8b", "the gzip data ends too early"),
        (b"\x1f\x8b\x09" + bytes(7), "the gzip data is damaged: Unknown compression method"),
        (gzip.compress(GOOD.encode())[:20], "the gzip data ends too early"),
        (b'"' + AZURE.encode() + b"\n", "cannot tell the format"),
    ],
)
def test_a_file_that_is_refused_as_a_whole(write: Write, content: bytes, reason: str) -> None:
    assert whole_file(write(content)).startswith(reason)


@pytest.mark.parametrize(
    ("content", "form", "reason"),
    [
        (f"[{GOOD}]\n", "mooncake", "one JSON array"),
        (f"{AZURE}\n".replace(",", ";"), "azure", "the columns are separated by ';'"),
        (f"{VIDUR}\n0,1,1", "azure", "no column TIMESTAMP and ContextTokens and GeneratedTokens in the header"),
        (f"{ARXIV}\n1,2,3,0.5\n", "vidur", "a vidur file of lengths without times"),
        (f"{AZURE}\0\n1,1,1", "azure", "the header cannot be read: a NUL byte in the line"),
        ("\n\n", "vidur", "no data: only blank lines"),
    ],
)
def test_a_forced_format_that_does_not_fit(write: Write, content: str, form: str, reason: str) -> None:
    assert whole_file(write(content), format=form).startswith(reason)


def test_a_first_line_that_cannot_be_read_is_a_row_where_no_header_is_needed(write: Write) -> None:
    path = write(f"\0\n{GOOD}\n")
    for form in (None, "mooncake"):
        reason, rows = bad_row(path, 1, format=form)
        assert (reason, [row.row for row in rows]) == ("a NUL byte in the line", [2])


def test_what_the_system_refuses(tmp_path: Path) -> None:
    assert whole_file(tmp_path) == os.strerror(errno.EISDIR)
    assert whole_file(tmp_path / "missing") == os.strerror(errno.ENOENT)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert whole_file(loop) == os.strerror(errno.ELOOP)
    assert whole_file(str(tmp_path / ("x" * 5000))) == os.strerror(errno.ENAMETOOLONG)
    assert whole_file("nul\0byte") == "embedded null byte"


def test_a_file_without_permission(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", file)

    # The real thing cannot be had where the tests run as root.
    monkeypatch.setattr(io, "FileIO", refuse)
    assert whole_file(write(GOOD)) == os.strerror(errno.EACCES)


def test_a_disk_that_fails_while_reading(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.FileIO):
        reads = 0

        def readinto(self, buffer: Any) -> int | None:
            self.reads += 1
            if self.reads > 1:
                raise OSError(errno.EIO, "Input/output error")
            return super().readinto(buffer)

    path = write((GOOD + "\n") * 10_000)
    monkeypatch.setattr(io, "FileIO", Failing)
    for skip_bad in (False, True):
        with pytest.raises(InvalidTrace) as caught:
            list(open_traces([path], skip_bad=skip_bad))
        assert (caught.value.line, caught.value.reason) == (None, os.strerror(errno.EIO))
