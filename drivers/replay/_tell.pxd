# A batch of events as rows, and the facts of a fleet among them.
from libc.stdint cimport int32_t, int64_t, uint64_t

from kvcore.drivers.replay._engine cimport Fleet
from kvcore.records cimport event_record_t

cdef struct done_t:             # a request that the engine has finished
    int64_t handle
    int64_t first_ns            # first token
    int64_t cached              # prompt tokens found in the cache
    int64_t preemptions

cdef struct rows_t:             # a batch under way; its owner frees the arrays
    event_record_t *events
    int32_t n, room
    uint64_t *hashes            # that events point into
    int32_t n_hashes, hash_room
    done_t *done
    int32_t n_done, done_room


cdef event_record_t *add_row(rows_t *rows, int kind, int64_t now_ns) except NULL
cdef int add_hashes(rows_t *rows, event_record_t *event, const uint64_t *hashes, int64_t count) except -1
cdef int tell_rows(Fleet fleet, int64_t now_ns, rows_t *rows) except -1
