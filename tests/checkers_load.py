"""Who is served when, and where: work conservation, the best head first, room, selection, counters, evictions.

All of it by the record, and by the load to which the record alone adds up (history_load).
"""

from __future__ import annotations

from collections import defaultdict

from history import LIMITS, Arrival, RankName, Stored, is_strict, queues
from history_load import World
from history_moments import Moment, readings
from oracle_ledger import ceil_div, leading, sequence_hashes
from oracle_state import RankState
from recording import Run

from kvcore.actions import Dispatch, Evict, Reject, RejectReason
from kvcore.policy import PolicyClass
from kvcore.request import Request

R = RejectReason
#: What each limit counts of who waits.
COUNTED = {
    R.QUEUE_FULL_REQUESTS: lambda arrival: 1,
    R.QUEUE_FULL_RAW_TOKENS: lambda arrival: arrival.request.prompt_tokens,
    R.QUEUE_FULL_CACHED_TOKENS: lambda arrival: arrival.cached_tokens,
}
#: Those of one lane, by their names.
Lane = dict[str, Arrival]


def work_is_conserved(run: Run) -> list[str]:
    """After a step no ready head is dispatchable.

    Where max_overtake_tokens lets the oldest of a lane stand in for its head, that one must be dispatchable too.
    """
    faults = []
    classes = run.config.effective_profile().classes
    for moment, world in readings(run):
        if moment.action is not None:
            continue
        for class_index, item in enumerate(classes):
            for name in idle(world, item, members(moment.waiting, class_index, item)):
                faults.append(f"step {moment.step}: {name} waits though a rank is free for it")
    return faults


def members(stored: Stored, class_index: int, item: PolicyClass | None = None) -> dict[str, Arrival | None]:
    """Who of a class is stored; for its keys (item given) an arrival whose key is not known is None."""
    return {name: arrival if item is None or arrival is None or arrival.has_key(item) else None
            for name, (index, arrival) in stored.items() if index == class_index}


def lanes(entries: Lane) -> list[Lane]:
    found: dict[object, Lane] = defaultdict(dict)
    for name, arrival in entries.items():
        found[arrival.lane][name] = arrival
    return list(found.values())


def idle(world: World, item: PolicyClass, entries: dict[str, Arrival | None]) -> list[str]:
    """The heads of a class that should have been popped. Where not all arrivals are known, any one may be a head."""
    if None in entries.values():
        return list(entries) if takes_anybody(world, item) else []
    heads = []
    for lane in lanes(entries):
        head = min(lane, key=lambda name: lane[name].key(item))
        oldest = min(lane, key=lambda name: lane[name].age) if item.max_overtake_tokens is not None else head
        if all(world.can_run(item, lane[name].request) for name in (head, oldest)):
            heads.append(head)
    return heads


def takes_anybody(world: World, item: PolicyClass) -> bool:
    """Whether whoever may use a rank at all would find one that takes it."""
    profile = world.config.effective_profile()
    return not queues(item, profile) or (not is_strict(profile) and all(
        world.fleet.state(rank) is RankState.OPEN and not world.busy(item, rank) for rank in world.loads))


def best_heads_go_first(run: Run) -> list[str]:
    """Of the dispatchable heads of a class the best is served: an older parked pin before any later arrival.

    Not under an overtaking bound, where the oldest may go first.
    """
    faults = []
    profile = run.config.effective_profile()
    bounded = any(getattr(item, name) for item in profile.classes for name in LIMITS)
    for moment, world in readings(run):
        if not isinstance(moment.action, Dispatch) or moment.subject is None or not world.sharp:
            continue
        item = profile.classes[moment.action.class_index]
        if item.max_overtake_tokens is None:
            faults += [f"step {moment.step}: {moment.action} before {name}"
                       for name in passed_over(world, item, moment, bounded)]
    return faults


def passed_over(world: World, item: PolicyClass, moment: Moment, bounded: bool) -> list[str]:
    """Heads that are better than the dispatched request and could have run. bounded: a limit may yet refuse who comes.

    Whoever may stand before such a head must be able to run as well.
    """
    sure, maybe = (members(stored, moment.action.class_index, item) for stored in (moment.waiting, moment.coming))
    if None in sure.values() or None in maybe.values() or not moment.subject.has_key(item):
        return []
    found = []
    for lane in lanes(sure if bounded else {**sure, **maybe}):
        head = min(lane, key=lambda name: lane[name].key(item))
        key = lane[head].key(item)
        rivals = [rival for rival in maybe.values() if rival.lane == lane[head].lane and rival.key(item) < key]
        if key < moment.subject.key(item) and all(
                world.can_run(item, one.request) for one in (lane[head], *rivals)):
            found.append(head)
    return found


