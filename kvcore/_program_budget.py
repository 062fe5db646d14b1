"""Admission type `program_budget`: so many agentic programs at a time as the KV cache has room for (DESIGN D10).

A program is a session whose turns share one growing context. Between two turns, while its tools run, its context is
worth keeping in the KV cache; more programs than fit evict each other's, and each turn computes its context anew. So
programs are admitted, not turns. Ref: Continuum (arXiv 2511.02230) for a context kept for a time to live between turns
and programs first come, first served; ThunderAgent (arXiv 2602.13692) for programs, resume and forced resume. What it
calls acting is paused here, and what it calls paused waits here.

A request is let go when it may queue, and stays so until it has ended. A program
- is live while one of its turns is let go, and while it is paused: for pause_ttl_ns after its last one has ended, if a
  worker has ever taken one of them. Whatever a live program asks for goes ahead, and brings its growth with it;
- else waits, with all its turns held back, and resumes with all of them at once.
Requests without a session pass by.

A new program is admitted when nobody waits, at most max_programs are live with it, and the contexts of all live
programs fit into kv_token_budget together. One that is too large for the budget alone is admitted when nothing else is
live. Contexts that grow over the budget drive nobody out; nobody is let in until they fit again.

A context is the largest of what its turns need that are let go, and what the last turn to end has left. A turn needs
its prompt and its expected output; more, if it has advanced beyond; when it has completed, it leaves what is reported
then. So estimates are replaced by facts, and a context that an agent has compacted is counted as short as it is. A turn
that no worker has taken leaves nothing: who is turned away by a limit takes no room from others.

Programs resume in the order in which they began to wait, and who does not fit holds up those behind it: if smaller ones
went past, a large one could wait for ever. resume_after_ns bounds this: a program that has waited so long resumes,
whatever is live (forced resume). It keeps its place in the queue until all its turns are gone.

Owns programs that are live or wait, their contexts and the sum of them. Never here: where anything runs or is cached.

Invariants: the first that waits does not fit; some program is live if one waits; the sum is that of the contexts of
live programs. All pauses are of one length, and so are all waits, and times never go back: who began first ends first,
and two queues do without heaps.
Cost: O(log turns of the program) per call, amortised; O(live programs + live requests) memory; `dump` and `load`
O(n log n) of it.
"""

from __future__ import annotations

import copy
import heapq
from collections import OrderedDict
from collections.abc import Mapping
from typing import ClassVar

from kvcore._admission_protocol import (
    AdmissionPolicy,
    AdmissionView,
    Answers,
    Bypass,
    Decision,
    Defer,
    MakeReady,
    Ready,
)
from kvcore._admission_values import (
    Parameter,
    dumped_flag,
    dumped_list,
    dumped_number,
    dumped_record,
    dumped_text,
    numbers_of,
)

#: Outdated entries of a heap before it is built anew: few enough to be forgotten, enough to make it rare.
_SLACK = 16


class _Turn:
    """One request of a program. tokens: what it needs; taken: whether a worker has taken it."""

    __slots__ = ("taken", "tokens")

    def __init__(self, tokens: int, taken: bool = False) -> None:
        self.tokens = tokens
        self.taken = taken


class _Program:
    """turns: in order of arrival, all let go or all held back. left: tokens that the last taken turn to end has left.

    counted: its part of the sum, 0 while it waits. _largest: heap of (-tokens, id); an entry that says something else
    than the turn of its id is outdated.
    """

    __slots__ = ("_largest", "counted", "left", "session_id", "turns")

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.turns: dict[str, _Turn] = {}
        self.left: int | None = None
        self.counted = 0
        self._largest: list[tuple[int, str]] = []

    def context_tokens(self) -> int:
        """The largest of what its turns need and what the last one left."""
        while self._largest and self._is_outdated(*self._largest[0]):
            heapq.heappop(self._largest)
        return max(self.left or 0, -self._largest[0][0] if self._largest else 0)

    def put(self, request_id: str, turn: _Turn) -> None:
        """Take in a turn, or the new need of one."""
        self.turns[request_id] = turn
        if len(self._largest) > 2 * len(self.turns) + _SLACK:
            self._largest = [(-other.tokens, name) for name, other in self.turns.items()]
            heapq.heapify(self._largest)
        else:
            heapq.heappush(self._largest, (-turn.tokens, request_id))

    def dump(self) -> dict[str, object]:
        """Session and turns, as JSON values."""
        turns = [
            {"request_id": request_id, "tokens": turn.tokens, "taken": turn.taken}
            for request_id, turn in self.turns.items()
        ]
        return {"session_id": self.session_id, "turns": turns}

    def _is_outdated(self, negative_tokens: int, request_id: str) -> bool:
        turn = self.turns.get(request_id)
        return turn is None or turn.tokens != -negative_tokens


