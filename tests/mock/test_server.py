"""The mock worker over HTTP: it answers as vLLM does, frees slots at once, and fails as it is told."""

from __future__ import annotations

from functools import partial

import openai
import pytest
import trio
from kvcore.drivers.mock.engine import EARLY_S
from mock_world import ask, chat, mock_worker, open_request, until


def run(story, **options) -> None:
    """Run `await story(worker)` with a worker."""
    async def main() -> None:
        async with mock_worker(**options) as worker:
            await story(worker)

    trio.run(main)


def test_a_streamed_chat_has_the_chunks_of_vllm():
    async def story(worker) -> None:
        answer = await ask(worker.url, "POST", "/v1/chat/completions",
                           chat(stream=True, stream_options={"include_usage": True}), x_request_id="mine-1")
        assert (answer.status, answer.is_whole) == (200, True)
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        *chunks, usage, done = answer.events
        assert done == "[DONE]"
        assert {chunk["id"] for chunk in [*chunks, usage]} == {"chatcmpl-mine-1"}
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        words = [chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:]]
        assert len("".join(words)) == 4 * 4
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
        assert usage["choices"] == []
        assert usage["usage"] == {
            "prompt_tokens": 12, "total_tokens": 16, "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 0, "created_cache_tokens": 0}}

    run(story)


def test_an_answer_in_one_piece_says_the_same_as_the_stream():
    async def story(worker) -> None:
        whole = await ask(worker.url, "POST", "/v1/chat/completions", chat())
        stream = await ask(worker.url, "POST", "/v1/chat/completions", chat(stream=True))
        said = "".join(event["choices"][0]["delta"]["content"] for event in stream.events[:-1])
        choice = whole.json["choices"][0]
        assert choice["message"]["content"] == said
        assert choice["finish_reason"] == "length"
        text = await ask(worker.url, "POST", "/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 2})
        assert text.json["object"] == "text_completion"
        assert len(text.json["choices"][0]["text"]) == 8
        assert text.json["usage"]["prompt_tokens"] == 3

    run(story)


def test_usage_in_every_chunk_counts_up():
    async def story(worker) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        answer = await ask(worker.url, "POST", "/v1/completions",
                           {"prompt": "four" * 5, "max_tokens": 3, "stream": True, "stream_options": options})
        made = [event["usage"]["completion_tokens"] for event in answer.events[:-1]]
        assert made == sorted(made)
        assert made[-1] == 3
        assert {event["usage"]["prompt_tokens"] for event in answer.events[:-1]} == {5}

    run(story)


def test_answers_end_by_themselves_unless_told_not_to():
    async def story(worker) -> None:
        short = await ask(worker.url, "POST", "/v1/chat/completions", chat(max_tokens=1000))
        assert short.json["choices"][0]["finish_reason"] == "stop"
        assert 2 <= short.json["usage"]["completion_tokens"] < 130
        long = await ask(worker.url, "POST", "/v1/chat/completions", chat(max_tokens=200, ignore_eos=True))
        assert long.json["choices"][0]["finish_reason"] == "length"
        assert long.json["usage"]["completion_tokens"] == 200

    run(story, answer_tokens=2, speed=100.0)


def test_an_equal_prompt_is_cached_and_metrics_say_so():
    async def story(worker) -> None:
        body = {"prompt": "four" * 40, "max_tokens": 1}
        first, second = [await ask(worker.url, "POST", "/v1/completions", body) for _ in range(2)]
        assert first.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert second.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 32
        lines = (await ask(worker.url, "GET", "/metrics")).body.decode().splitlines()
        labels = '{engine="0",model_name="mock"}'
        assert f"vllm:prefix_cache_queries_total{labels} 80.0" in lines
        assert f"vllm:prefix_cache_hits_total{labels} 32.0" in lines
        assert f"vllm:num_requests_running{labels} 0.0" in lines
        assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="mock"} 2.0' in lines
        assert (await ask(worker.url, "POST", "/reset_prefix_cache")).status == 200
        third = await ask(worker.url, "POST", "/v1/completions", body)
        assert third.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    run(story)


@pytest.mark.parametrize(("path", "body", "status", "param"), [
    ("/v1/chat/completions", b'{"model": "mock", "messages": ', 400, "body"),
    ("/v1/chat/completions", {"model": "mock"}, 400, "body"),
    ("/v1/chat/completions", {"model": "mock", "messages": []}, 400, "messages"),
    ("/v1/chat/completions", chat() | {"model": "nope"}, 404, "model"),
    ("/v1/chat/completions", chat(max_tokens=-1), 400, "max_tokens"),
    ("/v1/chat/completions", chat(n=2), 400, "n"),
    ("/v1/completions", {"prompt": ""}, 400, "prompt"),
    ("/v1/completions", {"prompt": [-1]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [1, "a"]}, 400, "prompt"),
    ("/v1/completions", {"prompt": "four" * 30, "max_tokens": 3}, 400, "input_tokens"),
    ("/tokenize", {}, 400, "prompt"),
])
def test_what_is_refused(path, body, status, param):
    async def story(worker) -> None:
        answer = await ask(worker.url, "POST", path, body)
        assert answer.status == status
        error = answer.json["error"]
        assert (error["code"], error["param"]) == (status, param)
        assert error["message"]
        assert worker.engine.model.totals.prompt_tokens == 0

    run(story, max_model_len=32)


def test_other_paths():
    async def story(worker) -> None:
        assert (await ask(worker.url, "GET", "/health")).status == 200
        assert (await ask(worker.url, "GET", "/nope")).status == 404
        wrong = await ask(worker.url, "GET", "/v1/completions")
        assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
        models = (await ask(worker.url, "GET", "/v1/models")).json
        assert [(model["id"], model["max_model_len"]) for model in models["data"]] == [("mock", 32_768)]
        tokens = (await ask(worker.url, "POST", "/tokenize", {"prompt": "eight to"})).json
        assert tokens["count"] == len(tokens["tokens"]) == 2
        text = (await ask(worker.url, "POST", "/detokenize", {"tokens": tokens["tokens"]})).json
        assert text == {"prompt": "eight to"}
        talk = (await ask(worker.url, "POST", "/tokenize", {"messages": chat()["messages"]})).json
        used = (await ask(worker.url, "POST", "/v1/chat/completions", chat())).json["usage"]
        assert talk["count"] == used["prompt_tokens"]

    run(story)


def test_slots_are_bounded_and_a_client_that_goes_frees_one():
    async def story(worker) -> None:
        model = worker.engine.model
        streams = [await open_request(worker.url, "POST", "/v1/chat/completions",
                                      chat(f"{number}", stream=number % 2 == 0, max_tokens=500, ignore_eos=True))
                   for number in range(5)]
        await until(lambda: (len(model.running), len(model.waiting)) == (2, 3))
        await streams[3].aclose()           # still queued inside
        await until(lambda: len(model.waiting) == 2)
        await streams[0].receive_some()     # its head, or first words
        await streams[0].aclose()
        await streams[1].aclose()           # not streamed: it has sent nothing yet
        await until(lambda: (len(model.running), len(model.waiting)) == (2, 0))
        assert worker.engine.outcomes == {"abort": 3}
        for stream in streams[2::2]:
            await stream.aclose()
        await until(lambda: not model.has_work)
        assert model.cache.free == model.cache.total

    run(story, max_num_seqs=2)


def test_an_engine_takes_its_time():
    """At least as long as the model says; how much longer is the machine's affair."""
    async def story(worker) -> None:
        began_s = trio.current_time()
        await ask(worker.url, "POST", "/v1/completions", {"prompt": "four" * 1_000, "max_tokens": 5})
        assert trio.current_time() - began_s >= (5 * 10 + 1_000 * 0.01) / 1_000 - EARLY_S

    run(story, speed=1.0)


@pytest.mark.parametrize("stream", [False, True])
def test_failures_before_the_first_byte(stream):
    async def story(worker) -> None:
        send = partial(ask, worker.url, "POST", "/v1/chat/completions", chat(stream=stream))
        busy = await send(x_mock_fault="status=503")
        assert (busy.status, busy.headers["retry-after"], busy.json["error"]["code"]) == (503, "1", 503)
        assert (await send(x_mock_fault="cut")).raw == b""
        assert b"no answer" in (await send(x_mock_fault="garbage")).body
        with trio.move_on_after(0.1) as patience:
            await send(x_mock_fault="stall")
        assert patience.cancelled_caught
        assert (await send(x_mock_fault="stall;seconds=0.01")).is_whole
        assert (await send(x_mock_fault="nonsense")).status == 400
        assert worker.engine.outcomes == {"length": 1}
        assert (await send()).is_whole

    run(story)


def test_failures_in_the_middle_of_a_stream():
    async def story(worker) -> None:
        send = partial(ask, worker.url, "POST", "/v1/chat/completions", chat(stream=True))
        cut = await send(x_mock_fault="cut;after=2")
        assert (cut.status, cut.is_whole, len(cut.events)) == (200, False, 3)
        garbage = await send(x_mock_fault="garbage;after=1")
        assert b"no answer" in garbage.body
        interrupted = await send(x_mock_fault="no-finish;after=1")
        assert interrupted.events[-1] == "[DONE]"
        assert [event["choices"][0]["finish_reason"] for event in interrupted.events[:-1]] == [None, None]
        failed = await send(x_mock_fault="error-event;after=1")
        assert failed.events[-2]["error"]["code"] == 500
        stalled = await open_request(worker.url, "POST", "/v1/chat/completions", chat(stream=True),
                                     x_mock_fault="stall;after=1")
        await stalled.receive_some()
        assert len((await send(x_mock_fault="stall;after=1;seconds=0.01")).events) > 2
        await stalled.aclose()
        await until(lambda: not worker.engine.model.has_work)
        assert (await send()).is_whole

    run(story)


def test_failures_in_the_middle_of_a_body():
    async def story(worker) -> None:
        cut = await ask(worker.url, "POST", "/v1/chat/completions", chat(), x_mock_fault="cut;after=1")
        assert (cut.status, cut.is_whole) == (200, False)
        assert cut.body

    run(story)


def test_faults_can_be_set_for_the_next_requests():
    async def story(worker) -> None:
        async def statuses() -> list[int]:
            return [(await ask(worker.url, "POST", "/v1/chat/completions", chat())).status for _ in range(3)]

        assert (await ask(worker.url, "POST", "/mock/faults", {"fault": "status=429", "times": 2})).status == 200
        assert await statuses() == [429, 429, 200]
        await ask(worker.url, "POST", "/mock/faults", {"fault": "cut", "times": 9})
        await ask(worker.url, "DELETE", "/mock/faults")
        assert await statuses() == [200, 200, 200]
        for bad in ({}, {"fault": "cut", "times": -1}, {"fault": "status=200"}, {"fault": "cut;after=x"},
                    {"fault": "cut=1"}):
            assert (await ask(worker.url, "POST", "/mock/faults", bad)).status == 400
        state = (await ask(worker.url, "GET", "/mock/state")).json
        assert (state["requests"], state["outcomes"], state["faults"]) == (6, {"length": 4}, 0)

    run(story)


def test_the_official_client_understands_it():
    def talk(url) -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            said = client.chat.completions.create(
                model="mock", messages=[{"role": "user", "content": "hello"}], max_tokens=6)
            assert said.usage.completion_tokens == 6
            with client.chat.completions.create(
                model="mock", messages=[{"role": "user", "content": "hello"}], max_tokens=6, stream=True,
                stream_options={"include_usage": True},
            ) as stream:
                chunks = list(stream)
            text = "".join(chunk.choices[0].delta.content for chunk in chunks if chunk.choices)
            assert text == said.choices[0].message.content
            assert chunks[-1].usage.prompt_tokens == said.usage.prompt_tokens
            assert [model.id for model in client.models.list()] == ["mock"]
            with pytest.raises(openai.NotFoundError):
                client.completions.create(model="nope", prompt="hello")

    async def story(worker) -> None:
        await trio.to_thread.run_sync(talk, worker.url)

    run(story)
