"""Ledger audit: everything that the ledger keeps up to date is computed anew from its bookings and compared.

Reads, never writes. A fault is a text that names the rank or booking by its slot; there are none, ever. Slow and plain
on purpose.

Cost: O(ranks * pairs + blocks in live paths).
"""
from kvcore._active cimport pair_t
from kvcore._heap cimport heap_holds
from kvcore._ledger cimport RANK_OPEN, RANK_STATES, booking_t, load_t, output_weight, weight_of
from kvcore._load cimport prefill_ns
from kvcore._types cimport NO_SLOT, NS_END, i128, int32_t, int64_t, saturated, slot_t


cdef list ledger_faults(Ledger ledger):
    """What is wrong with a ledger: nothing."""
    cdef slot_t rank
    faults = []
    live = {}
    for rank in range(ledger._ranks):
        slots = _bookings(ledger, rank, faults)
        _audit_sums(ledger, rank, slots, live, faults)
        _audit_fifo(ledger, rank, slots, faults)
    if len(live) != ledger.active.pairs:
        faults.append(f"active blocks: {ledger.active.pairs} held, {len(live)} in live bookings")
    _audit_counters(ledger, faults)
    _audit_lists(ledger, faults)
    return faults


cdef list _bookings(Ledger ledger, slot_t rank, list faults):
    """Request slots booked on a rank, oldest first."""
    cdef slot_t slot = ledger.loads[rank].first
    cdef slot_t before = NO_SLOT
    slots = []
    while slot != NO_SLOT and len(slots) <= ledger._slots:
        if ledger.bookings[slot].rank != rank or ledger.bookings[slot].prev != before:
            faults.append(f"booking {slot}: not linked as one of rank {rank}")
        slots.append(slot)
        before = slot
        slot = ledger.bookings[slot].next
    return slots[::-1]


cdef int _audit_sums(Ledger ledger, slot_t rank, list slots, dict live, list faults) except -1:
    """A rank's totals against the sums over its bookings; live: (rank, hash) -> how often it is counted."""
    cdef load_t* load = &ledger.loads[rank]
    cdef booking_t* booking
    cdef pair_t* pair
    cdef i128 prefill = 0
    cdef i128 held = 0
    cdef int64_t weight = 0
    cdef slot_t slot
    cdef int32_t i
    counts = {}
    for slot in slots:
        booking = &ledger.bookings[slot]
        if booking.prefilling:
            prefill += booking.prefill
        held += booking.private_blocks
        held += max(booking.reserve_blocks, <int64_t>booking.outputs + booking.outputs_decayed)
        weight += output_weight(booking)
        for i in range(booking.length):
            counts[booking.path[i]] = counts.get(booking.path[i], 0) + 1
            if i >= booking.bound_from:
                pair = _pair(ledger, rank, booking.path[i])
                if pair == NULL or pair.owner != slot or pair.at != i or pair.count != 1:
                    faults.append(f"booking {slot}: block {i} is bound to it and does not say so")
    for block_hash, count in counts.items():
        live[rank, block_hash] = count
        held += 1
        pair = _pair(ledger, rank, block_hash)
        if pair == NULL or pair.count != count:
            faults.append(f"rank {rank}: block {block_hash:#x} is not counted {count} times")
            continue
        weight += weight_of(ledger.bookings, pair)
        if pair.owner != NO_SLOT:
            booking = &ledger.bookings[pair.owner]
            if (booking.rank != rank or not booking.bound_from <= pair.at < booking.length
                    or booking.path[pair.at] != pair.hash):
                faults.append(f"rank {rank}: block {block_hash:#x} is bound to a booking that does not know")
    if load.requests != len(slots):
        faults.append(f"rank {rank}: {load.requests} requests, {len(slots)} bookings")
    if load.prefill != prefill:
        faults.append(f"rank {rank}: {saturated(load.prefill)} prefill tokens, bookings have {saturated(prefill)}")
    if load.weight != weight:
        faults.append(f"rank {rank}: weight {load.weight}, bookings have {weight}")
    if load.held != held:
        faults.append(f"rank {rank}: {saturated(load.held)} blocks held, bookings have {saturated(held)}")
    return 0


