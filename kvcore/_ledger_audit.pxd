# The ledger against a recount of its own bookings.
from kvcore._ledger cimport Ledger

cdef list ledger_faults(Ledger ledger)
