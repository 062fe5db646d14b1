"""The scanner of streams: against what real engines have sent, in pieces of any size, and against what looks alike."""

from __future__ import annotations

from pathlib import Path

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvcore.drivers.gateway.sse import EVENT_MAX, Scanner, read_plain

RECORDED = Path(__file__).parent.parent / "data" / "engine_http"


def body_of(name: str) -> bytes:
    """The body of a recorded response, chunks undone."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data((RECORDED / f"{name}.http").read_bytes())
    body = b""
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Data):
            body += event.data
        elif event is h11.NEED_DATA:  # a stream that was cut has no last chunk
            break
    return body


#: Of each stream: tokens, usage (prompt, output, cached), finished. Without usage a token is counted per event with
#: output; llama.cpp sends its finish reason in an event of its own, and [DONE] is one, too.
STREAMS = {
    "vllm-0.32.0-chat-stream": (None, True), "vllm-0.32.0-chat-stream-usage": ((10, 4, 0), True),
    "vllm-0.32.0-chat-stream-continuous-usage": ((10, 3, 0), True),
    "vllm-0.32.0-completions-stream-token-ids": (None, True),
    "llama-server-b11434-chat-stream-usage": ((10, 4, 9), True),
    "llama-cpp-python-0.3.36-chat-stream": (None, True),
    "llama-cpp-python-0.3.36-stream-interrupted": (None, False),
}


def scan(body: bytes, cuts: list[int]) -> tuple[Scanner, bytes]:
    """Feed a body in pieces that end at these places."""
    scanner, out, start = Scanner(), b"", 0
    for end in [*sorted({cut % (len(body) + 1) for cut in cuts}), len(body)]:
        out += scanner.feed(body[start:end])
        start = end
    return scanner, out


@pytest.mark.parametrize("name", STREAMS)
@given(cuts=st.lists(st.integers(0, 5000), max_size=30))
def test_recorded_streams_in_any_pieces(name, cuts):
    body = body_of(name)
    usage, is_finished = STREAMS[name]
    scanner, out = scan(body, cuts)
    assert out + scanner.tail == body
    assert scanner.is_finished is is_finished
    told = scanner.usage
    assert (None if told is None else (
        told.prompt_tokens, told.output_tokens, told.prompt_tokens_details.cached_tokens)) == usage
    assert scanner.started is (name != "llama-cpp-python-0.3.36-stream-interrupted")
    whole, _ = scan(body, [])
    assert scanner.tokens == whole.tokens


@pytest.mark.parametrize("name", STREAMS)
def test_the_finish_is_known_no_later_than_its_event_is_let_through(name):
    scanner, out = Scanner(), b""
    for byte in body_of(name):
        out += scanner.feed(bytes([byte]))
        for mark in (b'"finish_reason":"', b'"finish_reason": "'):
            assert scanner.is_finished or mark not in out


def test_a_role_alone_is_no_output():
    scanner = Scanner()
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
    scanner.feed(role)
    assert (scanner.started, scanner.tokens) == (False, 0)
    scanner.feed(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
    assert (scanner.started, scanner.tokens) == (True, 1)
    scanner.feed(b'data: {"choices":[{"delta":{"content":""}}]}\n\n' * 3)
    assert scanner.tokens == 4


@pytest.mark.parametrize("delta", [
    b'{"tool_calls":[{"index":0}]}', b'{"reasoning_content":"hm"}', b'{"role":"assistant","content":"x"}'])
def test_other_kinds_of_output(delta):
    scanner = Scanner()
    scanner.feed(b'data: {"choices":[{"delta":' + delta + b"}]}\n\n")
    assert scanner.started


def test_generated_text_cannot_fake_an_end():
    scanner = Scanner()
    text = rb'{\"finish_reason\":\"stop\",\"usage\":{\"completion_tokens\":7}}\n\ndata: [DONE]\n\n'
    scanner.feed(b'data: {"choices":[{"delta":{"content":"' + text + b'"},"finish_reason":null}]}\n\n')
    assert (scanner.is_finished, scanner.usage, scanner.tokens) == (False, None, 1)


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter"])
def test_reasons_that_are_an_end(reason):
    scanner = Scanner()
    scanner.feed(b'data: {"choices":[{"text":"","finish_reason":"%s"}]}\n\n' % reason.encode())
    assert scanner.is_finished


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_reasons_that_are_a_failure(reason):
    scanner = Scanner()
    scanner.feed(b'data: {"choices":[{"text":"","finish_reason":"%s"}]}\n\n' % reason.encode())
    assert (scanner.is_finished, scanner.failed) == (False, True)


def test_all_of_several_answers_end():
    scanner = Scanner(2)
    end = b'data: {"choices":[{"index":%d,"text":"","finish_reason":"stop"}]}\n\n'
    scanner.feed(end % 1)
    scanner.feed(end % 1)
    assert not scanner.is_finished
    scanner.feed(end % 0)
    assert scanner.is_finished


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_both_ends_of_lines(line_end):
    event = b'data: {"choices":[{"text":"x","finish_reason":"stop"}]}' + 2 * line_end
    scanner = Scanner()
    assert scanner.feed(event + event[:9]) == event
    assert (scanner.is_finished, scanner.tail) == (True, event[:9])


def test_an_event_without_an_end_is_not_collected_for_ever():
    scanner, out = Scanner(), 0
    for _ in range(3 * EVENT_MAX // 65_536):
        out += len(scanner.feed(b"x" * 65_536))
        assert len(scanner.tail) <= EVENT_MAX
    assert out > EVENT_MAX


@pytest.mark.parametrize("junk", [
    b"data: {\n\n", b'data: {"choices":7}\n\n', b'data: {"choices":[{"finish_reason":"stop"\n\n', b"\x00\xff\n\n",
    b'data: {"choices":[],"usage":{"prompt_tokens":-1}}\n\n', b"data: " + b"[" * 100_000 + b"\n\n", b"event: x\n\n"])
def test_what_is_no_event_of_ours_is_passed_on_and_counts_for_nothing(junk):
    scanner = Scanner()
    assert scanner.feed(junk) == junk
    assert (scanner.is_finished, scanner.usage) == (False, None)


def test_answers_in_one_piece():
    usage, is_good = read_plain(body_of("vllm-0.32.0-chat"))
    assert (usage.prompt_tokens, usage.context_tokens, is_good) == (10, 10 + usage.output_tokens, True)
    usage, is_good = read_plain(body_of("llama-server-b11434-chat"))
    assert (usage.prompt_tokens, is_good) == (10, True)
    assert read_plain(body_of("vllm-0.32.0-error-model")) == (None, False)
    assert read_plain(b'{"choices":[{"finish_reason":"abort"}]}') == (None, False)
    assert read_plain(b'{"choices":3}') == (None, False)
    with pytest.raises(ValueError, match="no JSON"):
        read_plain(b"<html>")
