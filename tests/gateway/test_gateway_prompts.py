"""Prompt lengths: exact where token ids can be had, the engine's where it is asked, and an estimate that says so."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from kvcore.drivers.gateway import chat_template
from kvcore.drivers.gateway.bodies import parse
from kvcore.drivers.gateway.config import PromptSource, TokenizerSettings
from kvcore.drivers.gateway.prompts import SILENCE_S, THREAD_CHARS_MIN, Measured, PromptMeter, Source
from kvcore.drivers.gateway.refusals import Refused, Trouble
from kvcore.drivers.kvevents.names import BlockNames
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

import kvcore

NAMES = BlockNames(4)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}")
TEXTS = ["the quick brown fox jumps over the lazy dog", "fn main() { println!(\"hi\"); }", "räksmörgås 🦊 <s> </s>"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """tokenizer.json of a tiny model, with special tokens that it adds, and its chat template beside it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 5, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.enable_truncation(8)  # what such files often hold, and engines undo
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder / "tokenizer.json"


def ids(model: Path, text: str, specials: bool) -> list[int]:
    tokenizer = Tokenizer.from_file(str(model))
    tokenizer.no_truncation()
    return tokenizer.encode(text, add_special_tokens=specials).ids


def meter(model: Path | None = None, ask=None, source=PromptSource.AUTO, names=NAMES) -> PromptMeter:
    return PromptMeter(TokenizerSettings(source, None if model is None else str(model)), names, ask)


def measure(meter: PromptMeter, body: dict, *, chat: bool = False) -> Measured:
    return trio.run(partial(meter.measure, parse(json.dumps(body).encode()), chat=chat))


def chat(*messages: str, **fields) -> dict:
    roles = ("user", "assistant")
    return fields | {"messages": [
        {"role": roles[index % 2], "content": text} for index, text in enumerate(messages)]}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("specials", [True, False])
def test_a_local_tokenizer_counts_exactly(model, text, specials):
    body = {"prompt": text} if specials else {"prompt": text, "add_special_tokens": False}
    expected = ids(model, text, specials)
    assert measure(meter(model), body) == Measured(len(expected), NAMES.of(expected), Source.EXACT)


def test_a_long_text_is_counted_the_same_in_a_thread(model):
    text = TEXTS[0] * (THREAD_CHARS_MIN // len(TEXTS[0]) + 1)
    expected = ids(model, text, True)
    assert measure(meter(model), {"prompt": text}) == Measured(len(expected), NAMES.of(expected), Source.EXACT)


def test_token_ids_need_no_tokenizer():
    prompt = list(range(10))
    told = measure(meter(), {"prompt": prompt})
    assert told == Measured(10, NAMES.of(prompt), Source.EXACT)
    assert len(told.hashes) == 2
    assert told.exact


def test_names_are_those_that_the_core_knows_and_part_by_cache_salt():
    plain, salted = (
        measure(meter(), {"prompt": list(range(8))} | extra).hashes for extra in ({}, {"cache_salt": "tenant-a"}))
    assert plain == (9143094415614847814, 9510318385840434533)  # the reference's vectors
    assert salted[0] == 17009624042690211646
    assert not set(plain) & set(salted)


def test_a_chat_is_rendered_by_the_models_template(model):
    told = measure(meter(model), chat("the quick ", "brown"), chat=True)
    expected = ids(model, "<s><|user|>the quick</s><|assistant|>brown</s><|assistant|>", False)
    assert told == Measured(len(expected), NAMES.of(expected), Source.EXACT)
    told = measure(meter(model), chat("the quick ", add_generation_prompt=False), chat=True)
    assert told.tokens == len(ids(model, "<s><|user|>the quick</s>", False))


@pytest.mark.parametrize("body", [
    chat("hi", tools=[{"type": "function", "function": {"name": "f"}}]),
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    {"messages": [{"role": "assistant", "content": "", "tool_calls": []}]},
    chat("hi", "the", continue_final_message=True),
])
def test_what_engines_prepare_in_their_own_ways_is_no_exact_count(model, body):
    assert measure(meter(model), body, chat=True).source is Source.ESTIMATE


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{{ messages.nothing.there }}", "{{ 1 / 0 }}"])
def test_a_template_that_refuses_is_no_count(template):
    found = chat_template.ChatTemplate(template, {})
    assert found.render([{"role": "user", "content": "x"}], {}) is None


def test_a_template_cannot_reach_out():
    source = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    assert chat_template.ChatTemplate(source, {}).render([{"role": "user", "content": "x"}], {}) is None


def test_a_template_file_comes_before_the_one_in_the_configuration(model, tmp_path):
    for path in model.parent.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    told = measure(meter(tmp_path / "tokenizer.json"), chat("the lazy dog"), chat=True)
    assert told.tokens == len(ids(model, "the lazy dog", False))


@pytest.mark.parametrize(("name", "content"), [
    ("tokenizer.json", "{}"), ("tokenizer_config.json", "{"), ("chat_template.jinja", "{% for %}"),
])
def test_broken_files_are_named_at_the_start(model, tmp_path, name, content):
    for path in model.parent.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError):  # noqa: PT011 - its text differs with the library
        meter(tmp_path / "tokenizer.json")


