"""The replay loop without objects: the same run as _loop.Loop, over rows, where nobody looks on and no admission policy
is asked. What it does stands in simulate.py; tests hold the two together, to the last bit.

A request that lives has a place in an array, and its handle for the core and the engine says which: so nothing is
looked up. A handle is never used again.

What it must never do: look at a real clock, or decide anything about requests.
"""
cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from kvcore.drivers.replay._engine cimport Fleet
from kvcore.drivers.replay._open cimport OpenRows
from kvcore.drivers.replay._packed cimport PackedRow, packed
from kvcore.drivers.replay._sequences cimport room, seq_t
from kvcore.drivers.replay._table cimport (
    CACHED_TOKENS, CLASS_INDEX, ENGINE_CACHED_TOKENS, FILE_INDEX, FINISH_NS, FIRST_TOKEN_NS, OUTCOME, PREEMPTIONS,
    REASON, ROW, SESSION, WAIT_NS, WORKER, RequestTable,
)
from kvcore.drivers.replay._tell cimport add_hashes, add_row, done_t, rows_t, tell_rows
from kvcore.records cimport (
    ACTION_DISPATCH, ACTION_EVICT, ACTION_PARK, ACTION_REJECT, EVENT_ARRIVED, EVENT_CANCELLED, EVENT_TIMER,
    action_record_t, event_record_t,
)
from kvcore.scheduler cimport Scheduler

from kvcore.actions import ParkReason
from kvcore.events import RequestArrived
from kvcore.request import Request

cdef unsigned char DEFERRED = ParkReason.DEFERRED

cdef enum:
    PROGRESS_STEPS = 1024
    NEVER_NS = 0x4000000000000000   # arrivals.NEVER_NS
    PLACES_MAX = 1 << 24            # requests that live at a time: low bits of a handle

cdef enum:                      # result.RunOutcome
    COMPLETED = 1
    REJECTED = 2
    EVICTED = 3

cdef struct live_t:             # a request that has not ended
    int64_t handle              # -1: nobody lives here
    int64_t index               # row of the table
    int32_t parked              # the class that it waits in; -1 while it does not
    int32_t seq                 # in the engine; -1: not yet
    int32_t next_free


def takes_rows(core):
    """Whether a run with this core needs nothing that rows cannot say."""
    return isinstance(core, Scheduler) and (<Scheduler>core).takes_rows()


