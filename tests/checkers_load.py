"""Who is served when, and where: work conservation, the best head first, busy ranks, selection, counters, evictions.

All of it by the record, and by the load to which the record alone adds up (history_load).
"""

from __future__ import annotations

from collections import defaultdict

from history import LIMITS, Arrival, Moment, Stored, eligible
from history_load import World, readings
from oracle_ledger import ceil_div, leading, rank_cost, sequence_hashes
from recording import Run

from kvcore.actions import Dispatch, Evict, Reject, RejectReason
from kvcore.policy import PolicyClass

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
            for name in idle(world, item, members(moment.waiting, class_index)):
                faults.append(f"step {moment.step}: {name} waits though a rank is free for it")
    return faults


def members(stored: Stored, class_index: int) -> dict[str, Arrival | None]:
    return {name: arrival for name, (index, arrival) in stored.items() if index == class_index}


def lanes(entries: Lane) -> list[Lane]:
    found: dict[object, Lane] = defaultdict(dict)
    for name, arrival in entries.items():
        found[arrival.lane][name] = arrival
    return list(found.values())


def idle(world: World, item: PolicyClass, entries: dict[str, Arrival | None]) -> list[str]:
    """The heads of a class that should have been popped. Where not all arrivals are known, any one may be a head."""
    if None in entries.values():
        return [] if any(world.busy(item, rank) for rank in world.loads) else list(entries)
    heads = []
    for lane in lanes(entries):
        head = min(lane, key=lambda name: lane[name].key(item))
        oldest = min(lane, key=lambda name: lane[name].order) if item.max_overtake_tokens is not None else head
        heads += [head] if world.can_run(item, lane[head]) and world.can_run(item, lane[oldest]) else []
    return heads


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
    sure, maybe = (members(stored, moment.action.class_index) for stored in (moment.waiting, moment.coming))
    if None in sure.values() or None in maybe.values():
        return []
    found = []
    for lane in lanes(sure if bounded else {**sure, **maybe}):
        head = min(lane, key=lambda name: lane[name].key(item))
        key = lane[head].key(item)
        rivals = [rival for rival in maybe.values() if rival.lane == lane[head].lane and rival.key(item) < key]
        if key < moment.subject.key(item) and all(world.can_run(item, rival) for rival in (lane[head], *rivals)):
            found.append(head)
    return found


def capacity_is_not_exceeded(run: Run) -> list[str]:
    """Who is dispatched has an eligible rank that is not busy for his class."""
    faults = []
    classes = run.config.effective_profile().classes
    for moment, world in readings(run):
        if isinstance(moment.action, Dispatch) and moment.subject is not None and world.sharp:
            item = classes[moment.action.class_index]
            if all(world.busy(item, rank) for rank in eligible(moment.subject.request, world.caches.fleet)):
                faults.append(f"step {moment.step}: {moment.action} though every rank it may use is busy")
    return faults


def selections_see_every_booking(run: Run) -> list[str]:
    """A Dispatch tells what its rank holds and will hold, all bookings before it counted; no other rank is cheaper."""
    faults = []
    for moment, world in readings(run):
        action = moment.action
        if isinstance(action, Dispatch) and moment.subject is not None and world.sharp:
            rank = (action.worker_id, action.dp_rank)
            if rank in world.loads:
                faults += [f"step {moment.step}: {action}, but {fault}"
                           for fault in misjudged(world, moment.subject, action, rank)]
    return faults


def misjudged(world: World, subject: Arrival, action: Dispatch, rank: tuple[int, int]) -> list[str]:
    """What is not true about the rank that was chosen, as far as its load is known."""
    request, caches, size = subject.request, world.caches, world.config.block_size
    found = []
    if action.overlap_blocks != caches.overlap_blocks(request, rank):
        found.append(f"{caches.overlap_blocks(request, rank)} blocks are cached")
    if action.cached_tokens != caches.cached_tokens(request, rank):
        found.append(f"{caches.cached_tokens(request, rank)} tokens are cached")
    if rank in world.blurred:
        return found
    load, names = world.loads[rank], sequence_hashes(request, size)
    blocks = load.active_blocks + ceil_div(request.prompt_tokens, size) - leading(names, load.live)
    if action.potential_decode_blocks != blocks:
        found.append(f"{blocks} blocks will be in use")
    costs = {other: rank_cost(world.loads[other], request, caches.overlap_blocks(request, other), size)
             for other in {rank} | (eligible(request, caches.fleet) - world.blurred)}
    if costs[rank] > min(costs.values()):
        found.append(f"the costs are {costs}")
    return found


def counters_are_sums(run: Run) -> list[str]:
    """A refusal for a limit tells what waits in its class: requests, their tokens, or what is cached of them."""
    faults = []
    for moment, world in readings(run):
        action = moment.action
        if isinstance(action, Reject) and action.reason in COUNTED and world.sharp:
            others = members({**moment.waiting, **moment.coming}, action.class_index)
            others.pop(action.request_id, None)
            if None not in others.values() and action.current != sum(map(COUNTED[action.reason], others.values())):
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
