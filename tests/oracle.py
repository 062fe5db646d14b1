"""The oracle: the whole scheduler once more in plain, slow, obvious Python, written from the design, not from the core.

It owns the order of things inside a step: advance time, apply, settle, park; and what becomes of a request. Its parts:
time in oracle_time, second attempts and the end in oracle_retry, facts of workers in oracle_fleet, classes and limits
in oracle_limits, who may be used and what it costs in oracle_capacity, other replicas in oracle_peers. Below them:
queues in oracle_queue, load in oracle_ledger, caches in oracle_index, the numbers of a choice in oracle_cost, refused
events in oracle_validate, the rest of what it remembers in oracle_state. It imports values only, and `Scheduler` never.
"""

from __future__ import annotations

import copy
import pickle
from collections import deque

from oracle_capacity import Decisions, RankName
from oracle_fleet import FleetFacts
from oracle_index import RankCache
from oracle_ledger import RankLoad, WyRand, ceil_div, sequence_hashes
from oracle_limits import Limits
from oracle_peers import PEER_EVENTS, Peer, Peers
from oracle_queue import Entry, PolicyQueue, sort_key
from oracle_retry import Retries
from oracle_state import ClassStats, Live, Stats, Worker
from oracle_time import Time
from oracle_validate import check_batch

from kvcore.actions import Dispatch, Evict, EvictReason, Ignored, Park, Reject, RejectReason
from kvcore.config import SchedulerConfig
from kvcore.events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    CapacityHinted,
    DispatchAccepted,
    DispatchFailed,
    Drained,
    LoadReported,
    Outcome,
    OutputBlockAdded,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
    WorkerStatusChanged,
    WorkerUpserted,
)
from kvcore.replica import FactKind
from kvcore.request import Request

R = RejectReason


class Oracle(Time, Retries, FleetFacts, Peers, Limits, Decisions):
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
        self.peers: dict[str, Peer] = {}
        self.generator = WyRand(self.config.seed)
        self.now_ns = 0
        self.next_seq = 0
        self.next_attempt = 1
        self.recent = [deque(maxlen=32) for _ in self.profile.classes]
        self.counts = Stats()
        self.class_counts = [ClassStats(item.name) for item in self.profile.classes]
        self.actions: list = []
        self.queued: set[Live] = set()          # by this batch, anew or again
        self.draining = False
        self.drain_ns: int | None = None        # when those that still run are evicted; None: not, or not again

    # The door.

    def step(self, event):
        return self.step_many((event,))

    def step_many(self, events):
        check_batch(events, self.now_ns, self.config.block_size)
        if not events:
            return ()
        for event in events:
            self._advance(event.now_ns)
            self._apply(event)
        self._settle()
        self.actions += [Park(x.request.request_id, x.class_index) for x in self._waiting() if x in self.queued]
        answers, self.actions = tuple(self.actions), []
        self.queued.clear()
        return answers

    def peek(self, request: Request):
        """What an arrival of this request at the last seen time would be answered."""
        twin = pickle.loads(pickle.dumps(self))
        answers = twin.step(RequestArrived(self.now_ns, request))
        return next(a for a in answers if getattr(a, "request_id", None) == request.request_id)

    def _check_request(self, request: Request) -> None:
        check_batch((RequestArrived(self.now_ns, request),), self.now_ns, self.config.block_size)

    def stats(self) -> Stats:
        stats = copy.copy(self.counts)
        stats.rejected = dict(self.counts.rejected)
        stats.live_requests = len(self.live)
        stats.waiting_requests = len(self._waiting())
        stats.running_requests = len([x for x in self.live.values() if x.state == "running"])
        stats.workers = len(self.workers)
        stats.ranks = len(self.loads_by_rank)
        stats.index_blocks = sum(len(names) for cache in self.index.values() for names in cache.told.values())
        stats.peers = len([peer for peer in self.peers.values() if not peer.lost])
        stats.peer_bookings = sum(len(peer.live) for peer in self.peers.values())
        stats.over_cap_ranks = len([rank for rank in self.loads_by_rank if self._is_over_cap(rank)])
        stats.classes = tuple(self._class_stats(index) for index in range(len(self.profile.classes)))
        return stats

    def _apply(self, event) -> None:
        if isinstance(event, PEER_EVENTS):
            self._heard(event)
            return
        match event:
            case RequestArrived():
                self._arrived(event.request)
            case RequestCancelled():
                self._cancelled(event)
            case DispatchAccepted():
                self._accepted(event)
            case DispatchFailed():
                self._failed(event)
            case PrefillCompleted() | OutputBlockAdded():
                self._progressed(event)
            case RequestFinished():
                live = self._holder(event, "running", "evicted")
                if live is not None:
                    self._end(live, event.outcome)
            case WorkerUpserted():
                self._upserted(event)
            case WorkerRemoved():
                self._removed(event)
            case WorkerStatusChanged():
                self._status_changed(event)
            case LoadReported():
                self._load_reported(event)
            case BlocksStored() | BlocksRemoved() | BlocksCleared():
                self._blocks_changed(event)
            case CapacityHinted() | TimerFired():
                pass  # every verdict is found anew in every drain: there is nothing to look at again
            case Drained():
                self._drained(event)

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
        if self.draining:
            return R.SHUTTING_DOWN
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
        self._enqueue(live)

    def _enqueue(self, live: Live) -> None:
        self.queue.push(live.class_index, live.entry)
        self.queued.add(live)

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
            self._publish(FactKind.PREFILL_COMPLETED, live)
        live.accepted, live.progress_ns = True, self.now_ns

    def _holder(self, event, *states: str) -> Live | None:
        """The request that this fact is about, if it is in one of these states under exactly this attempt."""
        live = self.live.get(event.request_id)
        if live is not None and live.state in states and live.attempt == event.attempt:
            return live
        self._ignore(event.request_id, event.attempt)
        return None

    def _evict(self, live: Live, reason: EvictReason) -> None:
        """The booking is gone; the request stays until the driver answers or a second booking_ttl_ns has passed."""
        self.actions.append(Evict(live.request.request_id, live.attempt, live.rank[0], reason))
        self._release(live, completed=False)
        live.state, live.progress_ns = "evicted", self.now_ns
        self.counts.evicted += 1

    def _release(self, live: Live, completed: bool) -> None:
        self.loads_by_rank[live.rank].release(live.booking, self.now_ns, self._rate(live.rank), completed)
        live.booking = None
        self._publish(FactKind.RELEASED, live, completed=completed)

    def _end(self, live: Live, outcome: Outcome) -> None:
        if live.state == "running":
            self._release(live, outcome == Outcome.COMPLETED)
            self._use_blocks(live)
        del self.live[live.request.request_id]
        if outcome == Outcome.COMPLETED:
            self.counts.completed += 1
        else:
            self.counts.aborted += 1

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
        live.accepted, live.progress_ns = False, self.now_ns
        live.dispatches += 1
        live.booking = load.book(prefill, names, private, self._reserve(request), self.now_ns)
        self._use_blocks(live)
        self.next_attempt += 1
        if live.dispatches == 1:
            self.recent[live.class_index].append((self.now_ns, live.entry.cost))
        self.counts.dispatched += 1
        self.class_counts[live.class_index].dispatched += 1
        self.class_counts[live.class_index].dispatched_cost_tokens += live.entry.cost
        self.actions.append(Dispatch(
            request.request_id, live.attempt, *rank, live.class_index, cached, int(found.device), prefill, potential,
            self.now_ns - live.arrival_ns))
        self._publish_booked(live)

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