def capacity_is_not_exceeded(run: Run) -> list[str]:
    """Who is dispatched, in a class that waits for room, has an open rank that has it: not busy, and not full."""
    faults = []
    profile = run.config.effective_profile()
    for moment, world in readings(run):
        if isinstance(moment.action, Dispatch) and moment.subject is not None and world.sharp:
            item, request = profile.classes[moment.action.class_index], moment.subject.request
            verdicts = {world.takes(item, request, rank) for rank in world.open_ranks(request)}
            if queues(item, profile) and verdicts <= {False}:
                faults.append(f"step {moment.step}: {moment.action} though every rank it may use is busy")
    return faults


def strict_capacity_holds(run: Run) -> list[str]:
    """Under strict capacity the very rank of a Dispatch is not busy for its class and stays within its caps."""
    faults = []
    profile = run.config.effective_profile()
    for moment, world in readings(run):
        action = moment.action
        if not is_strict(profile) or not isinstance(action, Dispatch) or moment.subject is None or not world.sharp:
            continue
        rank = (action.worker_id, action.dp_rank)
        if rank not in world.loads:
            continue
        if world.busy(profile.classes[action.class_index], rank):
            faults.append(f"step {moment.step}: {action}, but its rank is busy")
        if world.has_room(moment.subject.request, rank) is False:
            faults.append(f"step {moment.step}: {action} takes its rank beyond {world.fleet.config(rank)}")
    return faults


def selections_see_every_booking(run: Run) -> list[str]:
    """A Dispatch tells what its rank holds and will hold, all bookings before it counted; no other rank is cheaper.

    Costs decide where no lot is drawn for them.
    """
    faults = []
    for moment, world in readings(run):
        action = moment.action
        if isinstance(action, Dispatch) and moment.subject is not None and world.sharp:
            rank = (action.worker_id, action.dp_rank)
            if rank in world.loads:
                item = run.config.effective_profile().classes[action.class_index]
                told = [*misjudged(world, moment.subject.request, action, rank),
                        *dearer(world, item, moment.subject.request, rank)]
                faults += [f"step {moment.step}: {action}, but {fault}" for fault in told]
    return faults


def misjudged(world: World, request: Request, action: Dispatch, rank: RankName) -> list[str]:
    """What is not true about the rank that was chosen, as far as its load is known."""
    size, cached = world.config.block_size, world.caches.found(request, rank)
    found = []
    if action.overlap_blocks != int(cached.device):
        found.append(f"{cached.device} blocks are cached")
    if action.cached_tokens != min(cached.cached, request.prompt_tokens):
        found.append(f"{cached.cached} tokens are cached")
    if rank not in world.blurred:
        load, names = world.loads[rank], sequence_hashes(request, size)
        blocks = load.active_blocks + ceil_div(request.prompt_tokens, size) - leading(names, load.live)
        if action.potential_decode_blocks != blocks:
            found.append(f"{blocks} blocks will be in use")
    return found


def dearer(world: World, item: PolicyClass, request: Request, rank: RankName) -> list[str]:
    """The costs by which another rank should have been chosen."""
    candidates, weights = world.candidates(item, request), world.weights(request)
    if request.pinned is not None or weights.temperature > 0 or rank not in candidates:
        return []
    if None in candidates.values() and weights.overlap_score_credit_decay > 0:
        return []                      # the least load of all candidates is not known
    least = min(world.tokens(other) for other in candidates)
    costs = {other: world.cost(request, other, least) for other, takes in candidates.items()
             if takes and other not in world.blurred}
    return [f"the costs are {costs}"] if rank in costs and costs[rank] > min(costs.values()) else []


def counters_are_sums(run: Run) -> list[str]:
    """A refusal for a limit tells what waits in its class: requests, their tokens, or what is cached of them."""
    faults = []
    for moment, world in readings(run):
        action = moment.action
        if isinstance(action, Reject) and action.reason in COUNTED and world.sharp:
            others = members({**moment.waiting, **moment.coming}, action.class_index)
            others.pop(action.request_id, None)
            counts = [None if arrival is None else COUNTED[action.reason](arrival) for arrival in others.values()]
            if None not in counts and action.current != sum(counts):
                faults.append(f"step {moment.step}: {action}, but {sorted(others)} wait")
    return faults


def evictions_are_not_forgotten(run: Run) -> list[str]:
    """Whoever runs on a rank that goes, or without progress for booking_ttl_ns, is evicted, with this reason."""
    faults = []
    for moment, world in readings(run):
        if moment.action is None:
            told = {a.attempt: a.reason for a in run.steps[moment.step][1] if isinstance(a, Evict)}
            faults += [f"step {moment.step}: attempt {attempt} is not evicted, {reason!r}"
                       for attempt, reason in world.evictions.items() if told.get(attempt) is not reason]
    return faults
