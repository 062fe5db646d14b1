"""What a valid policy does that its author may not have meant: warnings, and the worst case of a waiting request.

Never here: whether a policy is valid (policy, policy_file), anything that a running scheduler needs.

A warning states what is certain of the policy alone, whatever the traffic; where only the author can tell, it asks.
What depends on the length of prompts is looked at only when their largest length is given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from kvcore import _yaml_marks as marks
from kvcore.policy import NUMBER_MAX, Arbitration, Capacity, PolicyClass, PolicyProfile, QueuePolicy
from kvcore.policy_file import PolicyDocument

#: More requests than this cannot be live: the core numbers them with 31 bits.
REQUESTS_MAX = 2**31
LIMIT_KEYS = (
    "request_queue_limit_per_worker",
    "raw_isl_token_queue_limit_per_worker",
    "cached_token_queue_limit_per_worker",
)
#: Below this part of the largest cost a quantum is called small.
QUANTUM_PART = 1000
#: Words of family names by which people mean "these first" and "these when there is room".
WORDS_FIRST = frozenset((
    "premium", "interactive", "latency", "realtime", "urgent", "critical", "vip", "gold", "platinum", "paid", "online",
))
WORDS_LAST = frozenset((
    "batch", "bulk", "regular", "standard", "background", "offline", "besteffort", "free", "bronze",
))


@dataclass(frozen=True)
class WorstCase:
    """What may be served before a request of a class, while its class and lane stay dispatchable.

    slope: served tokens per token of own backlog, in all classes together; own backlog: cost of the requests that wait
        in its class at the moment at which it becomes ready. None: there is no number.
    constant: served tokens besides; None with slope.
    reason: why there is no number, `unbounded: ...` or `never ...`; else empty.
    """

    class_name: str
    slope: Fraction | None
    constant: Fraction | None
    reason: str = ""

    def served_tokens(self, own_backlog_tokens: int) -> int | None:
        """The bound for this own backlog, rounded up; None where there is no number."""
        if self.slope is None or self.constant is None:
            return None
        return math.ceil(self.slope * own_backlog_tokens + self.constant)


def worst_cases(profile: PolicyProfile, max_prompt_tokens: int) -> list[WorstCase]:
    """The worst case of each class, in class order, with prompts of up to max_prompt_tokens tokens, 1..2^53.

    Let v become ready in class i with quantum q_i and max_overtake_tokens M, own backlog B before it, and let the class
    and v's lane stay dispatchable until v is popped. max_c is the largest cost in class c, S_c what c is served in this
    time, v itself left out.

    Own class: whoever is popped before v is either older, B in all, or younger, M in all (DESIGN D17): S_i <= B + M.

    Any other class j, whatever it does: visits go round in a ring, so each visit of j in this time is followed by one
    of i before the next one of j. Let n visits of i start before v is popped; j has at most n visits then, the one that
    was open at the beginning counted. All visits of i but the last have ended, and a visit of a dispatchable class ends
    only after one quantum has been granted and when the next head, at most max_i, is still too dear. The last one
    either grants, and a head was too dear just before it did, or does not, and a head was too dear when the visit
    before it ended. Either way i could not pay max_i after n - 1 quanta: (n - 1) q_i - S_i < max_i.
    A visit of j grants at most one quantum. Before that of its first visit j holds less than max_j, for its last visit
    ended with a head too dear; becoming empty only takes credit away. So
        S_j < max_j + n q_j < max_j + q_j (1 + (S_i + max_i) / q_i),
    the bound of DESIGN D5 without its condition on j.

    With S_i = B + M the sum over all classes is slope * B + constant, where j runs over the other classes:
        slope    = 1 + sum_j q_j / q_i
        constant = M + sum_j (q_j (M + max_i) / q_i + q_j + max_j)

    Without M, or in mode `reference`, which promises no bound, it is unbounded. A class that never waits has no worst
    case. Costs are of at most max_prompt_tokens, and below the next bucket's floor; classes that no such prompt reaches
    take no part. Cost: O(classes).
    """
    largest = _largest_costs(profile, max_prompt_tokens)
    reached = [(item.quantum, cost) for item, cost in zip(profile.classes, largest, strict=True) if cost]
    quanta = sum([quantum for quantum, _ in reached])
    costs = sum([cost for _, cost in reached])
    found = []
    for item, cost in zip(profile.classes, largest, strict=True):
        reason = _why_no_number(item, profile, cost)
        if reason is not None or item.max_overtake_tokens is None:
            found.append(WorstCase(item.name, None, None, reason or "unbounded: no max_overtake_tokens"))
            continue
        others = quanta - item.quantum
        per_token = Fraction(others, item.quantum)
        overtaken = item.max_overtake_tokens
        constant = overtaken + per_token * (overtaken + cost) + others + (costs - cost)
        found.append(WorstCase(item.name, 1 + per_token, constant))
    return found


def _why_no_number(item: PolicyClass, profile: PolicyProfile, largest_cost: int) -> str | None:
    if largest_cost == 0:
        return "never chosen: its bucket starts above the largest prompt"
    if not _waits(item, profile):
        return "never waits: no busy threshold"
    if 0 in [getattr(item, key) for key in LIMIT_KEYS]:
        return "never waits: dispatched or refused at once, as a limit is 0"
    if profile.arbitration is Arbitration.REFERENCE:
        return "unbounded: arbitration reference promises no bound"
    return None


def _waits(item: PolicyClass, profile: PolicyProfile) -> bool:
    """Whether a request of the class may have to wait for capacity (DESIGN D7, D8)."""
    thresholds = (item.prefill_busy_threshold, item.prefill_busy_threshold_frac)
    return thresholds != (None, None) or profile.capacity is Capacity.STRICT


def _largest_costs(profile: PolicyProfile, max_prompt_tokens: int) -> list[int]:
    """By class: the largest cost of a prompt of up to max_prompt_tokens (DESIGN D1); 0: none reaches its bucket."""
    if not 1 <= max_prompt_tokens <= NUMBER_MAX:
        raise ValueError(f"max_prompt_tokens must be 1..2^53, not {max_prompt_tokens}")
    floors = [bucket.min_tokens for bucket in profile.buckets]
    ends = [*floors[1:], NUMBER_MAX + 1]
    by_bucket = {
        bucket.name: 0 if floor > max_prompt_tokens else max(1, min(max_prompt_tokens, end - 1))
        for bucket, floor, end in zip(profile.buckets, floors, ends, strict=False)
    }
    return [
        max_prompt_tokens if item.cache_bucket is None else by_bucket[item.cache_bucket] for item in profile.classes
    ]


# Warnings.


def lint(policy: PolicyDocument | PolicyProfile, max_prompt_tokens: int | None = None) -> list[str]:
    """Warnings about a valid policy, root first: what has no effect, what cannot run, what may starve, what surprises.

    max_prompt_tokens: the largest prompt there is, 1..2^53; None: unknown, what depends on it is not looked at.
    Cost: O(classes * log classes) per profile.
    """
    if isinstance(policy, PolicyProfile):
        return list(_lint_profile("profile", policy, max_prompt_tokens))
    warnings = [f"root: {key}: not used by kvcore, ignored" for key in policy.ignored_keys]
    profiles = {} if policy.root is None else {"root": policy.root}
    profiles |= {f"model {marks.quote(name)}": profile for name, profile in policy.models.items()}
    for location, profile in profiles.items():
        warnings += _lint_profile(location, profile, max_prompt_tokens)
    return warnings


def _lint_profile(location: str, profile: PolicyProfile, max_prompt_tokens: int | None) -> Iterator[str]:
    by_class: dict[str, list[str]] = {item.name: [] for item in profile.classes}
    explicit = {item.name for item in profile.classes if item.policy_family is None}
    for item in profile.classes:
        warnings = by_class[item.name]
        if item.policy_family in explicit:
            warnings.append("an explicit class has its family's name and gets the requests that name it")
        warnings += _lint_order(item, profile)
        warnings += _lint_admission(item)
        warnings += _lint_thresholds(item, max_prompt_tokens)
    if max_prompt_tokens is not None:
        for name, warning in _lint_lengths(profile, max_prompt_tokens):
            by_class[name].append(warning)
    for rivals in _rivals(profile):
        for name, warning in [*_lint_names(rivals), *_lint_limits([one for one in rivals if _waits(one, profile)])]:
            by_class[name].append(warning)
    for name, warnings in by_class.items():
        yield from [f"{location}, class {marks.quote(name)}: {warning}" for warning in warnings]


def _lint_order(item: PolicyClass, profile: PolicyProfile) -> Iterator[str]:
    """Keys that change nothing, or more than it seems, in the order of one class."""
    if item.queue_policy is QueuePolicy.LCFS and item.max_overtake_tokens is None:
        yield (
            "queue_policy: lcfs serves the newest request first, so old ones may wait without end; "
            "max_overtake_tokens bounds it"
        )
    if not _waits(item, profile):
        if item.admission is None and [getattr(item, key) for key in LIMIT_KEYS] != [None, None, None]:
            yield "queue limits without a busy threshold have no effect: the class never waits for capacity"
        if item.max_overtake_tokens is not None:
            yield (
                "max_overtake_tokens without a busy threshold orders one batch of arrivals at most: the class never "
                "waits for capacity"
            )
    elif item.max_overtake_tokens == 0:
        yield "max_overtake_tokens: 0 lets no request pass an older one that may run, whatever their priorities"


def _lint_admission(item: PolicyClass) -> Iterator[str]:
    """Limits that leave no room for those whom an admission policy holds back (DESIGN D10)."""
    for key in LIMIT_KEYS:
        if item.admission is not None and getattr(item, key) == 0:
            yield f"{key}: 0 means that whoever the admission policy holds back is rejected at once"


def _lint_thresholds(item: PolicyClass, max_prompt_tokens: int | None) -> Iterator[str]:
    """Thresholds that never decide. A worker's max_batched_tokens is at least 1, so frac asks for at least frac tokens.

    No rank can have more prompt tokens under way than all live requests together.
    """
    absolute, frac = item.prefill_busy_threshold, item.prefill_busy_threshold_frac
    reach = math.inf if max_prompt_tokens is None else REQUESTS_MAX * max_prompt_tokens
    never = f"can never fire: 2^31 prompts, more than can be live, of {max_prompt_tokens} tokens do not exceed it"
    if absolute is not None and absolute >= reach:
        yield f"prefill_busy_threshold: {absolute} {never}"
    elif absolute == NUMBER_MAX:
        yield (
            f"prefill_busy_threshold: {absolute}, the largest value there is, asks for more tokens than that on one "
            "worker; without a threshold a class never waits"
        )
    if frac is not None and frac == math.inf:
        yield "prefill_busy_threshold_frac: inf can never fire"
    elif frac is not None and frac >= reach:
        yield f"prefill_busy_threshold_frac: {frac!r} {never}"
    elif frac is not None and absolute is not None and frac >= absolute:
        yield (
            f"prefill_busy_threshold_frac: {frac!r} never decides: prefill_busy_threshold {absolute} fires no later on "
            "any worker"
        )
    elif frac == 0 and absolute is not None:
        yield (
            f"prefill_busy_threshold: {absolute} never decides: with prefill_busy_threshold_frac 0 any prompt token "
            "under way makes a worker busy"
        )


def _lint_lengths(profile: PolicyProfile, max_prompt_tokens: int) -> Iterator[tuple[str, str]]:
    """Pairs (class name, warning) that follow from the largest prompt."""
    floors = {bucket.name: bucket.min_tokens for bucket in profile.buckets}
    largest = _largest_costs(profile, max_prompt_tokens)
    quanta = sum([item.quantum for item, cost in zip(profile.classes, largest, strict=True) if cost])
    for item, cost in zip(profile.classes, largest, strict=True):
        if cost == 0:
            yield item.name, (
                f"can never be chosen: its bucket starts at {floors[item.cache_bucket or '']} uncached tokens and the "
                f"largest prompt has {max_prompt_tokens}"
            )
        elif QUANTUM_PART * item.quantum < cost and quanta > item.quantum:
            rounds = -(-cost // item.quantum)
            yield item.name, (
                f"quantum: {item.quantum} is less than 1/{QUANTUM_PART} of the largest cost: a request of {cost} "
                f"tokens takes up to {rounds} rounds, in which other classes are granted up to "
                f"{rounds * (quanta - item.quantum)} tokens"
            )


def _rivals(profile: PolicyProfile) -> list[list[PolicyClass]]:
    """Classes that serve prompts of the same lengths: those of a bucket; explicit ones; all if there is one bucket."""
    if len(profile.buckets) <= 1:
        return [list(profile.classes)]
    groups: dict[str | None, list[PolicyClass]] = {}
    for item in profile.classes:
        groups.setdefault(item.cache_bucket, []).append(item)
    return list(groups.values())


def _lint_limits(rivals: list[PolicyClass]) -> Iterator[tuple[str, str]]:
    """Pairs (class name, warning): a greater weight with less room to wait than a smaller weight has.

    A rival without a limit of this kind counts only if it has none of any kind: different kinds cannot be compared.
    """
    ascending = sorted(rivals, key=lambda item: item.quantum)
    for key in LIMIT_KEYS:
        most: PolicyClass | None = None  # of those with a smaller quantum, the one with most room
        waiting: list[PolicyClass] = []  # not yet compared, all of one quantum
        for item in ascending:
            if waiting and waiting[0].quantum < item.quantum:
                most = max([*waiting, *([] if most is None else [most])], key=lambda one: _room(one, key))
                waiting = []
            waiting.append(item)
            limit = getattr(item, key)
            if most is not None and limit is not None and limit < _room(most, key):
                room = getattr(most, key)
                kind = "0 means dispatch or refuse" if limit == 0 else str(limit)
                yield item.name, (
                    f"{key}: {kind}, while class {marks.quote(most.name)}, of smaller quantum, may have "
                    f"{'any number' if room is None else room} waiting"
                )


def _room(item: PolicyClass, key: str) -> float:
    """What may wait by a limit: without end if there are no limits at all, nothing certain if there are others."""
    limits = [getattr(item, one) for one in LIMIT_KEYS]
    limit: int | None = getattr(item, key)
    if limit is None:
        return math.inf if limits == [None, None, None] else -1
    return limit


def _lint_names(rivals: list[PolicyClass]) -> Iterator[tuple[str, str]]:
    """Pairs (class name, question): who is called premium and weighs less than who is called batch."""
    last = [item for item in rivals if _meaning(item) < 0]
    if not last:
        return
    heaviest = max(last, key=lambda item: item.quantum)
    for item in rivals:
        if _meaning(item) > 0 and item.quantum < heaviest.quantum:
            yield item.name, (
                f"quantum: {item.quantum} is a smaller share than that of class {marks.quote(heaviest.name)}, "
                f"{heaviest.quantum}: is that meant, by the name of {marks.quote(item.policy_family or item.name)}?"
            )


def _meaning(item: PolicyClass) -> int:
    """1: its family, or an explicit class, is called like one to come first; -1: like one to come last; 0: neither."""
    name = (item.policy_family or item.name).lower()
    words = {*re.split(r"[-_.]+", name), re.sub(r"[-_.]", "", name)}
    return bool(words & WORDS_FIRST) - bool(words & WORDS_LAST)
