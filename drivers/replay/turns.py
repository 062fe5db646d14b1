"""A closed loop of sessions: a turn arrives its delay after what it waits for has ended in the simulation.

When a turn may be sent is known only once its predecessors have ended, and that may be long before its place in the
trace. So the trace is read to its end first, into a temporary file that says of each request who waits for it; the run
then fetches a request from there when its time has come.
"""

from __future__ import annotations

import marshal
import struct
from array import array
from collections.abc import Iterator
from fractions import Fraction
from heapq import heappop, heappush

from .arrivals import NEVER_NS, FittingRows
from .rows import TraceRow
from .spool import Spool

#: Of each of three files, what stays in memory: a small trace never touches the disk.
_MEMORY_BYTES = 8 << 20
#: Of a request: place of the first of the edges that lead away from it (-1: none), on how many it waits, its file, its
#: row, when the trace has it, its delay (-1: none), bytes of the rest that follow.
_HEAD = struct.Struct("<7q")
#: Place of the request that waits, place of the next edge, whether that request continues this one's answer.
_EDGE = struct.Struct("<3q")
_PLACE = struct.Struct("<q")
#: What most requests have at most, so that they are read at once.
_USUAL_BYTES = 1024
_NONE = -1
_ROOTS_READ = 4096


class _Turns:
    """The requests of a trace, each with those that wait for it.

    Memory while the trace is read: 8 bytes a row, and an entry for each session. Always: up to _MEMORY_BYTES a file.
    """

    def __init__(self, rows: FittingRows) -> None:
        self._requests, self._edges, self._roots = (Spool(_MEMORY_BYTES) for _ in range(3))
        self._places: list[array[int]] = []  # of each file: of its rows; _NONE: not there
        self._last: dict[tuple[int, str], int] = {}
        rows.left_out = self._leave_out
        for row in rows:
            self._add(row)
        self._places, self._last = [], {}

    def roots(self) -> Iterator[int]:
        """Places of those that wait for none, in order of the trace."""
        for start in range(0, self._roots.end, _ROOTS_READ * _PLACE.size):
            for (place,) in _PLACE.iter_unpack(self._roots.read(start, _ROOTS_READ * _PLACE.size)):
                yield place

    def head(self, place: int) -> tuple[int, ...]:
        """What _HEAD says of a request."""
        return _HEAD.unpack(self._requests.read(place, _HEAD.size))

    def edge(self, place: int) -> tuple[int, ...]:
        """What _EDGE says."""
        return _EDGE.unpack(self._edges.read(place, _EDGE.size))

    def row(self, place: int) -> tuple[TraceRow, int]:
        """A request, and its first edge."""
        found = self._requests.read(place, _USUAL_BYTES)
        edge, _, file_index, number, arrival_ns, delay_ns, size = _HEAD.unpack_from(found)
        if _HEAD.size + size > len(found):
            found = self._requests.read(place, _HEAD.size + size)
        prompt, output, names, session, priority, strict, name = marshal.loads(found[_HEAD.size : _HEAD.size + size])
        hashes = tuple(array("Q", names))
        delay = None if delay_ns == _NONE else delay_ns
        return TraceRow(
            arrival_ns, prompt, output, hashes, session, delay, priority, strict, name, file_index, number), edge

    def _add(self, row: TraceRow) -> None:
        waits, continued = self._awaited(row)
        rest = marshal.dumps((
            row.prompt_tokens, row.output_tokens, array("Q", row.block_hashes).tobytes(), row.session_id, row.priority,
            row.strict_priority, row.policy_class))
        head = _HEAD.pack(
            _NONE, len(waits), row.file_index, row.row, row.arrival_ns, _NONE if row.delay_ns is None else row.delay_ns,
            len(rest))
        place = self._requests.append(head + rest)
        for other in waits:
            (first,) = _PLACE.unpack(self._requests.read(other, _PLACE.size))
            self._requests.write(other, _PLACE.pack(self._edges.append(_EDGE.pack(place, first, other == continued))))
        if not waits:
            self._roots.append(_PLACE.pack(place))
        self._note(row, place)

    def _awaited(self, row: TraceRow) -> tuple[list[int], int]:
        """Places of the requests that this one waits for, and of the one that it continues (_NONE: it does not)."""
        if row.after is None:
            last = _NONE if row.session_id is None else self._last.get((row.file_index, row.session_id), _NONE)
            return [] if last == _NONE else [last], last
        places = self._places[row.file_index] if row.file_index < len(self._places) else ()
        found = [places[number] if number < len(places) else _NONE for number in row.after]
        return [place for place in dict.fromkeys(found) if place != _NONE], found[0] if found else _NONE

    def _leave_out(self, row: TraceRow) -> None:
        """A request that is not run: who waits for it waits for the one that it continues."""
        self._note(row, self._awaited(row)[1])

    def _note(self, row: TraceRow, place: int) -> None:
        while len(self._places) <= row.file_index:
            self._places.append(array("q"))
        places = self._places[row.file_index]
        places.extend([_NONE] * (row.row + 1 - len(places)))
        places[row.row] = place
        if row.session_id is not None and place != _NONE:
            self._last[row.file_index, row.session_id] = place


