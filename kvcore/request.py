"""Values that travel inside events: Request, Rank, Overlap, SelectionWeights, WorkerConfig (DESIGN 3.3).

Plain frozen dataclasses, written once here and given a C layout by request.pxd. They carry no behaviour; the
request helpers that the core uses (effective cached tokens, prefill delta, block count) are the inline functions of
request.pxd.

A compiled dataclass converts at construction: 1.5 becomes 1 and True becomes 1 in an integer field, while strings,
None and overflow raise. Decoders of outside text check types before they build (DESIGN 3).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rank:
    """One data-parallel rank of one worker: the unit of load, of cache and of an exact pin.

    worker_id: 0..2^64-1, the driver's stable name of the worker.
    dp_rank: 0..2^32-1, absolute, not relative to dp_start.
    """

    worker_id: int
    dp_rank: int = 0


@dataclass(frozen=True)
class Overlap:
    """What the caller knows of cached prefixes; given on a Request, it wins over the core's index (DESIGN D13).

    A rank that a field does not name has none of it; where one is named twice, the last pair counts.

    device: pairs (Rank, blocks): leading prompt blocks cached on that rank's device.
    host, disk: pairs (Rank, blocks): blocks that go on from there in host memory, and from there on disk.
    effective: pairs (Rank, blocks as a real number >= 0): a weighted sum, used as device depth where device, host and
        disk are all empty.
    cached_tokens: pairs (Rank, tokens): what counts as cached for class, cost and booking; empty: derived from the
        fields above, whole tokens, half up.
    shared: (start, end) pairs, sorted and disjoint, 0 <= start < end: block positions that a cache shared by all ranks
        holds.
    """

    device: tuple[tuple[Rank, int], ...] = ()
    host: tuple[tuple[Rank, int], ...] = ()
    disk: tuple[tuple[Rank, int], ...] = ()
    effective: tuple[tuple[Rank, float], ...] = ()
    cached_tokens: tuple[tuple[Rank, int], ...] = ()
    shared: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class SelectionWeights:
    """What makes a rank cheap or dear (DESIGN D8; the names are those of the reference's configuration).

    All finite and >= 0.

    overlap_score_credit: blocks saved per block cached on the device.
    overlap_score_credit_decay: how fast that credit shrinks with the prefill load that a rank has above the least.
    prefill_load_scale: weight of prefill blocks against decode blocks.
    host_cache_hit_weight, disk_cache_hit_weight: credit per block in these tiers, 0..1; 0 ignores the tier.
    shared_cache_multiplier: credit per block of the shared cache beyond the device depth, 0..1.
    active_request_weight: blocks that a running request counts on top of its own.
    temperature: 0 takes the cheapest rank; above, ranks are drawn with softmax probabilities over their relative cost.
    """

    overlap_score_credit: float = 1.0
    overlap_score_credit_decay: float = 0.0
    prefill_load_scale: float = 1.0
    host_cache_hit_weight: float = 0.75
    disk_cache_hit_weight: float = 0.25
    shared_cache_multiplier: float = 0.0
    active_request_weight: float = 0.0
    temperature: float = 0.0


@dataclass(frozen=True)
class Request:
    """One request for a worker, as the scheduler needs to know it. It holds no prompt text.

    request_id: non-empty text, unique among live requests.
    prompt_tokens: whole prompt, 1..2^53.
    policy_class: name of a policy class or family; None or unknown means the default family (DESIGN D2).
    strict_priority: 0..2^32-1, higher first, inside a class only.
    priority_jump: seconds of head start (FCFS, LCFS, EDF) or an extra weight (WSPT); negative and NaN count as 0,
        infinity as the cap (DESIGN D3).
    deadline_ns: absolute; a request still waiting at or after it is rejected (DESIGN D12). None: no deadline.
    do_not_queue: dispatch now or reject with WOULD_QUEUE (DESIGN D6).
    pinned: exactly this rank or none. Never rerouted.
    allowed_workers: worker ids it may use; None: any; empty: none.
    required_taints: taints that a worker must carry, all of them, to be used.
    preferred_taints: pairs (taint, weight), each taint once; the weights of those that a worker carries make its ranks
        cheaper (> 0) or dearer (< 0), by a factor between 1/e and e.
    weights: instead of SchedulerConfig.weights, all of them, for this request; None: those of the configuration.
    block_hashes: shape (n,), n <= ceil(prompt_tokens / block_size); names of the prompt's blocks, root to leaf, as the
        KV index knows them: each hash names its block *and everything before it* (see kvcore.hashing). Empty: unknown.
    sequence_hashes: the same names for complete prompt blocks, used for active-block accounting; None: the complete
        ones of block_hashes, i.e. the first floor(prompt_tokens / block_size).
    overlap: cached prefixes known to the caller; None: the core's index is asked.
    expected_output_tokens: length hint of the answer, or None; under strict capacity so many blocks are kept free.
    track_prefill: whether its uncached prompt tokens count as prefill load.
    session_id: the conversation or agent program that it belongs to, for admission policies; None: none.
    lifecycle: whether its class's admission policy sees it (DESIGN D10).
    """

    request_id: str
    prompt_tokens: int
    policy_class: str | None = None
    strict_priority: int = 0
    priority_jump: float = 0.0
    deadline_ns: int | None = None
    do_not_queue: bool = False
    pinned: Rank | None = None
    allowed_workers: frozenset[int] | None = None
    block_hashes: tuple[int, ...] = ()
    sequence_hashes: tuple[int, ...] | None = None
    overlap: Overlap | None = None
    expected_output_tokens: int | None = None
    track_prefill: bool = True
    required_taints: frozenset[str] = frozenset()
    preferred_taints: tuple[tuple[str, float], ...] = ()
    weights: SelectionWeights | None = None
    session_id: str | None = None
    lifecycle: bool = True


@dataclass(frozen=True)
class WorkerConfig:
    """What the scheduler must know of one worker.

    worker_id: 0..2^64-1. dp_start, dp_size: its ranks are dp_start .. dp_start + dp_size - 1; dp_size >= 1.
    max_batched_tokens: engine limit of tokens per iteration, the base of busy fractions; None counts as 10 000 000.
    total_kv_blocks: blocks of its KV cache, per rank; None: unknown.
    max_requests: most running requests per rank, >= 1; None: unknown.
    taints: labels that requests can require or prefer.
    prefill_tokens_per_s: how fast it computes prompts, per rank; None: unknown, its prefill load does not decay.
    """

    worker_id: int
    dp_start: int = 0
    dp_size: int = 1
    max_batched_tokens: int | None = None
    total_kv_blocks: int | None = None
    max_requests: int | None = None
    taints: frozenset[str] = frozenset()
    prefill_tokens_per_s: int | None = None
