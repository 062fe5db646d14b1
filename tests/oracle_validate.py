"""What the oracle refuses as a broken contract: context-free checks of a whole batch, before anything changes."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

from kvcore.errors import InvalidEvent
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
    Outcome,
    OutputBlockAdded,
    OverlapRefreshed,
    PeerBooked,
    PeerLost,
    PeerPrefillCompleted,
    PeerReleased,
    PeerSynced,
    PolicyReplaced,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    Tier,
    TimerFired,
    WorkerRemoved,
    WorkerStatusChanged,
    WorkerUpserted,
)
from kvcore.policy import PolicyProfile
from kvcore.replica import FactKind, PeerFact
from kvcore.request import Overlap, Rank, Request, SelectionWeights, WorkerConfig

NS_END = 2**62
TOKENS_MAX = 2**53
BLOCKS_MAX = 2**31 - 1
DP_SIZE_MAX = 65_536
U64_END = 2**64
ATTEMPT_FACTS = (DispatchAccepted, DispatchFailed, PrefillCompleted, OutputBlockAdded, ContextAdvanced,
                 RequestFinished)
NAMED = (RequestCancelled, AdmissionReleased, OverlapRefreshed, *ATTEMPT_FACTS)
PEER_FACTS = (PeerBooked, PeerPrefillCompleted, PeerReleased, PeerLost, PeerSynced)
BLOCK_FACTS = (BlocksStored, BlocksRemoved, BlocksCleared)
KNOWN = (RequestArrived, WorkerUpserted, WorkerRemoved, WorkerStatusChanged, LoadReported, CapacityHinted,
         PolicyReplaced, Drained, TimerFired, *NAMED, *BLOCK_FACTS, *PEER_FACTS)
#: Weights that are shares of a block.
SHARES = ("host_cache_hit_weight", "disk_cache_hit_weight", "shared_cache_multiplier")


def check_batch(events, last_ns: int, block_size: int, can_build=lambda profile: True) -> None:
    """Raise InvalidEvent for the first event that breaks the contract. can_build: of a profile's admission policies."""
    for index, event in enumerate(events):
        fault = fault_of(event, last_ns, block_size)
        if fault is None and isinstance(event, PolicyReplaced) and not can_build(event.profile):
            fault = "admission"
        if fault is not None:
            raise InvalidEvent(index, fault)
        last_ns = event.now_ns


def fault_of(event, last_ns: int, block_size: int) -> str | None:
    """What is wrong with one event, or None."""
    if not isinstance(event, KNOWN):
        return "not an event"
    if not is_int(event.now_ns, 0, NS_END - 1) or event.now_ns < last_ns:
        return "now_ns"
    if isinstance(event, RequestArrived):
        return "request" if event.request is None else fault_of_request(event.request, block_size)
    if isinstance(event, NAMED) and not is_name(event.request_id):
        return "request_id"
    if isinstance(event, ATTEMPT_FACTS) and event.attempt < 1:
        return "attempt"
    if isinstance(event, OutputBlockAdded) and not is_fraction(event.decay_fraction):
        return "decay_fraction"
    if isinstance(event, RequestFinished) and not isinstance(event.outcome, Outcome):
        return "outcome"
    if isinstance(event, (RequestFinished, ContextAdvanced)) and not is_context(event):
        return "context_tokens"
    if isinstance(event, OverlapRefreshed):
        return fault_of_answer(event)
    if isinstance(event, PolicyReplaced):
        return None if isinstance(event.profile, PolicyProfile) else "profile"
    if isinstance(event, WorkerUpserted):
        return "config" if event.config is None else fault_of_worker(event.config, event.incarnation)
    if isinstance(event, PEER_FACTS):
        return fault_of_peer(event)
    if isinstance(event, (*BLOCK_FACTS, WorkerStatusChanged, LoadReported)) and event.incarnation < 0:
        return "incarnation"
    if isinstance(event, (BlocksStored, BlocksRemoved)) and not is_hashes(event.block_hashes):
        return "block_hashes"
    if isinstance(event, BLOCK_FACTS) and not is_tier(event.tier, isinstance(event, BlocksCleared)):
        return "tier"
    if isinstance(event, WorkerStatusChanged):
        return fault_of_status(event)
    if isinstance(event, CapacityHinted):
        return None if event.ranks is None or all(isinstance(rank, Rank) for rank in event.ranks) else "ranks"
    if isinstance(event, Drained):
        return None if 0 <= event.deadline_ns < NS_END else "deadline_ns"
    if isinstance(event, LoadReported):
        counts = (event.sequence, event.prefill_tokens, event.blocks, event.requests)
        return None if all(0 <= count <= TOKENS_MAX for count in counts) else "report"
    return None


