# C layout of the values in explanation.py, with the same fields in the same order: a compiled dataclass takes its order
# from here.
cimport cython
from kvcore._types cimport int32_t, int64_t, ns_t, slot_t, tokens_t, uint32_t, uint64_t
from kvcore.request cimport Rank


@cython.final
cdef class Score:
    cdef readonly Rank rank
    cdef readonly double cost
    cdef readonly int64_t overlap_blocks
    cdef readonly tokens_t cached_tokens
    cdef readonly int64_t prefill_tokens
    cdef readonly int64_t decode_blocks
    cdef readonly int64_t requests


@cython.final
cdef class Decision:
    cdef readonly str request_id
    cdef readonly int64_t attempt
    cdef readonly ns_t now_ns
    cdef readonly slot_t class_index
    cdef readonly str class_name
    cdef readonly Rank rank
    cdef readonly tuple candidates             # of Score
    cdef readonly slot_t candidates_count
    cdef readonly object margin                # float or None
    cdef readonly str rule


@cython.final
cdef class RankView:
    cdef readonly uint64_t worker_id
    cdef readonly uint32_t dp_rank
    cdef readonly str state
    cdef readonly bint takes
    cdef readonly bint busy
    cdef readonly int64_t prefill_tokens
    cdef readonly object busy_above_tokens     # int or None
    cdef readonly int64_t requests
    cdef readonly object max_requests          # int or None
    cdef readonly int64_t held_blocks
    cdef readonly object total_kv_blocks       # int or None
    cdef readonly object needs_blocks          # int or None


@cython.final
cdef class Explanation:
    cdef readonly str request_id
    cdef readonly str state
    cdef readonly ns_t now_ns
    cdef readonly tuple reasons                # of str
    cdef readonly str class_name               # or None
    cdef readonly slot_t class_index           # -1: none
    cdef readonly Rank lane                    # or None
    cdef readonly tuple key                    # of four int, or None
    cdef readonly uint32_t strict_priority
    cdef readonly object seq                   # int or None, as all objects below
    cdef readonly object arrival_ns
    cdef readonly object wait_ns
    cdef readonly object deadline_ns
    cdef readonly tokens_t prompt_tokens
    cdef readonly tokens_t cached_tokens
    cdef readonly tokens_t cost_tokens
    cdef readonly object position
    cdef readonly bint position_is_exact
    cdef readonly tuple ranks                  # of RankView
    cdef readonly slot_t ranks_count
    cdef readonly object deficit_tokens
    cdef readonly object quantum
    cdef readonly object rounds_to_go
    cdef readonly object overtaken_tokens
    cdef readonly object max_overtake_tokens
    cdef readonly str deferred_by              # or None
    cdef readonly object grace_end_ns
    cdef readonly object next_look_ns
    cdef readonly object ticket
    cdef readonly object refresh_end_ns
    cdef readonly object attempt
    cdef readonly int32_t attempts
    cdef readonly Rank rank                    # or None
    cdef readonly Decision decision            # or None


@cython.final
cdef class QueueEntry:
    cdef readonly str request_id
    cdef readonly str state
    cdef readonly str class_name
    cdef readonly slot_t class_index
    cdef readonly Rank lane                    # or None
    cdef readonly tuple key                    # of four int
    cdef readonly uint64_t seq
    cdef readonly ns_t wait_ns
    cdef readonly tokens_t cost_tokens
