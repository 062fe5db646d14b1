"""`kvcore journal` and `kvcore replay --journal`: outputs, exit statuses, one line for whatever is wrong."""

from __future__ import annotations

import gzip
import json
import os
import re

import pytest
from kvcore.drivers.cli import main, replay_run

TRACE = "".join(
    json.dumps({"timestamp": 5 * i, "input_length": 700, "output_length": 3, "hash_ids": [i % 3, 100 + i]}) + "\n"
    for i in range(60))
#: An action as it is and as it is not.
DIFFERENT = ('["Dispatch","r0-7",7,', '["Dispatch","r0-7",8,')


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder to work in, with a trace."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jsonl").write_text(TRACE)
    return tmp_path


@pytest.fixture
def kvcore(capsys):
    """Run the program in this process: (status, stdout, stderr)."""

    def run(*argv):
        status = main([str(item) for item in argv])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def journal(kvcore, folder):
    """Path of a journal."""
    assert kvcore("replay", "t.jsonl", "--workers", 2, "-q", "--journal", "j.jsonl") == (0, "", "")
    return folder / "j.jsonl"


def test_a_replay_is_written_and_replays_to_the_same_digest(kvcore, journal):
    _, out, _ = kvcore("replay", "t.jsonl", "--workers", 2, "--json", "-")
    report = json.loads(out)
    status, out, err = kvcore("journal", "replay", journal)
    assert (status, err) == (0, "")
    assert re.search(rf"^same +{report['events']:,} events in {report['steps']:,} batches, ", out, re.MULTILINE)
    assert re.search(rf"^digest +{report['digest']}$", out, re.MULTILINE)


def test_the_same_replay_gives_the_same_bytes_packed_or_not(kvcore, journal, folder):
    for name in ("again.jsonl", "one.jsonl.gz", "other.jsonl.gz"):
        kvcore("replay", "t.jsonl", "--workers", 2, "-q", "--journal", name)
    assert (folder / "again.jsonl").read_bytes() == journal.read_bytes()
    packed = (folder / "one.jsonl.gz").read_bytes()
    assert packed == (folder / "other.jsonl.gz").read_bytes()
    assert packed[3:8] == bytes(5), "neither a name nor a time inside"
    assert gzip.decompress(packed) == journal.read_bytes()
    assert kvcore("journal", "stats", "one.jsonl.gz") == kvcore("journal", "stats", journal)


def test_stats_count_what_is_there(kvcore, journal):
    status, out, err = kvcore("journal", "stats", journal)
    assert (status, err) == (0, "")
    lines = journal.read_text().splitlines()
    rows = [json.loads(line) for line in lines[1:-1]]
    events = [event for row in rows for event in row["events"]]
    found = {line.split()[0]: line for line in out.splitlines()}
    assert found["batches"].split()[1] == str(len(rows))
    assert found["events"].split()[1] == str(len(events))
    assert "60 RequestArrived" in found["events"]
    assert "2 WorkerUpserted" in found["events"]
    assert found["actions"].split(maxsplit=1)[1] == "60 (60 Dispatch)"
    assert found["class"].split(maxsplit=1)[1] == "default: 60 (60 Dispatch)"
    assert found["time"].split(maxsplit=1)[1].startswith(f"{events[0][1]} .. {events[-1][1]} ns")


def test_stats_count_rejects_by_reason(kvcore, folder):
    (folder / "p.yaml").write_text(
        "default_policy_family: f\nuncached_isl_buckets: [{min_tokens: 0, bucket: b}]\npolicy_classes:\n"
        "  - {name: only, policy_family: f, cache_bucket: b, quantum: 1, prefill_busy_threshold: 0,\n"
        "     request_queue_limit_per_worker: 1}\n")
    kvcore("replay", "t.jsonl", "--policy", "p.yaml", "--speedup", 50, "-q", "--journal", "j.jsonl")
    _, out, _ = kvcore("journal", "stats", "j.jsonl")
    count = re.search(r"^rejects +(\d+) \((\d+) QUEUE_FULL_REQUESTS\)$", out, re.MULTILINE)
    assert count is not None
    assert int(count[1]) == int(count[2]) > 0
    assert f"{count[1]} Reject" in re.search(r"^class +only: .*$", out, re.MULTILINE)[0]
    assert kvcore("journal", "replay", "j.jsonl")[0] == 0


