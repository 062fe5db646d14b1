# C layout of the values in request.py, with the same fields in the same order: a compiled dataclass takes its order
# from here. And the request helpers: the one place where effective cached tokens, prefill delta and block counts are
# computed; _ledger receives their results only.
cimport cython
from kvcore._types cimport ceil_div, int64_t, tokens_t, uint32_t, uint64_t


@cython.final
cdef class Rank:
    cdef readonly uint64_t worker_id
    cdef readonly uint32_t dp_rank


@cython.final
cdef class Overlap:
    cdef readonly tuple device                 # ((Rank, blocks), ...)
    cdef readonly tuple host                   # ((Rank, blocks), ...)
    cdef readonly tuple disk                   # ((Rank, blocks), ...)
    cdef readonly tuple effective              # ((Rank, float), ...)
    cdef readonly tuple cached_tokens          # ((Rank, tokens), ...)
    cdef readonly tuple shared                 # ((start, end), ...)


@cython.final
cdef class SelectionWeights:
    cdef readonly double overlap_score_credit
    cdef readonly double overlap_score_credit_decay
    cdef readonly double prefill_load_scale
    cdef readonly double host_cache_hit_weight
    cdef readonly double disk_cache_hit_weight
    cdef readonly double shared_cache_multiplier
    cdef readonly double active_request_weight
    cdef readonly double temperature


@cython.final
cdef class Request:
    cdef readonly str request_id
    cdef readonly int64_t prompt_tokens        # 1..2^53
    cdef readonly str policy_class             # or None
    cdef readonly uint32_t strict_priority
    cdef readonly double priority_jump         # seconds, or a weight under WSPT
    cdef readonly object deadline_ns           # int or None
    cdef readonly bint do_not_queue
    cdef readonly Rank pinned                  # or None
    cdef readonly frozenset allowed_workers    # of int, or None
    cdef readonly tuple block_hashes           # of int, root to leaf
    cdef readonly tuple sequence_hashes        # of int, or None: derived
    cdef readonly Overlap overlap              # or None
    cdef readonly object expected_output_tokens
    cdef readonly bint track_prefill
    cdef readonly frozenset required_taints    # of str
    cdef readonly tuple preferred_taints       # ((str, float), ...)
    cdef readonly SelectionWeights weights     # or None
    cdef readonly str session_id               # or None
    cdef readonly bint lifecycle


@cython.final
cdef class WorkerConfig:
    cdef readonly uint64_t worker_id
    cdef readonly uint32_t dp_start
    cdef readonly uint32_t dp_size
    cdef readonly object max_batched_tokens    # int or None
    cdef readonly object total_kv_blocks       # int or None
    cdef readonly object max_requests          # int or None
    cdef readonly frozenset taints             # of str
    cdef readonly object prefill_tokens_per_s  # int or None


cdef inline tokens_t effective_cached_tokens(tokens_t cached_tokens, tokens_t prompt_tokens) noexcept nogil:
    """Cached tokens that serve this prompt: never more than the prompt (DESIGN D1)."""
    return min(cached_tokens, prompt_tokens)


cdef inline tokens_t prefill_delta(tokens_t prompt_tokens, tokens_t cached_tokens, bint track_prefill) noexcept nogil:
    """Prefill tokens that a booking adds: the uncached ones, or none when the request is not tracked."""
    return prompt_tokens - cached_tokens if track_prefill else 0


cdef inline int64_t output_blocks(Request request, int64_t block_size) except -1:
    """Blocks that its answer is expected to need, 0 if nobody has said."""
    return 0 if request.expected_output_tokens is None else ceil_div(request.expected_output_tokens, block_size)


cdef inline int64_t prompt_blocks(tokens_t prompt_tokens, int64_t block_size) noexcept nogil:
    """Blocks that the prompt occupies, the partial tail included."""
    return ceil_div(prompt_tokens, block_size)
