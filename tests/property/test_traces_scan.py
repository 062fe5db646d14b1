"""The fast way through plain Mooncake rows: it says what the careful parser says, or nothing."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from kvcore.drivers.replay._scan import plain_row
from kvcore.drivers.replay.mooncake import NAMES_MAX, careful_parser
from kvcore.drivers.replay.values import Unusable

SIZE, PART = 8, 4
CAREFUL = careful_parser(SIZE, PART)

BLANK = st.text(" \t", max_size=2)
NUMBER = st.one_of(
    st.integers(0, 40), st.integers(0, 2**53 + 2), st.sampled_from([2**62 // 10**6, 2**62 // 10**6 - 1, 10**18, 2**64]),
).map(str)
ODD = st.sampled_from(["-1", "1.0", "1e2", "01", "", "null", "true", '"1"', "[1]", "{}", "- 1", "0x1", "1 2", "+1"])


@st.composite
def lines(draw) -> bytes:
    """Nearly a row: mostly plain, with odd numbers, blanks, keys and ends here and there."""
    prompt = draw(st.integers(1, 4 * SIZE))
    blocks = -(-prompt // SIZE)
    ids = draw(st.lists(NUMBER, min_size=blocks, max_size=blocks + draw(st.sampled_from([0, 0, 1]))))
    pairs = [("timestamp", draw(NUMBER)), ("input_length", str(prompt)), ("output_length", draw(NUMBER))]
    if draw(st.booleans()):
        pairs.append(("hash_ids", f"[{draw(BLANK)}{f'{draw(BLANK)},{draw(BLANK)}'.join(ids)}{draw(BLANK)}]"))
    pairs = draw(st.permutations(pairs))
    match draw(st.sampled_from(["plain"] * 6 + ["odd", "key", "twice", "less", "more"])):
        case "odd":
            at = draw(st.integers(0, len(pairs) - 1))
            pairs[at] = (pairs[at][0], draw(ODD))
        case "key":
            pairs[0] = (draw(st.sampled_from(["session_id", "time", "", "hash_id", "Timestamp"])), pairs[0][1])
        case "twice":
            pairs.append(pairs[0])
        case "less":
            pairs.pop()
        case "more":
            pairs.append(("priority", "3"))
    body = ",".join(f'{draw(BLANK)}"{key}"{draw(BLANK)}:{draw(BLANK)}{value}{draw(BLANK)}' for key, value in pairs)
    end = draw(st.sampled_from(["}"] * 8 + ["", "}}", "},", "]", "} x"]))
    return ("{" + body + end).encode()


def careful(line: bytes):
    """What the careful parser makes of it; None where it refuses."""
    try:
        return CAREFUL(line)
    except Unusable:
        return None


@given(lines())
@example(b'{"timestamp": 1, "input_length": 9, "output_length": 3, "hash_ids": [7, 18446744073709551615]}')
@example(b'{"timestamp": 1, "input_length": 9, "output_length": 3, "hash_ids": []}')
@example(b'{"timestamp": 1, "input_length": 9, "output_length": 3, "hash_ids": [1, 2,]}')
@example(b'{"timestamp": 1, "input_length": 9, "output_length": 3\0}')
@example(b'{"timestamp": 01, "input_length": 9, "output_length": 3}')
@example(b'{"timestamp": 1, "input_length": 9, "output_length": 3, "output_length": 3}')
@example(b'{"timestamp": 1, "input_length": 9}')
@example(b'{"timestamp": 1, "input_length": 9, "output_length": 0}')
@example(b'{"timestamp": 1, "input_length": 9, "output_length": 3.0}')
@example(b'{"timestamp": 1, "input_length": 9, "output_length": 3, "hash_ids": [1]}')
@example(b'{"timestamp": 4611686018428, "input_length": 9, "output_length": 3}')
@example(b'{"timestamp": 1, "input_length": 9, "output_length": 3}}')
@example(b'{"timestamp": 1, "input_length": 9, "output_length": 3')
def test_what_is_read_fast_is_read_right(line):
    plain = plain_row(line, SIZE, PART, NAMES_MAX)
    assert plain is None or plain == careful(line)


@given(st.integers(0, 2**62 // 10**6 - 1), st.integers(1, 2**53), st.integers(1, 2**53), st.booleans(), st.data())
def test_plain_rows_are_read_fast(time, prompt, output, hashed, data):
    """Otherwise the fast way would be right because it does nothing."""
    text = f'{{"timestamp": {time}, "input_length": {prompt}, "output_length": {output}'
    if hashed and prompt <= 100:
        ids = data.draw(st.lists(st.integers(0, 10**18 - 1), min_size=-(-prompt // SIZE), max_size=-(-prompt // SIZE)))
        text += f', "hash_ids": {ids}'
    line = (text + "}").encode()
    plain = plain_row(line, SIZE, PART, NAMES_MAX)
    assert plain is not None
    assert plain == careful(line)