def test_a_difference_is_printed_and_is_status_1(kvcore, journal):
    journal.write_text(journal.read_text().replace(*DIFFERENT))
    status, out, err = kvcore("journal", "replay", journal)
    assert (status, err) == (1, "")
    assert re.match(rf"different  {journal}:\d+: batch \d+: action 0: the journal has Dispatch\(.*attempt=8", out)
    assert out.count("\n") == 1


@pytest.mark.parametrize("command", ["replay", "stats"])
def test_damage_is_one_line_and_status_2(kvcore, journal, command):
    lines = journal.read_text().splitlines(keepends=True)
    lines[4] = lines[4].replace('"', "'", 1)
    journal.write_text("".join(lines))
    status, out, err = kvcore("journal", command, journal)
    assert (status, out) == (2, "")
    assert err.startswith(f"kvcore: error: {journal}:5: not JSON: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["replay", "stats"])
@pytest.mark.parametrize(("content", "message"), [
    (b"", "x:1: the journal is empty"),
    (b"{}\n", "x:1: not a journal of kvcore"),
    (b"\xff\xfe\n", "x:1: not JSON"),
    (b"\x1f\x8b", "x:1: the journal is empty"),
    (b"\x1f\x8bxxxxxxxxxxxxxx", "x:1: the gzip data is damaged"),
    (None, "x: No such file or directory"),
])
def test_what_is_no_journal_is_one_line_and_status_2(kvcore, folder, command, content, message):
    if content is not None:
        (folder / "x").write_bytes(content)
    status, out, err = kvcore("journal", command, "x")
    assert (status, out) == (2, "")
    assert err.startswith(f"kvcore: error: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("packed", [False, True])
def test_a_journal_that_breaks_off_is_used_and_told(kvcore, journal, folder, packed):
    data = journal.read_bytes()
    (folder / "cut").write_bytes(gzip.compress(data)[:-40] if packed else data[:-60])
    status, out, err = kvcore("journal", "replay", "cut")
    assert status == 0
    assert out.startswith("same ")
    assert re.fullmatch(r"kvcore: note: cut: (line \d+ breaks off|the last line is missing): .*cut short\n", err)


def test_bytes_that_are_not_ascii_are_damage(kvcore, journal):
    journal.write_bytes(journal.read_bytes().replace(b'"r0-9"', b'"r0-\xc3\xa4"', 1))
    status, _, err = kvcore("journal", "replay", journal)
    assert status == 2
    assert "plain text" in err


def test_nothing_is_left_of_a_replay_that_fails(kvcore, folder):
    (folder / "t.jsonl").write_text(TRACE + "{}\n")
    status, _, err = kvcore("replay", "t.jsonl", "-q", "--journal", "j.jsonl", "--json", "j.json")
    assert (status, err.count("\n")) == (2, 1)
    assert os.listdir(folder) == ["t.jsonl"]


def test_an_interrupt_leaves_the_old_journal(kvcore, journal, monkeypatch):
    def interrupted(*args, **options):
        options["tap"]((), (), None)
        raise KeyboardInterrupt

    before = journal.read_bytes()
    monkeypatch.setattr(replay_run, "simulate", interrupted)
    assert kvcore("replay", "t.jsonl", "-q", "--journal", journal)[0] == 130
    assert journal.read_bytes() == before
    assert sorted(os.listdir()) == ["j.jsonl", "t.jsonl"]


@pytest.mark.parametrize(("options", "message"), [
    (("--journal", "-"), "--journal needs a file"),
    (("--journal", "t.jsonl"), "--journal t.jsonl: is also an input file"),
    (("--journal", "no/j"), "--journal no/j: cannot be written"),
    (("--journal", "j", "--csv", "j"), "--csv and --journal must go to different places"),
    (("--journal", "j", "--csv", "c", "--json", "j"), "--json, --csv and --journal must go to different places"),
])
def test_destinations_are_checked_before_any_work(kvcore, folder, options, message):
    status, out, err = kvcore("replay", "t.jsonl", *options)
    assert (status, out) == (2, "")
    assert message in err
    assert os.listdir(folder) == ["t.jsonl"]
