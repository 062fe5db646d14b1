"""The oracle: the whole scheduler once more in plain, slow, obvious Python, written from the design, not from the core.

It owns the door, the order of things inside a step (advance time, apply, settle, park) and how a request ends. Its
parts: time in oracle_time, arrivals in oracle_arrival, who goes next in oracle_settle, policies that hold requests back
in oracle_admission, questions about caches in oracle_refresh, waiting for ranks that are lost in oracle_grace, second
attempts and the end in oracle_retry, another policy in oracle_reload, facts of workers in oracle_fleet, facts of what
runs in oracle_run, other replicas in oracle_peers, classes and limits in oracle_limits, who may be used and what it
costs in oracle_capacity. Below them: queues in oracle_queue, load in oracle_ledger, caches in oracle_index, the numbers
of a choice in oracle_cost, refused events in oracle_validate, the rest of what it remembers in oracle_state. It imports
values only, and `Scheduler` never.
"""

from __future__ import annotations

import copy
import pickle
from collections import deque
from collections.abc import Mapping

from oracle_admission import Admission
from oracle_arrival import Arrivals
from oracle_capacity import Decisions, RankName
from oracle_fleet import FleetFacts
from oracle_grace import Graces
from oracle_index import RankCache
from oracle_ledger import RankLoad, WyRand
from oracle_limits import Limits
from oracle_peers import PEER_EVENTS, Peer, Peers
from oracle_queue import PolicyQueue
from oracle_refresh import Refreshes
from oracle_reload import Reloads
from oracle_retry import Retries
from oracle_run import Runs
from oracle_settle import Settling
from oracle_state import ClassStats, Live, Stats, Worker
from oracle_time import Time
from oracle_validate import check_batch

from kvcore.actions import Ignored, Park, ParkReason, Reject, RejectReason
from kvcore.admission import Factory
from kvcore.config import SchedulerConfig
from kvcore.errors import AdmissionError
from kvcore.events import (
    AdmissionReleased,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    CapacityHinted,
    ContextAdvanced,
    DispatchAccepted,
    DispatchFailed,
    Drained,
    LoadReported,
    OutputBlockAdded,
    OverlapRefreshed,
    PolicyReplaced,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
    WorkerStatusChanged,
    WorkerUpserted,
)
from kvcore.policy import PolicyProfile
from kvcore.request import Request

PARKED = {"waiting": ParkReason.QUEUED, "deferred": ParkReason.DEFERRED}