def is_context(event: RequestFinished | ContextAdvanced) -> bool:
    """Only an end may say nothing of it."""
    tokens = event.context_tokens
    return (tokens is None and isinstance(event, RequestFinished)) or is_int(tokens, 0, TOKENS_MAX)


def fault_of_answer(event: OverlapRefreshed) -> str | None:
    """What is wrong with an answer about caches, or None."""
    if event.ticket < 1:
        return "ticket"
    return None if event.overlap is None or is_overlap(event.overlap) else "overlap"


def fault_of_peer(event) -> str | None:
    """What is wrong with what a replica tells, or None."""
    attempt = event.next_attempt if isinstance(event, PeerSynced) else getattr(event, "attempt", 1)
    if not is_name(event.peer) or event.generation < 0 or not 1 <= attempt <= 2**62:
        return "peer"
    if isinstance(event, PeerBooked):
        return None if is_peer_load(event) else "peer's booking"
    if not isinstance(event, PeerSynced):
        return None
    if not isinstance(event.facts, tuple) or not all(isinstance(fact, PeerFact) for fact in event.facts):
        return "facts"
    if not all(isinstance(fact.kind, FactKind) for fact in event.facts):
        return "kind of a fact"
    if any((fact.replica, fact.generation) != (event.peer, event.generation) for fact in event.facts):
        return "somebody else's facts"
    booked = [fact for fact in event.facts if fact.kind is FactKind.BOOKED]
    names = [(fact.attempt, int(fact.kind)) for fact in event.facts]
    allowed = {(fact.attempt, kind) for fact in booked for kind in (FactKind.BOOKED, FactKind.PREFILL_COMPLETED)}
    if names != sorted(set(names)) or not allowed.issuperset(names):
        return "order of facts"
    return None if all(is_peer_load(f) and 1 <= f.attempt < event.next_attempt for f in booked) else "peer's booking"


def is_peer_load(told: PeerBooked | PeerFact) -> bool:
    """What a peer says of a booking."""
    counts = (told.unnamed_blocks, told.prefill_tokens, told.reserve_blocks)
    return told.incarnation >= 0 and is_hashes(told.sequence_hashes) and all(0 <= n <= TOKENS_MAX for n in counts)


def fault_of_status(event: WorkerStatusChanged) -> str | None:
    """What is wrong with the fields of a mark, or None."""
    if not is_text(event.source):
        return "source"
    if event.lease_ns is not None and not is_int(event.lease_ns, 1, NS_END - 1):
        return "lease_ns"
    return None


