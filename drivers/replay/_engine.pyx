"""A fleet of vLLM-like inference workers in virtual time. Same calls, same facts, on every machine.

Rules. They follow vLLM V1 (v1/core/sched/scheduler.py, v1/core/block_pool.py) unless marked "ours".

Iteration. A worker runs iterations back to back while it has sequences. At the start of one it schedules:
 1. One token for each decoding sequence. One that has just grown into a new block takes it from the free list; as long
    as none is free, the last running sequence is preempted: its blocks are freed, it goes to the front of the queue,
    and is computed again from prompt and output so far. An iteration that preempts admits nothing.
 2. The next chunk of the prompt that is partly computed, as far as max_num_batched_tokens allows.
 3. Sequences from the queue, first come first served, until max_num_seqs or the token budget is reached or the blocks
    of the next one do not fit. Prefix hit: its longest prefix of named blocks that the cache has, at most
    (tokens - 1) // block_size blocks, so that one token is always computed. Ours: it takes all the blocks that its
    present tokens need now, where vLLM only checks that they fit (scheduler_reserve_full_isl) and takes them by chunks.
It lasts base_ps + prefill_token_ps * P + decode_seq_ps * n + kv_token_ps * K: P prompt tokens computed (and recomputed
ones), n decoding sequences with K tokens, prompt and output so far, the newest included. Times are summed exactly, in
picoseconds, and floored to nanoseconds in facts only. What an iteration brings about, happens at its end.

Facts, at the end of an iteration. Those of one instant come by worker; those of one worker in this order:
    BlocksRemoved        names that its schedule evicted, in order of eviction
    BlocksStored         names of the full prompt blocks that it computed, sequence by sequence, root to leaf
    PrefillCompleted     first token. Not repeated when a preempted sequence has been computed again
    OutputBlockAdded     ceil((prompt + output) / block_size) has grown with this token, and it is not the last token
    RequestFinished      last token; its blocks are freed, leaf first
each of the last three in order of admission. Ours: if another block already has a name, a second one with the same
content stays unnamed and is not announced, so the stored and removed names of a worker alternate. Blocks without a name
(output, the partial last block of a prompt, prompts of unknown content) take part in everything else.

Calls. now_ns never decreases, and facts before it must have been taken by advance(). A request submitted at t is seen
by the first schedule at or after t, that of an iteration that starts at t included, even if facts of t are already out.
A cancelled request leaves the queue at once; if it runs, it stays to the end of the iteration under way (one that
starts at t is), names and reports nothing more, and then frees its blocks. Its id may be used again at once.

Leaps. Between the facts of a worker there is a closed form for the time (_plan): the cost is per fact, not per token.

This module owns the ids, the events and the order of workers; _worker, _plan, _sequences and _blockcache are plain C.
Where many boundaries are due at once, advance() passes them without the interpreter's lock (GIL) and makes the events
afterwards, so that fleets of several threads run side by side. A fleet has one owner at a time, as a scheduler has.
"""
cimport cython
from cpython.long cimport PyLong_AsUnsignedLongLong
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free

from kvcore.drivers.replay._blockcache cimport NO_BLOCK, cache_find, cache_t
from kvcore.drivers.replay._plan cimport IDLE_NS, NS_PS, fact_t, plan_commit, start_ns, worker_t
from kvcore.drivers.replay._sequences cimport NO_SEQ, room, seq_free, seq_new, seq_t
from kvcore.drivers.replay._worker cimport (
    FINISHED, GREW, PREFILLED, REMOVED, STORED, worker_cancel, worker_close, worker_open, worker_pass, worker_submit,
)
from kvcore.events cimport BlocksRemoved, BlocksStored, OutputBlockAdded, PrefillCompleted, RequestFinished

import numpy as np

from kvcore.events import Outcome, Tier

cdef object COMPLETED = Outcome.COMPLETED
cdef object DEVICE = Tier.DEVICE

