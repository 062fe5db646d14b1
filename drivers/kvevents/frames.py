"""Frames of the messages: what a publisher sends, how a replay is asked for, what answers look like. Pure.

Live: topic, sequence, payload. A replay is asked for with an empty frame and the first sequence wanted; each answer is
an empty frame, the topic, the sequence, the payload. Older publishers leave the topic out, some sockets leave a frame
of routing in front: what counts are the last two frames. The end is an empty payload, or the sequence -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: Sequences are numbers below this; -1 marks the end of an answer.
SEQUENCE_END = 2**63


class Message(NamedTuple):
    """A payload in its place."""

    sequence: int
    payload: bytes


class End:
    """The end of an answer to a replay."""


END = End()


def live(frames: Sequence[bytes]) -> Message | None:
    """A live message; None: it is none, and passed over."""
    if len(frames) != 3:
        return None
    message = _last_two(frames)
    return message if isinstance(message, Message) else None


def ask(start: int) -> list[bytes]:
    """Frames that ask for everything from `start` on."""
    return [b"", start.to_bytes(8, "big")]


def answer(frames: Sequence[bytes]) -> Message | End | None:
    """One answer of a replay, in any of its forms; None: it is none, and passed over."""
    return _last_two(frames) if 3 <= len(frames) <= 5 else None


def _last_two(frames: Sequence[bytes]) -> Message | End | None:
    sequence, payload = frames[-2:]
    if len(sequence) != 8:
        return None
    number = int.from_bytes(sequence, "big")
    if not payload or number == 2**64 - 1:
        return END
    return Message(number, payload) if number < SEQUENCE_END else None
