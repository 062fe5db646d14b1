"""The result file of a sweep, which an interrupted one resumes from: JSON lines, a head and then a point per line.

Points are appended as they come in, whole lines at a time; at the end the file is written anew in the order of points,
so that equal sweeps leave equal bytes. A last line that was cut is dropped, and points that failed are tried again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import IO, Any

from kvcore.errors import KvcoreError

from .points import Tried
from .space import Point

FORMAT = "kvcore-sweep-1"


class InvalidResults(KvcoreError):
    """A file that holds no results, or those of another sweep. place: file or file:line."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")


def fingerprint(sweep: Mapping[str, Any]) -> str:
    """Of everything that decides the figures of a sweep, given as JSON values."""
    return hashlib.sha256(json.dumps(sweep, sort_keys=True).encode()).hexdigest()


def head(identity: str) -> str:
    """The first line."""
    return json.dumps({"format": FORMAT, "sweep": identity}) + "\n"


def line(tried: Tried) -> str:
    """The line of a point."""
    known = {"point": tried.number, "values": tried.values}
    what = {"figures": tried.figures} if tried.error is None else {"error": tried.error}
    return json.dumps(known | what, allow_nan=False) + "\n"


def read_results(path: str, identity: str, points: Mapping[int, Point]) -> dict[int, Tried]:
    """Points that are known already, by number. Raises: InvalidResults; OSError."""
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as stream:
        try:
            lines = stream.read().split("\n")
        except UnicodeDecodeError as error:
            raise InvalidResults(path, "not UTF-8 text") from error
    whole = lines[:-1]  # what stands behind the last line end was cut
    if not whole:
        if lines[0]:
            raise InvalidResults(path, "no results of a sweep")
        return {}
    first = _object(path, 1, whole[0])
    if first.get("format") != FORMAT:
        raise InvalidResults(path, f"no results of a sweep: its `format` is not {FORMAT!r}")
    if first.get("sweep") != identity:
        raise InvalidResults(path, "is of another sweep: another space, policy, trace, seed or version; "
                                   "remove it or name another file")
    found = {}
    for number, text in enumerate(whole[1:], 2):
        entry = _object(path, number, text)
        point, values, figures = entry.get("point"), entry.get("values"), entry.get("figures")
        if type(point) is not int or point not in points or values != points[point]:
            raise InvalidResults(f"{path}:{number}", "no point of this sweep")
        if isinstance(figures, dict):
            found[point] = Tried(point, points[point], figures)
    return found


def _object(path: str, number: int, text: str) -> dict[str, Any]:
    try:
        entry = json.loads(text)
    except ValueError as error:
        raise InvalidResults(f"{path}:{number}", "not JSON") from error
    if not isinstance(entry, dict):
        raise InvalidResults(f"{path}:{number}", "not an object")
    return entry


class ResultFile:
    """A result file that points are appended to. known: those that it keeps."""

    def __init__(self, path: str, identity: str, known: Mapping[int, Tried]) -> None:
        # Only whole lines stay, and no failures: they are tried again. An interrupt must not lose what was known.
        part = f"{path}.part"
        with open(part, "w", encoding="utf-8", newline="") as stream:
            stream.write(text_of(identity, known))
        os.replace(part, path)
        self._stream: IO[str] = open(path, "a", encoding="utf-8", newline="")  # noqa: SIM115 - closed by close()

    def add(self, tried: Tried) -> None:
        """Append a point; it is there when this returns, unless the machine fails."""
        self._stream.write(line(tried))
        self._stream.flush()

    def close(self) -> None:
        """Let go of the file."""
        self._stream.close()


def text_of(identity: str, tried: Mapping[int, Tried]) -> str:
    """The whole file, in the order of points."""
    return head(identity) + "".join(line(tried[number]) for number in sorted(tried))
