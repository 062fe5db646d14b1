"""The replay loop, compiled; what it does stands in simulate.py.

What it must never do: look at a real clock, or decide anything about requests. The core decides, the engine model runs,
and this carries facts one way and actions the other.
"""
cimport cython
from libc.stdint cimport int32_t, int64_t

from kvcore.actions cimport Dispatch, Evict, Park, Reject
from kvcore.drivers.replay._table cimport (
    CACHED_TOKENS, CLASS_INDEX, ENGINE_CACHED_TOKENS, FILE_INDEX, FINISH_NS, FIRST_TOKEN_NS, OUTCOME, PREEMPTIONS,
    REASON, ROW, SESSION, WAIT_NS, WORKER, RequestTable,
)
from kvcore.drivers.replay.rows cimport TraceRow

from kvcore.actions import ParkReason
from kvcore.events import RequestArrived, RequestCancelled, TimerFired
from kvcore.request import Request

cdef object _DEFERRED = ParkReason.DEFERRED

cdef enum:
    PROGRESS_STEPS = 1024
    NEVER_NS = 0x4000000000000000   # arrivals.NEVER_NS

cdef enum:                      # result.RunOutcome
    COMPLETED = 1
    REJECTED = 2
    EVICTED = 3


@cython.final
@cython.auto_pickle(False)
cdef class _Live:
    """A request that has not ended. index: its row of the table. row: of the trace, until it is dispatched."""
    cdef int64_t index
    cdef TraceRow row
    cdef int32_t parked         # the class that it waits in; -1 while it does not