cdef pair_t* _pair(Ledger ledger, slot_t rank, object block_hash):
    cdef int32_t row = ledger.active.find(block_hash, rank)
    return NULL if row == NO_SLOT else &ledger.active.rows[row]


cdef int _audit_fifo(Ledger ledger, slot_t rank, list slots, list faults) except -1:
    """The FIFO holds what prefills, in booking order; its front and what is foreseen of it are right."""
    cdef load_t* load = &ledger.loads[rank]
    cdef slot_t slot = load.fifo_first
    cdef slot_t before = NO_SLOT
    cdef i128 front_ns = 0
    cdef int64_t crossing_ns = ledger._crossing_ns(rank)
    cdef int32_t at = ledger._crossing_pos[rank]
    found = []
    while slot != NO_SLOT and len(found) <= len(slots):
        if ledger.bookings[slot].fifo_prev != before:
            faults.append(f"booking {slot}: not linked in the FIFO of rank {rank}")
        found.append(slot)
        before = slot
        slot = ledger.bookings[slot].fifo_next
    expected = [slot for slot in slots
                if ledger.decays and ledger.bookings[slot].prefilling and ledger.bookings[slot].prefill > 0]
    if found != expected or load.fifo_last != before:
        faults.append(f"rank {rank}: FIFO {found}, bookings say {expected}")
    if found and load.prefill_rate:
        front_ns = prefill_ns(ledger.bookings[load.fifo_first].prefill, load.prefill_rate)
    if load.front_ns != front_ns or load.anchor_ns > ledger.now_ns:
        faults.append(f"rank {rank}: the front of the FIFO is not what decays")
    if (crossing_ns < NS_END) != (at != NO_SLOT):
        faults.append(f"rank {rank}: crossing at {crossing_ns} ns, foreseen: {at != NO_SLOT}")
    elif at != NO_SLOT and (
            ledger._crossings.nodes[at].key.first != <unsigned long long>crossing_ns or crossing_ns <= ledger.now_ns):
        faults.append(f"rank {rank}: crossing at {crossing_ns} ns, foreseen another time")
    return 0


cdef int _audit_counters(Ledger ledger, list faults) except -1:
    """Free ranks and ranks by state against a recount."""
    cdef load_t* load
    cdef slot_t rank, pair, i
    states = {}
    free = {}
    for rank in range(ledger._ranks):
        load = &ledger.loads[rank]
        if load.taints == NO_SLOT:
            continue
        states[load.taints, load.state] = states.get((load.taints, load.state), 0) + 1
        for pair in range(ledger.pairs):
            if load.state == RANK_OPEN and not ledger.busy(rank, pair):
                free[load.taints, pair] = free.get((load.taints, pair), 0) + 1
    for pair in range(ledger.pairs):
        total = 0
        for i in range(ledger._sets):
            count = free.get((i, pair), 0)
            total += count
            if ledger.free_of[i * ledger.pairs + pair] != count:
                faults.append(f"taint set {i}, threshold pair {pair}: "
                              f"{ledger.free_of[i * ledger.pairs + pair]} free ranks counted, {count} are")
        if ledger.free[pair] != total:
            faults.append(f"threshold pair {pair}: {ledger.free[pair]} free ranks counted, {total} are")
    for state in range(RANK_STATES):
        total = 0
        for i in range(ledger._sets):
            count = states.get((i, state), 0)
            total += count
            if ledger.in_state_of[i * RANK_STATES + state] != count:
                faults.append(f"taint set {i}: not {count} ranks in state {state}")
        if ledger.in_state[state] != total:
            faults.append(f"{ledger.in_state[state]} ranks in state {state} counted, {total} are")
    return 0


cdef int _audit_lists(Ledger ledger, list faults) except -1:
    """The list of dirty ranks against their marks, and the order of the heap."""
    cdef slot_t rank
    listed = sorted([ledger.dirty_ranks[rank] for rank in range(ledger.dirties)])
    marked = [rank for rank in range(ledger._ranks) if ledger.loads[rank].dirty]
    if listed != marked:
        faults.append(f"dirty ranks {listed} listed, {marked} marked")
    if not heap_holds(&ledger._crossings, ledger._crossing_pos):
        faults.append("crossings: the heap is not in order")
    return 0
