"""Scheduler: the decision, `step(event) -> actions` (DESIGN 3). The only file that knows all the parts.

Owns the order in which things happen inside a step, and the policy in force; what time it is, the ledger knows. All
else has an owner of its own: live requests (_requests), what waits (_backlog, _drr, _lanes), workers with their load
and caches (_fleet), eligibility and choice (_placement), the way in (_arrivals), decisions (_settle), the way to a
booking (_dispatch), what becomes of a request (_lifecycle), admission policies (_admission), facts about requests and
workers (_request_facts, _worker_facts), whole arrays of events (_batch), what can be read (_inspect, _digest),
snapshots (_snapshot, _restore).

A step: accept the whole batch (no writes) -> per event: advance time, apply the fact, tell the admission policies ->
settle: pop, place, repeat -> Parks.

Never here: I/O, clocks, threads, logging, and what belongs to one part alone.

Invariants: after a step no ready head is dispatchable (work conservation); a request ends exactly once; nothing
raises after accept, and if something does, the scheduler is poisoned: every later step raises.
"""
cimport cython
from kvcore._accept cimport accept, accept_one, accept_request
from kvcore._placement cimport runs_now
from kvcore._reload cimport threshold_pairs
from kvcore._restore cimport DAMAGE
from kvcore._snapshot cimport SnapshotWriter
from kvcore._types cimport DEBUG_CHECKS, NS_END
from kvcore.actions cimport make_reject
from kvcore.events cimport BlocksRemoved, BlocksStored, Drained, RequestArrived, TimerFired
from kvcore.records cimport check, event_of

from dataclasses import replace

import kvcore._constructor  # no-cython-lint; imported for what it does to calls of Request

from kvcore._tables import LOAD_DTYPE, POTENTIAL_DTYPE
from kvcore.config import SchedulerConfig
from kvcore.errors import InvalidSnapshot

__all__ = ["LOAD_DTYPE", "POTENTIAL_DTYPE", "Scheduler"]

cdef tuple NOTHING = ()


