"""One modelled worker: it takes sequences in and lets its planned iterations pass. The rules are in _engine.pyx.

What is here: submission and cancellation between boundaries, and what happens at a boundary with a fact: sequences
start to decode, grow, finish and leave, blocks get names, and, if one is needed and none is free, one is preempted.
Knows no Python object and no other worker. Written by _engine only.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from kvcore.drivers.replay._blockcache cimport (
    cache_close, cache_expect, cache_forget, cache_open, cache_store, cache_take,
)
from kvcore.drivers.replay._plan cimport (
    IDLE_NS, NS_PS, done_after, done_before, fact_t, frame_admit, frame_after, frame_begin, frame_catch_up,
    frame_join, frame_leave, frame_t, i128, plan_commit, plan_extend, plan_retract, start_ns,
)
from kvcore.drivers.replay._sequences cimport (
    NO_SEQ, RUNNING, WAITING, due_at, heap_move, list_append, list_prepend, list_remove, room, seq_free, seq_t,
    tokens_at,
)

cdef enum:
    AHEAD = 8                   # names on their way from memory while one is stored


cdef int worker_open(worker_t *w, int32_t blocks) except -1:
    """An idle worker. w is all zero."""
    w.running.head = w.running.tail = w.waiting.head = w.waiting.tail = w.blocked = NO_SEQ
    w.next_ns = IDLE_NS
    cache_open(&w.cache, blocks)
    w.frames = <frame_t *>room(w.frames, 0, &w.frame_rows, sizeof(frame_t))
    memset(w.frames, 0, sizeof(frame_t))
    w.frames[0].carried = w.frames[0].head = w.frames[0].partial = NO_SEQ
    w.depth = 1
    return 0


cdef void worker_close(worker_t *w) noexcept nogil:
    cache_close(&w.cache)
    free(w.frames)
    free(w.left)
    free(w.heap.due)


cdef int worker_submit(model_t *m, worker_t *w, int32_t s, int64_t now_ns) except -1 nogil:
    """A new sequence at the end of the queue. No fact before now_ns is pending."""
    cdef frame_t *f
    list_append(&w.waiting, m.table.seqs, s)
    m.table.seqs[s].state = WAITING
    if w.waiting.head != s:
        return 0
    if w.n_running == 0 and w.frames[w.depth - 1].start <= <i128>now_ns * NS_PS:
        plan_commit(m, w)
        f = &w.frames[0]
        f.start = <i128>now_ns * NS_PS
        frame_begin(m, w, f)
        return plan_extend(m, w)
    return _reconsider(m, w, now_ns)


cdef int _reconsider(model_t *m, worker_t *w, int64_t now_ns) except -1 nogil:
    """The front of the queue has changed: the first iteration that starts at or after now_ns looks at it."""
    cdef frame_t *f
    while w.depth > 1 and start_ns(&w.frames[w.depth - 2]) >= now_ns:
        plan_retract(m, w)
    f = &w.frames[w.depth - 1]
    if start_ns(f) < now_ns:
        frame_catch_up(m, w, f, now_ns)
    if start_ns(f) >= now_ns:
        frame_admit(m, w, f)
    elif f.budget > 0 and w.n_running < m.max_num_seqs:
        f.length = 1
    return plan_extend(m, w)


cdef int worker_cancel(model_t *m, worker_t *w, int32_t s, int64_t now_ns) except -1 nogil:
    """Stop a sequence: a waiting one at once, a running one at the end of its iteration. Its row is freed in time."""
    cdef seq_t *q = &m.table.seqs[s]
    cdef frame_t *f
    w.count.cancelled += 1
    while w.depth > 1 and start_ns(&w.frames[w.depth - 1]) > now_ns:
        plan_retract(m, w)
    if q.state == WAITING:
        list_remove(&w.waiting, m.table.seqs, s)
        seq_free(&m.table, s)
        w.blocked = NO_SEQ
        return _reconsider(m, w, now_ns)
    f = &w.frames[w.depth - 1]
    frame_catch_up(m, w, f, now_ns)
    f.length = 1
    q.doomed = 1
    if q.place >= 0:
        heap_move(&w.heap, m.table.seqs, s, f.it + 1)
    return plan_extend(m, w)


cdef int _tell(model_t *m, int32_t kind, int32_t s, int32_t first, int32_t last) except -1 nogil:
    m.facts = <fact_t *>room(m.facts, m.n_facts, &m.fact_rows, sizeof(fact_t))
    m.facts[m.n_facts] = fact_t(kind, s, first, last)
    m.n_facts += 1
    return 0


cdef int _tell_removed(model_t *m, worker_t *w) except -1 nogil:
    """The names that were evicted when the frame began."""
    cdef int32_t i, first = m.n_removed
    for i in range(w.cache.n_dropped):
        m.removed = <uint64_t *>room(m.removed, m.n_removed, &m.removed_rows, sizeof(uint64_t))
        m.removed[m.n_removed] = w.cache.dropped[i].name
        m.n_removed += 1
    if m.n_removed > first:
        _tell(m, REMOVED, NO_SEQ, first, m.n_removed)
        w.count.evicted_blocks += m.n_removed - first
        cache_forget(&w.cache)
    return 0


cdef int _tell_stored(model_t *m, worker_t *w, frame_t *f) except -1 nogil:
    """Blocks that the frame's prefill has filled get their names."""
    cdef int32_t b, first, last, s = f.head
    cdef fact_t *run
    cdef seq_t *q
    while s != NO_SEQ:
        q = &m.table.seqs[s]
        first = <int32_t>(done_before(m, f, s) // m.block_size)
        last = 0 if q.doomed else <int32_t>min(<int64_t>q.n_names, done_after(m, f, s) // m.block_size)
        for b in range(first, min(first + AHEAD, last)):
            cache_expect(&w.cache, q.names[b])
        for b in range(first, last):
            if b + AHEAD < last:
                cache_expect(&w.cache, q.names[b + AHEAD])
            if not cache_store(&w.cache, q.blocks[b], q.names[b]):
                continue
            w.count.stored_blocks += 1
            run = &m.facts[m.n_facts - 1] if m.n_facts > m.first_fact else NULL
            if run != NULL and run.kind == STORED and run.seq == s and run.last == b:
                run.last += 1
            else:
                _tell(m, STORED, s, b, b + 1)
        s = q.next
    return 0


cdef int _tell_prefilled(model_t *m, frame_t *f, int64_t now_ns) except -1 nogil:
    """First tokens. A sequence that was preempted after its first token is computed again without a word."""
    cdef int32_t s = f.head
    cdef seq_t *q
    while s != f.partial:
        q = &m.table.seqs[s]
        if q.first_ns < 0 and not q.doomed:
            q.first_ns = now_ns
            _tell(m, PREFILLED, s, 0, 0)
        s = q.next
    return 0


cdef int _move_on(model_t *m, worker_t *w, frame_t *g, int32_t s) except -1 nogil:
    """A decoding sequence has come to a token that may matter: it leaves, or grows into a new block."""
    cdef seq_t *q = &m.table.seqs[s]
    cdef int64_t tokens = tokens_at(q, g.it)
    if q.doomed:
        frame_leave(m, w, g, s)
        seq_free(&m.table, s)
        return 0
    if tokens == q.total:
        frame_leave(m, w, g, s)
        m.ended = <int32_t *>room(m.ended, m.n_ended, &m.ended_rows, sizeof(int32_t))
        m.ended[m.n_ended] = s
        m.n_ended += 1
        w.count.requests += 1
        w.count.prompt_tokens += q.prompt
        w.count.cached_tokens += q.cached
        w.count.output_tokens += q.total - q.prompt
        return 0
    if (tokens - 1) % m.block_size == 0:
        _tell(m, GREW, s, 0, 0)
        m.needy = <int32_t *>room(m.needy, m.n_needy, &m.needy_rows, sizeof(int32_t))
        m.needy[m.n_needy] = s
        m.n_needy += 1
    heap_move(&w.heap, m.table.seqs, s, due_at(q, g.it, tokens, m.block_size))
    return 0


cdef void _preempt(model_t *m, worker_t *w, frame_t *g, int32_t s) noexcept nogil:
    """Back to the front of the queue, without blocks."""
    cdef seq_t *q = &m.table.seqs[s]
    cdef int64_t tokens = tokens_at(q, g.it) if q.place >= 0 else q.tokens
    frame_leave(m, w, g, s)
    q.tokens = tokens
    list_prepend(&w.waiting, m.table.seqs, s)
    q.state = WAITING
    q.preemptions += 1
    w.count.preemptions += 1
    g.sealed = 1


cdef int _make_room(model_t *m, worker_t *w, frame_t *g) except -1 nogil:
    """One more block for each sequence that has grown; as long as none is free, the last running one is preempted."""
    cdef int32_t i
    cdef seq_t *q
    for i in range(m.n_needy):
        q = &m.table.seqs[m.needy[i]]
        while q.state == RUNNING and w.cache.free == 0:
            _preempt(m, w, g, w.running.tail)
        if q.state == RUNNING:
            q.blocks[q.n_blocks] = cache_take(&w.cache)
            q.n_blocks += 1
    return 0


cdef int64_t worker_pass(model_t *m, worker_t *w) except -1 nogil:
    """Let the last planned frame end: its facts are added to m.facts, and a new plan is made. Returns the time, ns.

    Cost: O(log n) for each of the n decoding sequences that grows or finishes and for each that is admitted, O(1) for
    each block taken, freed or named.
    """
    cdef frame_t f, g
    cdef int64_t now_ns
    cdef int32_t i, s, following
    plan_commit(m, w)
    f = w.frames[0]
    g = frame_after(m, &f)
    now_ns = start_ns(&g)
    m.first_fact = m.n_facts
    m.n_needy = m.n_ended = 0
    _tell_removed(m, w)
    _tell_stored(m, w, &f)
    _tell_prefilled(m, &f, now_ns)
    while w.heap.n and w.heap.due[0].it == g.it:
        _move_on(m, w, &g, w.heap.due[0].seq)
    s = f.head
    while s != f.partial:
        following = m.table.seqs[s].next
        frame_join(m, w, &g, s)
        _move_on(m, w, &g, s)
        s = following
    if g.carried != NO_SEQ and m.table.seqs[g.carried].doomed:
        s = g.carried
        frame_leave(m, w, &g, s)
        seq_free(&m.table, s)
    for i in range(m.n_ended):
        _tell(m, FINISHED, m.ended[i], 0, 0)
    _make_room(m, w, &g)
    w.busy += g.start - f.start
    w.count.iterations += g.it - f.it
    w.frames[0] = g
    frame_begin(m, w, &w.frames[0])
    plan_extend(m, w)
    return now_ns
