"""The oracle's view of selection: what a rank costs, and which of several is taken (DESIGN D8).

Plain Python floats are IEEE doubles; every formula is written in the order of operations that DESIGN D8 binds, so the
core must give the same bits. exp and tanh are fixed polynomials: those of libm differ from platform to platform.

Imports nothing of the core: weights are anything with the fields of kvcore.request.SelectionWeights, a generator
anything with draw(n) and uniform().
"""

from __future__ import annotations

import math
from collections.abc import Sequence

TOKENS_MAX = 2**53
INT64_TOP = 2**63 - 1

LOG2_E = 1.4426950408889634
LN2_HIGH = 0.693147180369123816490
LN2_LOW = 1.90821492927058770002e-10

#: 1/i! for i = 0 .. 13, each the nearest double.
COEFFICIENTS = tuple(1.0 / math.factorial(i) for i in range(14))


def power_of_two(n: int) -> float:
    """2^n, exactly."""
    return math.ldexp(1.0, n)


def kv_exp(x: float) -> float:
    """exp: x = n ln 2 + r, a polynomial in r, and 2^n."""
    if x != x:
        return x
    if x <= -745.2:
        return 0.0
    if x >= 709.79:
        return math.inf
    n = math.floor(x * LOG2_E + 0.5)
    r = (x - float(n) * LN2_HIGH) - float(n) * LN2_LOW
    p = 0.0
    for coefficient in reversed(COEFFICIENTS):
        p = p * r + coefficient
    if n < -1022 or n > 1023:
        half = int(n / 2)
        return (p * power_of_two(half)) * power_of_two(n - half)
    return p * power_of_two(n)


def kv_tanh(x: float) -> float:
    """tanh = (e^2x - 1) / (e^2x + 1); where e^2x is near 1, the difference has a polynomial of its own."""
    size = abs(x)
    if size >= 20.0:
        return math.copysign(1.0, x)
    if size < 2.0**-28:
        return x
    if size < 0.25:
        u = 2.0 * size
        p = 0.0
        for coefficient in reversed(COEFFICIENTS[1:]):
            p = p * u + coefficient
        p = p * u
        return math.copysign(p / (p + 2.0), x)
    t = kv_exp(2.0 * size)
    return math.copysign(1.0 - 2.0 / (t + 1.0), x)


def hits_beyond(ranges: Sequence[tuple[int, int]], p: int) -> int:
    """How many positions of half-open, disjoint ranges are p or above."""
    return sum(max(0, end - max(start, p)) for start, end in ranges)


def first_beyond(dev: float) -> int:
    """The position from which shared hits count on a rank with so many device blocks: half up."""
    return math.floor(dev + 0.5)


def weighted_cached(dev: float, host: int, disk: int, weights, block_size: int) -> int:
    """Cached tokens derived from blocks: tiers weighted, whole tokens, half up, at most 2^53."""
    blocks = dev
    if weights.host_cache_hit_weight != 0:
        blocks = blocks + float(host) * weights.host_cache_hit_weight
    if weights.disk_cache_hit_weight != 0:
        blocks = blocks + float(disk) * weights.disk_cache_hit_weight
    tokens = blocks * float(block_size) + 0.5
    return TOKENS_MAX if tokens >= TOKENS_MAX else math.floor(tokens)


def multiplier(preferred: Sequence[tuple[str, float]], taints) -> float:
    """What preferred taints make of a cost on a worker that carries some of them."""
    total = 0.0
    for taint, weight in preferred:
        if taint in taints:
            total = total + weight
    return kv_exp(-kv_tanh(total))


def at_least_zero(x: float) -> float:
    """max(0, x), where NaN is 0."""
    return x if x > 0.0 else 0.0


def rank_cost(
    *, prompt: int, block_size: int, sequence_length: int, depth: int, dev: float, host: int, disk: int, beyond: int,
    cached: int, tokens: int, blocks: int, requests: int, least_tokens: int, weights, track_prefill: bool,
    decode_role: bool, multiplier: float | None,
) -> float:
    """Cost of one rank, in blocks.

    depth: leading sequence blocks that run there. beyond: shared positions beyond its device depth. cached: c, not cut
    to the prompt. tokens, blocks, requests: its effective load. least_tokens: least load of prefill tokens over the
    candidates (for a pin: its own). multiplier: None without preferred taints, and for pins.
    """
    size = float(block_size)
    prompt_blocks = float(-(-prompt // block_size))
    dcost = float(blocks + (sequence_length - depth))
    rcost = weights.active_request_weight * float(requests)
    decay = 1.0
    if track_prefill and weights.overlap_score_credit_decay > 0:
        above = float(max(0, tokens - least_tokens)) / size
        decay = 1.0 / (1.0 + weights.overlap_score_credit_decay * (above / prompt_blocks))
    credit = (
        ((weights.overlap_score_credit * decay) * dev + weights.host_cache_hit_weight * float(host))
        + weights.disk_cache_hit_weight * float(disk)) + weights.shared_cache_multiplier * float(beyond)
    if decode_role and not track_prefill and weights.overlap_score_credit > 0:
        logit = at_least_zero(dcost - credit) + rcost
    else:
        raw = float(min(INT64_TOP, tokens + max(prompt, cached))) if track_prefill else 0.0
        logit = (weights.prefill_load_scale * at_least_zero(raw / size - credit) + dcost) + rcost
    return logit if multiplier is None else logit * multiplier


def exponents(costs: Sequence[float], temperature: float) -> list[float] | None:
    """What to take exp of, per cost; None where the spread is too small, or the costs too large, to tell."""
    lo, hi = min(costs), max(costs)
    if lo == hi:
        return [0.0 for _ in costs]
    mag = 1.0 if math.isfinite(hi - lo) else max(abs(lo), abs(hi))
    spread = (hi / mag - lo / mag) * temperature
    if spread == 0.0:
        return None
    k = -1.0 / spread
    if not math.isfinite(lo / mag * k) or not math.isfinite(hi / mag * k):
        return None
    return [cost / mag * k - (lo / mag) * k for cost in costs]


def softmax(costs: Sequence[float], temperature: float) -> list[float]:
    """Probabilities of the candidates at a temperature > 0."""
    if min(costs) == max(costs):
        return [1.0 / len(costs) for _ in costs]
    found = exponents(costs, temperature)
    if found is None:
        first = list(costs).index(min(costs))
        return [1.0 if i == first else 0.0 for i in range(len(costs))]
    shares = [kv_exp(x) for x in found]
    total = 0.0
    for share in shares:
        total = total + share
    return [share / total for share in shares]


def choose(costs: Sequence[float], temperature: float, generator, pinned: bool) -> int:
    """Index of the candidate taken; costs in canonical order. Draws as DESIGN D8 says: none for a pin or for one."""
    if pinned or len(costs) == 1:
        return 0
    least = min(costs)
    if not temperature > 0.0:
        tied = [i for i, cost in enumerate(costs) if cost == least]
        return tied[generator.draw(len(tied))] if len(tied) > 1 else tied[0]
    u = generator.uniform()
    if exponents(costs, temperature) is None:
        return list(costs).index(least)
    cumulative = 0.0
    for i, share in enumerate(softmax(costs, temperature)):
        cumulative = cumulative + share
        if u <= cumulative:
            return i
    return len(costs) - 1
