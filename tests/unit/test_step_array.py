"""step_array at the door: what its arguments may be, what it refuses and then changes nothing, whose a result is."""

from __future__ import annotations

import numpy as np
import pytest

from kvcore.config import SchedulerConfig
from kvcore.errors import InvalidEvent
from kvcore.events import RequestArrived, WorkerUpserted
from kvcore.records import ACTION_DTYPE, EVENT_DTYPE, ActionKind, EventKind
from kvcore.request import Request, WorkerConfig
from kvcore.scheduler import Scheduler


def fleet(**settings) -> Scheduler:
    core = Scheduler(SchedulerConfig(block_size=16, **settings))
    core.step(WorkerUpserted(0, WorkerConfig(0)))
    return core


def arrivals(count: int, first: int = 0) -> np.ndarray:
    rows = np.zeros(count, EVENT_DTYPE)
    rows["kind"], rows["prompt_tokens"] = EventKind.REQUEST_ARRIVED, 32
    rows["request"] = np.arange(first, first + count)
    return rows


@pytest.mark.parametrize("records", [
    None, [], (), b"", np.zeros(1), np.zeros(1, ACTION_DTYPE), np.zeros((1, 1), EVENT_DTYPE),
    np.zeros((), EVENT_DTYPE)])
def test_records_are_an_array_of_rows(records):
    core = fleet()
    before = core.digest()
    with pytest.raises(TypeError, match="records must be a one-dimensional numpy array of EVENT_DTYPE"):
        core.step_array(records)
    assert core.digest() == before


@pytest.mark.parametrize(("hashes", "names", "error"), [
    (np.zeros((1, 1), np.uint64), (), TypeError), (["x"], (), ValueError), ([], ["a", 7], TypeError),
    (None, ["\ud800"], ValueError)])
def test_hashes_and_names_are_checked_first(hashes, names, error):
    core = fleet()
    before = core.digest()
    with pytest.raises(error):
        core.step_array(arrivals(1), hashes, names)
    assert core.digest() == before


def test_arrays_may_lie_as_they_like():
    wide = np.zeros(20, EVENT_DTYPE)
    wide[::2] = arrivals(10)
    frozen = arrivals(10)
    frozen.flags.writeable = False
    found = [fleet().step_array(rows).tobytes() for rows in (arrivals(10), wide[::2], frozen)]
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 10 * ACTION_DTYPE.itemsize


@pytest.mark.parametrize("hashes", [[7, 2**64 - 1], np.array([7, 2**64 - 1], np.uint64),
                                    np.array([7, 0, 2**64 - 1, 0], np.uint64)[::2]])
def test_hashes_are_whatever_becomes_an_array(hashes):
    core = fleet()
    rows = np.zeros(1, EVENT_DTYPE)
    rows["kind"], rows["hashes"] = EventKind.BLOCKS_STORED, 2
    core.step_array(rows, hashes)
    assert core.peek(Request("1", 32, block_hashes=(7, 2**64 - 1))).overlap_blocks == 2


@pytest.mark.parametrize(("field", "value", "told"), [
    ("kind", 0, "kind must be an EventKind"), ("kind", 99, "kind must be an EventKind"),
    ("now_ns", -1, "now_ns must be"), ("now_ns", 2**62, "now_ns must be"), ("request", -1, "request must be"),
    ("request", 10**18, "request must be"),
    ("prompt_tokens", 0, "prompt_tokens must be"), ("hashes", 1, "hashes"), ("policy_class", 1, "policy_class")])
def test_a_bad_row_is_named_and_none_is_applied(field, value, told):
    core = fleet()
    before = core.digest()
    rows = arrivals(5)
    rows[field][3] = value
    with pytest.raises(InvalidEvent, match=told) as caught:
        core.step_array(rows)
    assert caught.value.index == 3
    assert core.digest() == before


def test_time_goes_on_from_row_to_row():
    rows = arrivals(3)
    rows["now_ns"] = [5, 7, 6]
    with pytest.raises(InvalidEvent, match="time went back: now_ns 6 after 7") as caught:
        fleet().step_array(rows)
    assert caught.value.index == 2


def test_where_rows_do_not_do():
    core = fleet()
    core.step(RequestArrived(0, Request("a", 1)))
    with pytest.raises(ValueError, match="no handle"):
        core.step_array(arrivals(1))
    with pytest.raises(ValueError, match="replicas"):
        fleet(replica="x").step_array(arrivals(1))


@pytest.mark.parametrize("count", [0, 1, 64, 65, 1_024, 1_025, 2_100])
def test_a_result_is_the_callers(count):
    """Its memory is no other result's, whatever the size of what came before and comes after."""
    core = fleet()
    core.step_array(arrivals(3_000, 10**6))
    found = core.step_array(arrivals(count))
    assert (found.dtype, len(found), found.flags.writeable) == (ACTION_DTYPE, count, True)
    assert found["request"].tolist() == list(range(count))
    assert set(found["kind"]) <= {ActionKind.DISPATCH}
    kept = found.copy()
    others = [core.step_array(arrivals(other, 2 * 10**6 + 10_000 * other)) for other in (1, 64, 1_024, 3_000)]
    assert found.tobytes() == kept.tobytes()
    assert not any(np.shares_memory(found, other) for other in others)
    found["request"] = -1
    assert core.step_array(arrivals(2, 10**7))["request"].tolist() == [10**7, 10**7 + 1]


def test_few_actions_of_many_rows_do_not_keep_the_memory_of_many():
    rows = np.zeros(100_000, EVENT_DTYPE)
    rows["kind"] = EventKind.TIMER_FIRED
    rows[-1:] = arrivals(1)
    found = fleet().step_array(rows)
    assert len(found) == 1
    assert found.base is None
