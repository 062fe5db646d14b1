"""What the oracle refuses as a broken contract: context-free checks of a whole batch, before anything changes."""

from __future__ import annotations

import math

from kvcore.errors import InvalidEvent
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
    TimerFired,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.request import Overlap, Rank, Request, WorkerConfig

NS_END = 2**62
TOKENS_MAX = 2**53
U64_END = 2**64
ATTEMPT_FACTS = (PrefillCompleted, OutputBlockAdded, RequestFinished)
BLOCK_FACTS = (BlocksStored, BlocksRemoved, BlocksCleared)
KNOWN = (RequestArrived, RequestCancelled, WorkerUpserted, WorkerRemoved, TimerFired, *ATTEMPT_FACTS, *BLOCK_FACTS)


def check_batch(events, last_ns: int, block_size: int) -> None:
    """Raise InvalidEvent for the first event that breaks the contract."""
    for index, event in enumerate(events):
        fault = fault_of(event, last_ns, block_size)
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
    if isinstance(event, (RequestCancelled, *ATTEMPT_FACTS)) and not is_name(event.request_id):
        return "request_id"
    if isinstance(event, ATTEMPT_FACTS) and event.attempt < 1:
        return "attempt"
    if isinstance(event, OutputBlockAdded) and not is_fraction(event.decay_fraction):
        return "decay_fraction"
    if isinstance(event, RequestFinished):
        if not isinstance(event.outcome, Outcome):
            return "outcome"
        if event.context_tokens is not None and not is_int(event.context_tokens, 0, TOKENS_MAX):
            return "context_tokens"
    if isinstance(event, WorkerUpserted):
        return "config" if event.config is None else fault_of_worker(event.config, event.incarnation)
    if isinstance(event, BLOCK_FACTS) and event.incarnation < 0:
        return "incarnation"
    if isinstance(event, (BlocksStored, BlocksRemoved)) and not is_hashes(event.block_hashes):
        return "block_hashes"
    return None


def fault_of_request(request: Request, block_size: int) -> str | None:
    """What is wrong with the request of an arrival, or None."""
    if not is_name(request.request_id):
        return "request_id"
    if not 1 <= request.prompt_tokens <= TOKENS_MAX:
        return "prompt_tokens"
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
    return None


def fault_of_worker(config: WorkerConfig, incarnation: int) -> str | None:
    """What is wrong with a worker's configuration, or None."""
    if config.dp_size < 1 or config.dp_start + config.dp_size > 2**32:
        return "dp range"
    for value in (config.max_batched_tokens, config.total_kv_blocks, config.max_requests):
        if value is not None and not is_int(value, 1, TOKENS_MAX):
            return "worker limits"
    if not is_taints(config.taints):
        return "taints"
    return "incarnation" if incarnation < 0 else None


def is_int(value, low: int, high: int) -> bool:
    """A real integer in low..high; booleans are not integers here."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_name(value) -> bool:
    """Non-empty text that UTF-8 can carry."""
    return is_text(value) and bool(value)


def is_taints(value) -> bool:
    """A set of labels."""
    return isinstance(value, frozenset) and all(map(is_text, value))


def is_text(value) -> bool:
    """Text that UTF-8 can carry."""
    if not isinstance(value, str):
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
    """Pairs (Rank, blocks) and nothing else."""
    if not isinstance(overlap.device, tuple):
        return False
    for pair in overlap.device:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], Rank):
            return False
        if not is_int(pair[1], 0, 2**31 - 1):
            return False
    return True