class Engine:
    """Answers /tokenize, and keeps what it was asked."""

    def __init__(self, *answers: bytes | None) -> None:
        self.asked: list[dict] = []
        self._answers = list(answers)

    async def __call__(self, question: bytes) -> bytes | None:
        await trio.lowlevel.checkpoint()
        self.asked.append(json.loads(question))
        return self._answers.pop(0)


def test_the_engine_is_asked_where_no_local_tokenizer_is():
    engine = Engine(b'{"count":9,"max_model_len":64,"tokens":[1,2,3,4,5,6,7,8,9],"token_strs":null}')
    told = measure(meter(ask=engine), {"model": "m", "prompt": "hello"})
    assert told == Measured(9, NAMES.of(list(range(1, 10))), Source.ENGINE)
    assert engine.asked == [{
        "model": "m", "prompt": "hello", "content": "hello", "add_special_tokens": True, "add_special": True}]


def test_the_engine_is_asked_about_a_chat_as_it_stands():
    engine = Engine(b'{"tokens":[1,2]}')
    body = chat("hi", model="m", tools=[{"type": "function"}], add_generation_prompt=True)
    told = measure(meter(ask=engine), body, chat=True)
    assert (told.tokens, told.source) == (2, Source.ENGINE)
    assert engine.asked == [body]


def test_local_comes_before_engine(model):
    engine = Engine()
    assert measure(meter(model, engine), {"prompt": "hello"}).source is Source.EXACT
    assert engine.asked == []


@pytest.mark.parametrize("answer", [
    None, b"", b"{", b'{"tokens":[]}', b'{"tokens":["a"]}', b'{"tokens":[-1]}', b'{"tokens":[4294967296]}', b"[1]",
])
def test_an_engine_that_does_not_say_leaves_an_estimate_and_is_left_alone_for_a_while(answer):
    engine = Engine(answer, b'{"tokens":[1,2,3]}')
    found = meter(ask=engine)

    async def story():
        body = parse(b'{"prompt":"hello there"}')
        assert (await found.measure(body, chat=False)).source is Source.ESTIMATE
        await trio.sleep(SILENCE_S / 2)
        assert (await found.measure(body, chat=False)).source is Source.ESTIMATE
        assert len(engine.asked) == 1
        await trio.sleep(SILENCE_S / 2 + 0.1)
        assert (await found.measure(body, chat=False)).source is Source.ENGINE

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))


def test_an_engine_that_knows_only_texts_is_still_asked_about_texts():
    engine = Engine(b'{"tokens":[]}', b'{"tokens":[1]}')
    found = meter(ask=engine)

    async def story():
        body = parse(json.dumps(chat("hi")).encode())
        assert (await found.measure(body, chat=True)).source is Source.ESTIMATE
        assert (await found.measure(parse(b'{"prompt":"hi"}'), chat=False)).source is Source.ENGINE
        assert (await found.measure(body, chat=True)).source is Source.ESTIMATE

    trio.run(story)
    assert len(engine.asked) == 2


def test_sources_can_be_chosen(model):
    engine = Engine(b'{"tokens":[1]}')
    assert measure(meter(model, engine, PromptSource.ENGINE), {"prompt": "x"}).source is Source.ENGINE
    assert measure(meter(model, engine, PromptSource.LOCAL), {"prompt": "x"}).source is Source.EXACT
    assert measure(meter(model, engine, PromptSource.ESTIMATE), {"prompt": "x"}).source is Source.ESTIMATE


def test_an_estimate_goes_by_bytes_and_is_at_least_one():
    assert measure(meter(), {"prompt": "x" * 400}).tokens == 100
    assert measure(meter(), {"prompt": "é" * 200}).tokens == 100
    assert measure(meter(), {"prompt": ""}).tokens == 1


