"""Constructor: a call of Request makes what its dataclass's own way makes, and fails as that fails."""

from __future__ import annotations

import dataclasses
import gc
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvcore.request import Overlap, Rank, Request, SelectionWeights

FIELDS = [field.name for field in dataclasses.fields(Request)]


class Text(str):
    """Text, but not exactly."""

    __slots__ = ()


class Blocks(tuple):
    """A tuple, but not exactly."""

    __slots__ = ()


#: Of each type, what its fields hold as it is, and what somebody has to look at.
ODD = [None, True, False, 0, 1, -1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 0.5, float("nan"), "a", "", Text("a"),
       b"a", (), (1, 2), Blocks((1,)), [1], frozenset(), frozenset((3,)), {3}, Rank(1), Overlap(), SelectionWeights(),
       object()]
FITTING: dict[str, list[Any]] = {
    "request_id": ["a", "ä"], "prompt_tokens": [0, 1, 2**30, 2**60, 2**63 - 1], "policy_class": ["vip", None],
    "strict_priority": [0, 2**32 - 1], "priority_jump": [0.5, -1.0], "deadline_ns": [None, 5],
    "do_not_queue": [True, False], "pinned": [Rank(1), None], "allowed_workers": [frozenset((3,)), None],
    "block_hashes": [(), (1, 2**64 - 1)],
    "sequence_hashes": [(1,), None], "overlap": [Overlap(), None], "expected_output_tokens": [7, None],
    "track_prefill": [True, False], "required_taints": [frozenset(("gpu",))], "preferred_taints": [(("gpu", 1.0),)],
    "weights": [SelectionWeights(), None], "session_id": ["s", None], "lifecycle": [True, False]}


def outcome(build: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """The fields with their types, or the error."""
    try:
        request = build(*arguments, **named)
    except (TypeError, ValueError, OverflowError) as error:
        return type(error), str(error)
    values = [getattr(request, name) for name in FIELDS]
    return tuple((type(value), value if value == value else "nan") for value in values)


def ordinary(*arguments: Any, **named: Any) -> Request:
    """`type.__call__` makes an object by __new__ and __init__."""
    return type.__call__(Request, *arguments, **named)


@st.composite
def calls(draw: st.DrawFn) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Mostly calls that fit: some fields by place, some by name, in any order."""
    def value(name: str) -> Any:
        return draw(st.sampled_from(FITTING[name] if draw(st.integers(0, 9)) else ODD))

    given = draw(st.integers(0, 4) | st.integers(0, len(FIELDS)))
    names = draw(st.lists(st.sampled_from(FIELDS[min(given, 2):]), unique=True, max_size=6))
    if draw(st.integers(0, 9)):
        names = [name for name in names if name not in FIELDS[:given]]
        names += [name for name in FIELDS[given:2] if name not in names]
    return tuple(value(name) for name in FIELDS[:given]), {name: value(name) for name in names}


def test_the_tables_above_name_every_field():
    assert list(FITTING) == FIELDS


@given(calls())
def test_both_ways_agree(call):
    assert outcome(Request, *call) == outcome(ordinary, *call)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("by_name", [False, True])
def test_every_field_takes_and_refuses_the_same(name, by_name):
    place = FIELDS.index(name)
    before = [FITTING[other][0] for other in FIELDS[:place]]
    needed = {other: FITTING[other][0] for other in FIELDS[:2] if other != name}
    for value in [*FITTING[name], *ODD]:
        call = ((), needed | {name: value}) if by_name else (
            (*before, value), {other: needed[other] for other in FIELDS[place + 1:2]})
        assert outcome(Request, *call) == outcome(ordinary, *call)


@pytest.mark.parametrize("call", [
    ((), {}), (("a",), {}), ((), {"prompt_tokens": 1}), (("a", 1), {"prompt_tokens": 1}), (("a", 1), {"prompt": 1}),
    (("a", 1), {"request_id": "b"}), (("a", 1, *[None] * 18), {}), (("a", 1, *[None] * 17), {"lifecycle": True})])
def test_calls_that_do_not_fit_fail_the_same(call):
    found = outcome(Request, *call)
    assert found == outcome(ordinary, *call)
    assert found[0] is TypeError


def test_a_name_that_nobody_has_interned_is_a_name():
    name = "".join(["prompt_", "tokens"])
    assert Request("a", **{name: 3}).prompt_tokens == 3


def counts(values: list[Any]) -> list[int]:
    return [sys.getrefcount(value) for value in values]


def test_references_are_given_back():
    blocks, taints, who, odd = (1, 2, 3), frozenset(("tin",)), "".join(["w", "ho"]), object()
    own, common = [blocks, taints, who, odd], [None, True, ()]
    gc.collect()                                   # what others have left behind
    before, before_common = counts(own), counts(common)
    for _ in range(3_000):
        Request(who, 5, block_hashes=blocks, required_taints=taints)
        for wrong in ({"pinned": odd}, {"block_hashes": blocks, "prompt": 1}):
            with pytest.raises(TypeError):
                Request(who, 5, **wrong)
    del wrong
    gc.collect()                                   # tracebacks
    assert counts(own) == before
    # Everybody holds these; one lost or kept by each call would be 3,000.
    assert max(abs(one - other) for one, other in zip(before_common, counts(common), strict=True)) < 1_500


@example("a", 1)
@given(st.text(min_size=1), st.integers(1, 2**53))
def test_the_shortest_call(request_id, tokens):
    request = Request(request_id, tokens)
    assert dataclasses.asdict(request) == dataclasses.asdict(ordinary(request_id, tokens))
    assert request == ordinary(request_id, tokens)
    assert hash(request) == hash(ordinary(request_id, tokens))