class SessionLoop:
    """First turns arrive at the times of the trace, the others after what they wait for, pauses included.

    A turn without a delay arrives when the trace has it, or when what it waits for has ended, if that is later. Times
    and delays are divided by `ratio`. Requests of one instant arrive by (file, row).
    A request that does not complete takes with it the turns that continue it, directly or not: they never arrive.
    abandoned: how many. A turn that waits for several continues one of them; for the others it is enough to end.
    Memory: what _Turns keeps, and some numbers for each turn of which something that it waits for has ended.
    """

    def __init__(self, rows: FittingRows, ratio: Fraction) -> None:
        self._up, self._down = ratio.numerator, ratio.denominator
        self._turns = _Turns(rows)
        self._roots = self._turns.roots()
        self._root: tuple[int, int, int, int] | None = None
        self._due: list[tuple[int, int, int, int]] = []  # (time, file, row, place): unique in its first three
        self._running: dict[tuple[int, int], int] = {}  # (file, row) -> first edge
        self._waiting: dict[int, tuple[int, bool]] = {}  # place -> on how many more it waits, whether it is abandoned
        self.abandoned = 0
        self._read()

    @property
    def next_ns(self) -> int:
        """When the next request is due."""
        due_ns = self._due[0][0] if self._due else NEVER_NS
        return due_ns if self._root is None else min(due_ns, self._root[0])

    def take(self) -> TraceRow:
        """The row that is due."""
        if self._root is None or (self._due and self._due[0] < self._root):
            entry = heappop(self._due)
        else:
            entry = self._root
            self._read()
        row, edge = self._turns.row(entry[3])
        if edge != _NONE:
            self._running[row.file_index, row.row] = edge
        return row

    def ended(self, requests: int, now_ns: int) -> None:
        """Requests have ended; which ones, follow() has been told."""

    def follow(self, file_index: int, row: int, completed: bool, now_ns: int) -> None:
        """A request has ended."""
        edge = self._running.pop((file_index, row), _NONE)
        ends = [(edge, completed)]
        while ends:
            edge, completed = ends.pop()
            while edge != _NONE:
                place, edge, continues = self._turns.edge(edge)
                if self._release(place, bool(continues) and not completed, now_ns):
                    ends.append((self._turns.head(place)[0], False))

    def _release(self, place: int, broken: bool, now_ns: int) -> bool:
        """Of those that a request waits for one has ended. Returns whether this is why it will never arrive."""
        _, waits, file_index, row, arrival_ns, delay_ns, _ = self._turns.head(place)
        left, abandoned = self._waiting.pop(place, (waits, False))
        if left > 1:
            self._waiting[place] = (left - 1, abandoned or broken)
        elif not (abandoned or broken):
            due_ns = max(now_ns, self._scaled(arrival_ns)) if delay_ns == _NONE else now_ns + self._scaled(delay_ns)
            if due_ns >= NEVER_NS:
                raise OverflowError("virtual time beyond 2^62 ns")
            heappush(self._due, (due_ns, file_index, row, place))
        self.abandoned += broken and not abandoned
        return broken and not abandoned

    def _scaled(self, time_ns: int) -> int:
        return time_ns * self._down // self._up

    def _read(self) -> None:
        """The next of the requests that wait for none."""
        place = next(self._roots, None)
        if place is None:
            self._root = None
            return
        _, _, file_index, row, arrival_ns, _, _ = self._turns.head(place)
        if self._scaled(arrival_ns) >= NEVER_NS:
            raise OverflowError("virtual time beyond 2^62 ns")
        self._root = (self._scaled(arrival_ns), file_index, row, place)
