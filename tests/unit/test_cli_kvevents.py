"""`kvcore kvevents show`: recordings as a router would see them."""

from __future__ import annotations

import json

import pytest
from kv_engines import FOLDER, Engine, removed
from kvcore.drivers.cli import main


def show(capsys, *argv) -> tuple[int, str, str]:
    status = main(["kvevents", "show", *map(str, argv)])
    out, err = capsys.readouterr()
    return status, out, err


def write(path, *messages) -> str:
    """A recording of live messages."""
    path.write_text("".join(
        json.dumps({"frames": ["6b76", number.to_bytes(8, "big").hex(), data.hex()]}) + "\n"
        for number, data in messages), encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "rank", "last"), [
    ("vllm-0.32.0-int-hashes.jsonl.gz", "rank 0: exact", "455 blocks stored, "),
    ("vllm-0.32.0-dp2-sha256cbor.jsonl", "rank 1: exact", "28 blocks stored, 0 removed, 0 clears, 10 duplicates"),
    ("vllm-0.32.0-replay-from-180.jsonl", "rank 0: exact", "11 messages, 180 lost"),
])
def test_recordings(capsys, name, rank, last):
    status, out, err = show(capsys, FOLDER / name)
    assert (status, err) == (0, "")
    assert rank in out.splitlines()
    assert last in [line for line in out.splitlines() if " held" in line][-1]


def test_each_message_is_a_line_and_each_rank_has_a_verdict(capsys, tmp_path):
    engine = Engine()
    messages = [engine.prompt(*range(8)), engine.evict(), engine.clear(), engine.publish(),
                engine.publish({"type": "Odd"}), engine.publish(removed(1, ownership="x"))]
    status, out, _ = show(capsys, write(tmp_path / "a.jsonl", *messages, (9, b"\xc1")))
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == "     0  rank 0  2 stored on device (root)"
    assert lines[1:6] == [
        "     1  rank 0  1 removed from device", "     2  rank 0  all cleared", "     3  rank 0  nothing",
        "     4  rank 0  unknown 'Odd'", "     5  rank 0  of another owner"]
    assert lines[6].startswith("     9  no events: ")
    assert lines[7] == "rank 0: degraded (an event of unknown kind 'Odd')"
    assert lines[8] == ("  7 messages, 3 lost, 0 of no use; 2 blocks stored, 1 removed, 1 clears, 0 duplicates, "
                        "0 orphans; 0 held")
    assert lines[9:] == ["  passed over: 1 of other owners, 1 of unknown kinds"]


def test_a_router_with_other_blocks_sees_why(capsys, tmp_path):
    _, out, _ = show(capsys, write(tmp_path / "a.jsonl", Engine().prompt(*range(8))), "--block-size", "16")
    assert "rank 0: approx (blocks of 4 tokens, not 16)" in out


@pytest.mark.parametrize("line", ["{}", "[]", "7", "x", '{"frames": ["zz"]}', '{"frames": [1]}', '{"frames": ["00"]}',
                                  '{"frames": null}'])
def test_what_is_no_recording_is_one_line_and_status_2(capsys, tmp_path, line):
    path = write(tmp_path / "a.jsonl", Engine().prompt(*range(8)))
    path.write_text(path.read_text() + line + "\n", encoding="utf-8")
    status, _, err = show(capsys, path)
    assert (status, err) == (2, f"kvcore: error: {path}:2: this is no message of KV events\n")


def test_a_recording_that_breaks_off_inside_its_gzip_says_so(capsys, tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes((FOLDER / "vllm-0.32.0-int-hashes.jsonl.gz").read_bytes()[:2000])
    status, _, err = show(capsys, path)
    assert (status, err.count("\n")) == (2, 1)
    assert show(capsys, tmp_path / "none")[0] == 2
