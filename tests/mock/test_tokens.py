"""The mock's language."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvcore.drivers.mock.tokens import WORDS, Answer, BadPrompt, answer_length, check_ids, decode, encode, render


@given(st.text())
def test_a_text_comes_back(text):
    assert decode(encode(text)) == text.encode("utf-8", "surrogatepass").rstrip(b"\0").decode("utf-8", "replace")


@given(st.text(), st.text())
def test_equal_prefixes_have_equal_tokens(text, more):
    whole = len(text.encode()) // 4
    assert encode(text + more)[:whole] == encode(text)[:whole]


def test_token_ids_are_checked():
    assert check_ids([0, 2**32 - 1]).tolist() == [0, 2**32 - 1]
    for bad in ([], [-1], [2**32], ["a"], [1.5], [None]):
        with pytest.raises(BadPrompt):
            check_ids(bad)


def test_an_answer_has_the_same_tokens_in_the_next_turn():
    prompt = render([("system", "be brief"), ("user", "what is it?")])
    answer = Answer(prompt)
    made = [answer.next() for _ in range(7)]
    text = b"".join(word for _, word in made).decode()
    turn = render([("system", "be brief"), ("user", "what is it?"), ("assistant", text), ("user", "and then?")])
    assert turn[:len(prompt) + 7].tolist() == prompt.tolist() + [token for token, _ in made]


def test_words_need_no_escape_and_differ():
    assert len(set(WORDS)) == 256
    for word in WORDS:
        assert json.dumps(word.decode()) == f'"{word.decode()}"'
        assert len(word) == 4


def test_answers_depend_on_the_prompt_alone():
    def words(text):
        answer = Answer(encode(text))
        return [answer.next() for _ in range(20)]

    assert words("a prompt") == words("a prompt")
    assert words("a prompt") != words("a prompu")
    lengths = {answer_length(encode(f"prompt {number}"), 64) for number in range(1000)}
    assert min(lengths) >= 64
    assert max(lengths) < 192
    assert len(lengths) > 100