@cython.final
@cython.auto_pickle(False)
cdef class Loop:
    """One run.

    core: a Scheduler, or what stands in for one. fleet: a Fleet. arrivals: OpenLoop, ClosedLoop or SessionLoop.
    draw: the class of a row that names none, from its file number and row number; None: it has none. sessions: the
    SessionNames to which those of rows are told. classes: of the profile. tap: see simulate.simulate.
    """
    cdef readonly object core
    cdef readonly object fleet
    cdef readonly RequestTable table
    cdef readonly dict contended        # see ReplayResult
    cdef readonly int64_t events, steps, ignored, start_ns, now_ns
    cdef object step_many, submit, arrivals, follow, draw, sessions, tap
    cdef bint tell_output
    cdef dict live                      # request_id -> _Live
    cdef list answers                   # to Evicts, for the next batch
    cdef list waiting                   # per class, how many are parked
    cdef int64_t n_parked

    def __cinit__(self, core, fleet, RequestTable table not None, arrivals, *, draw, sessions,
                  bint tell_output, tap, int classes):
        self.core, self.fleet, self.table, self.arrivals = core, fleet, table, arrivals
        self.step_many, self.submit = core.step_many, fleet.submit
        self.follow = arrivals.follow       # None: nothing waits for a request
        self.draw, self.sessions, self.tell_output, self.tap = draw, sessions, tell_output, tap
        self.live, self.answers, self.contended = {}, [], {}
        self.waiting = [0] * classes

    @property
    def unended(self):
        """Ids of the requests that have not ended."""
        return list(self.live)

    def step(self, list batch not None):
        """Step the core through a batch, show it to the tap, count it. Returns the actions."""
        return self._step(batch)

    cdef tuple _step(self, list batch):
        cdef tuple actions = self.step_many(batch)
        if self.tap is not None:
            self.tap(batch, actions, self.core)
        self.events += len(batch)
        self.steps += 1
        return actions

    def run(self, progress):
        """Step until nothing is left to happen."""
        cdef int64_t engine_ns, timer_ns, now_ns, arrival_ns
        cdef list batch
        arrivals, core, fleet = self.arrivals, self.core, self.fleet
        arrival_ns = arrivals.next_ns
        self.start_ns = 0 if arrival_ns == NEVER_NS else arrival_ns
        while True:
            fact, deadline = fleet.next_ns, core.next_deadline_ns
            engine_ns = NEVER_NS if fact is None else fact
            timer_ns = NEVER_NS if deadline is None else deadline
            now_ns = min(arrival_ns, engine_ns, timer_ns)
            batch = []
            if self.answers:
                now_ns = self.now_ns
                batch, self.answers = self.answers, batch
            if now_ns == NEVER_NS:
                return
            if engine_ns == now_ns:
                batch += fleet.advance(now_ns)
                self._collect(now_ns)
                arrival_ns = arrivals.next_ns
            while arrival_ns == now_ns:
                batch.append(self._arrive(arrivals.take(), now_ns))
                arrival_ns = arrivals.next_ns
            if not batch:
                if timer_ns != now_ns:
                    continue  # the engine moved on without a fact
                batch.append(TimerFired(now_ns))
            self.now_ns = now_ns
            self._apply(self._step(batch), now_ns)
            arrival_ns = arrivals.next_ns
            if progress is not None and self.steps % PROGRESS_STEPS == 0:
                progress(self.table.n, now_ns)

    cdef object _arrive(self, TraceRow row, int64_t now_ns):
        cdef _Live live = _Live.__new__(_Live)
        cdef str request_id = f"r{row.file_index}-{row.row}"
        cdef str policy_class = row.policy_class, session_id = None
        if policy_class is None and self.draw is not None:
            policy_class = self.draw(row.file_index, row.row)
        live.index = self.table.append(row.file_index, row.row, now_ns, row.prompt_tokens, row.output_tokens)
        live.row, live.parked = row, -1
        if row.session_id is not None:
            # The files' sessions are not each other's.
            session_id = f"{row.file_index}:{row.session_id}"
            self.table.cells(live.index)[SESSION] = self.sessions.told(row.file_index, row.session_id)
        self.live[request_id] = live
        return RequestArrived(now_ns, Request(
            request_id, row.prompt_tokens, policy_class, row.strict_priority, row.priority,
            block_hashes=row.block_hashes, expected_output_tokens=row.output_tokens if self.tell_output else None,
            session_id=session_id))

    cdef int _collect(self, int64_t now_ns) except -1:
        """Note the times of requests that the engine has finished."""
        cdef list finished = self.fleet.finished()
        cdef _Live live
        cdef int64_t *cells
        cdef tuple done
        for done in finished:
            live = self.live.pop(done[0])
            cells = self.table.cells(live.index)
            cells[OUTCOME] = COMPLETED
            cells[FIRST_TOKEN_NS], cells[FINISH_NS], cells[ENGINE_CACHED_TOKENS] = done[1], done[2], done[3]
            cells[PREEMPTIONS] = done[4]
            if self.follow is not None:
                self.follow(cells[FILE_INDEX], cells[ROW], True, now_ns)
            self.table.seal(live.index)
        if finished:
            self.arrivals.ended(len(finished), now_ns)
        return 0

    cdef int _apply(self, tuple actions, int64_t now_ns) except -1:
        """Carry out the actions of a step, in order."""
        for action in actions:
            if isinstance(action, Dispatch):
                self._dispatch(<Dispatch>action, now_ns)
            elif isinstance(action, Park):
                self._park(<Park>action)
            elif isinstance(action, Reject):
                self._reject(<Reject>action, now_ns)
            elif isinstance(action, Evict):
                self._evict(<Evict>action, now_ns)
            else:
                self.ignored += 1
        return 0

    cdef int _dispatch(self, Dispatch action, int64_t now_ns) except -1:
        cdef _Live live = self.live[action.request_id]
        cdef TraceRow row = live.row
        cdef int64_t *cells = self.table.cells(live.index)
        cells[CLASS_INDEX], cells[WORKER], cells[WAIT_NS] = action.class_index, action.worker_id, action.wait_ns
        cells[CACHED_TOKENS] = action.cached_tokens
        if row is None:
            raise AssertionError(f"{action.request_id} is dispatched a second time")
        if self.n_parked:
            self._contend(action, row.prompt_tokens)
            self._unpark(live)
        live.row = None
        self.submit(
            action.worker_id, action.request_id, action.attempt, row.prompt_tokens, row.output_tokens,
            row.block_hashes, now_ns)
        return 0

    cdef int _contend(self, Dispatch action, int64_t prompt_tokens) except -1:
        """Count tokens dispatched while several classes wait."""
        cdef object waiting = 0
        for index, requests in enumerate(self.waiting):
            if requests:
                waiting |= 1 << index
        if waiting & (waiting - 1) and waiting >> action.class_index & 1:
            tokens = self.contended.setdefault(waiting, [0] * len(self.waiting))
            tokens[action.class_index] += prompt_tokens - action.cached_tokens
        return 0

    cdef int _park(self, Park action) except -1:
        cdef _Live live = self.live[action.request_id]
        self._unpark(live)
        if action.reason is _DEFERRED:
            return 0  # held back by an admission policy: it does not compete yet
        live.parked = action.class_index
        self.waiting[action.class_index] += 1
        self.n_parked += 1
        return 0

    cdef int _unpark(self, _Live live) except -1:
        """The request waits no more, if it did."""
        if live.parked >= 0:
            self.waiting[live.parked] -= 1
            self.n_parked -= 1
            live.parked = -1
        return 0

    cdef int _reject(self, Reject action, int64_t now_ns) except -1:
        cdef _Live live = self.live.pop(action.request_id)
        cdef int64_t *cells = self.table.cells(live.index)
        self._unpark(live)
        if action.class_index >= 0:
            cells[CLASS_INDEX] = action.class_index
        cells[REASON] = <int64_t>action.reason
        return self._end(live, REJECTED, now_ns)

    cdef int _evict(self, Evict action, int64_t now_ns) except -1:
        """The booking is gone: stop the engine, and tell the core that the request ends here."""
        cdef _Live live = self.live.pop(action.request_id, None)
        if live is None:
            return 0  # it finished at this very instant, in the same batch
        self.fleet.cancel(action.request_id, now_ns)
        self.answers.append(RequestCancelled(now_ns, action.request_id))
        return self._end(live, EVICTED, now_ns)

    cdef int _end(self, _Live live, int outcome, int64_t now_ns) except -1:
        cdef int64_t *cells = self.table.cells(live.index)
        cells[OUTCOME] = outcome
        if self.follow is not None:
            self.follow(cells[FILE_INDEX], cells[ROW], False, now_ns)
        self.table.seal(live.index)
        self.arrivals.ended(1, now_ns)
        return 0
