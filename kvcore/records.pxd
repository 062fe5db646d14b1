# Events and actions as C rows: what step_array reads and writes. Same fields, offsets and size as the numpy dtypes.
from kvcore._types cimport int32_t, int64_t, ns_t, slot_t, uint32_t, uint64_t
from kvcore.events cimport Event


cdef enum event_kind_t:
    EVENT_NONE
    EVENT_ARRIVED
    EVENT_CANCELLED
    EVENT_ACCEPTED
    EVENT_FAILED
    EVENT_PREFILL_COMPLETED
    EVENT_OUTPUT_BLOCK_ADDED
    EVENT_CONTEXT_ADVANCED
    EVENT_FINISHED
    EVENT_BLOCKS_STORED
    EVENT_BLOCKS_REMOVED
    EVENT_TIMER
    EVENT_KINDS


cdef enum action_kind_t:
    ACTION_NONE
    ACTION_DISPATCH
    ACTION_REJECT
    ACTION_PARK
    ACTION_EVICT
    ACTION_IGNORED
    ACTION_REFRESH_OVERLAP


cdef struct event_record_t:
    ns_t now_ns
    int64_t request
    int64_t attempt
    int64_t prompt_tokens
    int64_t deadline_ns
    int64_t expected_output_tokens
    int64_t context_tokens
    double priority_jump
    double decay_fraction
    uint64_t worker_id
    int64_t incarnation
    int64_t first_hash
    int32_t hashes
    uint32_t strict_priority
    uint32_t dp_rank
    int32_t policy_class
    unsigned char kind
    unsigned char do_not_queue
    unsigned char untracked
    unsigned char decays
    unsigned char aborted
    unsigned char retry
    unsigned char tier
    unsigned char spare


cdef struct action_record_t:
    int64_t event
    int64_t request
    int64_t attempt
    uint64_t worker_id
    int64_t overlap_blocks
    int64_t cached_tokens
    int64_t prefill_tokens
    int64_t potential_decode_blocks
    int64_t wait_ns
    int64_t current
    int64_t limit
    int64_t retry_after_ns
    int64_t ticket
    uint32_t dp_rank
    slot_t class_index
    unsigned char kind
    unsigned char reason
    unsigned char spare[6]


cdef struct batch_t:
    # The arguments of one step_array.
    const event_record_t* events
    int64_t count
    const uint64_t* hashes
    int64_t hash_count
    const int32_t* name_numbers    # of class names, in RequestTable.names
    int32_t names


cdef int check(const batch_t* batch, ns_t last_ns, int64_t block_size) except -1
cdef Event event_of(const event_record_t* record, const uint64_t* hashes, tuple names)
cdef int fill_action(action_record_t* record, object action) except -1
cdef void* memory_of(object array) except NULL
