"""Ledger resume: what no fact can tell a ledger anew, because it is the trace of facts that are over.

A part of the ledger, apart for its length. Bookings are made anew by `book`, in the order of their attempts; then this
gives them and their ranks what has come of them since. Invariants are the ledger's.
"""
from kvcore._active cimport pair_t
from kvcore._load cimport booking_t, load_t, load_tokens, output_weight
from kvcore._types cimport FRACTION_ONE, NO_SLOT


cdef void resume_booking(
        Ledger ledger, slot_t slot, bint prefilling, tokens_t prefill, int32_t outputs, int32_t outputs_decayed,
        int32_t decayed_weight) noexcept:
    """What has come of a booking that has just been made anew, with the prefill tokens that it still counts."""
    cdef booking_t* booking = &ledger.bookings[slot]
    cdef load_t* load = &ledger.loads[booking.rank]
    booking.prefilling = prefilling
    booking.prefill = prefill
    booking.outputs = outputs
    booking.outputs_decayed = outputs_decayed
    booking.decayed_weight = decayed_weight
    load.weight += output_weight(booking)
    load.held += max(0, <int64_t>outputs + outputs_decayed - booking.reserve_blocks)
    ledger._changed(booking.rank)


cdef void resume_path(Ledger ledger, slot_t slot, int32_t at, int32_t weight) noexcept:
    """What a block of a booking's path weighs, 2^20 = one block; no block is bound to a booking yet."""
    cdef booking_t* booking = &ledger.bookings[slot]
    cdef pair_t* pair = &ledger.active.rows[ledger.active.find(booking.path[at], booking.rank)]
    ledger.faded = ledger.faded or weight != FRACTION_ONE
    ledger.loads[booking.rank].weight += weight - pair.weight
    pair.weight = weight
    ledger._changed(booking.rank)


cdef void resume_load(
        Ledger ledger, slot_t rank, ns_t anchor_ns, int64_t sequence, const int64_t* reported,
        const int64_t* foreign) noexcept:
    """What a rank bears beside its bookings, which are all there: since when its front runs, reports, foreign load.

    reported, foreign: prefill tokens, blocks, requests.
    """
    cdef load_t* load = &ledger.loads[rank]
    cdef tokens_t before = load_tokens(load, ledger.now_ns)
    if load.fifo_first != NO_SLOT:
        load.anchor_ns = anchor_ns
    load.reported_sequence = sequence
    load.reported_prefill = reported[0]
    load.reported_blocks = reported[1]
    load.reported_requests = reported[2]
    ledger._recount(rank, before, ledger.now_ns)
    ledger._set_foreign(rank, foreign[0], foreign[1], foreign[2])
