"""Who may be sent where and who is refused why, judged by a record: fleet, states, deadlines, overload that lasts.

Sharp readings (history_load) judge by the fleet at the time of a decision; elsewhere a fleet of its step is enough.
"""

from __future__ import annotations

from collections.abc import Iterator

from history import (
    LIMITS,
    Arrival,
    Fleet,
    Stretch,
    eligible,
    fleets,
    is_end,
    is_strict,
    may_wait,
    queues,
    rank_of,
    stretches,
)
from history_load import decides_once
from history_moments import Moment, moments
from oracle_state import RankState
from recording import Run

from kvcore.actions import Dispatch, Reject, RejectReason
from kvcore.config import OnOverload, SchedulerConfig

R = RejectReason
LIMIT_OF = dict(zip((R.QUEUE_FULL_REQUESTS, R.QUEUE_FULL_RAW_TOKENS, R.QUEUE_FULL_CACHED_TOKENS), LIMITS, strict=True))
OVERLOADED = (R.PINNED_WORKER_OVERLOADED, R.ALL_ELIGIBLE_OVERLOADED)


def deadlines_hold(run: Run) -> list[str]:
    """Nothing is dispatched at or after its deadline; nothing waits past it, past a look that finds overload, or in a
    drain.
    """
    faults = []
    passed = list(stretches(run))
    for moment in moments(run):
        now_ns = moment.events[-1].now_ns
        if isinstance(moment.action, Dispatch) and moment.subject is not None:
            at_ns = moment.subject.now_ns + moment.action.wait_ns
            deadline_ns = moment.subject.request.deadline_ns
            if at_ns not in [event.now_ns for event in moment.events]:
                faults.append(f"step {moment.step}: {moment.action} has a wrong wait_ns")
            if deadline_ns is not None and at_ns >= deadline_ns:
                faults.append(f"step {moment.step}: {moment.action} at {at_ns}, deadline {deadline_ns}")
        elif moment.action is None:
            for request_id, (class_index, arrival) in moment.waiting.items():
                if moment.drains:
                    faults.append(f"step {moment.step}: {request_id} waits while the scheduler drains")
                if arrival is None:
                    continue
                deadline_ns = arrival.request.deadline_ns
                if deadline_ns is not None and deadline_ns <= now_ns:
                    faults.append(f"step {moment.step}: {request_id} waits past its deadline")
                if is_looked_at(run.config, class_index, arrival) and any(
                        only_overloaded(arrival, stretch.fleet)
                        for stretch in looks(run.config, arrival, passed[moment.step])):
                    faults.append(f"step {moment.step}: {request_id} waits though all that it may use is overloaded")
    return faults


def is_looked_at(config: SchedulerConfig, class_index: int, arrival: Arrival) -> bool:
    """Whether a request that is stored is looked at for overload as long as it waits."""
    profile = config.effective_profile()
    return (config.on_overload is OnOverload.WAIT and not arrival.request.do_not_queue
            and may_wait(profile.classes[class_index], profile))


def looks(config: SchedulerConfig, arrival: Arrival, passed: list[Stretch]) -> Iterator[Stretch]:
    """The stretches in which a request that waits is looked at: every overload_wait_ns after its arrival."""
    for stretch in passed:
        after_ns = max(stretch.after_ns, arrival.since_ns)
        number = (after_ns - arrival.now_ns) // config.overload_wait_ns + 1
        if arrival.now_ns + number * config.overload_wait_ns <= stretch.until_ns:
            yield stretch


def states(arrival: Arrival, fleet: Fleet) -> set[RankState]:
    """States of the ranks that it may use."""
    return {fleet.state(rank) for rank in eligible(arrival.request, fleet)}


def only_overloaded(arrival: Arrival, fleet: Fleet) -> bool:
    return states(arrival, fleet) == {RankState.OVERLOADED}


def fleets_of_decisions(run: Run) -> list[list[Fleet]]:
    """For each step the fleets by which it may have dispatched."""
    return [seen[-1:] if decides_once(run.config, events) else [*seen[1:], *(stretch.fleet for stretch in passed)]
            for (events, _), seen, passed in zip(run.steps, fleets(run), stretches(run), strict=True)]


def ranks_are_allowed(run: Run) -> list[str]:
    """A dispatch goes to a rank that existed, that its request may use, and to its pin if it has one."""
    faults = []
    seen = fleets_of_decisions(run)
    for moment in moments(run):
        action = moment.action
        if not isinstance(action, Dispatch):
            continue
        rank, then = (action.worker_id, action.dp_rank), seen[moment.step]
        if not any(rank in fleet.ranks() for fleet in then):
            faults.append(f"step {moment.step}: {action} to a rank that does not exist")
        elif moment.subject is not None and not any(rank in eligible(moment.subject.request, fleet) for fleet in then):
            faults.append(f"step {moment.step}: {action} to a rank that its request may not use")
        if moment.subject is not None:
            request = moment.subject.request
            wanted = request.prompt_tokens - action.cached_tokens if request.track_prefill else 0
            if not 0 <= action.cached_tokens <= request.prompt_tokens or action.prefill_tokens != wanted:
                faults.append(f"step {moment.step}: {action} books the wrong tokens")
    return faults