def fault_of_request(request: Request, block_size: int) -> str | None:
    """What is wrong with the request of an arrival, or None."""
    if not is_name(request.request_id):
        return "request_id"
    if not 1 <= request.prompt_tokens <= TOKENS_MAX:
        return "prompt_tokens"
    if request.policy_class is not None and not is_text(request.policy_class):
        return "policy_class"
    if request.session_id is not None and not is_text(request.session_id):
        return "session_id"
    if request.deadline_ns is not None and not is_int(request.deadline_ns, 0, NS_END - 1):
        return "deadline_ns"
    if request.expected_output_tokens is not None and not is_int(request.expected_output_tokens, 0, TOKENS_MAX):
        return "expected_output_tokens"
    if not is_hashes(request.block_hashes, -(-request.prompt_tokens // block_size)):
        return "block_hashes"
    complete = request.prompt_tokens // block_size
    if request.sequence_hashes is not None and not is_hashes(request.sequence_hashes, complete):
        return "sequence_hashes"
    if request.allowed_workers is not None and not all(is_int(w, 0, U64_END - 1) for w in request.allowed_workers):
        return "allowed_workers"
    if request.overlap is not None and not is_overlap(request.overlap):
        return "overlap"
    if not is_taints(request.required_taints):
        return "required_taints"
    if not is_preferred(request.preferred_taints):
        return "preferred_taints"
    if request.weights is not None and not is_weights(request.weights):
        return "weights"
    return None


def fault_of_worker(config: WorkerConfig, incarnation: int) -> str | None:
    """What is wrong with a worker's configuration, or None."""
    if not 1 <= config.dp_size <= DP_SIZE_MAX or config.dp_start + config.dp_size > 2**32:
        return "dp range"
    for value in (config.max_batched_tokens, config.total_kv_blocks, config.max_requests,
                  config.prefill_tokens_per_s):
        if value is not None and not is_int(value, 1, TOKENS_MAX):
            return "worker limits"
    if not is_taints(config.taints):
        return "taints"
    return "incarnation" if incarnation < 0 else None


def is_int(value, low: int, high: int) -> bool:
    """A real integer in low..high; booleans are not integers here."""
    return type(value) is int and low <= value <= high


def is_number(value) -> bool:
    """A finite real number of moderate size."""
    return is_int(value, -TOKENS_MAX, TOKENS_MAX) or (type(value) is float and math.isfinite(value))


def is_tier(value, or_none: bool) -> bool:
    return isinstance(value, Tier) or (or_none and value is None)


def is_name(value) -> bool:
    """Non-empty text that UTF-8 can carry."""
    return is_text(value) and bool(value)


def is_taints(value) -> bool:
    """A set of labels."""
    return isinstance(value, frozenset) and all(map(is_text, value))


def is_text(value) -> bool:
    """Text that UTF-8 can carry."""
    if type(value) is not str:
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_fraction(value) -> bool:
    """None, or a finite number in [0, 1]."""
    if value is None:
        return True
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value <= 1


def is_hashes(value, most: int | None = None) -> bool:
    """A tuple of at most `most` block names."""
    if not isinstance(value, tuple) or (most is not None and len(value) > most):
        return False
    return all(is_int(name, 0, U64_END - 1) for name in value)


def is_overlap(overlap: Overlap) -> bool:
    """Pairs (Rank, blocks or tokens), and ranges of block positions."""
    counts = ((overlap.device, BLOCKS_MAX), (overlap.host, BLOCKS_MAX), (overlap.disk, BLOCKS_MAX),
              (overlap.cached_tokens, TOKENS_MAX))
    if not all(is_ranked(pairs) and all(is_int(pair[1], 0, top) for pair in pairs) for pairs, top in counts):
        return False
    if not is_ranked(overlap.effective):
        return False
    if not all(is_number(pair[1]) and 0 <= pair[1] <= BLOCKS_MAX for pair in overlap.effective):
        return False
    return is_ranges(overlap.shared)


def is_ranked(pairs) -> bool:
    """Pairs of a Rank and something."""
    return isinstance(pairs, tuple) and all(is_pair(pair) and isinstance(pair[0], Rank) for pair in pairs)


def is_pair(value) -> bool:
    return type(value) is tuple and len(value) == 2


def is_ranges(ranges) -> bool:
    """Sorted, disjoint, none of them empty."""
    if not isinstance(ranges, tuple):
        return False
    if not all(is_pair(pair) and all(is_int(end, 0, BLOCKS_MAX) for end in pair) for pair in ranges):
        return False
    return all(start < end for start, end in ranges) and all(
        before[1] <= after[0] for before, after in pairwise(ranges))


def is_preferred(pairs) -> bool:
    """Pairs of a label and a number, each label once."""
    if not isinstance(pairs, tuple):
        return False
    if not all(is_pair(pair) and is_text(pair[0]) and is_number(pair[1]) for pair in pairs):
        return False
    return len({taint for taint, _ in pairs}) == len(pairs)


def is_weights(weights: SelectionWeights) -> bool:
    """All finite and not negative; shares at most 1."""
    for item in dataclasses.fields(weights):
        value = getattr(weights, item.name)
        if not 0.0 <= value < math.inf or (item.name in SHARES and value > 1.0):
            return False
    return True