@cython.final
@cython.auto_pickle(False)
cdef class RowLoop:
    """One run; see _loop.Loop. arrivals: an OpenRows, or what a Loop takes. names: of the classes of the profile."""
    cdef readonly Scheduler core
    cdef readonly Fleet fleet
    cdef readonly RequestTable table
    cdef readonly dict contended        # see ReplayResult
    cdef readonly int64_t events, steps, ignored, start_ns, now_ns
    cdef object arrivals, follow, draw, sessions
    cdef OpenRows opened                # the arrivals, if they are that
    cdef bint tell_output
    cdef rows_t rows                    # the next batch
    cdef live_t *lives
    cdef int32_t n_lives, lives_room, free_life
    cdef list waiting_rows              # by place: the PackedRow, until it is dispatched
    cdef int64_t *answers               # handles of evicted requests, which the next batch cancels
    cdef int32_t n_answers, answers_room
    cdef dict names                     # of classes -> their number for the core
    cdef int32_t unknown                # that of all others
    cdef list waiting                   # per class, how many are parked
    cdef int64_t n_parked

    def __cinit__(self, Scheduler core not None, Fleet fleet not None, RequestTable table not None, arrivals, *, draw,
                  sessions, bint tell_output, int classes, names):
        cdef str other = "".join(["?", *names])     # longer than any of them
        self.core, self.fleet, self.table, self.arrivals = core, fleet, table, arrivals
        if isinstance(arrivals, OpenRows):
            self.opened, self.follow = arrivals, None
        else:
            self.follow = arrivals.follow
        self.draw, self.sessions, self.tell_output = draw, sessions, tell_output
        self.contended, self.waiting_rows, self.waiting = {}, [], [0] * classes
        self.free_life = -1
        self.names = {name: number + 1 for number, name in enumerate(names)}
        self.unknown = <int32_t>len(self.names) + 1
        core.learn_names((*self.names, other))

    def __dealloc__(self):
        free(self.rows.events)
        free(self.rows.hashes)
        free(self.rows.done)
        free(self.lives)
        free(self.answers)

    @property
    def unended(self):
        """Ids of the requests that have not ended."""
        cdef int32_t place
        cells = []
        for place in range(self.n_lives):
            if self.lives[place].handle >= 0:
                row = self.table.cells(self.lives[place].index)
                cells.append(f"r{row[FILE_INDEX]}-{row[ROW]}")
        return cells

    def step(self, list batch not None):
        """Step the core through a batch of events that lead to nothing; count it."""
        if self.core.step_many(batch):
            raise AssertionError("nothing is asked for yet")
        self.events += len(batch)
        self.steps += 1

    def run(self, progress):
        """Step until nothing is left to happen."""
        cdef int64_t engine_ns, timer_ns, now_ns, arrival_ns = self._arrival_ns()
        self.start_ns = 0 if arrival_ns == NEVER_NS else arrival_ns
        while True:
            engine_ns = min(<int64_t>NEVER_NS, self.fleet.w[self.fleet.order[0]].next_ns)
            timer_ns = min(<int64_t>NEVER_NS, self.core.due_ns())
            now_ns = min(arrival_ns, engine_ns, timer_ns)
            self.rows.n = self.rows.n_hashes = 0
            if self.n_answers:
                now_ns = self.now_ns
                self._answer(now_ns)
            if now_ns == NEVER_NS:
                return
            if engine_ns == now_ns:
                tell_rows(self.fleet, now_ns, &self.rows)
                self._collect(now_ns)
                arrival_ns = self._arrival_ns()
            while arrival_ns == now_ns:
                self._arrive(now_ns)
                arrival_ns = self._arrival_ns()
            if self.rows.n == 0:
                if timer_ns != now_ns:
                    continue  # the engine moved on without a fact
                add_row(&self.rows, EVENT_TIMER, now_ns)
            self.now_ns = now_ns
            self._step(now_ns)
            arrival_ns = self._arrival_ns()
            if self.steps % PROGRESS_STEPS == 0:
                self._pause()
                if progress is not None:
                    progress(self.table.n, now_ns)

    cdef int _pause(self) except -1:
        """Nothing here is interpreted, so signals and other threads have to be given their turn."""
        PyErr_CheckSignals()
        with nogil:
            pass
        return 0

    cdef inline int64_t _arrival_ns(self) except -1:
        return self.arrivals.next_ns if self.opened is None else self.opened.next_ns

    cdef int _answer(self, int64_t now_ns) except -1:
        """Tell the core that evicted requests end here."""
        cdef int32_t i
        for i in range(self.n_answers):
            add_row(&self.rows, EVENT_CANCELLED, now_ns).request = self.answers[i]
        self.n_answers = 0
        return 0

    cdef int _arrive(self, int64_t now_ns) except -1:
        cdef PackedRow row = self._taken(now_ns)
        cdef event_record_t *event = add_row(&self.rows, EVENT_ARRIVED, now_ns)
        cdef str policy_class = row.policy_class
        cdef live_t *live
        cdef int64_t index
        if policy_class is None and self.draw is not None:
            policy_class = self.draw(row.file_index, row.row)
        index = self.table.append(row.file_index, row.row, now_ns, row.prompt_tokens, row.output_tokens)
        if row.session_id is not None:
            self.table.cells(index)[SESSION] = self.sessions.told(row.file_index, row.session_id)
        live = self._live(index, row)
        event.request, event.prompt_tokens = live.handle, row.prompt_tokens
        event.strict_priority, event.priority_jump = row.strict_priority, row.priority
        if policy_class is not None:
            event.policy_class = self.names.get(policy_class, self.unknown)
        if self.tell_output:
            event.expected_output_tokens = row.output_tokens
        if row.n_names:
            add_hashes(&self.rows, event, row.names, row.n_names)
        return 0

    cdef PackedRow _taken(self, int64_t now_ns):
        """The row that is due."""
        cdef PackedRow row
        if self.opened is not None:
            return self.opened.take_row()
        given = self.arrivals.take()
        row = packed(given)
        if row is None:
            # The core says of an event what is wrong.
            self.core.step_many([RequestArrived(now_ns, Request(
                f"r{given.file_index}-{given.row}", given.prompt_tokens, given.policy_class, given.strict_priority,
                given.priority, block_hashes=given.block_hashes))])
            raise AssertionError(f"{given!r} is no row")
        return row

    cdef live_t *_live(self, int64_t index, PackedRow row) except NULL:
        """A place for a request that has just arrived. Valid until the next one."""
        cdef int32_t place = self.free_life
        cdef live_t *live
        if place >= 0:
            self.free_life = self.lives[place].next_free
            self.waiting_rows[place] = row
        else:
            place = self.n_lives
            if place == PLACES_MAX:
                raise MemoryError(f"more than {PLACES_MAX} requests at a time")
            self.lives = <live_t *>room(self.lives, place, &self.lives_room, sizeof(live_t))
            self.n_lives += 1
            self.waiting_rows.append(row)
        live = &self.lives[place]
        live.handle, live.index, live.parked, live.seq = index * PLACES_MAX + place, index, -1, -1
        return live

    cdef live_t *_of(self, int64_t handle) noexcept:
        """The request of a handle; NULL: it has ended."""
        cdef live_t *live = &self.lives[handle % PLACES_MAX]
        return live if live.handle == handle else NULL

    cdef int _close(self, live_t *live, int64_t now_ns) except -1:
        """A request has ended."""
        cdef int64_t *cells = self.table.cells(live.index)
        cdef int32_t place = <int32_t>(live.handle % PLACES_MAX)
        if self.follow is not None:
            self.follow(cells[FILE_INDEX], cells[ROW], cells[OUTCOME] == COMPLETED, now_ns)
        self.table.seal(live.index)
        self.waiting_rows[place] = None
        live.handle, live.next_free = -1, self.free_life
        self.free_life = place
        return 0

    cdef int _collect(self, int64_t now_ns) except -1:
        """Note the times of requests that the engine has finished."""
        cdef int32_t i, finished = self.rows.n_done
        cdef int64_t *cells
        cdef done_t *done
        cdef live_t *live
        self.rows.n_done = 0
        for i in range(finished):
            done = &self.rows.done[i]
            live = self._of(done.handle)
            cells = self.table.cells(live.index)
            cells[OUTCOME] = COMPLETED
            cells[FIRST_TOKEN_NS], cells[FINISH_NS] = done.first_ns, now_ns
            cells[ENGINE_CACHED_TOKENS], cells[PREEMPTIONS] = done.cached, done.preemptions
            self._close(live, now_ns)
        if finished and self.opened is None:
            self.arrivals.ended(finished, now_ns)
        return 0

    cdef int _step(self, int64_t now_ns) except -1:
        """Step the core through the batch, and carry out its actions, in order."""
        cdef const action_record_t *actions = NULL
        cdef int64_t i, count = self.core.play_rows(
            self.rows.events, self.rows.n, self.rows.hashes, self.rows.n_hashes, &actions)
        self.events += self.rows.n
        self.steps += 1
        for i in range(count):
            if actions[i].kind == ACTION_DISPATCH:
                self._dispatch(&actions[i], now_ns)
            elif actions[i].kind == ACTION_PARK:
                self._park(&actions[i])
            elif actions[i].kind == ACTION_REJECT:
                self._reject(&actions[i], now_ns)
            elif actions[i].kind == ACTION_EVICT:
                self._evict(&actions[i], now_ns)
            else:
                self.ignored += 1
        return 0

    cdef int _dispatch(self, const action_record_t *action, int64_t now_ns) except -1:
        cdef live_t *live = self._of(action.request)
        cdef int64_t *cells = self.table.cells(live.index)
        cdef PackedRow row = self.waiting_rows[action.request % PLACES_MAX]
        cdef seq_t *q
        cells[CLASS_INDEX], cells[WORKER], cells[WAIT_NS] = action.class_index, action.worker_id, action.wait_ns
        cells[CACHED_TOKENS] = action.cached_tokens
        if row is None:
            raise AssertionError(f"r{cells[FILE_INDEX]}-{cells[ROW]} is dispatched a second time")
        if self.n_parked:
            self._contend(action, row.prompt_tokens)
            self._unpark(live)
        self.waiting_rows[action.request % PLACES_MAX] = None
        live.seq = self.fleet.take(
            None, action.worker_id, action.attempt, row.prompt_tokens, row.output_tokens, row.n_names, now_ns)
        q = &self.fleet.m.table.seqs[live.seq]
        q.handle = action.request
        if q.n_names:
            memcpy(q.names, row.names, q.n_names * 8)
        self.fleet.start(live.seq, now_ns)
        return 0

    cdef int _contend(self, const action_record_t *action, int64_t prompt_tokens) except -1:
        """Count tokens dispatched while several classes wait."""
        cdef object waiting = 0
        for index, requests in enumerate(self.waiting):
            if requests:
                waiting |= 1 << index
        if waiting & (waiting - 1) and waiting >> action.class_index & 1:
            tokens = self.contended.setdefault(waiting, [0] * len(self.waiting))
            tokens[action.class_index] += prompt_tokens - action.cached_tokens
        return 0

    cdef int _park(self, const action_record_t *action) except -1:
        cdef live_t *live = self._of(action.request)
        self._unpark(live)
        if action.reason == DEFERRED:
            return 0
        live.parked = action.class_index
        self.waiting[action.class_index] += 1
        self.n_parked += 1
        return 0

    cdef int _unpark(self, live_t *live) except -1:
        """The request waits no more, if it did."""
        if live.parked >= 0:
            self.waiting[live.parked] -= 1
            self.n_parked -= 1
            live.parked = -1
        return 0

    cdef int _reject(self, const action_record_t *action, int64_t now_ns) except -1:
        cdef live_t *live = self._of(action.request)
        cdef int64_t *cells = self.table.cells(live.index)
        self._unpark(live)
        if action.class_index >= 0:
            cells[CLASS_INDEX] = action.class_index
        cells[REASON] = action.reason
        return self._end(live, REJECTED, now_ns)

    cdef int _evict(self, const action_record_t *action, int64_t now_ns) except -1:
        """The booking is gone: stop the engine, and tell the core that the request ends here."""
        cdef live_t *live = self._of(action.request)
        if live == NULL:
            return 0  # it finished at this very instant, in the same batch
        self.fleet.stop(live.seq, now_ns)
        self.answers = <int64_t *>room(self.answers, self.n_answers, &self.answers_room, sizeof(int64_t))
        self.answers[self.n_answers] = action.request
        self.n_answers += 1
        return self._end(live, EVICTED, now_ns)

    cdef int _end(self, live_t *live, int outcome, int64_t now_ns) except -1:
        self.table.cells(live.index)[OUTCOME] = outcome
        self._close(live, now_ns)
        if self.opened is None:
            self.arrivals.ended(1, now_ns)
        return 0
