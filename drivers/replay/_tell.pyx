"""What a fleet has to tell, as rows for the core instead of events: the same facts in the same order as
Fleet.advance() lists them, about the handles that its sequences carry.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy, memset

from kvcore.drivers.replay._engine cimport FACTS_MAX, Fleet
from kvcore.drivers.replay._plan cimport fact_t
from kvcore.drivers.replay._sequences cimport room, seq_free, seq_t
from kvcore.drivers.replay._worker cimport FINISHED, GREW, PREFILLED, REMOVED, STORED
from kvcore.records cimport (
    EVENT_BLOCKS_REMOVED, EVENT_BLOCKS_STORED, EVENT_FINISHED, EVENT_OUTPUT_BLOCK_ADDED, EVENT_PREFILL_COMPLETED,
    event_record_t,
)


cdef event_record_t *add_row(rows_t *rows, int kind, int64_t now_ns) except NULL:
    """One more event, blank but for these. Valid until the next one."""
    cdef event_record_t *event
    rows.events = <event_record_t *>room(rows.events, rows.n, &rows.room, sizeof(event_record_t))
    event = &rows.events[rows.n]
    memset(event, 0, sizeof(event_record_t))
    event.kind, event.now_ns = kind, now_ns
    rows.n += 1
    return event


cdef int add_hashes(rows_t *rows, event_record_t *event, const uint64_t *hashes, int64_t count) except -1:
    """Some more block hashes of the event that was added last."""
    cdef int64_t wanted = 2 * (rows.n_hashes + count)
    cdef void *place
    if rows.n_hashes + count > rows.hash_room:
        place = realloc(rows.hashes, wanted * sizeof(uint64_t))
        if place == NULL or wanted >> 31:
            raise MemoryError
        rows.hashes, rows.hash_room = <uint64_t *>place, <int32_t>wanted
    if event.hashes == 0:
        event.first_hash = rows.n_hashes
    memcpy(rows.hashes + rows.n_hashes, hashes, count * sizeof(uint64_t))
    rows.n_hashes += <int32_t>count
    event.hashes += <int32_t>count
    return 0


cdef int tell_rows(Fleet fleet, int64_t now_ns, rows_t *rows) except -1:
    """All facts due at or before now_ns; who has finished stands in rows.done."""
    cdef int32_t i, first, facts = 1
    fleet._check_owner()
    if now_ns < fleet.now_ns:
        raise ValueError(f"time goes back from {fleet.now_ns} to {now_ns}")
    fleet.now_ns = now_ns
    while fleet.w[fleet.order[0]].next_ns <= now_ns:
        fleet._pass(now_ns, facts)
        first = 0
        for i in range(fleet.n_ends):
            _tell(fleet, i, first, rows)
            first = fleet.ends[i].last
        facts = FACTS_MAX
    return 0


cdef int _tell(Fleet fleet, int32_t end, int32_t first, rows_t *rows) except -1:
    """The facts of one boundary."""
    cdef int32_t i, worker = fleet.ends[end].worker
    cdef int64_t now_ns = fleet.ends[end].at_ns
    cdef event_record_t *event
    cdef fact_t *fact
    cdef seq_t *q
    for i in range(first, fleet.ends[end].last):
        fact = &fleet.m.facts[i]
        if fact.kind == REMOVED:
            event = add_row(rows, EVENT_BLOCKS_REMOVED, now_ns)
            event.worker_id = worker
            add_hashes(rows, event, fleet.m.removed + fact.first, fact.last - fact.first)
            continue
        q = &fleet.m.table.seqs[fact.seq]
        if fact.kind == STORED:
            # One event for all runs of stored blocks, which stand together.
            if i == first or fleet.m.facts[i - 1].kind != STORED:
                event = add_row(rows, EVENT_BLOCKS_STORED, now_ns)
                event.worker_id = worker
            add_hashes(rows, &rows.events[rows.n - 1], q.names + fact.first, fact.last - fact.first)
            continue
        if fact.kind == GREW:
            event = add_row(rows, EVENT_OUTPUT_BLOCK_ADDED, now_ns)
        elif fact.kind == PREFILLED:
            event = add_row(rows, EVENT_PREFILL_COMPLETED, now_ns)
        else:
            event = add_row(rows, EVENT_FINISHED, now_ns)
            event.context_tokens = q.total
            rows.done = <done_t *>room(rows.done, rows.n_done, &rows.done_room, sizeof(done_t))
            rows.done[rows.n_done] = done_t(q.handle, q.first_ns, q.cached, q.preemptions)
            rows.n_done += 1
        event.request, event.attempt = q.handle, q.attempt
        if fact.kind == FINISHED:
            seq_free(&fleet.m.table, fact.seq)
    return 0