def test_an_estimate_learns_from_what_engines_count():
    found = meter()
    body = {"prompt": "x" * 4000}
    assert measure(found, body).tokens == 1000
    told = measure(found, body)
    for _ in range(50):
        found.learn(told, 2000)  # two bytes a token, as in code
    assert measure(found, body).tokens == pytest.approx(2000, rel=0.05)
    for _ in range(10_000):
        found.learn(told, 1000)
    assert measure(found, body).tokens == pytest.approx(1000, rel=0.05)


def test_an_estimate_does_not_learn_from_exact_counts_or_nonsense():
    found = meter()
    found.learn(Measured(10, (), Source.EXACT), 5000)
    for nonsense in (0, -1, 10**12):
        found.learn(measure(found, {"prompt": "x" * 400}), nonsense)
    assert measure(found, {"prompt": "x" * 400}).tokens == 100


def test_prompts_that_begin_alike_have_names_that_begin_alike_also_under_an_estimate():
    first, second, other = (
        measure(meter(), {"prompt": text * 20}).hashes for text in ("shared words. ", "shared words. ", "others. "))
    longer = measure(meter(), {"prompt": "shared words. " * 20 + "and a question"}).hashes
    assert len(first) == 280 // 16  # pieces of four tokens of four bytes
    assert first == second == longer[:len(first)]
    assert not set(first) & set(other)


def test_pieces_of_text_are_never_taken_for_blocks_of_tokens():
    text = "abcdabcdabcdabcd"
    token = int.from_bytes(b"abcd", "little")
    by_text, by_tokens = (measure(meter(), {"prompt": prompt}).hashes for prompt in (text, [token] * 4))
    assert len(by_text) == len(by_tokens) == 1
    assert by_text != by_tokens


def test_an_estimated_prompt_is_one_that_the_core_takes():
    """At most ceil(tokens / block size) names, however dense the text turns out to be."""
    found = meter()
    sparse = measure(found, {"prompt": "x" * 4000})
    for _ in range(300):
        found.learn(sparse, 100)  # forty bytes a token
    told = measure(found, {"prompt": "y" * 1000})
    assert len(told.hashes) <= told.tokens // 4 < 1000 // 16
    core = kvcore.Scheduler(kvcore.SchedulerConfig(block_size=4))
    core.step(kvcore.RequestArrived(0, kvcore.Request("r", told.tokens, block_hashes=told.hashes)))


def test_pictures_do_not_count_by_their_bytes():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "what is this?"}, picture]}]}
    assert 1024 < measure(meter(), body, chat=True).tokens < 1100


def test_several_prompts_are_summed_and_have_no_names(model):
    told = measure(meter(model), {"prompt": TEXTS})
    assert told == Measured(sum([len(ids(model, text, True)) for text in TEXTS]), (), Source.EXACT)
    assert measure(meter(), {"prompt": [[1, 2], [3]]}) == Measured(3, (), Source.EXACT)
    assert measure(meter(), {"prompt": ["x" * 40, "y" * 40]}) == Measured(20, (), Source.ESTIMATE)


@pytest.mark.parametrize("prompt", [None, 7, [], {}, [1, "a"], [[1], "a"], [-1], [2**32], [1.5], [[1, "a"]], [None]])
def test_a_prompt_of_no_kind_is_refused(prompt):
    with pytest.raises(Refused) as caught:
        measure(meter(), {"prompt": prompt})
    assert (caught.value.trouble, caught.value.param) == (Trouble.MALFORMED, "prompt")


def test_a_body_without_a_prompt_is_refused():
    for is_chat, param in ((True, "messages"), (False, "prompt")):
        with pytest.raises(Refused) as caught:
            measure(meter(), {}, chat=is_chat)
        assert caught.value.param == param


@pytest.mark.parametrize("data", [
    b"", b"{", b"[]", b"null", b'{"model":"m"} x', b"\xff", b'{"model":"\xff"}', b'{"messages":' + b"[" * 100_000,
])
def test_what_is_no_json_object_is_refused(data):
    with pytest.raises(Refused) as caught:
        parse(data)
    assert caught.value.trouble is Trouble.MALFORMED


@pytest.mark.parametrize("messages", [b"[" * 90_000 + b"]" * 90_000, b'[{"role":' + b"[" * 90_000])
def test_deep_nesting_is_refused_or_estimated_and_never_a_crash(messages):
    try:
        body = parse(b'{"messages":' + messages + b"}")
        told = trio.run(partial(meter().measure, body, chat=True))
    except Refused:
        return
    assert told.source is Source.ESTIMATE
