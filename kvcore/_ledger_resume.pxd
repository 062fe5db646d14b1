# Bookings and loads as they were when a snapshot was taken.
from kvcore._ledger cimport Ledger
from kvcore._types cimport int32_t, int64_t, ns_t, slot_t, tokens_t


cdef void resume_booking(
    Ledger ledger, slot_t slot, bint prefilling, tokens_t prefill, int32_t outputs, int32_t outputs_decayed,
    int32_t decayed_weight) noexcept
cdef void resume_path(Ledger ledger, slot_t slot, int32_t at, int32_t weight) noexcept
cdef void resume_load(
    Ledger ledger, slot_t rank, ns_t anchor_ns, int64_t sequence, const int64_t* reported,
    const int64_t* foreign) noexcept