cdef class Scheduler:
    """The scheduler core: a deterministic state machine without I/O.

    Give it facts with `step`, carry out the actions that it returns, step `TimerFired` at `next_deadline_ns`.
    One owner at a time; re-entry raises RuntimeError.
    """

    def __cinit__(self, config=None, admission=None):
        """A scheduler without workers, at time 0. config None: every default of SchedulerConfig.

        admission: types of admission policies, each with a function from parameters to a policy (kvcore.admission);
        they are looked up before built-in and installed ones. Raises InvalidPolicy for one that cannot be built.
        """
        config = SchedulerConfig() if config is None else config
        if not isinstance(config, SchedulerConfig):
            raise TypeError(f"config must be a SchedulerConfig, not {type(config).__name__}")
        profile = config.effective_profile()
        self.config = config
        self.profile = profile
        self.block_size = config.block_size
        self.builds = []
        self.policies = Policies(admission)
        self.policies.adopt(None, profile, self.policies.build(profile), 0)
        distinct, pairs = threshold_pairs(profile)
        self.requests = RequestTable(config.booking_ttl_ns is not None)
        self.fleet = Fleet(config, distinct, self.requests)
        self.placement = Placement(self.fleet, self.requests, config, pairs)
        self.backlog = Backlog(config, self.requests, self.fleet, self.placement)
        self.inspector = Inspector(profile, self.requests, self.backlog.queue, self.fleet)
        self.digester = Digester(self.requests, self.backlog.queue, self.fleet)
        self.endings = Endings(self.requests, self.fleet, self.inspector, self.policies)
        self.admission = Admission(
            self.requests, self.fleet, self.placement, self.backlog, self.endings, self.policies)
        self.outbox = Outbox(self.requests, self.fleet.workers)
        self.fleet.exchange.out = self.outbox.actions
        self.dispatcher = Dispatcher(
            config, self.requests, self.fleet, self.placement, self.backlog, self.endings, self.outbox)
        self.lifecycle = Lifecycle(
            config, self.requests, self.fleet, self.backlog, self.placement, self.inspector, self.endings,
            self.admission, self.dispatcher, self.policies)
        self.settler = Settler(
            self.requests, self.fleet, self.placement, self.backlog, self.dispatcher, self.endings, self.admission,
            self.policies)
        self.arrivals = Arrivals(self.lifecycle, self.settler, self.block_size)
        self.batch = Batch(self.lifecycle, self.arrivals, self.settler, self.outbox)
        self.reload = Reload(
            self.requests, self.fleet, self.placement, self.backlog, self.inspector, self.admission, self.policies)
        self.request_facts = RequestFacts(self.lifecycle)
        self.worker_facts = WorkerFacts(self.lifecycle)
        self.tables = Tables(self.fleet, self.placement)
        self.forecast = Forecast(
            self.requests, self.backlog, self.placement, self.admission, self.dispatcher, self.tables,
            self.block_size)
        self.explainer = Explainer(
            config, profile, self.requests, self.fleet, self.placement, self.backlog, self.policies, self.dispatcher)

    # The door.

    @cython.binding(False)                     # a plain built-in method is called faster; its signature is text
    @cython.embedsignature(True)
    @cython.embedsignature.format("clinic")
    def step(self, event, /):
        """Apply one fact; returns the actions that follow. Raises InvalidEvent, and then nothing has changed."""
        return self.play(event)

    def step_many(self, events, /):
        """Apply facts in order, then decide once, at the last one's time (DESIGN 3, item 5). Empty: nothing happens."""
        cdef list out
        events = tuple(events)
        self._check_owner()
        if not events:
            return NOTHING
        self.stepping = True
        try:
            built = accept(events, self.fleet.ledger.now_ns, self.block_size, self.policies)
            self.arrivals.alone = len(events) == 1
            out = self._begin(built)
            for event in events:
                self._apply(<Event>event, out)
            self._end(out)
            return self.outbox.taken()
        finally:
            self.stepping = False

    def step_array(self, records, hashes=None, names=()):
        """Step every row of an array in order, each by itself: the same actions and state as `step` for each.

        records: array of EVENT_DTYPE, shape (n,). hashes: array of uint64 that rows point into. names: of policy
        classes, which rows count from 1; each that has ever been given is kept. See kvcore.records. Returns an array of
        ACTION_DTYPE, in order of emission.

        The interpreter lock is released; meanwhile no other thread can use this scheduler, nor may it change the
        arrays, which have been checked. Raises InvalidEvent as `step` would, with the index of the row, and then no row
        has been applied; ValueError where a live request has an id that no row can hold, or SchedulerConfig.replica is
        set.
        """
        cdef list out
        self._check_owner()
        if self.fleet.exchange.speaks:
            raise ValueError("step_array: no row can hold what other replicas are told")
        if not self.requests.ids.all_numbers():
            raise ValueError("step_array: a live request has an id that is no handle")
        self.stepping = True
        try:
            self.batch.begin(records, hashes, names)
            check(&self.batch.given, self.fleet.ledger.now_ns, self.block_size)
            self.outbox.begin_records(len(records))
            out = self.outbox.actions
            self.poisoned = True               # until the batch is through
            self.sealed = True
            self.arrivals.alone = True
            with nogil:
                self.batch.play(out, _aside, <void*>self)
            self.poisoned = False
            return self.outbox.table()
        finally:
            self.sealed = False
            self.stepping = False
            self.batch.end()

    cdef tuple play(self, object event):
        """`step` for C."""
        cdef list out
        self._check_owner()
        self.stepping = True
        try:
            built = accept_one(event, 0, self.fleet.ledger.now_ns, self.block_size, self.policies)
            self.arrivals.alone = True
            out = self._begin(None if built is None else [built])
            self._apply(<Event>event, out)
            self._end(out)
            return self.outbox.taken()
        finally:
            self.stepping = False

    cdef int64_t play_rows(
            self, const event_record_t* events, int64_t count, const uint64_t* hashes, int64_t hash_count,
            const action_record_t** actions) except -1:
        cdef list out
        self._check_owner()
        self.stepping = True
        try:
            self.batch.take(events, count, hashes, hash_count)
            check(&self.batch.given, self.fleet.ledger.now_ns, self.block_size)
            out = self._begin(None)
            self.outbox.begin_rows()
            self.batch.apply_all(out, _aside, <void*>self)
            self._end(out)
            return self.outbox.rows(actions)
        finally:
            self.stepping = False

    cdef int learn_names(self, tuple names) except -1:
        return self.batch.learn(names)

    cdef bint takes_rows(self) except -1:
        """Whether nothing of what is configured needs more than rows can say."""
        return not self.policies.any and not self.fleet.exchange.speaks and self.requests.ids.all_numbers()

    cdef ns_t due_ns(self) except -1:
        self._check_reader()
        return min(self.lifecycle.first_due_ns(), self.fleet.next_due_ns(self.backlog.queue.size > 0))

    @property
    def next_deadline_ns(self):
        """When the core next wants a step if nothing else happens: a time, or None. O(admission policies)."""
        cdef ns_t due_ns = self.due_ns()
        return None if due_ns >= NS_END else due_ns

    cdef list _begin(self, list built):
        """A step of accepted events begins. Returns the list of its actions."""
        if built is not None:
            self.builds = built
        self.poisoned = True                   # until the batch is through
        self.backlog.begin_batch()
        self.outbox.begin()
        return self.outbox.actions

    cdef int _end(self, list out) except -1:
        """All facts of the step have been applied: decide."""
        self.settler.settle(out)
        self.backlog.park(self.outbox)
        if DEBUG_CHECKS:
            self._check_invariants()
        self.poisoned = False
        return 0

    cdef int _check_owner(self) except -1:
        if self.stepping:
            raise RuntimeError("called from inside step: one owner at a time")
        if self.poisoned:
            raise RuntimeError("this scheduler has failed before; its state cannot be trusted")
        return 0

    cdef int _check_reader(self) except -1:
        if self.sealed:
            raise RuntimeError("called while step_array runs: one owner at a time")
        return 0

    cdef int _apply(self, Event event, list out) except -1:
        """Let time pass until the event, apply it, tell the admission policies."""
        self._advance(event.now_ns, out)
        self._route(event, out)
        if self.policies.any:
            self.admission.deliver_all(out)
        return 0

    cdef int _route(self, Event event, list out) except -1:
        """Carry an event to who acts on it, the frequent ones first."""
        cdef object kind = type(event)
        if kind is RequestArrived:
            return self.arrivals.arrive((<RequestArrived>event).request, out)
        if kind is OutputBlockAdded:
            return self.request_facts.output_block_added(<OutputBlockAdded>event, out)
        if kind is PrefillCompleted:
            return self.request_facts.prefill_completed(<PrefillCompleted>event, out)
        if kind is RequestFinished:
            return self.request_facts.finished(<RequestFinished>event, out)
        if kind is BlocksStored or kind is BlocksRemoved:
            return self.worker_facts.apply(event, out)
        if kind is TimerFired or self.request_facts.apply(event, out):
            return 0
        if kind is PolicyReplaced:
            return self._replace_policy(<PolicyReplaced>event, out)
        if kind is Drained:
            return self.lifecycle.drain((<Drained>event).deadline_ns, out)
        return self.worker_facts.apply(event, out)

    cdef int _check_invariants(self) except -1:
        """Debug builds: totals, heaps and work conservation after every step; every 1,024th where much is live."""
        self.steps += 1
        if self.requests.ids.count() > 64 and self.steps & 1023:
            return 0
        faults = self.inspector.audit() + self.backlog.faults(runs_now, <void*>self.placement)
        if faults:
            raise AssertionError("; ".join(faults))
        return 0

    # Time.

    cdef int _advance(self, ns_t now_ns, list out) except -1:
        """Apply everything due at or before now_ns, in the order (due time, kind, seq or attempt); ranks first."""
        cdef ns_t due_ns = self.lifecycle.first_due_ns()
        while due_ns <= now_ns:
            self.fleet.advance(due_ns)
            self.lifecycle.apply_due(due_ns, now_ns, out)
            if self.policies.any:
                self.admission.deliver(out)
            due_ns = self.lifecycle.first_due_ns()
        return self.fleet.advance(now_ns)

    # The policy in force.

    cdef int _replace_policy(self, PolicyReplaced event, list out) except -1:
        cdef list built = self.builds.pop(0)
        profile = self.config.in_force(event.profile)
        return 0 if profile == self.profile else self._adopt(profile, built, out)

    cdef int _adopt(self, object profile, list built, list out) except -1:
        """Another profile is in force; built: fresh admission policies of it."""
        self.reload.replace(self.profile, profile, built, out)
        self.explainer.adopt(profile)
        self.profile = profile
        return 0

    # Reading. None of it changes the digest.

    def peek(self, Request request not None, /):
        """What would happen to this request if it arrived now: its Dispatch, Park, Reject or RefreshOverlap.

        Raises InvalidEvent as `step` would. Ties are broken with a copy of the generator. Where max_overtake_tokens
        lets an older request go first, the answer is that of one that waits, even if both would run in that step.
        """
        self._check_owner()
        accept_request(request, self.block_size)
        reason = self.arrivals.refusal(request)
        if reason is not None:
            return make_reject(request.request_id, reason, -1)
        return self.forecast.answer(request, self.fleet.ledger.now_ns)

    def explain(self, str request_id not None, /):
        """Where a request stands and why: an Explanation. O(ranks that it may use)."""
        self._check_owner()
        return self.explainer.explain(request_id)

    def queue_dump(self, int64_t limit, /):
        """The first `limit` requests by seq that do not run yet, in whatever state: tuple of QueueEntry."""
        self._check_owner()
        return self.explainer.queue_dump(limit)

    def decisions(self):
        """The last SchedulerConfig.decisions_kept dispatches, and why there, newest last: tuple of Decision."""
        self._check_owner()
        return self.explainer.decisions()

    def loads(self):
        """Load of every rank in canonical order: numpy structured array of LOAD_DTYPE, shape (ranks,). O(ranks)."""
        self._check_reader()
        return self.tables.loads()

    def potential_loads(self, Request request not None, /):
        """What every rank would look like with this request: array of POTENTIAL_DTYPE, shape (ranks,). O(ranks).

        Raises InvalidEvent as `step` would. Books nothing: what it says holds until the next step.
        """
        self._check_owner()
        accept_request(request, self.block_size)
        return self.forecast.potential_loads(request, self.fleet.ledger.now_ns)

    def replica_facts(self):
        """All own bookings, for PeerSynced: a ReplicaFacts. Raises RuntimeError without SchedulerConfig.replica."""
        self._check_reader()
        return self.fleet.exchange.facts(self.dispatcher.next_attempt)

    def stats(self):
        """Counters and gauges: a SchedulerStats. O(classes)."""
        self._check_reader()
        return self.inspector.stats()

    def digest(self):
        """128 bits over the canonical state, as 32 hexadecimal digits (DESIGN 6). O(live requests, ranks, classes)."""
        self._check_reader()
        return self.digester.digest(
            self.profile, (
                self.dispatcher.generator, self.backlog.next_seq, self.dispatcher.next_attempt,
                self.dispatcher.next_ticket, self.poisoned, self.lifecycle.draining, self.lifecycle.drain_ns),
            self.policies.dump() if self.policies.any else None)

    def snapshot(self):
        """The whole state as bytes, from which `restore` makes a scheduler that goes on alike. O(state).

        Canonical: no prompt text, but ids, names and block hashes. NotImplementedError: a policy has no `dump`.
        """
        self._check_owner()
        return SnapshotWriter(self.lifecycle).write(
            self.config, self.profile, self.fleet.ledger.now_ns, self.digest())

    @staticmethod
    def restore(data, *, admission=None, replica_generation=None, decisions_kept=None):
        """A scheduler that goes on where the one was that gave this snapshot. admission: as for a new one. O(state).

        replica_generation: a higher one for its new life, where other replicas listen; None: the old one.
        decisions_kept: instead of the configuration's; it decides nothing, and no earlier decision is in a snapshot.
        Raises InvalidSnapshot for any bytes that `snapshot` has not given, and for another version's.
        """
        cdef Scheduler scheduler
        cdef SnapshotReader reader
        data = bytes(memoryview(data))
        try:
            reader = SnapshotReader(data)
            kept = reader.config.decisions_kept if decisions_kept is None else decisions_kept
            scheduler = Scheduler(replace(reader.config, decisions_kept=kept), admission)
            scheduler._resume(reader)
            scheduler.config = reader.config
            reader.check(scheduler.audit(), scheduler.snapshot())
            scheduler.config = replace(reader.config, decisions_kept=kept)
        except DAMAGE as error:
            raise InvalidSnapshot(str(error) or type(error).__name__) from error
        if replica_generation is not None:
            scheduler.config = replace(scheduler.config, replica_generation=replica_generation)
            scheduler.fleet.exchange.generation = replica_generation
        return scheduler

    cdef int _resume(self, SnapshotReader reader) except -1:
        """Take over the state of another scheduler with this configuration; this one is new."""
        if reader.profile != self.profile:
            self._adopt(reader.profile, self.policies.build(reader.profile), [])
        return reader.fill(self.lifecycle)

    def audit(self):
        """Recompute every total from live requests; returns the differences as text: none, ever. O(live requests)."""
        self._check_reader()
        return self.inspector.audit()


cdef int _aside(void* owner, int64_t i) except -1 with gil:
    """Apply a row of the present array as an event object; -1: check invariants."""
    cdef Scheduler scheduler = <Scheduler>owner
    cdef Batch batch = scheduler.batch
    if i < 0:
        return scheduler._check_invariants()
    return scheduler._apply(
        event_of(&batch.given.events[i], batch.given.hashes, batch.names), scheduler.outbox.actions)
