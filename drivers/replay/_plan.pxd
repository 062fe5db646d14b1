# The plan of one modelled worker: its iterations up to its next fact.
from libc.stdint cimport int32_t, int64_t, uint64_t

from kvcore.drivers.replay._blockcache cimport cache_t
from kvcore.drivers.replay._sequences cimport heap_t, list_t, seq_t, table_t

cdef extern from *:
    """
    typedef __int128 replay_i128;
    """
    ctypedef long long i128 "replay_i128"           # C knows the width; Cython only passes it through

cdef enum:
    NS_PS = 1000
    IDLE_NS = 0x7FFFFFFFFFFFFFFF                    # next_ns of a worker without work

cdef struct frame_t:            # a run of iterations with the same sequences in them
    i128 start                  # ps
    int64_t it                  # iterations finished before
    int64_t length              # iterations up to the next boundary where something happens, >= 1
    int64_t n                   # decoding sequences
    int64_t kv                  # their tokens at the start
    int64_t prefill             # prefill tokens of each iteration
    int64_t budget              # tokens left over of each iteration
    int64_t order               # admission number of the first sequence admitted at its start
    int64_t done                # tokens of `carried` computed before
    int64_t chunk               # tokens of `partial` per iteration
    int32_t carried             # the sequence whose prefill began in an earlier frame, or NO_SEQ
    int32_t head                # first prefilling sequence; all after it in the running list are prefilling too
    int32_t partial             # the last one, iff its prefill takes more than one iteration, else NO_SEQ
    int32_t sealed              # 1: a preemption at its start; nothing is admitted

cdef struct left_t:
    int32_t seq
    int32_t depth               # index of the first frame without it
    int32_t decoding            # 1: it was in the heap

cdef struct count_t:            # of requests that have finished, unless it says otherwise
    int64_t requests
    int64_t cancelled
    int64_t prompt_tokens
    int64_t cached_tokens
    int64_t output_tokens
    int64_t preemptions         # of all
    int64_t stored_blocks       # of all
    int64_t evicted_blocks      # of all
    int64_t iterations          # of all

cdef struct worker_t:
    list_t running              # in admission order
    list_t waiting              # next to be admitted first
    int32_t n_running
    int32_t blocked             # waiting sequence that found too few free blocks, or NO_SEQ
    int32_t blocked_need        # so many it needs at least
    int64_t blocked_stores      # as long as this many names have been stored
    int64_t next_order
    int64_t next_ns             # its next fact, or IDLE_NS
    i128 busy                   # ps, up to the start of frames[0]
    frame_t *frames             # the plan; a last frame without a sequence means idle since, or from, its start
    int32_t depth               # >= 1
    int32_t frame_rows
    left_t *left                # cancelled sequences that have left quietly between frames of the plan, in order
    int32_t n_left
    int32_t left_rows
    heap_t heap                 # decoding sequences
    cache_t cache
    count_t count

cdef struct fact_t:
    int32_t kind                # see _worker.pxd
    int32_t seq
    int32_t first, last         # of STORED: blocks first .. last - 1 of seq; of REMOVED: so in model_t.removed

cdef struct model_t:            # what all workers of a fleet share
    int64_t base_ps, prefill_token_ps, decode_seq_ps, kv_token_ps
    int64_t max_num_batched_tokens
    int32_t max_num_seqs
    int64_t block_size
    table_t table
    fact_t *facts               # of the boundaries passed and not yet delivered, in the order of delivery
    int32_t n_facts, fact_rows
    int32_t first_fact          # where those of the latest boundary begin
    uint64_t *removed           # the names of their REMOVED facts
    int32_t n_removed, removed_rows
    int32_t *needy              # scratch: sequences that need one more block now
    int32_t n_needy, needy_rows
    int32_t *ended              # scratch: sequences that finish now
    int32_t n_ended, ended_rows

cdef i128 boundary(model_t *m, frame_t *f, int64_t i) noexcept nogil
cdef frame_t frame_after(model_t *m, frame_t *f) noexcept nogil
cdef int frame_begin(model_t *m, worker_t *w, frame_t *f) except -1 nogil
cdef int frame_admit(model_t *m, worker_t *w, frame_t *f) except -1 nogil
cdef int frame_join(model_t *m, worker_t *w, frame_t *f, int32_t s) except -1 nogil
cdef void frame_leave(model_t *m, worker_t *w, frame_t *f, int32_t s) noexcept nogil
cdef void frame_catch_up(model_t *m, worker_t *w, frame_t *f, int64_t now_ns) noexcept nogil
cdef int plan_extend(model_t *m, worker_t *w) except -1 nogil
cdef int plan_retract(model_t *m, worker_t *w) except -1 nogil
cdef void plan_commit(model_t *m, worker_t *w) noexcept nogil


cdef inline int64_t start_ns(frame_t *f) noexcept nogil:
    return <int64_t>(f.start // NS_PS)


cdef inline int64_t done_before(model_t *m, frame_t *f, int32_t s) noexcept nogil:
    """Tokens of a prefilling sequence computed, or found in the cache, before the frame."""
    return f.done if s == f.carried else m.table.seqs[s].hits * m.block_size


cdef inline int64_t done_after(model_t *m, frame_t *f, int32_t s) noexcept nogil:
    return done_before(m, f, s) + f.chunk * f.length if s == f.partial else m.table.seqs[s].tokens