class ProgramBudget(AdmissionPolicy):
    """Admits programs while their contexts fit into a budget of tokens together. See the module."""

    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {
        "kv_token_budget": Parameter(
            1, "Tokens that the contexts of all live programs may have: sessions with a turn let go, or paused.",
            is_required=True),
        "max_programs": Parameter(1, "Live programs; left out: no bound."),
        "pause_ttl_ns": Parameter(
            0, "How long a program keeps its place after its last turn has ended, in nanoseconds; left out: 0."),
        "resume_after_ns": Parameter(
            1, "After so long a wait a program resumes, whatever is live; left out: it waits until it fits."),
    }

    def __init__(self, parameters: Mapping[str, object]) -> None:
        """parameters: see PARAMETERS."""
        values = numbers_of(parameters, self.PARAMETERS)
        self._budget_tokens = values["kv_token_budget"]
        self._max_programs = values.get("max_programs")
        self._pause_ttl_ns = values.get("pause_ttl_ns", 0)
        self._resume_after_ns = values.get("resume_after_ns")
        self._clear()

    def _clear(self) -> None:
        self._programs: dict[str, _Program] = {}
        self._program_of: dict[str, _Program] = {}
        # session_id -> since when it waits, until when it keeps its place; both in order of time.
        # Not dicts: finding the first key of one costs as many steps as keys have been taken from its front.
        self._waiting: OrderedDict[str, int] = OrderedDict()
        self._paused: OrderedDict[str, int] = OrderedDict()
        self._live_tokens = 0

    def decide(self, view: AdmissionView) -> Decision:
        """A turn of a live program goes ahead, one of a waiting program waits; a new program may be admitted."""
        session_id = view.session_id
        if session_id is None:
            return Bypass()
        turn = _Turn(view.prompt_tokens + (view.expected_output_tokens or 0))
        program = self._programs.get(session_id)
        if program is None:
            waits = bool(self._waiting) or not self._fits(turn.tokens)
            program = self._programs[session_id] = _Program(session_id)
            if waits:
                self._waiting[session_id] = view.now_ns
        self._paused.pop(session_id, None)
        program.put(view.request_id, turn)
        self._program_of[view.request_id] = program
        if session_id in self._waiting:
            return Defer()
        self._count(program)
        return Ready()

    def released(self, request_id: str, now_ns: int) -> Answers:
        """Its program resumes, and with it the program's other turns. Nothing changes if it already was let go."""
        program = self._program_of[request_id]
        answers = self._resume(program) if program.session_id in self._waiting else []
        return [answer for answer in answers if answer.request_id != request_id] + self._pass_time(now_ns)

    def dispatched(self, request_id: str, now_ns: int) -> Answers:
        """From now on its program pauses when it has ended."""
        self._program_of[request_id].turns[request_id].taken = True
        return self._pass_time(now_ns)

    def advanced(self, request_id: str, context_tokens: int, now_ns: int) -> Answers:
        """It needs what it has, if that is more than was expected."""
        program = self._program_of[request_id]
        turn = program.turns[request_id]
        if context_tokens > turn.tokens:
            turn.tokens = context_tokens
            program.put(request_id, turn)
            self._count(program)
        return self._pass_time(now_ns)

    def completed(self, request_id: str, context_tokens: int | None, now_ns: int) -> Answers:
        """It leaves what is reported, or what it needed if nobody knows."""
        return self._ended(request_id, context_tokens, now_ns)

    def aborted(self, request_id: str, now_ns: int) -> Answers:
        """It leaves what it needed, if a worker had taken it."""
        return self._ended(request_id, None, now_ns)

    def next_deadline_ns(self) -> int | None:
        """The end of the oldest pause, or the forced resume of the program that has waited longest."""
        ends = [next(iter(self._paused.values()))] if self._paused else []
        if self._waiting and self._resume_after_ns is not None:
            ends.append(next(iter(self._waiting.values())) + self._resume_after_ns)
        return min(ends, default=None)

    def on_time(self, now_ns: int) -> Answers:
        """Pauses end, and who fits or has waited long enough resumes."""
        return self._pass_time(now_ns)

    def _ended(self, request_id: str, context_tokens: int | None, now_ns: int) -> Answers:
        program = self._program_of.pop(request_id)
        turn = program.turns.pop(request_id)
        if program.session_id in self._waiting:
            if not program.turns:
                del self._waiting[program.session_id]
                del self._programs[program.session_id]
            return self._pass_time(now_ns)
        if turn.taken:
            program.left = turn.tokens if context_tokens is None else context_tokens
        self._count(program)
        if not program.turns and program.left is None:
            del self._programs[program.session_id]
        elif not program.turns:
            self._paused[program.session_id] = now_ns + self._pause_ttl_ns
        return self._pass_time(now_ns)

    def _pass_time(self, now_ns: int) -> list[MakeReady]:
        """What every call but `decide` ends with, as each may have made room: pauses end, then the queue is served."""
        while self._paused and next(iter(self._paused.values())) <= now_ns:
            session_id, _ = self._paused.popitem(last=False)
            self._live_tokens -= self._programs.pop(session_id).counted
        answers: list[MakeReady] = []
        while self._waiting:
            session_id, since_ns = next(iter(self._waiting.items()))
            program = self._programs[session_id]
            forced = self._resume_after_ns is not None and since_ns + self._resume_after_ns <= now_ns
            if not forced and not self._fits(program.context_tokens()):
                break
            answers += self._resume(program)
        return answers

    def _fits(self, tokens: int) -> bool:
        """Whether one more program with this context can be live. Do not ask about one that is."""
        live = len(self._programs) - len(self._waiting)
        if live == 0:
            return True
        full = self._max_programs is not None and live >= self._max_programs
        return not full and self._live_tokens + tokens <= self._budget_tokens

    def _resume(self, program: _Program) -> list[MakeReady]:
        del self._waiting[program.session_id]
        self._count(program)
        return [MakeReady(request_id) for request_id in program.turns]

    def _count(self, program: _Program) -> None:
        """Bring the sum up to date with the context of a live program."""
        tokens = program.context_tokens()
        self._live_tokens += tokens - program.counted
        program.counted = tokens

    def dump(self) -> object:
        """Live programs, paused ones among them, by session; those that wait in the order of their queue."""
        live, waiting = [], []
        for session_id, program in sorted(self._programs.items()):
            if session_id not in self._waiting:
                live.append(program.dump() | {"left": program.left, "paused_until_ns": self._paused.get(session_id)})
        for session_id, since_ns in self._waiting.items():
            waiting.append(self._programs[session_id].dump() | {"since_ns": since_ns})
        return {"live": live, "waiting": waiting}

    def load(self, value: object) -> None:
        """Take over a dump. ValueError if no policy with these parameters can have given it."""
        live, waiting = dumped_record(value, "live", "waiting")
        loaded = copy.copy(self)
        loaded._clear()
        for item in dumped_list(live):
            session_id, turns, left, until_ns = dumped_record(item, "session_id", "turns", "left", "paused_until_ns")
            program = loaded._load_program(session_id, turns)
            program.left = None if left is None else dumped_number(left)
            if until_ns is not None:
                loaded._paused[program.session_id] = dumped_number(until_ns)
            if (until_ns is not None) if program.turns else (None in (until_ns, left)):
                raise ValueError("a live program has turns or is paused, with something left")
            loaded._count(program)
        # Whose pauses end at the same time are forgotten together, so their order does not matter.
        loaded._paused = OrderedDict(sorted(loaded._paused.items(), key=lambda pause: pause[1]))
        for item in dumped_list(waiting):
            session_id, turns, since_ns = dumped_record(item, "session_id", "turns", "since_ns")
            program = loaded._load_program(session_id, turns)
            loaded._waiting[program.session_id] = dumped_number(since_ns)
            if not program.turns or any(turn.taken for turn in program.turns.values()):
                raise ValueError("a program that waits has turns, and no worker has taken one")
        loaded._check_queue()
        vars(self).update(vars(loaded))

    def _load_program(self, session_id: object, turns: object) -> _Program:
        program = _Program(dumped_text(session_id))
        for item in dumped_list(turns):
            request_id, tokens, taken = dumped_record(item, "request_id", "tokens", "taken")
            if dumped_text(request_id) in self._program_of:
                raise ValueError("a request is there twice")
            self._program_of[dumped_text(request_id)] = program
            program.put(dumped_text(request_id), _Turn(dumped_number(tokens), dumped_flag(taken)))
        if program.session_id in self._programs:
            raise ValueError("a session is there twice")
        self._programs[program.session_id] = program
        return program

    def _check_queue(self) -> None:
        since = list(self._waiting.values())
        if since != sorted(since):
            raise ValueError("who began to wait first comes first")
        if since and self._fits(self._programs[next(iter(self._waiting))].context_tokens()):
            raise ValueError("the first that waits does not fit")
