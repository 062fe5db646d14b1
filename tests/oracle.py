"""The oracle: the whole scheduler once more in plain, slow, obvious Python, written from the design, not from the core.

It owns the order of things inside a step: advance time, apply, settle, park. Queues, load and the validation of events
are in oracle_queue, oracle_ledger and oracle_validate; what it remembers of requests and workers is in oracle_state. It
imports values only, and `Scheduler` never.
"""

from __future__ import annotations

import copy
import pickle
from collections import deque

from oracle_ledger import RankLoad, WyRand, ceil_div, leading, rank_cost, sequence_hashes
from oracle_queue import Entry, PolicyQueue, sort_key
from oracle_state import ClassStats, Live, Stats, Worker
from oracle_validate import check_batch

from kvcore.actions import Dispatch, Evict, EvictReason, Ignored, Park, Reject, RejectReason
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    Outcome,
    OutputBlockAdded,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.policy import PolicyClass
from kvcore.request import Rank, Request

DEFAULT_MAX_BATCHED_TOKENS = 10_000_000
RETRY_MIN_NS = 1_000_000
RETRY_MAX_NS = 3_600 * 10**9
R = RejectReason


def rank_of(pin: Rank) -> tuple[int, int]:
    return pin.worker_id, pin.dp_rank


class Oracle:
    """Same events, same actions as the core; see DESIGN 3 for the contract of `step`."""

    def __init__(self, config: SchedulerConfig | None = None) -> None:
        self.config = config if config is not None else SchedulerConfig()
        self.profile = self.config.effective_profile()
        classes = self.profile.classes
        self.queue = PolicyQueue([item.quantum for item in classes], self.profile.arbitration,
                                 [item.max_overtake_tokens for item in classes])
        self.workers: dict[int, Worker] = {}
        self.loads_by_rank: dict[tuple[int, int], RankLoad] = {}
        self.index: dict[tuple[int, int], set[int]] = {}
        self.live: dict[str, Live] = {}
        self.generator = WyRand(self.config.seed)
        self.now_ns = 0
        self.next_seq = 0
        self.next_attempt = 1
        self.recent = [deque(maxlen=32) for _ in self.profile.classes]
        self.counts = Stats()
        self.class_counts = [ClassStats(item.name) for item in self.profile.classes]
        self.actions: list = []

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

    @property
    def next_deadline_ns(self) -> int | None:
        due_ns = min((due for due, _, _, _ in self._dues()), default=None)
        return due_ns if due_ns is not None and due_ns < 2**62 else None  # later is no time that an event can carry

    def peek(self, request: Request):
        """What an arrival of this request at the last seen time would be answered."""
        twin = pickle.loads(pickle.dumps(self))
        answers = twin.step(RequestArrived(self.now_ns, request))
        return next(a for a in answers if a.request_id == request.request_id)

    def loads(self) -> list[tuple[int, int, int, int, int]]:
        """(worker_id, dp_rank, prefill_tokens, active_blocks, requests) in canonical order."""
        return [(*rank, load.prefill_tokens, load.active_blocks, load.requests)
                for rank, load in sorted(self.loads_by_rank.items())]

    def stats(self) -> Stats:
        stats = copy.copy(self.counts)
        stats.rejected = dict(self.counts.rejected)
        stats.live_requests = len(self.live)
        stats.waiting_requests = len(self._waiting())
        stats.running_requests = len([x for x in self.live.values() if x.state == "running"])
        stats.workers = len(self.workers)
        stats.ranks = len(self.loads_by_rank)
        stats.index_blocks = sum(len(names) for names in self.index.values())
        stats.classes = tuple(self._class_stats(index) for index in range(len(self.profile.classes)))
        return stats

    def _class_stats(self, index: int) -> ClassStats:
        stats = copy.copy(self.class_counts[index])
        usage = self._usage(index)
        stats.waiting_requests, stats.waiting_raw_tokens, stats.waiting_cached_tokens = usage
        stats.waiting_cost_tokens = self._queued_cost(index)
        stats.deficit_tokens = self.queue.classes[index].deficit
        return stats

    def _dues(self) -> list[tuple[int, int, int, Live]]:
        """Everything that time will do: (due time, kind, seq or attempt, request)."""
        dues = []
        for live in self.live.values():
            if live.state == "waiting":
                if live.request.deadline_ns is not None:
                    dues.append((live.request.deadline_ns, 0, live.seq, live))
            elif self.config.booking_ttl_ns is not None:
                dues.append((live.progress_ns + self.config.booking_ttl_ns, 1, live.attempt, live))
        return dues

    def _advance(self, now_ns: int) -> None:
        self.now_ns = now_ns
        while True:
            due_ns, _, _, live = min((d for d in self._dues() if d[0] <= now_ns), default=(None,) * 4,
                                     key=lambda due: due[:3])
            if live is None:
                return
            if live.state == "waiting":
                self._unqueue(live)
                self._reject(live.request, R.DEADLINE_EXPIRED, live.class_index)
            elif live.state == "running":
                self._evict(live, EvictReason.BOOKING_EXPIRED, due_ns)
            else:
                self._end(live, Outcome.ABORTED)

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
                    self._remove_ranks(self.workers.pop(event.worker_id).ranks())
                else:
                    self.counts.stale_events += 1
            case BlocksStored() | BlocksRemoved() | BlocksCleared():
                self._blocks_changed(event)

    def _arrived(self, request: Request) -> None:
        self.counts.arrived += 1
        reason = self._refusal_at_arrival(request)
        if reason is not None:
            self._reject(request, reason)
            return
        ranks = self._eligible(request)
        blocks = max(self._overlap_blocks(request, rank) for rank in ranks)
        cached = min(blocks * self.config.block_size, request.prompt_tokens)
        uncached = request.prompt_tokens - cached
        class_index = self._classify(request.policy_class, uncached)
        if self._over_limit(request, class_index) is not None:
            self._settle()
            over = self._over_limit(request, class_index)
            if over is not None:
                self._reject(request, over[0], class_index, *over[1:])
                return
        self._store(request, class_index, cached, max(1, uncached))

    def _refusal_at_arrival(self, request: Request) -> RejectReason | None:
        if request.request_id in self.live:
            return R.DUPLICATE_ID
        if request.deadline_ns is not None and request.deadline_ns <= self.now_ns:
            return R.DEADLINE_EXPIRED
        pin, allowed = request.pinned, request.allowed_workers
        if pin is not None and allowed is not None and pin.worker_id not in allowed:
            return R.PINNED_WORKER_NOT_ALLOWED
        return self._refusal_of_fleet(request)

    def _refusal_of_fleet(self, request: Request) -> RejectReason | None:
        if not self.workers:
            return R.NO_WORKERS
        if request.pinned is not None and rank_of(request.pinned) not in self.loads_by_rank:
            return R.PINNED_WORKER_UNAVAILABLE
        return None if self._eligible(request) else R.NO_ELIGIBLE_WORKER

    def _classify(self, name: str | None, uncached: int) -> int:
        """DESIGN D2: explicit class, else family and the last bucket whose floor is reached."""
        if self.profile.default_policy_family is None:
            return 0
        for index, item in enumerate(self.profile.classes):
            if item.policy_family is None and item.name == name:
                return index
        families = {item.policy_family for item in self.profile.classes if item.policy_family is not None}
        if name is not None and name not in families:
            self.counts.unknown_class_names += 1
        family = name if name in families else self.profile.default_policy_family
        bucket = [b.name for b in self.profile.buckets if b.min_tokens <= uncached][-1]
        return next(i for i, item in enumerate(self.profile.classes)
                    if item.policy_family == family and item.cache_bucket == bucket)

    def _store(self, request: Request, class_index: int, cached: int, cost: int) -> None:
        seq = self.next_seq
        self.next_seq += 1
        key = sort_key(self.profile.classes[class_index].queue_policy, request.strict_priority, request.priority_jump,
                       self.now_ns, request.deadline_ns, cost, seq)
        entry = Entry(key, cost, request.pinned)
        live = Live(request, class_index, seq, self.now_ns, cached, entry)
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

    def _progressed(self, event) -> None:
        live = self._holder(event, "running")
        if live is None:
            return
        if isinstance(event, OutputBlockAdded):
            self.loads_by_rank[live.rank].add_output(live.booking, event.decay_fraction)
        elif live.booking.prefill_done:
            self._ignore(event.request_id, event.attempt)
            return
        else:
            live.booking.prefill_done = True
        live.progress_ns = self.now_ns

    def _holder(self, event, *states: str) -> Live | None:
        """The request that this fact is about, if it is in one of these states under exactly this attempt."""
        live = self.live.get(event.request_id)
        if live is not None and live.state in states and live.attempt == event.attempt:
            return live
        self._ignore(event.request_id, event.attempt)
        return None

    def _upserted(self, event: WorkerUpserted) -> None:
        known = self.workers.get(event.config.worker_id)
        if known is not None and event.incarnation < known.incarnation:
            self.counts.stale_events += 1
            return
        worker = Worker(event.config, event.incarnation)
        if known is not None:
            restarted = event.incarnation > known.incarnation
            self._remove_ranks([r for r in known.ranks() if restarted or r not in worker.ranks()])
        self.workers[event.config.worker_id] = worker
        for rank in worker.ranks():
            self.loads_by_rank.setdefault(rank, RankLoad())
            self.index.setdefault(rank, set())

    def _remove_ranks(self, ranks: list[tuple[int, int]]) -> None:
        lost = [x for x in self.live.values() if x.state == "running" and x.rank in ranks]
        for live in sorted(lost, key=lambda x: x.attempt):
            self._evict(live, EvictReason.WORKER_REMOVED, self.now_ns)
        for rank in ranks:
            del self.loads_by_rank[rank]
            del self.index[rank]

    def _blocks_changed(self, event) -> None:
        if self.config.index is IndexMode.OFF:
            return
        rank = (event.worker_id, event.dp_rank)
        if rank not in self.index or event.incarnation != self.workers[event.worker_id].incarnation:
            self.counts.stale_events += 1
        elif isinstance(event, BlocksStored):
            self.index[rank].update(event.block_hashes)
        elif isinstance(event, BlocksRemoved):
            self.index[rank].difference_update(event.block_hashes)
        else:
            self.index[rank].clear()

    def _usage(self, class_index: int) -> tuple[int, int, int]:
        """Waiting requests, their raw and their cached tokens."""
        waiting = [x for x in self._waiting() if x.class_index == class_index]
        return len(waiting), sum(x.request.prompt_tokens for x in waiting), sum(x.cached for x in waiting)

    def _queued_cost(self, class_index: int) -> int:
        return sum(x.entry.cost for x in self._waiting() if x.class_index == class_index)

    def _bounds(self, class_index: int) -> tuple[tuple[RejectReason, int | None], ...]:
        item: PolicyClass = self.profile.classes[class_index]
        return ((R.QUEUE_FULL_REQUESTS, item.request_queue_limit_per_worker),
                (R.QUEUE_FULL_RAW_TOKENS, item.raw_isl_token_queue_limit_per_worker),
                (R.QUEUE_FULL_CACHED_TOKENS, item.cached_token_queue_limit_per_worker))

    def _never_queues(self, class_index: int) -> bool:
        return any(bound == 0 for _, bound in self._bounds(class_index))

    def _over_limit(self, request: Request, class_index: int):
        """(reason, current, limit, retry_after_ns) of the first limit that refuses this arrival, or None."""
        if request.do_not_queue or self._never_queues(class_index):
            return None
        for (reason, bound), current in zip(self._bounds(class_index), self._usage(class_index), strict=True):
            if bound is not None and current >= bound * max(1, len(self.workers)):
                limit = bound * max(1, len(self.workers))
                return reason, current, limit, self._retry_after_ns(class_index, current, limit)
        return None

    def _retry_after_ns(self, class_index: int, current: int, limit: int) -> int | None:
        """DESIGN D18: how long the excess takes at the pace of the last 32 dispatches."""
        window = list(self.recent[class_index])
        if len(window) < 2 or current == 0:
            return None
        served = sum(cost for _, cost in window[1:])
        span_ns = window[-1][0] - window[0][0]
        if span_ns == 0:
            return None
        excess = ceil_div(self._queued_cost(class_index) * (current - limit + 1), current)
        return min(max(ceil_div(excess * span_ns, served), RETRY_MIN_NS), RETRY_MAX_NS)

    def _settle(self) -> None:
        while True:
            while (entry := self.queue.pop(self._can_run)) is not None:
                self._place(entry.payload)
            leftover = [x for x in self._waiting() if x.request.do_not_queue or self._never_queues(x.class_index)]
            if not leftover:
                return
            self._refuse_to_queue(leftover[0])

    def _refuse_to_queue(self, live: Live) -> None:
        self._unqueue(live)
        for (reason, bound), current in zip(self._bounds(live.class_index), self._usage(live.class_index), strict=True):
            if bound == 0:
                retry = self._retry_after_ns(live.class_index, current, 0)
                self._reject(live.request, reason, live.class_index, current, 0, retry)
                return
        self._reject(live.request, R.WOULD_QUEUE, live.class_index)

    def _can_run(self, entry: Entry) -> bool:
        """DESIGN D7, advisory: what would fail is dispatchable too, so that it is answered."""
        item = self.profile.classes[entry.class_index]
        if item.prefill_busy_threshold is None and item.prefill_busy_threshold_frac is None:
            return True
        ranks = self._eligible(entry.payload.request)
        return not ranks or any(not self._busy(item, rank) for rank in ranks)

    def _busy(self, item: PolicyClass, rank: tuple[int, int]) -> bool:
        tokens = self.loads_by_rank[rank].prefill_tokens
        cap = self.workers[rank[0]].config.max_batched_tokens or DEFAULT_MAX_BATCHED_TOKENS
        if item.prefill_busy_threshold is not None and tokens > item.prefill_busy_threshold:
            return True
        frac = item.prefill_busy_threshold_frac
        return frac is not None and float(tokens) > frac * float(cap)

    def _place(self, live: Live) -> None:
        request = live.request
        reason = self._refusal_of_fleet(request)
        if reason is not None:
            del self.live[request.request_id]
            self._reject(request, reason, live.class_index)
            return
        rank = self._select(request)
        blocks = self._overlap_blocks(request, rank)
        load = self.loads_by_rank[rank]
        names = sequence_hashes(request, self.config.block_size)
        cached = min(blocks * self.config.block_size, request.prompt_tokens)
        prefill = request.prompt_tokens - cached if request.track_prefill else 0
        partial = ceil_div(request.prompt_tokens, self.config.block_size) - len(names)
        potential = load.active_blocks + len(names) - leading(names, load.live) + partial
        live.state, live.attempt, live.rank = "running", self.next_attempt, rank
        live.progress_ns = self.now_ns
        live.booking = load.book(prefill, names)
        self.next_attempt += 1
        self.recent[live.class_index].append((self.now_ns, live.entry.cost))
        self.counts.dispatched += 1
        self.class_counts[live.class_index].dispatched += 1
        self.class_counts[live.class_index].dispatched_cost_tokens += live.entry.cost
        self.actions.append(Dispatch(request.request_id, live.attempt, *rank, live.class_index, cached, blocks, prefill,
                                     potential, self.now_ns - live.arrival_ns))

    def _select(self, request: Request) -> tuple[int, int]:
        """DESIGN D8: least cost; equals are settled by one draw."""
        ranks = self._eligible(request)
        if request.pinned is not None:
            return ranks[0]
        size = self.config.block_size
        costs = [rank_cost(self.loads_by_rank[r], request, self._overlap_blocks(request, r), size) for r in ranks]
        tied = [rank for rank, cost in zip(ranks, costs, strict=True) if cost == min(costs)]
        return tied[self.generator.draw(len(tied))] if len(tied) > 1 else tied[0]

    def _waiting(self) -> list[Live]:
        return sorted((x for x in self.live.values() if x.state == "waiting"), key=lambda x: x.seq)

    def _eligible(self, request: Request) -> list[tuple[int, int]]:
        """Ranks that this request may use, in canonical order."""
        pin, allowed = request.pinned, request.allowed_workers
        ranks = [r for r in self.loads_by_rank if request.required_taints <= self.workers[r[0]].config.taints]
        if pin is not None:
            return [r for r in ranks if r == rank_of(pin)]
        return sorted(r for r in ranks if allowed is None or r[0] in allowed)

    def _overlap_blocks(self, request: Request, rank: tuple[int, int]) -> int:
        if request.overlap is not None:
            known = {(pair.worker_id, pair.dp_rank): blocks for pair, blocks in request.overlap.device}
            return known.get(rank, 0)
        if self.config.index is IndexMode.OFF:
            return 0
        return leading(request.block_hashes, self.index[rank])

    def _unqueue(self, live: Live) -> None:
        self.queue.remove(live.entry)
        del self.live[live.request.request_id]

    def _evict(self, live: Live, reason: EvictReason, at_ns: int) -> None:
        """The booking is gone; the request stays until the driver answers or a second booking_ttl_ns has passed."""
        self._release(live)
        live.state, live.progress_ns = "evicted", at_ns
        self.counts.evicted += 1
        self.actions.append(Evict(live.request.request_id, live.attempt, live.rank[0], reason))

    def _release(self, live: Live) -> None:
        self.loads_by_rank[live.rank].release(live.booking)
        live.booking = None

    def _end(self, live: Live, outcome: Outcome) -> None:
        if live.state == "running":
            self._release(live)
        del self.live[live.request.request_id]
        if outcome == Outcome.COMPLETED:
            self.counts.completed += 1
        else:
            self.counts.aborted += 1

    def _reject(self, request: Request, reason: RejectReason, class_index: int = -1, current: int = 0, limit: int = 0,
                retry_after_ns: int | None = None) -> None:
        self.counts.rejected[reason.name] = self.counts.rejected.get(reason.name, 0) + 1
        if class_index >= 0:
            self.class_counts[class_index].rejected += 1
        self.actions.append(Reject(request.request_id, reason, class_index, current, limit, retry_after_ns))

    def _ignore(self, request_id: str, attempt: int) -> None:
        self.counts.stale_events += 1
        self.actions.append(Ignored(request_id, attempt))
