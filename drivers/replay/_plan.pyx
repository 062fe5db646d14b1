"""The plan of one modelled worker: its iterations up to its next fact. The rules are in _engine.pyx.

A *frame* is a run of iterations with the same decoding sequences and the same prefill chunk, so that the end of its
i-th iteration has a closed form (boundary). It ends at the first boundary where something happens. The plan is the
frame under way and those after it, up to the first boundary with a fact; what it decides about blocks and queues is
already done in the tables. That is allowed because of the invariants:

- Every frame but the last ends quietly: no fact, so no sequence finishes, grows or is preempted there. All that happens
  between the frames of a plan is that prefills end or go on, cancelled sequences leave, and others are admitted.
- Admissions are in queue order and stop at the first that fails: a later arrival can only add to the end of those of
  a frame, and never changes a frame that has no budget left.
- Only a cancellation takes something away. plan_retract undoes the frames that have not begun by then, last first.
- A partial prefill is the last running sequence, and there is at most one: it has taken all the budget.
- n and kv of the last frame are the number of sequences in the heap, and their tokens at its start.

Knows no Python object, no other worker and no clock.
"""
from libc.stdint cimport int32_t, int64_t

from kvcore.drivers.replay._blockcache cimport (
    NO_BLOCK, TAKES_AHEAD, cache_expect_block, cache_expect_takes, cache_find, cache_hold, cache_match, cache_release,
    cache_take, cache_unhold, cache_unrelease, cache_untake,
)
from kvcore.drivers.replay._sequences cimport (
    NO_SEQ, RUNNING, WAITING, due_at, heap_add, heap_remove, list_append, list_prepend, list_remove, list_restore, room,
    seq_free, seq_t, tokens_at,
)

cdef enum:
    AHEAD = 8                   # blocks on their way from memory while one is freed

cdef int64_t LENGTH_MAX = <int64_t>1 << 40
cdef int64_t NS_END = <int64_t>1 << 62          # events carry times below this


