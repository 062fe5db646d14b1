# The scheduler, for C: embedders in Cython cimport it. All fields but config and profile are kvcore's own business.
cimport cython
from kvcore._admission cimport Admission
from kvcore._arrivals cimport Arrivals
from kvcore._backlog cimport Backlog
from kvcore._batch cimport Batch
from kvcore._digest cimport Digester
from kvcore._dispatch cimport Dispatcher
from kvcore._endings cimport Endings
from kvcore._explain cimport Explainer
from kvcore._fleet cimport Fleet
from kvcore._forecast cimport Forecast
from kvcore._inspect cimport Inspector
from kvcore._lifecycle cimport Lifecycle
from kvcore._outbox cimport Outbox
from kvcore._placement cimport Placement
from kvcore._policies cimport Policies
from kvcore._reload cimport Reload
from kvcore._request_facts cimport RequestFacts
from kvcore._requests cimport RequestTable
from kvcore._restore cimport SnapshotReader
from kvcore._settle cimport Settler
from kvcore._tables cimport Tables
from kvcore._types cimport int64_t, ns_t, uint64_t
from kvcore._worker_facts cimport WorkerFacts
from kvcore.events cimport Event, OutputBlockAdded, PolicyReplaced, PrefillCompleted, RequestFinished
from kvcore.records cimport action_record_t, event_record_t
from kvcore.request cimport Request


@cython.final
cdef class Scheduler:
    cdef readonly object config            # SchedulerConfig
    cdef readonly object profile           # PolicyProfile in force
    cdef int64_t block_size
    cdef RequestTable requests
    cdef Fleet fleet
    cdef Placement placement
    cdef Backlog backlog
    cdef Inspector inspector
    cdef Digester digester
    cdef Policies policies
    cdef Endings endings
    cdef Admission admission
    cdef Dispatcher dispatcher
    cdef Lifecycle lifecycle
    cdef Outbox outbox
    cdef Settler settler
    cdef Arrivals arrivals
    cdef Batch batch
    cdef Reload reload
    cdef RequestFacts request_facts
    cdef WorkerFacts worker_facts
    cdef Tables tables
    cdef Forecast forecast
    cdef Explainer explainer
    cdef list builds                       # fresh admission policies for each PolicyReplaced of the present batch
    cdef int64_t steps                     # counted in debug builds only
    cdef bint stepping
    cdef bint sealed                       # an array is being stepped, perhaps without the interpreter lock
    cdef bint poisoned

    # For C. play: `step`. play_rows: `step_many` of rows, of which there is at least one; returns how many actions
    # follow, which stand where `actions` then points until the next step. Rows count names of classes from 1, as they
    # were last given to learn_names; step_array forgets them. due_ns: next_deadline_ns; NEVER_NS: none.
    cdef tuple play(self, object event)
    cdef int64_t play_rows(
        self, const event_record_t* events, int64_t count, const uint64_t* hashes, int64_t hash_count,
        const action_record_t** actions) except -1
    cdef int learn_names(self, tuple names) except -1
    cdef ns_t due_ns(self) except -1
    cdef bint takes_rows(self) except -1

    cdef list _begin(self, list built)
    cdef int _end(self, list out) except -1
    cdef int _check_owner(self) except -1
    cdef int _check_reader(self) except -1
    cdef int _check_invariants(self) except -1
    cdef int _apply(self, Event event, list out) except -1
    cdef int _route(self, Event event, list out) except -1
    cdef int _advance(self, ns_t now_ns, list out) except -1
    cdef int _replace_policy(self, PolicyReplaced event, list out) except -1
    cdef int _adopt(self, object profile, list built, list out) except -1
    cdef int _resume(self, SnapshotReader reader) except -1
