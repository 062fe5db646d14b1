"""The oracle: the whole scheduler once more in plain, slow, obvious Python, written from the design, not from the core.

It owns the order of things inside a step: advance time, apply, settle, park; and how facts change what it remembers.
Its parts: time in oracle_time, classes and limits in oracle_limits, who may be used and what it costs in
oracle_capacity. Below them: queues in oracle_queue, load in oracle_ledger, caches in oracle_index, the numbers of a
choice in oracle_cost, refused events in oracle_validate, the rest of what it remembers in oracle_state. It imports
values only, and `Scheduler` never.
"""

from __future__ import annotations

import copy
import pickle
from collections import deque

from oracle_capacity import Decisions, RankName
from oracle_index import RankCache
from oracle_ledger import RankLoad, Report, WyRand, ceil_div, sequence_hashes
from oracle_limits import Limits
from oracle_queue import Entry, PolicyQueue, sort_key
from oracle_state import ClassStats, Live, Mark, Stats, Worker
from oracle_time import Time
from oracle_validate import check_batch

from kvcore.actions import Dispatch, Evict, EvictReason, Ignored, Park, Reject, RejectReason
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    LoadReported,
    Outcome,
    OutputBlockAdded,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    Tier,
    WorkerRemoved,
    WorkerStatusChanged,
    WorkerUpserted,
)
from kvcore.request import Request

R = RejectReason