def states_are_respected(run: Run) -> list[str]:
    """Nothing is dispatched to a rank that somebody calls unavailable or overloaded."""
    faults = []
    seen = fleets_of_decisions(run)
    for number, (_, actions) in enumerate(run.steps):
        for action in actions:
            if isinstance(action, Dispatch):
                rank = (action.worker_id, action.dp_rank)
                found = {fleet.state(rank) for fleet in seen[number] if rank in fleet.ranks()}
                if found and RankState.OPEN not in found:
                    faults.append(f"step {number}: {action}, but its rank is {sorted(state.name for state in found)}")
    return faults


def refusals_are_justified(run: Run) -> list[str]:
    """A Reject tells the truth about its request, the fleet and the limit."""
    faults = []
    seen, passed = list(fleets(run)), list(stretches(run))
    for moment in moments(run):
        action = moment.action
        if moment.subject is None or action is None or not is_end(action):
            continue
        then = [*seen[moment.step], *(stretch.fleet for stretch in passed[moment.step])]
        put_back = action.request_id in moment.again      # or refused, at the time of its failure
        if action.class_index >= 0 and decides_once(run.config, moment.events) and not put_back:
            then = seen[moment.step][-1:]
        if not is_true(run.config, action, moment, then, passed[moment.step]):
            faults.append(f"step {moment.step}: {action} is not justified")
    return faults


def is_true(config: SchedulerConfig, action: Reject, moment: Moment, then: list[Fleet], passed: list[Stretch]) -> bool:
    """Whether the reason of a Reject held. then: the fleets by which it may have been decided."""
    request = moment.subject.request
    pin, allowed = request.pinned, request.allowed_workers
    if action.reason in LIMIT_OF:
        limit = getattr(config.effective_profile().classes[action.class_index], LIMIT_OF[action.reason])
        bounds = [limit * max(1, len(fleet.workers)) for fleet in then] if limit is not None else []
        honest = action.limit in bounds and action.current >= action.limit
        return honest and (action.limit == 0 or not request.do_not_queue)
    if (action.current, action.limit, action.retry_after_ns) != (0, 0, None):
        return False
    if action.reason in OVERLOADED and action.class_index >= 0 and is_looked_at(
            config, action.class_index, moment.subject):
        found = looks(config, moment.subject, passed)
        return (pin is not None) is (action.reason is R.PINNED_WORKER_OVERLOADED) and any(
            only_overloaded(moment.subject, stretch.fleet) for stretch in found)
    if action.reason is R.DEADLINE_EXPIRED:
        return request.deadline_ns is not None and request.deadline_ns <= moment.events[-1].now_ns
    if action.reason is R.PINNED_WORKER_NOT_ALLOWED:
        return pin is not None and allowed is not None and pin.worker_id not in allowed
    if action.reason is R.WOULD_QUEUE:
        return request.do_not_queue
    if action.reason is R.SHUTTING_DOWN:
        return moment.drains
    if action.reason is R.RETRIES_EXHAUSTED:
        return action.request_id in moment.again and moment.tried >= config.attempts_max
    return any(blames(config, action, moment.subject, fleet) for fleet in then)


def blames(config: SchedulerConfig, action: Reject, subject: Arrival, fleet: Fleet) -> bool:
    """Whether a fleet is as the reason says: no rank may ever take it, or none that may is open."""
    profile, pin = config.effective_profile(), subject.request.pinned
    found = states(subject, fleet)
    pinned_gone = pin is not None and (rank_of(pin) not in fleet.ranks() or fleet.state(rank_of(pin)) is RankState.GONE)
    # Where nothing is held back, whoever finds no open rank is answered.
    held_back = action.class_index < 0 or queues(profile.classes[action.class_index], profile)
    if action.reason is R.NO_WORKERS:
        return not fleet.workers
    if action.reason is R.PINNED_WORKER_UNAVAILABLE:
        return pinned_gone or (pin is not None and not held_back and found == {RankState.LEASED})
    if action.reason is R.NO_ELIGIBLE_WORKER:
        return not pinned_gone and (not found or (pin is None and not held_back and found == {RankState.LEASED}))
    if action.reason is R.TOO_LARGE:
        return bool(found) and is_strict(profile) and not any(
            fleet.could_hold(subject.request, rank, config.block_size) for rank in eligible(subject.request, fleet))
    overloaded = action.class_index >= 0 and RankState.OVERLOADED in found and RankState.OPEN not in found
    settled = not held_back or (found == {RankState.OVERLOADED} and config.on_overload is OnOverload.REJECT)
    return overloaded and settled and (pin is not None) is (action.reason is R.PINNED_WORKER_OVERLOADED)
