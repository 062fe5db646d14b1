# The admission policies of the classes: asked, told, and answering.
cimport cython
from kvcore._types cimport ns_t, slot_t


cdef enum call_t:
    CALL_RELEASED
    CALL_DISPATCHED
    CALL_ADVANCED
    CALL_COMPLETED
    CALL_ABORTED


@cython.final
cdef class Policies:
    cdef object _given             # type -> factory, of the embedder
    cdef list _policies            # by class index; None: the class has none
    cdef list _labels              # by class index: (type, class name)
    cdef list _due                 # by class index: when it wants to be called, NEVER_NS: not
    cdef object _news              # deque: calls to come, first in first out: (class index, call, request id, tokens)
    cdef readonly bint any

    cdef list build(self, object profile)
    cdef list adopt(self, object before, object profile, list built, ns_t now_ns)
    cdef str class_name(self, slot_t class_index)
    cdef str type_of(self, slot_t class_index)
    cdef bint manages(self, slot_t class_index) noexcept
    cdef object decide(self, slot_t class_index, object view)
    cdef object rehearse(self, slot_t class_index, object view)
    cdef int tell(self, slot_t class_index, call_t call, str request_id, object tokens) except -1
    cdef bint has_news(self) noexcept
    cdef list next_answers(self, slot_t* class_index, ns_t now_ns)
    cdef ns_t first_due_ns(self)
    cdef slot_t first_due(self)
    cdef list on_time(self, slot_t class_index, ns_t now_ns)
    cdef list dump(self)
    cdef int load(self, list states) except -1

    cdef object _call(self, slot_t class_index, str name, tuple arguments)
    cdef list _answers(self, slot_t class_index, str name, object answers)
    cdef int _look_at_clock(self, slot_t class_index, ns_t now_ns) except -1
    cdef object _fail(self, slot_t class_index, str name, str reason, object cause=*)