cdef i128 boundary(model_t *m, frame_t *f, int64_t i) noexcept nogil:
    """End of the i-th iteration of a frame, ps: each one lasts kv_token_ps * n longer than the one before."""
    cdef i128 first = (
        m.base_ps + <i128>m.prefill_token_ps * f.prefill + <i128>m.decode_seq_ps * f.n + <i128>m.kv_token_ps * f.kv
    )
    return f.start + first * i + <i128>m.kv_token_ps * f.n * (<i128>i * (i - 1) // 2)


# One boundary's schedule: the prefill that goes on, then admissions.

cdef void _give(model_t *m, frame_t *f, int32_t s) noexcept nogil:
    """A prefill chunk, as long as the budget lasts."""
    cdef int64_t rest = m.table.seqs[s].tokens - done_before(m, f, s)
    cdef int64_t chunk = min(rest, f.budget)
    f.prefill += chunk
    f.budget -= chunk
    if chunk < rest:
        f.partial = s
        f.chunk = chunk


cdef bint _place(model_t *m, worker_t *w, int32_t s) except -1 nogil:
    """Give a waiting sequence all the blocks that its present tokens fill. Returns 0 if they are not there."""
    cdef seq_t *q = &m.table.seqs[s]
    cdef int32_t idle, i, hits, n, need
    # Without new names the need of a blocked sequence can only grow: hits are lost, or held no more by others.
    if w.blocked == s and w.blocked_stores == w.cache.stores and w.cache.free < w.blocked_need:
        return 0
    hits = <int32_t>min(<int64_t>q.n_names, (q.tokens - 1) // m.block_size)
    hits = cache_match(&w.cache, q.names, hits, q.blocks, &idle)
    n = <int32_t>((q.tokens - 1) // m.block_size + 1)
    need = n - hits + idle
    if need > w.cache.free:
        w.blocked, w.blocked_stores, w.blocked_need = s, w.cache.stores, need
        return 0
    for i in range(hits):
        cache_hold(&w.cache, q.blocks[i])
    for i in range(hits, n):
        if (i - hits) % TAKES_AHEAD == 0:
            cache_expect_takes(&w.cache, n - i)
        q.blocks[i] = cache_take(&w.cache)
    q.hits = hits
    q.n_blocks = n
    if q.cached < 0:
        q.cached = hits * m.block_size
    return 1


cdef int frame_admit(model_t *m, worker_t *w, frame_t *f) except -1 nogil:
    """Admit to the last frame from the queue, in order, until one fails; then set its length.

    May be called again when the queue has grown.
    """
    cdef int32_t s
    cdef seq_t *q
    while w.waiting.head != NO_SEQ and f.budget > 0 and w.n_running < m.max_num_seqs and not f.sealed:
        s = w.waiting.head
        if not _place(m, w, s):
            break
        list_remove(&w.waiting, m.table.seqs, s)
        list_append(&w.running, m.table.seqs, s)
        q = &m.table.seqs[s]
        q.state = RUNNING
        q.order = w.next_order
        w.next_order += 1
        w.n_running += 1
        w.blocked = NO_SEQ
        if f.head == NO_SEQ:
            f.head = s
        _give(m, f, s)
    _measure(m, w, f)
    return 0


cdef int _unadmit(model_t *m, worker_t *w, frame_t *f) except -1 nogil:
    """Take back all admissions of the last frame, last first."""
    cdef int32_t s, i
    cdef seq_t *q
    while w.running.tail != NO_SEQ and m.table.seqs[w.running.tail].order >= f.order:
        s = w.running.tail
        q = &m.table.seqs[s]
        for i in range(q.n_blocks - 1, q.hits - 1, -1):
            cache_untake(&w.cache, q.blocks[i])
        for i in range(q.hits - 1, -1, -1):
            cache_unhold(&w.cache, q.blocks[i])
        q.state = WAITING
        if q.preemptions == 0:
            q.cached = -1
        list_remove(&w.running, m.table.seqs, s)
        list_prepend(&w.waiting, m.table.seqs, s)
        w.n_running -= 1
    w.next_order = f.order
    w.blocked = NO_SEQ
    return 0


cdef void _measure(model_t *m, worker_t *w, frame_t *f) noexcept nogil:
    """Set the length of the last frame."""
    cdef int64_t done, b
    cdef seq_t *q
    f.length = w.heap.due[0].it - f.it if w.heap.n else LENGTH_MAX
    if f.sealed or w.cache.n_dropped or f.head != f.partial:
        f.length = 1
    elif f.partial != NO_SEQ:
        # Up to the last chunk, or to the chunk that completes a block whose name is not in the index yet.
        q = &m.table.seqs[f.partial]
        done = done_before(m, f, f.partial)
        f.length = 1 if q.doomed else min(f.length, (q.tokens - done - 1) // f.chunk)
        for b in range(done // m.block_size, <int64_t>q.n_names):
            if cache_find(&w.cache, q.names[b]) == NO_BLOCK:
                f.length = min(f.length, ((b + 1) * m.block_size - done - 1) // f.chunk + 1)
                break


cdef int frame_begin(model_t *m, worker_t *w, frame_t *f) except -1 nogil:
    """Schedule the last frame, of which start, it, n, kv, carried, done and sealed are given."""
    f.prefill = f.chunk = 0
    f.partial = NO_SEQ
    f.head = f.carried
    f.order = w.next_order
    f.budget = m.max_num_batched_tokens - f.n
    if f.carried != NO_SEQ:
        _give(m, f, f.carried)
    return frame_admit(m, w, f)


# From frame to frame.

cdef frame_t frame_after(model_t *m, frame_t *f) noexcept nogil:
    """What a frame leaves to the next one before any sequence joins or leaves."""
    cdef frame_t g = f[0]
    g.start = boundary(m, f, f.length)
    g.it = f.it + f.length
    g.kv = f.kv + f.n * f.length
    g.carried = f.partial
    g.done = 0 if f.partial == NO_SEQ else done_after(m, f, f.partial)
    g.sealed = 0
    return g


cdef void frame_catch_up(model_t *m, worker_t *w, frame_t *f, int64_t now_ns) noexcept nogil:
    """Let the last frame, which has begun, start at its last boundary by now_ns; never at its end."""
    cdef int64_t low = 0, high = f.length - 1, middle
    while low < high:
        middle = (low + high + 1) // 2
        if boundary(m, f, middle) < (<i128>now_ns + 1) * NS_PS:
            low = middle
        else:
            high = middle - 1
    if low == 0:
        return
    if w.depth == 1:
        w.busy += boundary(m, f, low) - f.start
        w.count.iterations += low
    f.start = boundary(m, f, low)
    f.it += low
    f.length -= low
    f.kv += f.n * low
    if f.partial != NO_SEQ:
        f.done = done_before(m, f, f.partial) + f.chunk * low
        f.carried = f.partial


cdef int frame_join(model_t *m, worker_t *w, frame_t *f, int32_t s) except -1 nogil:
    """Its prompt, and what it had put out, is computed: the sequence has one token more, and decodes from f on."""
    cdef seq_t *q = &m.table.seqs[s]
    q.since = f.it
    f.n += 1
    f.kv += q.tokens + 1
    return heap_add(&w.heap, m.table.seqs, s, due_at(q, f.it, q.tokens + 1, m.block_size))


cdef void frame_leave(model_t *m, worker_t *w, frame_t *f, int32_t s) noexcept nogil:
    """A running sequence is no part of f, the frame that is about to begin: its blocks are freed, leaf first."""
    cdef seq_t *q = &m.table.seqs[s]
    cdef int32_t i
    if q.place >= 0:
        f.n -= 1
        f.kv -= tokens_at(q, f.it)
        heap_remove(&w.heap, m.table.seqs, s)
    elif s == f.carried:
        f.carried = NO_SEQ
    list_remove(&w.running, m.table.seqs, s)
    w.n_running -= 1
    for i in range(q.n_blocks - 1, -1, -1):
        if i >= AHEAD:
            cache_expect_block(&w.cache, q.blocks[i - AHEAD])
        cache_release(&w.cache, q.blocks[i])


cdef int _leave_quietly(model_t *m, worker_t *w, frame_t *f, int32_t s) except -1 nogil:
    """frame_leave that can be taken back."""
    w.left = <left_t *>room(w.left, w.n_left, &w.left_rows, sizeof(left_t))
    w.left[w.n_left] = left_t(s, w.depth, m.table.seqs[s].place >= 0)
    w.n_left += 1
    frame_leave(m, w, f, s)
    return 0


cdef bint _is_quiet(model_t *m, worker_t *w) noexcept nogil:
    """Does the last frame end without a fact?"""
    cdef frame_t *f = &w.frames[w.depth - 1]
    cdef int64_t b
    cdef int32_t i, s = f.head
    cdef seq_t *q
    if w.cache.n_dropped:
        return 0
    if w.heap.n and w.heap.due[0].it == f.it + f.length:
        for i in range(w.heap.n):
            if w.heap.due[i].it == f.it + f.length and not m.table.seqs[w.heap.due[i].seq].doomed:
                return 0
    while s != NO_SEQ:
        q = &m.table.seqs[s]
        if not q.doomed:
            if s != f.partial and (q.first_ns < 0 or q.tokens % m.block_size == 0 or q.tokens + 1 == q.total):
                return 0
            for b in range(done_before(m, f, s) // m.block_size,
                           min(<int64_t>q.n_names, done_after(m, f, s) // m.block_size)):
                if cache_find(&w.cache, q.names[b]) == NO_BLOCK:
                    return 0
        s = q.next
    return 1


cdef int plan_extend(model_t *m, worker_t *w) except -1 nogil:
    """Add frames until one ends with a fact, and note its time, or until nothing is left to run."""
    cdef frame_t *f
    cdef i128 end
    while w.n_running and _is_quiet(m, w):
        _extend(m, w)
    w.next_ns = IDLE_NS
    if w.n_running:
        f = &w.frames[w.depth - 1]
        end = boundary(m, f, f.length) // NS_PS
        if end >= NS_END:
            with gil:
                raise OverflowError("virtual time beyond 2^62 ns")
        w.next_ns = <int64_t>end
    return 0


cdef int _extend(model_t *m, worker_t *w) except -1 nogil:
    """Add a frame after the last one, which ends quietly."""
    cdef frame_t *f
    cdef frame_t *g
    cdef int32_t s, following
    w.frames = <frame_t *>room(w.frames, w.depth, &w.frame_rows, sizeof(frame_t))
    f = &w.frames[w.depth - 1]
    g = &w.frames[w.depth]
    g[0] = frame_after(m, f)
    while w.heap.n and w.heap.due[0].it == g.it:
        _leave_quietly(m, w, g, w.heap.due[0].seq)
    s = f.head
    while s != NO_SEQ:
        following = m.table.seqs[s].next
        if m.table.seqs[s].doomed:
            _leave_quietly(m, w, g, s)
        elif s != f.partial:
            frame_join(m, w, g, s)
        s = following
    w.depth += 1
    return frame_begin(m, w, g)


cdef int plan_retract(model_t *m, worker_t *w) except -1 nogil:
    """Undo the last frame, in the reverse order of _extend."""
    cdef frame_t *f = &w.frames[w.depth - 2]
    cdef int32_t i, s
    cdef seq_t *q
    _unadmit(m, w, &w.frames[w.depth - 1])
    w.depth -= 1
    while w.n_left and w.left[w.n_left - 1].depth == w.depth:
        w.n_left -= 1
        s = w.left[w.n_left].seq
        q = &m.table.seqs[s]
        for i in range(q.n_blocks):
            cache_unrelease(&w.cache, q.blocks[i])
        list_restore(&w.running, m.table.seqs, s)
        w.n_running += 1
        if w.left[w.n_left].decoding:
            heap_add(&w.heap, m.table.seqs, s, f.it + f.length)
    s = f.head
    while s != NO_SEQ:
        if s != f.partial and m.table.seqs[s].place >= 0:
            heap_remove(&w.heap, m.table.seqs, s)
        s = m.table.seqs[s].next
    return 0


cdef void plan_commit(model_t *m, worker_t *w) noexcept nogil:
    """The last frame has begun: forget those before it."""
    cdef int32_t i
    w.busy += w.frames[w.depth - 1].start - w.frames[0].start
    w.count.iterations += w.frames[w.depth - 1].it - w.frames[0].it
    for i in range(w.n_left):
        seq_free(&m.table, w.left[i].seq)
    w.n_left = 0
    w.frames[0] = w.frames[w.depth - 1]
    w.depth = 1
