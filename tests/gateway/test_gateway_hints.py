"""Hints: every ecosystem's words, polarity, ranges, caps by class; nothing that a client says is believed further."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvcore.drivers.gateway.bodies import Body, parse
from kvcore.drivers.gateway.config import HintCaps, HintSettings, OutputReserve, Trust
from kvcore.drivers.gateway.echo import ID_CHARS_MAX, Echo, client_id
from kvcore.drivers.gateway.hints import NAMES, HintReader, Hints
from kvcore.drivers.gateway.refusals import Refused, Trouble

from kvcore.policy_file import load_policy
from kvcore.request import Rank, Request

MS = 10**6
PROFILE = load_policy("""
default_policy_family: regular
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: premium, policy_family: premium, cache_bucket: all, quantum: 512}
  - {name: regular, policy_family: regular, cache_bucket: all, quantum: 128}
  - {name: system, quantum: 1024}
""").root


def read(headers: dict[str, str] | None = None, body: dict | None = None, *, profile=PROFILE, **settings) -> Hints:
    fields = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    return HintReader(HintSettings(**settings), profile).read(fields, parse(json.dumps(body or {}).encode()))


def refusal(headers: dict[str, str] | None = None, body: dict | None = None) -> Refused:
    with pytest.raises(Refused) as caught:
        read(headers, body)
    assert caught.value.trouble is Trouble.MALFORMED
    return caught.value


def test_a_request_without_hints_asks_for_nothing():
    assert read() == Hints()


@pytest.mark.parametrize(("headers", "body", "expected"), [
    ({"x-kvcore-policy-class": "premium"}, {}, {"policy_class": "premium"}),
    ({"x-dynamo-meta-policy-class": "premium"}, {}, {"policy_class": "premium"}),
    ({"x-kvcore-policy-class": "system", "x-dynamo-meta-policy-class": "premium"}, {}, {"policy_class": "system"}),
    ({"x-dynamo-meta-policy-class": "a-typo"}, {}, {"policy_class": "a-typo"}),  # the scheduler counts it
    ({"x-llm-d-inference-objective": "premium"}, {}, {"policy_class": "premium"}),
    ({"x-llm-d-inference-objective": "nothing-here"}, {}, {}),
    ({"x-smg-priority": "system"}, {}, {"policy_class": "system"}),
    ({"x-dynamo-request-priority": "7"}, {}, {"priority_jump": 7.0}),
    ({"x-dynamo-request-priority": "2.5"}, {}, {"priority_jump": 2.5}),
    ({"x-dynamo-request-priority": "-3"}, {}, {}),
    ({}, {"nvext": {"agent_hints": {"priority": 9}}}, {"priority_jump": 9.0}),
    ({"x-dynamo-request-priority": "4"}, {"nvext": {"agent_hints": {"priority": 9}}}, {"priority_jump": 4.0}),
    ({}, {"priority": -5}, {"priority_jump": 5.0}),  # vLLM: lower is sooner
    ({}, {"priority": 5}, {}),
    ({"x-dynamo-request-priority": "1"}, {"priority": -5}, {"priority_jump": 1.0}),
    ({"x-dynamo-request-strict-priority": "3"}, {}, {"strict_priority": 3}),
    ({}, {"nvext": {"agent_hints": {"strict_priority": 4}}}, {"strict_priority": 4}),
    ({}, {"nvext": {"agent_hints": {"strict_priority": -4}}}, {}),
    ({"x-dynamo-session-id": "s1"}, {}, {"session_id": "s1"}),
    ({"x-dynamo-session-id": "s1", "x-dynamo-parent-session-id": "root"}, {}, {"session_id": "root"}),
    ({"x-session-id": "s2"}, {}, {"session_id": "s2"}),
    ({"x-llm-d-inference-fairness-id": "tenant"}, {}, {"session_id": "tenant"}),
    ({"x-kvcore-max-wait-ms": "1500"}, {}, {"max_wait_ns": 1500 * MS}),
    ({"x-llm-d-inference-ttl": "1500ms"}, {}, {"max_wait_ns": 1500 * MS}),
    ({"x-llm-d-inference-ttl": "1m1.5s"}, {}, {"max_wait_ns": 61_500 * MS}),
    ({"x-kvcore-max-wait-ms": "0"}, {}, {"do_not_queue": True}),
    ({"x-llm-d-inference-ttl": "0s"}, {}, {"do_not_queue": True}),
    ({"x-kvcore-do-not-queue": "true"}, {}, {"do_not_queue": True}),
    ({"x-kvcore-do-not-queue": "0"}, {}, {}),
    ({"x-dynamo-worker-instance-id": "42"}, {}, {"worker_id": 42}),
    ({"x-dynamo-worker-instance-id": "42", "x-dynamo-dp-rank": "3"}, {}, {"worker_id": 42, "dp_rank": 3}),
    ({}, {"nvext": {"agent_hints": {"osl": 300}}}, {"expected_output_tokens": 300}),
    ({}, {"max_tokens": 300}, {}),
    ({"x-dynamo-session-id": ""}, {}, {}),
])
def test_words_of_every_ecosystem(headers, body, expected):
    assert read(headers, body) == Hints(**expected)


def test_a_worker_alone_is_an_allow_list_and_with_a_rank_a_pin():
    alone, ranked = Hints(worker_id=4), Hints(worker_id=4, dp_rank=0)
    assert (alone.pinned, alone.allowed_workers) == (None, frozenset({4}))
    assert (ranked.pinned, ranked.allowed_workers) == (Rank(4, 0), None)
    assert (Hints(dp_rank=1).pinned, Hints(dp_rank=1).allowed_workers) == (None, None)


@pytest.mark.parametrize(("header", "value"), [
    ("x-dynamo-request-priority", "high"), ("x-dynamo-request-priority", "nan"), ("x-dynamo-request-priority", "inf"),
    ("x-dynamo-request-priority", "1_0"), ("x-dynamo-request-priority", "0x10"), ("x-dynamo-request-priority", "１"),
    ("x-dynamo-request-strict-priority", "1.5"), ("x-dynamo-request-strict-priority", "9" * 60),
    ("x-dynamo-worker-instance-id", "w1"), ("x-dynamo-dp-rank", "x"), ("x-kvcore-max-wait-ms", "soon"),
    ("x-llm-d-inference-ttl", "10"), ("x-llm-d-inference-ttl", "-5s"), ("x-llm-d-inference-ttl", "1s garbage"),
    ("x-kvcore-do-not-queue", "maybe"), ("x-dynamo-session-id", "s" * 257), ("x-dynamo-session-id", "a\tb"),
    ("x-dynamo-meta-policy-class", "a\x7fb"),
])
def test_what_cannot_be_read_is_refused_by_its_name(header, value):
    if header == "x-dynamo-dp-rank":
        assert refusal({header: value, "x-dynamo-worker-instance-id": "1"}).param == header
    else:
        assert refusal({header: value}).param == header


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(Refused) as caught:
        HintReader(HintSettings(), None).read([(b"x-session-id", b"\xff\xfe")], Body())
    assert caught.value.param == "x-session-id"


def test_two_answers_to_one_question_are_refused_and_one_said_twice_is_not():
    reader = HintReader(HintSettings(), PROFILE)
    with pytest.raises(Refused, match="twice"):
        reader.read([(b"x-kvcore-policy-class", b"premium"), (b"x-kvcore-policy-class", b"system")], Body())
    assert reader.read([(b"x-kvcore-policy-class", b"premium")] * 2, Body()).policy_class == "premium"


@pytest.mark.parametrize("body", [
    {"priority": "high"}, {"nvext": 7}, {"nvext": {"agent_hints": {"osl": "many"}}}, {"max_tokens": "3"},
    {"nvext": {"agent_hints": {"strict_priority": 1.5}}}, {"model": 3}, {"stream": "yes"},
])
def test_body_hints_of_a_wrong_type_are_refused(body):
    field = next(iter(body))
    assert str(refusal(body=body).param).startswith(field)


def test_out_of_range_is_clamped():
    hints = read({
        "x-dynamo-request-priority": "1e300", "x-dynamo-request-strict-priority": "99999999999999999999",
        "x-kvcore-max-wait-ms": "1e30", "x-dynamo-worker-instance-id": "99999999999999999999999999",
    }, {"nvext": {"agent_hints": {"osl": 2**62}}})
    assert (hints.priority_jump, hints.strict_priority, hints.expected_output_tokens) == (60.0, 15, 2**20)
    assert hints.max_wait_ns is not None
    assert hints.max_wait_ns < 2**62
    assert hints.worker_id == 2**64 - 1


def test_caps_go_by_class_and_by_family():
    caps = {"premium": HintCaps(priority_max=100.0, strict_priority_max=2),
            "regular": HintCaps(priority_max=1.0, strict_priority_max=0, deadline_max_s=5.0)}
    asked = {"x-dynamo-request-priority": "500", "x-dynamo-request-strict-priority": "9"}
    premium = read(asked | {"x-kvcore-policy-class": "premium"}, classes=caps)
    assert (premium.priority_jump, premium.strict_priority, premium.max_wait_ns) == (100.0, 2, None)
    regular = read(asked, classes=caps)  # no class named: the default family's caps
    assert (regular.priority_jump, regular.strict_priority, regular.max_wait_ns) == (1.0, 0, 5 * 10**9)
    system = read(asked | {"x-kvcore-policy-class": "system"}, classes=caps)
    assert (system.priority_jump, system.strict_priority) == (60.0, 9)
    unknown = read(asked | {"x-kvcore-policy-class": "no-such-class"}, classes=caps)  # will be in the default family
    assert (unknown.priority_jump, unknown.strict_priority) == (1.0, 0)
    alone = read(asked, profile=None, classes={"default": HintCaps(priority_max=3.0)})
    assert alone.priority_jump == 3.0


@pytest.mark.parametrize("header", ["x-kvcore-policy-class", "x-dynamo-meta-policy-class"])
@pytest.mark.parametrize("name", ["premium", "regular", "system", "a-typo", "", None])
def test_requests_that_ask_for_little_are_read_as_those_that_ask_for_more(header, name):
    """What is remembered of the usual requests is what reading them would give."""
    caps = {"premium": HintCaps(deadline_max_s=1.0), "regular": HintCaps(deadline_max_s=2.0),
            "system": HintCaps(allowed=False)}
    asked = {} if name is None else {header: name}
    slowly = read(asked | {"x-kvcore-do-not-queue": "false"}, {"nvext": {}}, classes=caps)
    assert read(asked, classes=caps) == slowly
    assert slowly.max_wait_ns == (10**9 if name == "premium" else 2 * 10**9)


def test_a_class_that_clients_may_not_name_is_the_default_one_with_its_caps():
    caps = {"system": HintCaps(allowed=False), "regular": HintCaps(priority_max=0.0)}
    hints = read({"x-kvcore-policy-class": "system", "x-dynamo-request-priority": "9"}, classes=caps)
    assert (hints.policy_class, hints.priority_jump) == (None, 0.0)


def test_a_deadline_is_the_shorter_of_the_asked_and_the_allowed():
    assert read({"x-kvcore-max-wait-ms": "9000"}, deadline_max_s=5.0).max_wait_ns == 5 * 10**9
    assert read({"x-kvcore-max-wait-ms": "2000"}, deadline_max_s=5.0).max_wait_ns == 2 * 10**9
    assert read(deadline_max_s=5.0).max_wait_ns == 5 * 10**9


def test_without_trust_no_hint_is_looked_at():
    everything = {
        "x-kvcore-policy-class": "premium", "x-dynamo-request-priority": "no number", "x-kvcore-max-wait-ms": "1",
        "x-dynamo-worker-instance-id": "7", "x-kvcore-do-not-queue": "true", "x-session-id": "s"}
    assert read(everything, {"priority": -9, "nvext": {"agent_hints": {"osl": 5}}}, trust=Trust.NONE) == Hints()


def test_pins_can_be_off():
    hints = read({"x-dynamo-worker-instance-id": "7", "x-dynamo-dp-rank": "0"}, pins=False)
    assert (hints.worker_id, hints.dp_rank) == (None, None)


def test_expected_output_comes_from_where_the_operator_says():
    body = {"max_tokens": 100, "max_completion_tokens": 80}
    assert read(body=body, output_reserve=OutputReserve.MAX_TOKENS).expected_output_tokens == 80
    both = body | {"nvext": {"agent_hints": {"osl": 7}}}
    assert read(body=both, output_reserve=OutputReserve.MAX_TOKENS).expected_output_tokens == 7
    assert read(body=both, output_reserve=OutputReserve.NONE).expected_output_tokens is None
    assert read(body={"max_tokens": -5}, output_reserve=OutputReserve.MAX_TOKENS).expected_output_tokens is None


@given(st.lists(st.tuples(st.sampled_from(sorted(NAMES)), st.binary(max_size=40)), max_size=6),
       st.one_of(st.none(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_whatever_is_sent_is_refused_or_makes_a_request_that_can_be_one(headers, priority):
    """Never another exception, and never a value that the scheduler would call an InvalidEvent."""
    try:
        body = parse(json.dumps({"priority": priority}).encode())
        hints = HintReader(HintSettings(), PROFILE).read(headers, body)
    except Refused:
        return
    assert 0 <= hints.priority_jump <= 60
    assert 0 <= hints.strict_priority <= 15
    assert hints.max_wait_ns is None or 1 <= hints.max_wait_ns < 2**62
    Request(
        "r", 1, hints.policy_class, hints.strict_priority, hints.priority_jump, do_not_queue=hints.do_not_queue,
        pinned=hints.pinned, allowed_workers=hints.allowed_workers, session_id=hints.session_id,
        expected_output_tokens=hints.expected_output_tokens)
    Echo("x", "g", hints.policy_class, hints=hints).headers()


@pytest.mark.parametrize(("value", "shown"), [
    (None, "g-1"), (b"", "g-1"), (b"abc-1.2_3:4/5", "abc-1.2_3:4/5"), (b"a b\r\nx-evil: 1", "a_b__x-evil:_1"),
    (b"\xff\x00\"", "___"), (b"a" * 1000, "a" * ID_CHARS_MAX),
])
def test_a_clients_id_is_made_safe(value, shown):
    assert client_id(value, "g-1") == shown


def test_every_response_says_class_and_queue_time_also_where_nothing_waited():
    headers = dict(Echo("mine", "g-1", "premium").headers())
    assert headers == {
        b"x-request-id": b"mine", b"x-kvcore-request-id": b"g-1", b"x-kvcore-policy-class": b"premium",
        b"x-kvcore-queue-ms": b"0", b"x-llm-d-flow-queue-duration-ms": b"0"}
    hints = Hints(priority_jump=5.0, strict_priority=2)
    told = dict(Echo("mine", "g-1", "pré\nmium", 1_234_567_890, 3, 2, "exact", hints).headers())
    assert told[b"x-kvcore-policy-class"] == b"pr__mium"
    assert told[b"x-kvcore-queue-ms"] == told[b"x-llm-d-flow-queue-duration-ms"] == b"1234"
    assert (told[b"x-kvcore-worker-id"], told[b"x-kvcore-dp-rank"]) == (b"3", b"2")
    assert told[b"x-kvcore-prompt-tokens-source"] == b"exact"
    assert (told[b"x-kvcore-priority"], told[b"x-kvcore-strict-priority"]) == (b"5", b"2")
