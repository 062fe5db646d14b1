"""Frames on the wire: live messages, questions, answers in three, four and five frames."""

from __future__ import annotations

import pytest
from kv_engines import END_MESSAGE, RECORDINGS, answer_frames, recording
from kvcore.drivers.kvevents import frames


@pytest.mark.parametrize("form", [3, 4, 5])
def test_answers_in_every_form(form):
    assert frames.answer(answer_frames((7, b"data"), form)) == (7, b"data")
    assert frames.answer(answer_frames(END_MESSAGE, form)) is frames.END
    assert frames.answer(answer_frames((7, b""), form)) is frames.END


@pytest.mark.parametrize("name", RECORDINGS)
def test_recorded_frames(name):
    for item in recording(name):
        read = frames.answer if len(item.frames) == 4 else frames.live
        assert read(item.frames) == (frames.END if item.batch is None else (item.sequence, item.payload))


@pytest.mark.parametrize("parts", [
    [], [b"x"], [b"t", bytes(8)], [b"t", bytes(7), b"data"], [b"t", bytes(9), b"data"],
    [b"t", b"\x80" + bytes(7), b"data"], [b"a", b"b", b"c", b"d", bytes(8), b"data"],
])
def test_other_frames_are_passed_over(parts):
    assert frames.live(parts) is None
    assert frames.answer(parts) is None


def test_live_messages_have_three_frames_and_never_end():
    assert frames.live([b"topic", bytes(7) + b"\x02", b"data"]) == (2, b"data")
    assert frames.live([b"topic", bytes(8), b""]) is None
    assert frames.live([b"", b"topic", bytes(8), b"data"]) is None


def test_questions():
    assert frames.ask(258) == [b"", bytes(6) + b"\x01\x02"]