class Oracle(Time, Arrivals, Settling, Admission, Refreshes, Graces, Retries, Reloads, Runs, FleetFacts, Peers,
             Limits, Decisions):
    """Same events, same actions as the core; see DESIGN 3 for the contract of `step`."""

    def __init__(self, config: SchedulerConfig | None = None, admission: Mapping[str, Factory] | None = None) -> None:
        self.config = config if config is not None else SchedulerConfig()
        self.given = dict(admission or {})
        self.profile = self.config.effective_profile()
        classes = self.profile.classes
        self.queue = PolicyQueue([item.quantum for item in classes], self.profile.arbitration,
                                 [item.max_overtake_tokens for item in classes])
        self.workers: dict[int, Worker] = {}
        self.loads_by_rank: dict[RankName, RankLoad] = {}
        self.index: dict[RankName, RankCache] = {}
        self.lost_ns: dict[RankName, int] = {}
        self.empty_since_ns: int | None = 0     # None: there are ranks
        self.live: dict[str, Live] = {}
        self.peers: dict[str, Peer] = {}
        self.generator = WyRand(self.config.seed)
        self.now_ns = 0
        self.next_seq = 0
        self.next_attempt = 1
        self.next_ticket = 1
        self.recent = [deque(maxlen=32) for _ in self.profile.classes]
        self.counts = Stats()
        self.class_counts = [ClassStats(item.name) for item in self.profile.classes]
        self.actions: list = []
        self.queued: set[Live] = set()          # by this batch, anew or again
        self.draining = False
        self.drain_ns: int | None = None        # when those that still run are evicted; None: not, or not again
        self.hosts = self._new_hosts(self.profile)
        self.calls: deque = deque()             # what policies have not been told yet
        self.poisoned = False

    # The door.

    def step(self, event):
        return self.step_many((event,))

    def step_many(self, events):
        if self.poisoned:
            raise RuntimeError("an admission policy has failed: this oracle cannot be trusted any more")
        check_batch(events, self.now_ns, self.config.block_size, self._can_build)
        if not events:
            return ()
        try:
            return self._step(events)
        except AdmissionError:
            self.poisoned = True
            raise

    def _step(self, events):
        for event in events:
            self._advance(event.now_ns)
            self._apply(event)
            self._deliver_all()
        self._settle()
        self.actions += [Park(x.request.request_id, x.class_index, PARKED[x.state])
                         for x in self._in("waiting", "deferred") if x in self.queued]
        answers, self.actions = tuple(self.actions), []
        self.queued.clear()
        return answers

    def peek(self, request: Request):
        """What an arrival of this request at the last seen time would be answered."""
        twin = pickle.loads(pickle.dumps(self))
        answers = twin.step(RequestArrived(self.now_ns, request))
        return next(a for a in answers if getattr(a, "request_id", None) == request.request_id)

    def _can_build(self, profile: PolicyProfile) -> bool:
        """Whether all admission policies of a profile can be made."""
        return self._fault_of_hosts(self.config.in_force(profile)) is None

    def _check_request(self, request: Request) -> None:
        check_batch((RequestArrived(self.now_ns, request),), self.now_ns, self.config.block_size)

    def stats(self) -> Stats:
        stats = copy.copy(self.counts)
        stats.rejected = dict(self.counts.rejected)
        stats.live_requests = len(self.live)
        stats.waiting_requests = len(self._in("waiting", "deferred"))
        stats.deferred_requests = len(self._in("deferred"))
        stats.refreshing_requests = len(self._in("refreshing"))
        stats.running_requests = len(self._in("running"))
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
            case ContextAdvanced():
                self._context_advanced(event)
            case AdmissionReleased():
                self._admission_released(event)
            case OverlapRefreshed():
                self._refreshed(event)
            case RequestFinished():
                self._finished(event)
            case WorkerUpserted() | WorkerRemoved() | WorkerStatusChanged():
                self._fleet_changed(event)
            case LoadReported():
                self._load_reported(event)
            case BlocksStored() | BlocksRemoved() | BlocksCleared():
                self._blocks_changed(event)
            case CapacityHinted() | TimerFired():
                pass  # every verdict is found anew in every drain: there is nothing to look at again
            case PolicyReplaced():
                self._policy_replaced(event)
            case Drained():
                self._drained(event)

    def _fleet_changed(self, event) -> None:
        usable = self._usable_ranks()
        match event:
            case WorkerUpserted():
                self._upserted(event)
            case WorkerRemoved():
                self._removed(event)
            case WorkerStatusChanged():
                self._status_changed(event)
        self._note_losses(usable)

    # What becomes of requests.

    def _in(self, *states: str) -> list[Live]:
        """Live requests in one of these states, by seq."""
        return sorted((x for x in self.live.values() if x.state in states), key=lambda x: x.seq)

    def _waiting(self) -> list[Live]:
        """Those that are ready."""
        return self._in("waiting")

    def _unqueue(self, live: Live) -> None:
        """It leaves before it runs, from wherever it waits; nothing is charged."""
        if live.state == "waiting":
            self.queue.remove(live.entry)
        del self.live[live.request.request_id]

    def _turn_away(self, live: Live, reason: RejectReason) -> None:
        """A live request that does not run ends with a Reject."""
        self._unqueue(live)
        self._reject(live.request, reason, live.class_index)
        self._tell(live, "aborted")

    def _reject(self, request: Request, reason: RejectReason, class_index: int = -1, current: int = 0, limit: int = 0,
                retry_after_ns: int | None = None) -> None:
        self.counts.rejected[reason.name] = self.counts.rejected.get(reason.name, 0) + 1
        if class_index >= 0:
            self.class_counts[class_index].rejected += 1
        self.actions.append(Reject(request.request_id, reason, class_index, current, limit, retry_after_ns))

    def _ignore(self, request_id: str, attempt: int) -> None:
        self.counts.stale_events += 1
        self.actions.append(Ignored(request_id, attempt))
