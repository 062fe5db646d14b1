"""Values that letters choose from; the first row of each is what plain runs have."""

from __future__ import annotations

from kvcore.events import Tier
from kvcore.policy import AdmissionSpec
from kvcore.request import Overlap, Rank, SelectionWeights

#: Weights of ranks, from plain to strange: no tiers, every request counts, all ranks alike, by lot, beyond doubles.
COSTS = (
    SelectionWeights(),
    SelectionWeights(overlap_score_credit=0.0),
    SelectionWeights(1.5, 1.0),
    SelectionWeights(prefill_load_scale=0.5, host_cache_hit_weight=1.0, disk_cache_hit_weight=0.0),
    SelectionWeights(1.0, 3.0, 1.0, 0.0, 1.0, 0.5, 1 / 3),
    SelectionWeights(active_request_weight=2.0),
    SelectionWeights(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    SelectionWeights(temperature=0.7),
    SelectionWeights(0.3, 0.7, 1.1, 0.9, 0.1, 1.0, 0.1, 1.0),
    SelectionWeights(shared_cache_multiplier=1.0, temperature=1e-300),
    SelectionWeights(prefill_load_scale=1e308, temperature=5.0),
    SelectionWeights(1e308, 1e308, 1e-308, 1.0, 1.0, 1.0, 1e308, 1e300),
)
WEIGHTS = (None, None, *COSTS)
PREFERRED = (
    (), (), (("a", 0.85),), (("a", -0.25), ("b", 1)), (("b", 50.0),), (("b", 1e-9), ("a", -3.5)), (("nobody's", 1.0),),
)
CAPS = (None, None, 8, 20, 4, 2, 1, 100, 2**53)
#: Tokens a second: a prompt of ten tokens takes 10 ns, 100 ns, 33 ns, 1 s, no time, longer than anybody waits.
RATES = (None, None, 10**9, 10**8, 3 * 10**8, 10, 2**53, 1)
TIERS = (Tier.DEVICE, Tier.DEVICE, Tier.HOST, Tier.DISK)
LEASES = (None, None, 5, 1, 2, 50, 10**9, 2**62 - 1)
#: available, overloaded
OPINIONS = ((True, True), (True, False), (True, True), (True, False), (False, False), (False, True))
#: What a report says: prefill_tokens, blocks, requests.
REPORTED = ((0, 5, 20, 100, 2**53), (0, 0, 1, 4, 50, 2**53), (0, 0, 1, 3, 2**53))


def device_only(rank: Rank, other: Rank, blocks: int) -> Overlap:
    return Overlap(((rank, blocks), (Rank(1), 1)))


def all_tiers(rank: Rank, other: Rank, blocks: int) -> Overlap:
    return Overlap(((rank, blocks),), ((other, 3), (rank, 1)), ((rank, 2), (other, blocks)))


def lower_tier(rank: Rank, other: Rank, blocks: int) -> Overlap:
    return Overlap(disk=((rank, blocks), (other, 1)), effective=((rank, 7.5),))


def weighted(rank: Rank, other: Rank, blocks: int) -> Overlap:
    return Overlap(effective=((rank, blocks / 3), (other, 2.5), (Rank(1), 1)), shared=((1, 3), (5, 9)))


def tokens(rank: Rank, other: Rank, blocks: int) -> Overlap:
    most = min(3 * blocks, 2**53)
    return Overlap(((rank, blocks),), cached_tokens=((rank, most), (other, 5), (other, 2**53), (other, 6)))


def shared(rank: Rank, other: Rank, blocks: int) -> Overlap:
    return Overlap(((rank, blocks), (other, 2)), shared=((0, 2), (2, 4), (6, 2**31 - 1)))


def everything(rank: Rank, other: Rank, blocks: int) -> Overlap:
    return Overlap(((rank, blocks),), ((rank, 2),), ((other, 4),), ((other, 9.0),), ((rank, 10), (Rank(1), 4)),
                   ((0, 1), (3, 8)))


#: What a caller tells of caches.
OVERLAPS = (device_only, device_only, all_tiers, lower_tier, weighted, tokens, shared, everything)
#: Admission policies (see policies.py). Of the ranks some are seldom there, and one never is.
SPECS = (
    AdmissionSpec("gate", {"running": 1}),
    AdmissionSpec("timed", {"every": 2, "for_ns": 3, "ranks": [None, [1, 0], [2, 0]]}),
    AdmissionSpec("mixed", {"table": "drpbd", "per_call": 1, "ranks": [[1, 0], None, [2, 0], [1, 0], [0, 0], [77, 0]]}),
    AdmissionSpec("gate", {"running": 2}),
    AdmissionSpec("gate", {}),
    AdmissionSpec("mixed", {"table": "dx", "per_call": 2, "ranks": [None]}),
    AdmissionSpec("timed", {"every": 1, "for_ns": 1, "ranks": [[1, 0], [2, 0]]}),
    AdmissionSpec("mixed", {"table": "pprd", "per_call": 1, "ranks": [[1, 0], [1, 0], [2, 0]]}),
    AdmissionSpec("mixed", {"table": "p", "ranks": [[1, 0], [2, 0], [1, 1]]}),
    AdmissionSpec("timed", {"for_ns": 2**62 - 1}),
)
