"""Which requests of a trace wait for which: by the ids that rows name, or by the times that they began and ended."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from .values import RowFacts, Unusable

__all__ = ["NamedRows", "Span", "linked"]


class NamedRows:
    """The rows of a file that name themselves by a request_id.

    Memory: an entry for each of them and, once there is one, for each session.
    """

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, int]] = {}  # request_id -> (row, time_ns)
        self._last: dict[str, tuple[int, int]] = {}  # session_id -> the same
        self._plain = False  # some session has a row that is not in _last

    def resolved(self, row: int, facts: RowFacts) -> RowFacts:
        """The facts of a row with the numbers of the rows that it waits for, where it has a request_id or says so.

        Raises Unusable if it waits for what does not stand before it, in the file and in time.
        """
        time_ns, session, links = facts[0], facts[4], facts[9]
        if links is None:
            if not self._rows:
                self._plain = True
            elif session is not None:
                self._last[session] = (row, time_ns)
            return facts
        request_id, awaited, after = links
        if after is not None:
            return facts
        if awaited is not None:
            after = tuple(self._row(other, time_ns) for other in awaited)
        else:
            after = self._before(session, time_ns)
        if request_id is not None:
            if request_id in self._rows:
                raise Unusable(f"request_id {request_id!r} stands in row {self._rows[request_id][0]} too")
            self._rows[request_id] = (row, time_ns)
        if session is not None:
            self._last[session] = (row, time_ns)
        return (*facts[:9], None if after is None else (None, None, after))

    def _before(self, session: str | None, time_ns: int) -> tuple[int, ...] | None:
        """What a row waits for that does not say so; None: its place in time decides."""
        if session is None:
            return ()
        if session not in self._last:
            return None if self._plain else ()
        row, earlier_ns = self._last[session]
        return (row,) if earlier_ns <= time_ns else None

    def _row(self, request_id: str, time_ns: int) -> int:
        if request_id not in self._rows:
            raise Unusable(f"wait_for names {request_id!r}, which no usable row before it has as its request_id")
        row, earlier_ns = self._rows[request_id]
        if earlier_ns > time_ns:
            raise Unusable(f"wait_for names {request_id!r}, which arrives later")
        return row


@dataclass(frozen=True)
class Span:
    """A request as it was recorded. session: of its agent; parent: session that started the agent, if one did."""

    row: int
    start_ns: int
    end_ns: int
    session: str | None
    parent: str | None = None


@dataclass
class _Agent:
    """What is known of one agent while its requests are looked at in order."""

    parent: str | None
    last_end_ns: int = -1
    #: (end, row) of its requests so far, by end; of those that nobody waits for; and whether its parent has waited.
    ended: list[tuple[int, int]] = field(default_factory=list)
    open: list[tuple[int, int]] = field(default_factory=list)
    joined: bool = False
    base: int | None = None
    children: list[str] = field(default_factory=list)


def linked(spans: Sequence[Span]) -> dict[int, tuple[tuple[int, ...], int | None]]:
    """Of each row: the rows that it waits for, in the sense of TraceRow.after, and its delay_ns (None: for none).

    A request waits for what had ended when it began: it continues the request of its agent that ended last, or, as the
    first one of a sub-agent, that of the agent that started it; and it waits for its agent's other requests that nobody
    waits for yet, and for the sub-agents that were through by then. Those that were not go on beside it.
    """
    agents: dict[str, _Agent] = {}
    for span in spans:
        if span.session is not None:
            agent = agents.setdefault(span.session, _Agent(span.parent))
            agent.last_end_ns = max(agent.last_end_ns, span.end_ns)
    for name, agent in agents.items():
        if agent.parent in agents and agent.parent != name:
            agents[str(agent.parent)].children.append(name)
    found: dict[int, tuple[tuple[int, ...], int | None]] = {}
    ends = {span.row: span.end_ns for span in spans}
    for span in sorted(spans, key=lambda span: (span.start_ns, span.row)):
        after: list[int] = []
        if span.session is not None:
            after = _awaited(agents, agents[span.session], span)
        delay_ns = span.start_ns - max(ends[row] for row in after) if after else None
        found[span.row] = (tuple(after), delay_ns)
    return found


def _awaited(agents: dict[str, _Agent], agent: _Agent, span: Span) -> list[int]:
    """The rows that a request waits for; it is then one of its agent's."""
    own = [entry for entry in agent.open if entry[0] <= span.start_ns]
    if own:
        agent.base = max(own)[1]
    first = agent.base if agent.base is not None else _started_by(agents, agent, span)
    after = [] if first is None else [first, *(row for _, row in own)]
    for name in agent.children if after else ():
        child = agents[name]
        if not child.joined and child.ended and child.last_end_ns <= span.start_ns:
            child.joined = True
            after += [row for _, row in child.open]
    agent.open = [entry for entry in agent.open if entry[0] > span.start_ns]
    for entries in (agent.open, agent.ended):
        entries.insert(bisect_right(entries, (span.end_ns, span.row)), (span.end_ns, span.row))
    return list(dict.fromkeys(after))


def _started_by(agents: dict[str, _Agent], agent: _Agent, span: Span) -> int | None:
    """The request of the parent that ended last before the sub-agent's first one."""
    parent = None if agent.parent is None else agents.get(agent.parent)
    if parent is None:
        return None
    place = bisect_right(parent.ended, (span.start_ns, 1 << 62))
    return parent.ended[place - 1][1] if place else None
