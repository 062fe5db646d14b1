"""Judges of a recorded run alone: history in, faults out (an empty list: the rule holds).

Each checker states one rule of DESIGN 6 and decides it from events and actions only, never asking a scheduler. Where
the record cannot decide, a checker keeps silent: it may miss a fault, it must not invent one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import takewhile

from checkers_fleet import deadlines_hold, ranks_are_allowed, refusals_are_justified, states_are_respected
from checkers_life import one_life_each
from checkers_load import (
    best_heads_go_first,
    capacity_is_not_exceeded,
    counters_are_sums,
    evictions_are_not_forgotten,
    selections_see_every_booking,
    strict_capacity_holds,
    work_is_conserved,
)
from checkers_overtaking import overtaking_is_bounded
from checkers_shares import shares_are_bounded
from history import LIMITS, Fleet, LastAttempts, fleets, may_wait
from history_moments import moments
from recording import Run

from kvcore.actions import Dispatch, Evict, EvictReason, Ignored, Park
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import (
    AdmissionReleased,
    ContextAdvanced,
    DispatchAccepted,
    DispatchFailed,
    Drained,
    OutputBlockAdded,
    OverlapRefreshed,
    PeerBooked,
    PeerSynced,
    PolicyReplaced,
    PrefillCompleted,
    RequestArrived,
    RequestFinished,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.policy import PolicyProfile


def dispatches_follow_arrivals(run: Run) -> list[str]:
    """Every dispatch has an arrival or a retry of its own, none comes after a drain; attempts count 1, 2, 3, ..."""
    faults = []
    asked, dispatched, attempts, drained = Counter(), Counter(), 0, False
    last, retried = LastAttempts(), set()
    for number, (events, actions) in enumerate(run.steps):
        asked.update(event.request.request_id for event in events if isinstance(event, RequestArrived))
        own = {(action.request_id, action.attempt) for action in actions if isinstance(action, Dispatch)}
        again = {(event.request_id, event.attempt) for event in events if isinstance(event, DispatchFailed)
                 and event.retry and (last.may_return(event) or (event.request_id, event.attempt) in own)} - retried
        asked.update(request_id for request_id, _ in again)
        retried |= again
        last.note(actions)
        for action in actions:
            if isinstance(action, Dispatch):
                attempts += 1
                dispatched[action.request_id] += 1
                if dispatched[action.request_id] > asked[action.request_id]:
                    faults.append(f"step {number}: {action} without arrival or retry")
                if action.attempt != attempts:
                    faults.append(f"step {number}: {action} should be attempt {attempts}")
                if drained:
                    faults.append(f"step {number}: {action} after a drain")
        drained = drained or any(isinstance(event, Drained) for event in events)
    return faults


def releases_once(run: Run) -> list[str]:
    """A booking is released once: one eviction at most, one end, one acceptance, one completed prefill; none before it.

    A dispatch that failed has ended, whatever becomes of its request.
    """
    faults = []
    dispatched, evicted = set(), set()
    once = {PrefillCompleted: "prefill", RequestFinished: "end", DispatchFailed: "end", DispatchAccepted: "acceptance"}
    applied: dict[str, Counter] = {what: Counter() for what in once.values()}
    for number, (events, actions) in enumerate(run.steps):
        facts, ignored = defaultdict(list), Counter()
        finished = {name for name, count in applied["end"].items() if count}
        for event in events:
            if isinstance(event, (*once, OutputBlockAdded)):
                facts[event.request_id, event.attempt].append(once.get(type(event)))
        for action in actions:
            name = (action.request_id, getattr(action, "attempt", 0))
            if isinstance(action, Dispatch):
                dispatched.add(name)
            elif isinstance(action, Ignored):
                ignored[name] += 1
            elif isinstance(action, Evict):
                if name not in dispatched or name in evicted or name in finished:
                    faults.append(f"step {number}: {action} of a booking that is not held")
                evicted.add(name)
        for name, kinds in facts.items():
            if len(set(kinds)) == 1 and kinds[0] is not None:
                count = len(kinds) - ignored[name]
                applied[kinds[0]][name] += count
                if count and (name not in dispatched or applied[kinds[0]][name] > 1):
                    faults.append(f"step {number}: {kinds[0]} of {name} taken though not held")
    return faults


def evictions_are_justified(run: Run) -> list[str]:
    """An Evict has a lost rank behind it, a booking_ttl_ns without progress, or the end of a drain."""
    faults = []
    held: dict[int, tuple[Dispatch, int]] = {}
    ttl_ns, drain_ns = run.config.booking_ttl_ns, None
    for number, ((events, actions), seen) in enumerate(zip(run.steps, fleets(run), strict=True)):
        ignored = {(a.request_id, a.attempt) for a in actions if isinstance(a, Ignored)}
        drains = [drain_ns, *(event.deadline_ns for event in events if isinstance(event, Drained))]
        drained = any(end_ns is not None and end_ns <= events[-1].now_ns for end_ns in drains)
        drain_ns = None if drains[-1] is None or drains[-1] <= events[-1].now_ns else drains[-1]
        for action in actions:
            if isinstance(action, Evict) and action.attempt in held:
                dispatch, progress_ns = held.pop(action.attempt)
                rank = (dispatch.worker_id, dispatch.dp_rank)
                if action.worker_id != dispatch.worker_id:
                    faults.append(f"step {number}: {action} names the wrong worker")
                if action.reason is EvictReason.WORKER_REMOVED and not lost(rank, events, seen):
                    faults.append(f"step {number}: {action} but rank {rank} was there all the time")
                overdue = ttl_ns is not None and progress_ns + ttl_ns <= events[-1].now_ns
                if action.reason is EvictReason.BOOKING_EXPIRED and not overdue:
                    faults.append(f"step {number}: {action} too early")
                if action.reason is EvictReason.DRAIN_DEADLINE and not drained:
                    faults.append(f"step {number}: {action} but no drain has come to its end")
            elif isinstance(action, Dispatch):
                held[action.attempt] = (action, events[0].now_ns)
        for event in events:
            if isinstance(event, (DispatchAccepted, PrefillCompleted, OutputBlockAdded)) and event.attempt in held:
                dispatch, progress_ns = held[event.attempt]
                if dispatch.request_id == event.request_id and (event.request_id, event.attempt) not in ignored:
                    held[event.attempt] = (dispatch, max(progress_ns, event.now_ns))
    return faults


def lost(rank: tuple[int, int], events, seen: list[Fleet]) -> bool:
    """Whether a rank went, or started anew, at one of these events."""
    for event, before, after in zip(events, seen, seen[1:], strict=False):
        if not isinstance(event, (WorkerRemoved, WorkerUpserted)) or rank not in before.ranks():
            continue
        if rank not in after.ranks() or after.workers[rank[0]][1] != before.workers[rank[0]][1]:
            return True
    return False


def parks_once(run: Run) -> list[str]:
    """Parks stand last, one for a request and batch at most, in classes that may wait; none once it drains.

    They are about arrivals of this batch, and about requests that it has put back.
    """
    faults = []
    profile = run.config.effective_profile()
    classes = profile.classes
    drained = False
    for number, (events, actions) in enumerate(run.steps):
        drained = drained or any(isinstance(event, Drained) for event in events)
        arrived = {event.request.request_id for event in events if isinstance(event, RequestArrived)}
        arrived |= {event.request_id for event in events if isinstance(event, DispatchFailed) and event.retry}
        parks = [action for action in actions if isinstance(action, Park)]
        if tuple(parks) != actions[len(actions) - len(parks):]:
            faults.append(f"step {number}: Parks do not stand last")
        for request_id, count in Counter(park.request_id for park in parks).items():
            if count > 1 or request_id not in arrived:
                faults.append(f"step {number}: {count} Parks of {request_id}, arrived: {request_id in arrived}")
        for park in parks:
            if not 0 <= park.class_index < len(classes) or not may_wait(classes[park.class_index], profile):
                faults.append(f"step {number}: {park} in a class that never waits")
            if drained:
                faults.append(f"step {number}: {park} while the scheduler drains")
    return faults


def lanes_keep_their_order(run: Run) -> list[str]:
    """A request is not dispatched past a better one of its class and lane; equal keys go first come, first served.

    Not under an overtaking bound, where the oldest may go first.
    """
    faults = []
    classes = run.config.effective_profile().classes
    for moment in moments(run):
        if not isinstance(moment.action, Dispatch) or moment.subject is None:
            continue
        if classes[moment.action.class_index].max_overtake_tokens is not None:
            continue
        item = classes[moment.action.class_index]
        for request_id, (class_index, other) in moment.waiting.items():
            if other is None or (class_index, other.lane) != (moment.action.class_index, moment.subject.lane):
                continue
            if not other.has_key(item) or not moment.subject.has_key(item):
                continue
            if other.key(item) < moment.subject.key(item):
                faults.append(f"step {moment.step}: {moment.action} before {request_id}")
    return faults


def classes_are_right(run: Run) -> list[str]:
    """Every action names the class that its request belongs to, by its name and what its caches leave of it."""
    faults = []
    for moment in moments(run):
        class_index = getattr(moment.action, "class_index", -1)
        if moment.subject is not None and moment.subject.cached_tokens is not None and class_index >= 0:
            request = moment.subject.request
            wanted = class_of(run.config.effective_profile(), request.policy_class,
                              request.prompt_tokens - moment.subject.cached_tokens)
            if class_index != wanted:
                faults.append(f"step {moment.step}: {moment.action} should be of class {wanted}")
    return faults


def class_of(profile: PolicyProfile, name: str | None, uncached: int) -> int:
    """DESIGN D2."""
    if profile.default_policy_family is None:
        return 0
    explicit = [i for i, item in enumerate(profile.classes) if item.policy_family is None and item.name == name]
    known = {item.policy_family for item in profile.classes} - {None}
    cell = (name if name in known else profile.default_policy_family,
            max((b for b in profile.buckets if b.min_tokens <= uncached), key=lambda b: b.min_tokens).name)
    cells = [(item.policy_family, item.cache_bucket) for item in profile.classes]
    return explicit[0] if explicit else cells.index(cell)


def limits_hold(run: Run) -> list[str]:
    """Whoever comes and is parked found room: without the last one, what waits was below the bound.

    Whoever is put back is not asked, but counts for those that come later.
    """
    faults = []
    classes = run.config.effective_profile().classes
    parked: dict[int, str] = {}
    seen = list(fleets(run))
    for moment in moments(run):
        if isinstance(moment.action, Park) and moment.action.request_id not in moment.again:
            parked[moment.action.class_index] = moment.action.request_id
        if moment.action is not None:
            continue
        most = max(1, *(len(fleet.workers) for fleet in seen[moment.step]))
        for class_index, last in parked.items():
            others = [x for name, (index, x) in moment.waiting.items()
                      if index == class_index and name not in (last, *moment.again)]
            item = classes[class_index]
            known = [x for x in others if x is not None]
            usage = (len(others), sum(x.request.prompt_tokens for x in known),
                     sum(x.cached_tokens or 0 for x in known))
            for name, current in zip(LIMITS, usage, strict=True):
                limit = getattr(item, name)
                if limit is not None and current >= limit * most:
                    faults.append(f"step {moment.step}: {last} found no room in class {class_index}, {name}")
        parked.clear()
    return faults


#: Every checker, by its name.
CHECKERS = {
    checker.__name__: checker
    for checker in (
        one_life_each, dispatches_follow_arrivals, releases_once, evictions_are_justified, parks_once,
        lanes_keep_their_order, limits_hold, deadlines_hold, ranks_are_allowed, refusals_are_justified,
        classes_are_right, work_is_conserved, best_heads_go_first, capacity_is_not_exceeded, strict_capacity_holds,
        states_are_respected, selections_see_every_booking, counters_are_sums, evictions_are_not_forgotten,
        shares_are_bounded, overtaking_is_bounded,
    )
}


#: Facts that no checker can read yet: what comes after one of them is left to the oracle.
UNREAD = (ContextAdvanced, AdmissionReleased, OverlapRefreshed, PolicyReplaced, PeerBooked, PeerSynced)


def waits_for_room_only(config: SchedulerConfig) -> bool:
    """Whether nothing but a lack of room keeps a request waiting: no policy, no question, no worker that is away."""
    asks = config.index is IndexMode.OFF and config.refresh_after_ns is not None
    admits = any(item.admission is not None for item in config.effective_profile().classes)
    return not (asks or admits or config.pin_grace_ns or config.empty_fleet_wait_ns)


def readable(run: Run) -> Run:
    """The run up to the first batch with a fact that checkers cannot read; nothing of it where they know no reasons."""
    if not waits_for_room_only(run.config):
        return Run(run.config)
    steps = takewhile(lambda step: not any(isinstance(event, UNREAD) for event in step[0]), run.steps)
    return Run(run.config, list(steps))


def faults_of(run: Run) -> list[str]:
    """What all checkers have to say."""
    known = readable(run)
    return [f"{name}: {fault}" for name, checker in CHECKERS.items() for fault in checker(known)]
