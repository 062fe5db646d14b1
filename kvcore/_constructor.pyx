"""Constructor: what a call of Request costs.

The compiled dataclass's __init__ makes room for all nineteen arguments and looks at each; most calls give three or
four. Here those are put straight into their fields (PEP 590), if each is just what its field holds. Whatever has to be
converted, refused or explained is left to the ordinary way, which this module keeps: both make equal requests, and
errors are that way's alone.

Owns nothing but the slot `tp_vectorcall` of Request, which it fills when it is imported. Never here: checks of what
`step` refuses (_accept).
"""
from cpython.float cimport PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.ref cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact
from kvcore._types cimport int64_t, read_uint64, uint32_t, uint64_t
from kvcore.request cimport Overlap, Rank, Request, SelectionWeights

ctypedef object (*construct_t)(PyObject* type, PyObject** arguments, size_t flags, PyObject* names)

cdef extern from "Python.h":
    ctypedef void* vectorcallfunc
    ctypedef struct PyTypeObject:
        vectorcallfunc tp_vectorcall
    Py_ssize_t PyVectorcall_NARGS(size_t flags) noexcept
    Py_ssize_t tuple_size "PyTuple_GET_SIZE"(PyObject* items) noexcept
    PyObject* tuple_item "PyTuple_GET_ITEM"(PyObject* items, Py_ssize_t i) noexcept

cdef enum field_t:
    # In the order of request.pxd, which is the order of a call.
    REQUEST_ID
    PROMPT_TOKENS
    POLICY_CLASS
    STRICT_PRIORITY
    PRIORITY_JUMP
    DEADLINE_NS
    DO_NOT_QUEUE
    PINNED
    ALLOWED_WORKERS
    BLOCK_HASHES
    SEQUENCE_HASHES
    OVERLAP
    EXPECTED_OUTPUT_TOKENS
    TRACK_PREFILL
    REQUIRED_TAINTS
    PREFERRED_TAINTS
    WEIGHTS
    SESSION_ID
    LIFECYCLE
    FIELDS

cdef enum:
    REQUIRED = 3                               # bits of the fields without a default

#: Literals, so interned; and so are the names in a caller's code: they are compared as pointers.
cdef tuple NAMES = (
    "request_id", "prompt_tokens", "policy_class", "strict_priority", "priority_jump", "deadline_ns", "do_not_queue",
    "pinned", "allowed_workers", "block_hashes", "sequence_hashes", "overlap", "expected_output_tokens",
    "track_prefill", "required_taints", "preferred_taints", "weights", "session_id", "lifecycle")
cdef tuple NO_ITEMS = ()
cdef frozenset NO_TAINTS = frozenset()
cdef construct_t _ordinary = <construct_t>(<PyTypeObject*>Request).tp_vectorcall


cdef object _construct(PyObject* type, PyObject** arguments, size_t flags, PyObject* names):
    """A Request for a call with these arguments, the named ones last."""
    cdef Py_ssize_t given = PyVectorcall_NARGS(flags)
    cdef Py_ssize_t total = given + (0 if names == NULL else tuple_size(names))
    cdef Py_ssize_t field = 0
    cdef Py_ssize_t i
    cdef uint64_t seen = 0
    cdef Request request
    if total > FIELDS:
        return _ordinary(type, arguments, flags, names)
    request = _blank()
    for i in range(total):
        if i >= given:
            field = _field(tuple_item(names, i - given), field)
        if field == FIELDS or seen >> field & 1 or not _put(request, field, arguments[i]):
            return _ordinary(type, arguments, flags, names)
        seen |= <uint64_t>1 << field
        field += 1
    if seen & REQUIRED != REQUIRED:
        return _ordinary(type, arguments, flags, names)
    return request


cdef Request _blank():
    """A request with every default; __new__ has put None and 0."""
    cdef Request request = Request.__new__(Request)
    request.block_hashes = NO_ITEMS
    request.track_prefill = True
    request.required_taints = NO_TAINTS
    request.preferred_taints = NO_ITEMS
    request.lifecycle = True
    return request


cdef Py_ssize_t _field(PyObject* name, Py_ssize_t likely) noexcept:
    """The field of this name, FIELDS if none is seen; callers mostly keep the order, so the search starts there."""
    cdef Py_ssize_t field
    for field in range(likely, FIELDS):
        if tuple_item(<PyObject*>NAMES, field) == name:
            return field
    for field in range(likely):
        if tuple_item(<PyObject*>NAMES, field) == name:
            return field
    return FIELDS


cdef bint _put(Request request, Py_ssize_t field, PyObject* argument) noexcept:
    """Store a value in its field. False: it is not just what the field holds."""
    cdef object value = <object>argument
    cdef uint64_t number = 0
    if field == REQUEST_ID:
        if not PyUnicode_CheckExact(value):
            return False
        request.request_id = <str>value
    elif field == PROMPT_TOKENS:
        if not _whole(value, &number) or number >> 63:
            return False
        request.prompt_tokens = <int64_t>number
    elif field == POLICY_CLASS:
        if value is not None and not PyUnicode_CheckExact(value):
            return False
        request.policy_class = <str>value
    elif field == STRICT_PRIORITY:
        if not _whole(value, &number) or number >> 32:
            return False
        request.strict_priority = <uint32_t>number
    elif field == PRIORITY_JUMP:
        if not PyFloat_CheckExact(value):
            return False
        request.priority_jump = <double>value
    elif field == DEADLINE_NS:
        request.deadline_ns = value
    elif field == DO_NOT_QUEUE:
        if value is not True and value is not False:
            return False
        request.do_not_queue = value is True
    elif field == PINNED:
        if value is not None and type(value) is not Rank:
            return False
        request.pinned = <Rank>value
    elif field == ALLOWED_WORKERS:
        if value is not None and type(value) is not frozenset:
            return False
        request.allowed_workers = <frozenset>value
    elif field == BLOCK_HASHES:
        if type(value) is not tuple:
            return False
        request.block_hashes = <tuple>value
    elif field == SEQUENCE_HASHES:
        if value is not None and type(value) is not tuple:
            return False
        request.sequence_hashes = <tuple>value
    elif field == OVERLAP:
        if value is not None and type(value) is not Overlap:
            return False
        request.overlap = <Overlap>value
    elif field == EXPECTED_OUTPUT_TOKENS:
        request.expected_output_tokens = value
    elif field == TRACK_PREFILL:
        if value is not True and value is not False:
            return False
        request.track_prefill = value is True
    elif field == REQUIRED_TAINTS:
        if type(value) is not frozenset:
            return False
        request.required_taints = <frozenset>value
    elif field == PREFERRED_TAINTS:
        if type(value) is not tuple:
            return False
        request.preferred_taints = <tuple>value
    elif field == WEIGHTS:
        if value is not None and type(value) is not SelectionWeights:
            return False
        request.weights = <SelectionWeights>value
    elif field == SESSION_ID:
        if value is not None and not PyUnicode_CheckExact(value):
            return False
        request.session_id = <str>value
    else:
        if value is not True and value is not False:
            return False
        request.lifecycle = value is True
    return True


cdef inline bint _whole(object value, uint64_t* number) noexcept:
    """Whether a value is an int of 0..2^64-1."""
    return PyLong_CheckExact(value) and read_uint64(<PyObject*>value, number)


if _ordinary != NULL and _ordinary != _construct:
    (<PyTypeObject*>Request).tp_vectorcall = <vectorcallfunc>_construct