# Ranges that keep every product of _plan.boundary within 128 bits.
cdef int64_t TOKENS_MAX = <int64_t>1 << 32
_WORKERS_MAX = 1 << 20
_SEQS_MAX = 1 << 16
_BASE_MAX_PS = 1 << 50
_STEP_MAX_PS = 1 << 36

_COUNTS = (
    "requests", "cancelled", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions", "stored_blocks",
    "evicted_blocks", "iterations", "busy_ns",
)


def _within(name, low, value, high):
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low} .. {high}, not {value!r}")
    return value


@cython.auto_pickle(False)
cdef class Fleet:
    """All workers of one kind. Memory: what is live, and the blocks used so far (24 bytes each, names 16 to 32 more).

    workers: their worker ids in events are 0 .. workers - 1; rank 0, incarnation 0.
    block_size: tokens of a block in this run; the spec's memory is divided anew.
    Raises: ValueError for a spec out of range.
    """
    def __cinit__(self, workers, spec, block_size):
        cdef int32_t i
        _within("block_size", 1, block_size, TOKENS_MAX)
        spec = spec.scaled(block_size)
        _within("kv_blocks * block_size", block_size, spec.kv_blocks * block_size, TOKENS_MAX)
        self.kv_blocks = _within("kv_blocks", 1, spec.kv_blocks, (1 << 31) - 1)
        self.m.base_ps = _within("base_ps", NS_PS, spec.base_ps, _BASE_MAX_PS)
        self.m.prefill_token_ps = _within("prefill_token_ps", 0, spec.prefill_token_ps, _STEP_MAX_PS)
        self.m.decode_seq_ps = _within("decode_seq_ps", 0, spec.decode_seq_ps, _STEP_MAX_PS)
        self.m.kv_token_ps = _within("kv_token_ps", 0, spec.kv_token_ps, _STEP_MAX_PS)
        self.m.max_num_seqs = _within("max_num_seqs", 1, spec.max_num_seqs, _SEQS_MAX)
        self.m.max_num_batched_tokens = _within(
            "max_num_batched_tokens", spec.max_num_seqs, spec.max_num_batched_tokens, TOKENS_MAX
        )
        self.m.block_size = block_size
        self.m.table.free = NO_SEQ
        workers = _within("workers", 1, workers, _WORKERS_MAX)
        self.w = <worker_t *>calloc(workers, sizeof(worker_t))
        self.order = <int32_t *>calloc(2 * workers, sizeof(int32_t))
        if self.w == NULL or self.order == NULL:
            raise MemoryError
        self.place = self.order + <int32_t>workers
        for i in range(<int32_t>workers):
            worker_open(&self.w[i], <int32_t>self.kv_blocks)
            self.order[i] = self.place[i] = i
            self.n = i + 1
        self.live, self.ids, self.hashes, self.done = {}, [], [], []

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.n):
            worker_close(&self.w[i])
        for i in range(self.m.table.n):
            free(self.m.table.seqs[i].names)
        free(self.w)
        free(self.order)
        free(self.ends)
        free(self.m.table.seqs)
        free(self.m.facts)
        free(self.m.removed)
        free(self.m.needy)
        free(self.m.ended)

    def submit(
        self, int64_t worker, str request_id not None, int64_t attempt, int64_t prompt_tokens, int64_t output_tokens,
        tuple block_hashes not None, int64_t now_ns
    ):
        """A request reaches a worker.

        attempt: repeated in its events. prompt_tokens, output_tokens: >= 1.
        block_hashes: names of the prompt's blocks, root to leaf, 0 .. 2^64-1; may be cut short or empty. That of a
            partial last block is not used.
        Raises: ValueError, and nothing has changed: unknown worker, live id, a prompt and output that no worker can
            ever hold, more names than blocks, time out of order.
        Cost: O(log workers + names), without what the admission takes.
        """
        cdef int32_t s, i
        self._check_owner()
        if request_id in self.live:
            raise ValueError(f"{request_id}: this request is already in the fleet")
        s = self.take(request_id, worker, attempt, prompt_tokens, output_tokens, len(block_hashes), now_ns)
        try:
            for i in range(self.m.table.seqs[s].n_names):
                self.m.table.seqs[s].names[i] = PyLong_AsUnsignedLongLong(block_hashes[i])
        except (OverflowError, TypeError):
            seq_free(&self.m.table, s)
            raise
        self.live[request_id] = s
        if s == len(self.ids):
            self.ids.append(request_id)
            self.hashes.append(block_hashes)
        else:
            self.ids[s] = request_id
            self.hashes[s] = block_hashes
        self.start(s, now_ns)

    cdef int32_t take(
        self, str name, int64_t worker, int64_t attempt, int64_t prompt_tokens, int64_t output_tokens, int64_t hashes,
        int64_t now_ns,
    ) except -1:
        """A sequence for a request with so many block hashes, which are still to be filled in. name: for errors."""
        cdef int64_t size = self.m.block_size
        cdef int64_t n_blocks = (prompt_tokens + output_tokens - 1) // size + 1
        cdef int32_t s
        cdef seq_t *q
        if not (0 <= worker < self.n and 0 < prompt_tokens <= TOKENS_MAX and 0 < output_tokens <= TOKENS_MAX):
            _within("worker", 0, worker, self.n - 1)
            _within("prompt_tokens", 1, prompt_tokens, TOKENS_MAX)
            _within("output_tokens", 1, output_tokens, TOKENS_MAX)
        if n_blocks > self.kv_blocks:
            raise ValueError(f"{name}: {n_blocks} blocks of prompt and output never fit into {self.kv_blocks}")
        if hashes > (prompt_tokens - 1) // size + 1:
            raise ValueError(f"{name}: {hashes} block hashes for {prompt_tokens} prompt tokens")
        self._check_time(now_ns)
        s = seq_new(&self.m.table, <int32_t>min(hashes, prompt_tokens // size), n_blocks)
        q = &self.m.table.seqs[s]
        q.worker = <int32_t>worker
        q.attempt = attempt
        q.prompt = q.tokens = prompt_tokens
        q.total = prompt_tokens + output_tokens
        return s

    cdef int start(self, int32_t s, int64_t now_ns) except -1:
        """A sequence that has been taken and filled in reaches its worker."""
        cdef int32_t worker = self.m.table.seqs[s].worker
        self.now_ns = now_ns
        worker_submit(&self.m, &self.w[worker], s, now_ns)
        self._reorder(worker)
        return 0

    cdef int stop(self, int32_t s, int64_t now_ns) except -1:
        """Cancel a sequence."""
        cdef int32_t worker = self.m.table.seqs[s].worker
        self._check_time(now_ns)
        self.now_ns = now_ns
        worker_cancel(&self.m, &self.w[worker], s, now_ns)
        self._reorder(worker)
        return 0

    def cancel(self, str request_id not None, int64_t now_ns):
        """Stop a request, see the rules above. Returns False if it is not in the fleet.

        Raises: ValueError if time is out of order. Cost: what of the plan has to be made again.
        """
        cdef int32_t s
        self._check_owner()
        self._check_time(now_ns)
        found = self.live.pop(request_id, None)
        if found is None:
            return False
        s = found
        self.ids[s] = self.hashes[s] = None
        self.stop(s, now_ns)
        return True

    @property
    def next_ns(self):
        """Time of the earliest fact that advance() has not returned; None: there is none to come."""
        self._check_owner()
        cdef int64_t next_ns = self.w[self.order[0]].next_ns
        return None if next_ns == IDLE_NS else next_ns

    def advance(self, int64_t now_ns):
        """All facts due at or before now_ns, as events, in the order given above.

        Raises: ValueError if time goes back; RuntimeError if another thread is in here.
        Cost: O(log workers) per boundary, and see _worker.worker_pass.
        """
        self._check_owner()
        if now_ns < self.now_ns:
            raise ValueError(f"time goes back from {self.now_ns} to {now_ns}")
        self.now_ns = now_ns
        events = []
        if self.w[self.order[0]].next_ns > now_ns:
            return events
        self._pass(now_ns, 1)           # mostly it is the only one, and giving the lock away costs more than that
        self._collect(events)
        while self.w[self.order[0]].next_ns <= now_ns:
            self.passing = True
            try:
                with nogil:
                    self._pass(now_ns, FACTS_MAX)
            finally:
                self.passing = False
            self._collect(events)
        return events

    cdef int _pass(self, int64_t now_ns, int32_t facts) except -1 nogil:
        """Pass boundaries that are due until there are so many facts."""
        cdef int32_t worker
        cdef int64_t at_ns
        self.m.n_facts = self.m.n_removed = self.n_ends = 0
        while self.w[self.order[0]].next_ns <= now_ns and (self.n_ends == 0 or self.m.n_facts < facts):
            worker = self.order[0]
            self.ends = <end_t *>room(self.ends, self.n_ends, &self.end_rows, sizeof(end_t))
            at_ns = worker_pass(&self.m, &self.w[worker])
            self.ends[self.n_ends] = end_t(at_ns, worker, self.m.n_facts)
            self.n_ends += 1
            self._reorder(worker)
        return 0

    def finished(self):
        """Requests that have finished since the last call, in that order; each is

        (request_id, first_token_ns, finish_ns, cached_tokens, preemptions); cached_tokens: hit at the first admission.
        """
        self._check_owner()
        done, self.done = self.done, []
        return done

    def counters(self):
        """What each worker did so far. Shape: (workers,), with int64 fields.

        requests, prompt_tokens, cached_tokens (prefix hits), output_tokens: of requests that have finished.
        cancelled, preemptions: how often. stored_blocks, evicted_blocks: names announced.
        iterations, busy_ns: of the iterations that have ended, but not later than the worker's last fact.
        """
        cdef int32_t i
        cdef worker_t *w
        self._check_owner()
        rows = []
        for i in range(self.n):
            w = &self.w[i]
            if w.n_running == 0 and start_ns(&w.frames[w.depth - 1]) <= self.now_ns:
                plan_commit(&self.m, w)     # idle since a cancellation, of which there was nothing to report
            rows.append((
                w.count.requests, w.count.cancelled, w.count.prompt_tokens, w.count.cached_tokens,
                w.count.output_tokens, w.count.preemptions, w.count.stored_blocks, w.count.evicted_blocks,
                w.count.iterations, <int64_t>(w.busy // NS_PS),
            ))
        return np.array(rows, dtype=[(name, np.int64) for name in _COUNTS])

    def blocks(self, int64_t worker):
        """The cache of one worker, found by walking it: (free blocks, held blocks, names announced and not removed).

        What the plan up to the worker's next fact takes and frees is included. Cost: O(blocks used).
        Raises: AssertionError if the parts of the cache contradict each other.
        """
        self._check_owner()
        cdef cache_t *cache = &self.w[_within("worker", 0, worker, self.n - 1)].cache
        cdef int32_t b = cache.head, n_free = cache.total - cache.fresh, n_held = 0
        names = [cache.dropped[b].name for b in range(cache.n_dropped)]
        b = cache.head
        while b != NO_BLOCK:
            n_free += 1
            b = cache.blocks[b].next
        for b in range(cache.fresh):
            n_held += cache.blocks[b].refs > 0
            if cache.blocks[b].named:
                assert cache_find(cache, cache.blocks[b].name) == b
                names.append(cache.blocks[b].name)
        assert n_free == cache.free
        assert len(names) == cache.named + cache.n_dropped
        return n_free, n_held, names

    cdef int _check_owner(self) except -1:
        if self.passing:
            raise RuntimeError("another thread is in advance(): a fleet has one owner at a time")
        return 0

    cdef int _check_time(self, int64_t now_ns) except -1:
        if now_ns < self.now_ns:
            raise ValueError(f"time goes back from {self.now_ns} to {now_ns}")
        if self.w[self.order[0]].next_ns < now_ns:
            raise ValueError(f"call advance() first: a fact at {self.next_ns} comes before {now_ns}")
        return 0

    cdef int _collect(self, list events) except -1:
        """Turn the facts of all boundaries passed into events."""
        cdef int32_t i, first = 0
        for i in range(self.n_ends):
            self._tell(self.ends[i], first, events)
            first = self.ends[i].last
        return 0

    cdef int _tell(self, end_t end, int32_t first, list events) except -1:
        """Those of one boundary."""
        cdef int32_t i, s, worker = end.worker
        cdef int64_t now_ns = end.at_ns
        cdef fact_t *fact
        cdef seq_t *q
        cdef PrefillCompleted prefilled
        cdef OutputBlockAdded grew
        cdef RequestFinished finished
        for i in range(first, end.last):
            fact = &self.m.facts[i]
            s = fact.seq
            if fact.kind == GREW:
                grew = OutputBlockAdded.__new__(OutputBlockAdded)
                grew.now_ns, grew.request_id, grew.attempt = now_ns, self.ids[s], self.m.table.seqs[s].attempt
                events.append(grew)
            elif fact.kind == PREFILLED:
                prefilled = PrefillCompleted.__new__(PrefillCompleted)
                prefilled.now_ns, prefilled.request_id = now_ns, self.ids[s]
                prefilled.attempt = self.m.table.seqs[s].attempt
                events.append(prefilled)
            elif fact.kind == FINISHED:
                q = &self.m.table.seqs[s]
                finished = RequestFinished.__new__(RequestFinished)
                finished.now_ns, finished.request_id, finished.attempt = now_ns, self.ids[s], q.attempt
                finished.outcome, finished.context_tokens = COMPLETED, q.total
                events.append(finished)
                self.done.append((finished.request_id, q.first_ns, now_ns, q.cached, q.preemptions))
                del self.live[finished.request_id]
                self.ids[s] = self.hashes[s] = None
                seq_free(&self.m.table, s)
            elif fact.kind == REMOVED:
                events.append(self._removed(worker, now_ns, fact))
            elif i == first or self.m.facts[i - 1].kind != STORED:
                events.append(self._stored(worker, now_ns, i, end.last))
        return 0

    cdef object _removed(self, int32_t worker, int64_t now_ns, fact_t *fact):
        cdef BlocksRemoved event = BlocksRemoved.__new__(BlocksRemoved)
        cdef int32_t i
        event.now_ns, event.worker_id = now_ns, worker
        event.block_hashes = tuple([self.m.removed[i] for i in range(fact.first, fact.last)])
        event.tier = DEVICE
        return event

    cdef object _stored(self, int32_t worker, int64_t now_ns, int32_t i, int32_t last):
        """One event for all runs of stored blocks, from fact i on, before fact last."""
        cdef BlocksStored event = BlocksStored.__new__(BlocksStored)
        cdef tuple names = ()
        cdef fact_t *fact
        while i < last and self.m.facts[i].kind == STORED:
            fact = &self.m.facts[i]
            names = names + (<tuple>self.hashes[fact.seq])[fact.first:fact.last]
            i += 1
        event.now_ns, event.worker_id, event.block_hashes = now_ns, worker, names
        event.tier = DEVICE
        return event

    cdef void _reorder(self, int32_t worker) noexcept nogil:
        """Move a worker to its place in the heap: its next_ns may have changed."""
        cdef int32_t i = self.place[worker], child
        while i > 0 and self._before(worker, self.order[(i - 1) >> 1]):
            self.order[i] = self.order[(i - 1) >> 1]
            self.place[self.order[i]] = i
            i = (i - 1) >> 1
        while True:
            child = 2 * i + 1
            if child + 1 < self.n and self._before(self.order[child + 1], self.order[child]):
                child += 1
            if child >= self.n or not self._before(self.order[child], worker):
                break
            self.order[i] = self.order[child]
            self.place[self.order[i]] = i
            i = child
        self.order[i] = worker
        self.place[worker] = i

    cdef bint _before(self, int32_t a, int32_t b) noexcept nogil:
        return self.w[a].next_ns < self.w[b].next_ns or (self.w[a].next_ns == self.w[b].next_ns and a < b)
