"""Scheduler: the decision, `step(event) -> actions` (DESIGN 3). The only file that knows all the parts.

Owns the order in which things happen inside a step, the last time seen and the policy in force. All else has an owner
of its own: live requests (_requests), what waits (_backlog, _drr, _lanes), workers with their load and caches (_fleet),
eligibility and choice (_placement), the way to a booking (_dispatch), what becomes of a request (_lifecycle), admission
policies (_admission), facts about workers (_facts), what can be read (_inspect, _digest), snapshots (_snapshot,
_restore).

A step: accept the whole batch (no writes) -> per event: advance time, apply the fact, tell the admission policies ->
settle: pop, place, repeat -> Parks.

Never here: I/O, clocks, threads, logging, and what belongs to one part alone.

Invariants: after a step no ready head is dispatchable (work conservation); a request ends exactly once; nothing
raises after accept, and if something does, the scheduler is poisoned: every later step raises.
"""
cimport cython
from libc.math cimport floor
from kvcore._accept cimport accept
from kvcore._admission cimport ENTRY_DEFER, ENTRY_ENDED, Admission, entry_t
from kvcore._backlog cimport Backlog
from kvcore._digest cimport Digester
from kvcore._dispatch cimport Dispatcher
from kvcore._drr cimport LIMIT_NONE, PolicyQueue, limit_t
from kvcore._endings cimport Endings
from kvcore._explain cimport Explainer
from kvcore._facts cimport WorkerFacts
from kvcore._fleet cimport Fleet
from kvcore._forecast cimport Forecast
from kvcore._inspect cimport Inspector
from kvcore._lifecycle cimport Lifecycle
from kvcore._placement cimport Placement, runs_now
from kvcore._policies cimport Policies
from kvcore._reload cimport Reload, threshold_pairs
from kvcore._requests cimport STATE_DEFERRED, STATE_REFRESHING, RequestTable
from kvcore._restore cimport DAMAGE, SnapshotReader
from kvcore._snapshot cimport SnapshotWriter
from kvcore._tables cimport Tables
from kvcore._types cimport (
    DEBUG_CHECKS, FRACTION_ONE, NO_SLOT, NS_END, int32_t, int64_t, ns_t, slot_t)
from kvcore.actions cimport make_reject
from kvcore.events cimport (
    AdmissionReleased, BlocksRemoved, BlocksStored, ContextAdvanced, DispatchAccepted, DispatchFailed, Drained, Event,
    OutputBlockAdded, OverlapRefreshed, PolicyReplaced, PrefillCompleted, RequestArrived, RequestCancelled,
    RequestFinished, TimerFired)
from kvcore.request cimport Request

from dataclasses import replace

from kvcore._tables import LOAD_DTYPE, POTENTIAL_DTYPE
from kvcore.actions import RejectReason
from kvcore.config import SchedulerConfig
from kvcore.errors import InvalidSnapshot
from kvcore.events import Outcome

__all__ = ["LOAD_DTYPE", "POTENTIAL_DTYPE", "Scheduler"]

cdef object COMPLETED = Outcome.COMPLETED
cdef tuple NOTHING = ()