class Oracle(Time, Limits, Decisions):
    """Same events, same actions as the core; see DESIGN 3 for the contract of `step`."""

    def __init__(self, config: SchedulerConfig | None = None) -> None:
        self.config = config if config is not None else SchedulerConfig()
        self.profile = self.config.effective_profile()
        classes = self.profile.classes
        self.queue = PolicyQueue([item.quantum for item in classes], self.profile.arbitration,
                                 [item.max_overtake_tokens for item in classes])
        self.workers: dict[int, Worker] = {}
        self.loads_by_rank: dict[RankName, RankLoad] = {}
        self.index: dict[RankName, RankCache] = {}
        self.live: dict[str, Live] = {}
        self.generator = WyRand(self.config.seed)
        self.now_ns = 0
        self.next_seq = 0
        self.next_attempt = 1
        self.recent = [deque(maxlen=32) for _ in self.profile.classes]
        self.counts = Stats()
        self.class_counts = [ClassStats(item.name) for item in self.profile.classes]
        self.actions: list = []

    # The door.

    def step(self, event):
        return self.step_many((event,))

    def step_many(self, events):
        check_batch(events, self.now_ns, self.config.block_size)
        if not events:
            return ()
        first_seq = self.next_seq
        for event in events:
            self._advance(event.now_ns)
            self._apply(event)
        self._settle()
        for live in self._waiting():
            if live.seq >= first_seq:
                self.actions.append(Park(live.request.request_id, live.class_index))
        answers, self.actions = tuple(self.actions), []
        return answers

    def peek(self, request: Request):
        """What an arrival of this request at the last seen time would be answered."""
        twin = pickle.loads(pickle.dumps(self))
        answers = twin.step(RequestArrived(self.now_ns, request))
        return next(a for a in answers if a.request_id == request.request_id)

    def _check_request(self, request: Request) -> None:
        check_batch((RequestArrived(self.now_ns, request),), self.now_ns, self.config.block_size)

    def loads(self) -> list[tuple[int, ...]]:
        """By rank: (worker_id, dp_rank, requests, prefill_tokens, active_blocks, held_blocks, state, reported ...).

        Own load now; the last report: prefill_tokens, blocks, requests, -1 where there is none.
        """
        rows = []
        for rank, load in sorted(self.loads_by_rank.items()):
            report = load.report
            told = (-1, -1, -1) if report is None else (report.prefill_tokens, report.blocks, report.requests)
            rows.append((*rank, load.requests, self._own_tokens(rank), load.active_blocks, load.held_blocks,
                         int(self._state(rank)), *told))
        return rows

    def stats(self) -> Stats:
        stats = copy.copy(self.counts)
        stats.rejected = dict(self.counts.rejected)
        stats.live_requests = len(self.live)
        stats.waiting_requests = len(self._waiting())
        stats.running_requests = len([x for x in self.live.values() if x.state == "running"])
        stats.workers = len(self.workers)
        stats.ranks = len(self.loads_by_rank)
        stats.index_blocks = sum(len(names) for cache in self.index.values() for names in cache.told.values())
        stats.over_cap_ranks = len([rank for rank in self.loads_by_rank if self._is_over_cap(rank)])
        stats.classes = tuple(self._class_stats(index) for index in range(len(self.profile.classes)))
        return stats

    def _apply(self, event) -> None:
        match event:
            case RequestArrived():
                self._arrived(event.request)
            case RequestCancelled():
                self._cancelled(event)
            case PrefillCompleted() | OutputBlockAdded():
                self._progressed(event)
            case RequestFinished():
                live = self._holder(event, "running", "evicted")
                if live is not None:
                    self._end(live, event.outcome)
            case WorkerUpserted():
                self._upserted(event)
            case WorkerRemoved():
                if event.worker_id in self.workers:
                    self._remove_ranks(self.workers[event.worker_id].ranks())
                    del self.workers[event.worker_id]
                else:
                    self.counts.stale_events += 1
            case WorkerStatusChanged():
                self._status_changed(event)
            case LoadReported():
                self._load_reported(event)
            case BlocksStored() | BlocksRemoved() | BlocksCleared():
                self._blocks_changed(event)

    # Requests before they run.

    def _arrived(self, request: Request) -> None:
        self.counts.arrived += 1
        reason = self._refusal_at_arrival(request)
        if reason is not None:
            self._reject(request, reason)
            return
        cached = self._snapshot(request)
        class_index = self._class_of(request, cached)
        self.counts.unknown_class_names += not self._knows(request.policy_class)
        if self._over_limit(request, class_index) is not None:
            self._settle()
            over = self._over_limit(request, class_index)
            if over is not None:
                self._reject(request, over[0], class_index, *over[1:])
                return
        self._store(request, class_index, cached, max(1, request.prompt_tokens - cached))

    def _refusal_at_arrival(self, request: Request) -> RejectReason | None:
        if request.request_id in self.live:
            return R.DUPLICATE_ID
        if request.deadline_ns is not None and request.deadline_ns <= self.now_ns:
            return R.DEADLINE_EXPIRED
        pin, allowed = request.pinned, request.allowed_workers
        if pin is not None and allowed is not None and pin.worker_id not in allowed:
            return R.PINNED_WORKER_NOT_ALLOWED
        return self._refusal_of_fleet(request)

    def _store(self, request: Request, class_index: int, cached: int, cost: int) -> None:
        seq = self.next_seq
        self.next_seq += 1
        key = sort_key(self.profile.classes[class_index].queue_policy, request.strict_priority, request.priority_jump,
                       self.now_ns, request.deadline_ns, cost, seq)
        entry = Entry(key, cost, request.pinned)
        live = Live(request, class_index, seq, self.now_ns, cached, entry)
        may_wait = not request.do_not_queue and not self._never_queues(class_index)
        live.look_ns = self._first_look_ns(class_index, may_wait)
        entry.payload = live
        self.live[request.request_id] = live
        self.queue.push(class_index, entry)

    def _cancelled(self, event: RequestCancelled) -> None:
        live = self.live.get(event.request_id)
        if live is None:
            self._ignore(event.request_id, 0)
        elif live.state == "waiting":
            self._unqueue(live)
            self.counts.aborted += 1
        else:
            self._end(live, Outcome.ABORTED)

    # Requests that run.

    def _progressed(self, event) -> None:
        live = self._holder(event, "running")
        if live is None:
            return
        load = self.loads_by_rank[live.rank]
        if isinstance(event, OutputBlockAdded):
            load.add_output(live.booking, event.decay_fraction)
        elif live.booking.prefill_done:
            self._ignore(event.request_id, event.attempt)
            return
        else:
            load.complete_prefill(live.booking, self.now_ns, self._rate(live.rank))
        live.progress_ns = self.now_ns

    def _holder(self, event, *states: str) -> Live | None:
        """The request that this fact is about, if it is in one of these states under exactly this attempt."""
        live = self.live.get(event.request_id)
        if live is not None and live.state in states and live.attempt == event.attempt:
            return live
        self._ignore(event.request_id, event.attempt)
        return None

    def _evict(self, live: Live, reason: EvictReason) -> None:
        """The booking is gone; the request stays until the driver answers or a second booking_ttl_ns has passed."""
        self._release(live, completed=False)
        live.state, live.progress_ns = "evicted", self.now_ns
        self.counts.evicted += 1
        self.actions.append(Evict(live.request.request_id, live.attempt, live.rank[0], reason))

    def _release(self, live: Live, completed: bool) -> None:
        self.loads_by_rank[live.rank].release(live.booking, self.now_ns, self._rate(live.rank), completed)
        live.booking = None

    def _end(self, live: Live, outcome: Outcome) -> None:
        if live.state == "running":
            self._release(live, outcome == Outcome.COMPLETED)
            self._use_blocks(live)
        del self.live[live.request.request_id]
        if outcome == Outcome.COMPLETED:
            self.counts.completed += 1
        else:
            self.counts.aborted += 1

    # Workers, and what is told of them.

    def _upserted(self, event: WorkerUpserted) -> None:
        known = self.workers.get(event.config.worker_id)
        if known is not None and event.incarnation < known.incarnation:
            self.counts.stale_events += 1
            return
        worker = Worker(event.config, event.incarnation)
        if known is not None:
            restarted = event.incarnation > known.incarnation
            self._remove_ranks([r for r in known.ranks() if restarted or r not in worker.ranks()])
            worker.marks = {} if restarted else known.marks
        self.workers[event.config.worker_id] = worker
        for rank in worker.ranks():
            self.loads_by_rank.setdefault(rank, RankLoad())
            self.index.setdefault(rank, RankCache())

    def _remove_ranks(self, ranks: list[RankName]) -> None:
        lost = [x for x in self.live.values() if x.state == "running" and x.rank in ranks]
        for live in sorted(lost, key=lambda x: x.attempt):
            self._evict(live, EvictReason.WORKER_REMOVED)
        for rank in ranks:
            del self.loads_by_rank[rank]
            del self.index[rank]

    def _status_changed(self, event: WorkerStatusChanged) -> None:
        """One source has changed its mind; the best that it can say is nothing."""
        worker = self.workers.get(event.worker_id)
        if worker is None or event.incarnation != worker.incarnation:
            self.counts.stale_events += 1
            return
        worker.marks.pop(event.source, None)
        if not event.available or event.overloaded:
            leased = event.lease_ns is not None
            end_ns = self.now_ns + event.lease_ns if leased else 0
            worker.marks[event.source] = Mark(event.available, event.overloaded, leased, end_ns)

    def _is_current(self, rank: RankName, incarnation: int) -> bool:
        """Whether an engine speaks of a rank that is there."""
        return rank in self.loads_by_rank and incarnation == self.workers[rank[0]].incarnation

    def _load_reported(self, event: LoadReported) -> None:
        rank = (event.worker_id, event.dp_rank)
        load = self.loads_by_rank.get(rank)
        if not self._is_current(rank, event.incarnation) or (load.report and event.sequence <= load.report.sequence):
            self.counts.stale_events += 1
            return
        load.report = Report(event.sequence, event.prefill_tokens, event.blocks, event.requests)
        if self.config.reported_load_ttl_ns is not None:
            load.report.foreign = (
                max(0, event.prefill_tokens - self._own_tokens(rank)), max(0, event.blocks - load.active_blocks),
                max(0, event.requests - load.requests))
            load.report.end_ns = self.now_ns + self.config.reported_load_ttl_ns

    def _blocks_changed(self, event) -> None:
        if self.config.index is not IndexMode.EVENTS:
            return
        rank = (event.worker_id, event.dp_rank)
        if not self._is_current(rank, event.incarnation):
            self.counts.stale_events += 1
            return
        told = self.index[rank].told
        if isinstance(event, BlocksStored):
            told[event.tier].update(event.block_hashes)
        elif isinstance(event, BlocksRemoved):
            told[event.tier].difference_update(event.block_hashes)
        else:
            for tier in Tier if event.tier is None else (event.tier,):
                told[tier].clear()

    # Decisions.

    def _settle(self) -> None:
        while True:
            while (entry := self.queue.pop(self._can_run)) is not None:
                self._place(entry.payload)
            leftover = [x for x in self._waiting() if x.request.do_not_queue or self._never_queues(x.class_index)]
            if not leftover:
                return
            self._unqueue(leftover[0])
            self._reject(leftover[0].request, *self._would_queue(leftover[0]))

    def _place(self, live: Live) -> None:
        request = live.request
        ranks = self._candidates(request, self.profile.classes[live.class_index])
        if not ranks:
            reason = self._refusal_of_fleet(request) or self._refusal_without_candidates(request)
            del self.live[request.request_id]
            self._reject(request, reason, live.class_index)
            return
        rank = self._select(request, ranks)
        found = self._found(request, rank)
        load = self.loads_by_rank[rank]
        names = sequence_hashes(request, self.config.block_size)
        cached = min(found.cached, request.prompt_tokens)
        prefill = request.prompt_tokens - cached if request.track_prefill else 0
        private = ceil_div(request.prompt_tokens, self.config.block_size) - len(names)
        potential = load.active_blocks + len(names) - self._depth(request, rank) + private
        live.state, live.attempt, live.rank = "running", self.next_attempt, rank
        live.progress_ns = self.now_ns
        live.booking = load.book(prefill, names, private, self._reserve(request), self.now_ns)
        self._use_blocks(live)
        self.next_attempt += 1
        self.recent[live.class_index].append((self.now_ns, live.entry.cost))
        self.counts.dispatched += 1
        self.class_counts[live.class_index].dispatched += 1
        self.class_counts[live.class_index].dispatched_cost_tokens += live.entry.cost
        self.actions.append(Dispatch(
            request.request_id, live.attempt, *rank, live.class_index, cached, int(found.device), prefill, potential,
            self.now_ns - live.arrival_ns))

    def _waiting(self) -> list[Live]:
        return sorted((x for x in self.live.values() if x.state == "waiting"), key=lambda x: x.seq)

    def _unqueue(self, live: Live) -> None:
        self.queue.remove(live.entry)
        del self.live[live.request.request_id]

    def _reject(self, request: Request, reason: RejectReason, class_index: int = -1, current: int = 0, limit: int = 0,
                retry_after_ns: int | None = None) -> None:
        self.counts.rejected[reason.name] = self.counts.rejected.get(reason.name, 0) + 1
        if class_index >= 0:
            self.class_counts[class_index].rejected += 1
        self.actions.append(Reject(request.request_id, reason, class_index, current, limit, retry_after_ns))

    def _ignore(self, request_id: str, attempt: int) -> None:
        self.counts.stale_events += 1
        self.actions.append(Ignored(request_id, attempt))