@cython.final
cdef class Scheduler:
    """The scheduler core: a deterministic state machine without I/O.

    Give it facts with `step`, carry out the actions that it returns, step `TimerFired` at `next_deadline_ns`.
    One owner at a time; re-entry raises RuntimeError.
    """

    cdef readonly object config            # SchedulerConfig
    cdef readonly object profile           # PolicyProfile in force
    cdef int64_t block_size
    cdef RequestTable requests
    cdef Fleet fleet
    cdef Placement placement
    cdef Backlog backlog
    cdef PolicyQueue queue                 # the backlog's
    cdef Inspector inspector
    cdef Digester digester
    cdef Policies policies
    cdef Endings endings
    cdef Admission admission
    cdef Dispatcher dispatcher
    cdef Lifecycle lifecycle
    cdef Reload reload
    cdef WorkerFacts facts
    cdef Tables tables
    cdef Forecast forecast
    cdef Explainer explainer
    cdef ns_t now_ns
    cdef list builds                       # fresh admission policies for each PolicyReplaced of the present batch
    cdef int64_t steps                     # counted in debug builds only
    cdef bint stepping
    cdef bint poisoned

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
        self.queue = self.backlog.queue
        self.inspector = Inspector(profile, self.requests, self.queue, self.fleet)
        self.digester = Digester(self.requests, self.queue, self.fleet)
        self.endings = Endings(self.requests, self.fleet, self.inspector, self.policies)
        self.admission = Admission(
            self.requests, self.fleet, self.placement, self.backlog, self.endings, self.policies)
        self.dispatcher = Dispatcher(
            config, self.requests, self.fleet, self.placement, self.backlog, self.endings)
        self.lifecycle = Lifecycle(
            config, self.requests, self.fleet, self.backlog, self.placement, self.inspector, self.endings,
            self.admission, self.dispatcher, self.policies)
        self.reload = Reload(
            self.requests, self.fleet, self.placement, self.backlog, self.inspector, self.admission, self.policies)
        self.facts = WorkerFacts(self.lifecycle)
        self.tables = Tables(self.fleet, self.placement)
        self.forecast = Forecast(
            self.requests, self.backlog, self.placement, self.admission, self.dispatcher, self.tables,
            self.block_size)
        self.explainer = Explainer(
            config, profile, self.requests, self.fleet, self.placement, self.backlog, self.policies, self.dispatcher)

    # The door.

    def step(self, event, /):
        """Apply one fact; returns the actions that follow. Raises InvalidEvent, and then nothing has changed."""
        return self._run((event,))

    def step_many(self, events, /):
        """Apply facts in order, then decide once, at the last one's time (DESIGN 3, item 5). Empty: nothing happens."""
        return self._run(tuple(events))

    @property
    def next_deadline_ns(self):
        """When the core next wants a step if nothing else happens: a time, or None. O(admission policies)."""
        cdef ns_t due_ns = min(self.lifecycle.first_due_ns(), self.fleet.next_due_ns(self.queue.size > 0))
        return None if due_ns >= NS_END else due_ns

    cdef tuple _run(self, tuple events):
        cdef list out
        self._check_owner()
        if not events:
            return NOTHING
        self.stepping = True
        try:
            built = accept(events, self.now_ns, self.block_size, self.policies)
            if built is not None:
                self.builds = built
            self.poisoned = True               # until the batch is through
            out = self.fleet.exchange.out = []
            self.backlog.begin_batch()
            for event in events:
                self._advance((<Event>event).now_ns, out)
                self._apply(<Event>event, out)
                if self.policies.any:
                    self.admission.deliver_all(out)
            self._settle(out)
            self.backlog.park(out)
            if DEBUG_CHECKS:
                self._check_invariants()
            self.poisoned = False
        finally:
            self.stepping = False
        return tuple(out) if out else NOTHING

    cdef int _check_owner(self) except -1:
        if self.stepping:
            raise RuntimeError("called from inside step: one owner at a time")
        if self.poisoned:
            raise RuntimeError("this scheduler has failed before; its state cannot be trusted")
        return 0

    cdef int _apply(self, Event event, list out) except -1:
        cdef object kind = type(event)
        if kind is RequestArrived:
            return self._on_arrived((<RequestArrived>event).request, out)
        if kind is OutputBlockAdded:
            return self._on_output_block(<OutputBlockAdded>event, out)
        if kind is PrefillCompleted:
            return self._on_prefill_completed(<PrefillCompleted>event, out)
        if kind is RequestFinished:
            return self._on_finished(<RequestFinished>event, out)
        if kind is BlocksStored or kind is BlocksRemoved:
            return self.facts.apply(event, out)
        if kind is RequestCancelled:
            return self._on_cancelled(<RequestCancelled>event, out)
        if kind is TimerFired:
            return 0
        if kind is DispatchAccepted:
            return self._on_accepted(<DispatchAccepted>event, out)
        if kind is DispatchFailed:
            return self._on_failed(<DispatchFailed>event, out)
        if kind is ContextAdvanced:
            return self._on_context_advanced(<ContextAdvanced>event, out)
        if kind is AdmissionReleased:
            return self._on_released(<AdmissionReleased>event, out)
        if kind is OverlapRefreshed:
            return self._on_refreshed(<OverlapRefreshed>event, out)
        if kind is PolicyReplaced:
            return self._on_policy_replaced(<PolicyReplaced>event, out)
        if kind is Drained:
            return self.lifecycle.drain((<Drained>event).deadline_ns, out)
        return self.facts.apply(event, out)

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
        self.fleet.advance(now_ns)
        self.now_ns = now_ns
        return 0

    # Requests before they run.

    cdef int _on_arrived(self, Request request, list out) except -1:
        cdef slot_t slot
        cdef int64_t current = 0
        cdef int64_t bound = 0
        cdef limit_t kind = LIMIT_NONE
        cdef entry_t entry
        self.inspector.arrived += 1
        reason = self._refusal(request)
        if reason is not None:
            self.inspector.count_reject(reason, -1)
            out.append(make_reject(request.request_id, reason, -1))
            return 0
        slot = self.requests.open(request, self.now_ns, self.block_size)
        self.backlog.classify(slot, request)
        self.inspector.unknown_names += not self.backlog.knows(request.policy_class)
        if self._is_over_limit(slot, &kind, &current, &bound):
            # What single steps would have run must not be refused because a batch has not decided yet.
            self._settle(out)
        entry = self.admission.arrive(slot, out)
        if entry == ENTRY_ENDED:
            return 0
        if self._is_over_limit(slot, &kind, &current, &bound):
            if entry != ENTRY_DEFER:
                self._settle(out)              # its policy may have moved it to another class
            if self._is_over_limit(slot, &kind, &current, &bound):
                return self.endings.reject(
                    slot, self.backlog.queue_full(slot, request.request_id, kind, current, bound), out)
        return self.backlog.defer(slot) if entry == ENTRY_DEFER else self.backlog.store(slot)

    cdef bint _is_over_limit(self, slot_t slot, limit_t* kind, int64_t* current, int64_t* bound) except -1:
        """Whether a limit of its class refuses a classified request now."""
        kind[0] = LIMIT_NONE
        if self.requests.rows[slot].may_wait:
            kind[0] = self.backlog.limit_hit(slot, current, bound)
        return kind[0] != LIMIT_NONE

    cdef object _refusal(self, Request request):
        """Why an arriving request cannot even wait, or None (DESIGN D6)."""
        if self.requests.find(request.request_id) != NO_SLOT:
            return RejectReason.DUPLICATE_ID
        if self.lifecycle.draining:
            return RejectReason.SHUTTING_DOWN
        if request.deadline_ns is not None and request.deadline_ns <= self.now_ns:
            return RejectReason.DEADLINE_EXPIRED
        return self.placement.refusal(request, self.now_ns)

    cdef int _on_released(self, AdmissionReleased event, list out) except -1:
        cdef slot_t slot = self.requests.find(event.request_id)
        if slot == NO_SLOT or self.requests.rows[slot].state != STATE_DEFERRED:
            return self.lifecycle.ignore(event.request_id, 0, out)
        return self.admission.release(slot, event.placement, True, out)

    cdef int _on_refreshed(self, OverlapRefreshed event, list out) except -1:
        cdef slot_t slot = self.requests.find(event.request_id)
        if slot == NO_SLOT or self.requests.rows[slot].state != STATE_REFRESHING or (
                self.requests.rows[slot].ticket != event.ticket):
            return self.lifecycle.ignore(event.request_id, 0, out)
        return self.dispatcher.answer(slot, event.overlap, out)

    cdef int _on_policy_replaced(self, PolicyReplaced event, list out) except -1:
        cdef list built = self.builds.pop(0)
        profile = self.config.in_force(event.profile)
        return 0 if profile == self.profile else self._adopt(profile, built, out)

    cdef int _adopt(self, object profile, list built, list out) except -1:
        """Another profile is in force; built: fresh admission policies of it."""
        self.reload.replace(self.profile, profile, built, out)
        self.explainer.adopt(profile)
        self.profile = profile
        return 0

    # Requests that run.

    cdef int _on_cancelled(self, RequestCancelled event, list out) except -1:
        cdef slot_t slot = self.requests.find(event.request_id)
        if slot == NO_SLOT:
            return self.lifecycle.ignore(event.request_id, 0, out)
        return self.lifecycle.cancel(slot)

    cdef int _on_accepted(self, DispatchAccepted event, list out) except -1:
        cdef slot_t slot = self.lifecycle.running(event.request_id, event.attempt)
        if slot == NO_SLOT or not self.lifecycle.accept(slot):
            return self.lifecycle.ignore(event.request_id, event.attempt, out)
        return 0

    cdef int _on_failed(self, DispatchFailed event, list out) except -1:
        cdef slot_t slot = self.requests.find_attempt(event.request_id, event.attempt)
        if slot == NO_SLOT:
            return self.lifecycle.ignore(event.request_id, event.attempt, out)
        return self.lifecycle.fail(slot, event.retry, out)

    cdef int _on_prefill_completed(self, PrefillCompleted event, list out) except -1:
        cdef slot_t slot = self.lifecycle.running(event.request_id, event.attempt)
        if slot == NO_SLOT or not self.fleet.ledger.bookings[slot].prefilling:
            return self.lifecycle.ignore(event.request_id, event.attempt, out)
        self.lifecycle.progress(slot)
        self.fleet.complete_prefill(slot)
        return 0

    cdef int _on_output_block(self, OutputBlockAdded event, list out) except -1:
        cdef slot_t slot = self.lifecycle.running(event.request_id, event.attempt)
        cdef int32_t weight = -1
        if slot == NO_SLOT:
            return self.lifecycle.ignore(event.request_id, event.attempt, out)
        if event.decay_fraction is not None:
            weight = <int32_t>floor(<double>event.decay_fraction * FRACTION_ONE + 0.5)
        self.lifecycle.progress(slot)
        self.fleet.ledger.add_output(slot, weight)
        return 0

    cdef int _on_context_advanced(self, ContextAdvanced event, list out) except -1:
        cdef slot_t slot = self.lifecycle.running(event.request_id, event.attempt)
        if slot == NO_SLOT:
            return self.lifecycle.ignore(event.request_id, event.attempt, out)
        self.lifecycle.progress(slot)
        return self.admission.advance_context(slot, event.context_tokens)

    cdef int _on_finished(self, RequestFinished event, list out) except -1:
        cdef slot_t slot = self.requests.find_attempt(event.request_id, event.attempt)
        if slot == NO_SLOT:
            return self.lifecycle.ignore(event.request_id, event.attempt, out)
        return self.lifecycle.finish(slot, event.outcome is COMPLETED, event.context_tokens)

    # Decisions.

    cdef int _settle(self, list out) except -1:
        """Pop, place, repeat, until no head may run; then refuse the first that may not wait, and look again.

        One at a time, by seq: who stands behind it may run once it is gone, as if it had arrived in a step of its own.
        """
        cdef slot_t slot
        self.backlog.recheck()
        while True:
            slot = self.queue.pop(runs_now, <void*>self.placement)
            if self.placement.failure is not None:
                raise self.placement.failure
            if slot != NO_SLOT:
                self.dispatcher.place(slot, out)
                if self.fleet.changes:
                    self.backlog.recheck()
                continue
            slot = self.backlog.next_leftover()
            if slot != NO_SLOT:
                self.backlog.withdraw(slot)
                self.endings.reject(slot, self.backlog.would_queue(slot, self.requests.ids.id_of(slot)), out)
            elif not self.policies.any or not self.admission.deliver_all(out):
                return 0

    # Reading. None of it changes the digest.

    def peek(self, Request request not None, /):
        """What would happen to this request if it arrived now: its Dispatch, Park, Reject or RefreshOverlap.

        Raises InvalidEvent as `step` would. Ties are broken with a copy of the generator. Where max_overtake_tokens
        lets an older request go first, the answer is that of one that waits, even if both would run in that step.
        """
        self._check_owner()
        accept((RequestArrived(self.now_ns, request),), self.now_ns, self.block_size, self.policies)
        reason = self._refusal(request)
        if reason is not None:
            return make_reject(request.request_id, reason, -1)
        return self.forecast.answer(request, self.now_ns)

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
        return self.tables.loads()

    def potential_loads(self, Request request not None, /):
        """What every rank would look like with this request: array of POTENTIAL_DTYPE, shape (ranks,). O(ranks).

        Raises InvalidEvent as `step` would. Books nothing: what it says holds until the next step.
        """
        self._check_owner()
        accept((RequestArrived(self.now_ns, request),), self.now_ns, self.block_size, self.policies)
        return self.forecast.potential_loads(request, self.now_ns)

    def replica_facts(self):
        """All own bookings, for PeerSynced: a ReplicaFacts. Raises RuntimeError without SchedulerConfig.replica."""
        return self.fleet.exchange.facts(self.dispatcher.next_attempt)

    def stats(self):
        """Counters and gauges: a SchedulerStats. O(classes)."""
        return self.inspector.stats()

    def digest(self):
        """128 bits over the canonical state, as 32 hexadecimal digits (DESIGN 6). O(live requests, ranks, classes)."""
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
        return SnapshotWriter(self.lifecycle).write(self.config, self.profile, self.now_ns, self.digest())

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
        reader.fill(self.lifecycle)
        self.now_ns = self.fleet.ledger.now_ns
        return 0

    def audit(self):
        """Recompute every total from live requests; returns the differences as text: none, ever. O(live requests)."""
        return self.inspector.audit()
