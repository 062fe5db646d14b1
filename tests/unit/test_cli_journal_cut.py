"""`kvcore journal cut`: what it writes, that the other commands take it, and one line for whatever is wrong."""

from __future__ import annotations

import gzip
import json
import os
import re

import pytest
from kvcore.drivers.cli import main

from kvcore import Scheduler
from kvcore.config import SchedulerConfig
from kvcore.journal import JournalReader, JournalWriter, replay
from kvcore.policy import AdmissionSpec, CacheBucket, PolicyClass, PolicyProfile

TRACE = "".join(
    json.dumps({"timestamp": 5 * i, "input_length": 700, "output_length": 3, "hash_ids": [i % 3, 100 + i]}) + "\n"
    for i in range(60))
POLICY = """\
default_policy_family: f
uncached_isl_buckets: [{min_tokens: 0, bucket: b}]
policy_classes: [{name: only, policy_family: f, cache_bucket: b, quantum: 100, prefill_busy_threshold: 0}]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder to work in."""
    monkeypatch.chdir(tmp_path)
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
    """Path of a journal in which requests wait."""
    (folder / "t.jsonl").write_text(TRACE)
    (folder / "p.yaml").write_text(POLICY)
    told = kvcore("replay", "t.jsonl", "--policy", "p.yaml", "--speedup", 40, "-q", "--journal", "j.jsonl")
    assert told == (0, "", "")
    return folder / "j.jsonl"


def batches(path) -> list[str]:
    return path.read_text().splitlines()[1:-1]


def naming(journal, request_id: str) -> list[int]:
    return [at for at, line in enumerate(batches(journal)) if f'"{request_id}"' in line]


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz"])
def test_a_range(kvcore, journal, folder, name):
    status, out, err = kvcore("journal", "cut", "j.jsonl", "--from", 20, "--to", 40, "-o", name)
    assert (status, err) == (0, "")
    data = (folder / name).read_bytes()
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    assert text.splitlines()[1:-1] == batches(journal)[20:41]
    digest = json.loads(text.splitlines()[-1])["digest"]
    assert out == f"cut        batches 20 to 40 of j.jsonl\ndigest     {digest}\n"
    scheduler = Scheduler(JournalReader(journal.read_text().splitlines(keepends=True)).config)
    done = replay(JournalReader(journal.read_text().splitlines(keepends=True)), scheduler, until=41)
    assert done.digest == digest


def test_the_other_commands_take_it(kvcore, journal):
    assert kvcore("journal", "cut", "j.jsonl", "--from", 20, "--to", 40, "-o", "c.jsonl")[0] == 0
    status, out, err = kvcore("journal", "replay", "c.jsonl")
    assert (status, err) == (0, "")
    assert "in 21 batches" in out
    status, out, err = kvcore("journal", "stats", "c.jsonl")
    assert (status, err) == (0, "")
    assert out.startswith("batches    21\n")
    status, _, err = kvcore("journal", "cut", "c.jsonl", "--from", 5, "--to", 9, "-o", "d.jsonl")
    assert (status, err) == (0, "")
    assert kvcore("journal", "replay", "d.jsonl")[0] == 0


def test_standard_output(kvcore, journal, folder):
    status, out, err = kvcore("journal", "cut", "j.jsonl", "--from", 20, "--to", 999)
    assert (status, err) == (0, "")
    assert out.splitlines()[1:-1] == batches(journal)[20:]
    assert sorted(os.listdir()) == ["j.jsonl", "p.yaml", "t.jsonl"]


def test_around_a_request(kvcore, journal, folder):
    found = naming(journal, "r0-9")
    assert len(found) > 2
    assert kvcore("journal", "cut", "j.jsonl", "--around", "r0-9", "-o", "c.jsonl")[0] == 0
    assert batches(folder / "c.jsonl") == batches(journal)[found[0]:found[-1] + 1]
    kvcore("journal", "cut", "j.jsonl", "--around", "r0-9", "--before", 2, "--after", 3, "-o", "c.jsonl")
    assert batches(folder / "c.jsonl") == batches(journal)[found[0] - 2:found[-1] + 4]
    kvcore("journal", "cut", "j.jsonl", "--around", "r0-9", "--before", 9999, "--after", 9999, "-o", "c.jsonl")
    assert (folder / "c.jsonl").read_bytes() == journal.read_bytes()


def test_explain_says_the_same(kvcore, journal):
    """Of one that waits, one that is dispatched in the cut, and one that has waited since before."""
    first = naming(journal, "r0-9")[0]
    assert kvcore("journal", "cut", "j.jsonl", "--around", "r0-9", "-o", "c.jsonl")[0] == 0
    assert told(kvcore, "c.jsonl", "r0-9") == told(kvcore, "j.jsonl", "r0-9")
    for at in (0, 1, 2):
        assert told(kvcore, "c.jsonl", "r0-9", "--at", at) == told(kvcore, "j.jsonl", "r0-9", "--at", first + at)
    assert kvcore("journal", "cut", "j.jsonl", "--from", first + 1, "--to", first + 1, "-o", "d.jsonl")[0] == 0
    assert told(kvcore, "d.jsonl", "r0-9") == told(kvcore, "j.jsonl", "r0-9", "--at", first + 1)
    assert "state      waiting" in told(kvcore, "d.jsonl", "r0-9")


def told(kvcore, *argv) -> str:
    """What explain says, without the names of batches."""
    status, out, err = kvcore("journal", "explain", *argv)
    assert (status, err) == (0, "")
    return "\n".join(line for line in out.splitlines() if not line.startswith(("journal ", "later ")))


def test_of_one_that_only_ended_in_the_cut(kvcore, journal):
    last = naming(journal, "r0-9")[-1]
    assert kvcore("journal", "cut", "j.jsonl", "--from", last, "--to", last, "-o", "c.jsonl")[0] == 0
    assert "it neither waited nor was it dispatched since the border of the cut" in told(kvcore, "c.jsonl", "r0-9")


# What is wrong.


@pytest.mark.parametrize(("options", "message"), [
    (("--around", "nobody"), "j.jsonl: no request 'nobody'"),
    (("--from", 5, "--to", 4), "--from 5 --to 4: no batch is in there"),
    (("--from", 99_999, "--to", 99_999), "there is no batch 99999: the journal has "),
    (("--from", 5), "give --around, or --from and --to"),
    ((), "give --around, or --from and --to"),
    (("--around", "r0-9", "--to", 4), "--around goes without --from and --to"),
    (("--from", 1, "--to", 4, "--after", 1), "--before and --after need --around"),
    (("--from", -1, "--to", 4), "-1"),
    (("--from", 1, "--to", 4, "-o", "j.jsonl"), "is also an input file"),
    (("--from", 1, "--to", 4, "-o", "no/c"), "--output no/c: cannot be written"),
])
def test_one_line_and_status_2(kvcore, journal, options, message):
    options = options if "-o" in options else (*options, "-o", "c.jsonl")
    status, out, err = kvcore("journal", "cut", "j.jsonl", *options)
    assert (status, out) == (2, "")
    assert err.startswith("kvcore: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert sorted(os.listdir()) == ["j.jsonl", "p.yaml", "t.jsonl"]


@pytest.mark.parametrize("line", [1, 10, 30])
def test_damage_leaves_nothing_behind(kvcore, journal, line):
    lines = journal.read_text().splitlines(keepends=True)
    lines[line - 1] = "?" + lines[line - 1]
    journal.write_text("".join(lines))
    for output in ("c.jsonl", "-"):
        status, out, err = kvcore("journal", "cut", "j.jsonl", "--from", 20, "--to", 40, "-o", output)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"kvcore: error: j.jsonl:{line}: ")
    assert sorted(os.listdir()) == ["j.jsonl", "p.yaml", "t.jsonl"]


def test_no_such_file(kvcore):
    status, out, err = kvcore("journal", "cut", "x", "--from", 0, "--to", 1)
    assert (status, out, err) == (2, "", "kvcore: error: x: No such file or directory\n")


def misremember(journal) -> None:
    """Let the journal have another attempt than the scheduler."""
    text = journal.read_text()
    changed = re.sub(r'(\["Dispatch","r0-3",)', r"\g<1>7", text)
    assert changed != text
    journal.write_text(changed)


def test_a_difference_before_the_border_is_printed_and_is_status_1(kvcore, journal):
    misremember(journal)
    later = naming(journal, "r0-3")[-1] + 1
    status, out, err = kvcore("journal", "cut", "j.jsonl", "--from", later, "--to", later, "-o", "c.jsonl")
    assert (status, err, out.count("\n")) == (1, "", 1)
    assert out.startswith("different  j.jsonl:")
    assert sorted(os.listdir()) == ["j.jsonl", "p.yaml", "t.jsonl"]


def test_a_difference_inside_is_cut_and_told(kvcore, journal):
    misremember(journal)
    status, out, _ = kvcore("journal", "cut", "j.jsonl", "--around", "r0-3", "-o", "c.jsonl")
    assert (status, out.splitlines()[1]) == (0, "digest     (none: something comes out otherwise than recorded)")
    assert kvcore("journal", "replay", "c.jsonl")[0] == 1


def test_a_journal_that_breaks_off(kvcore, journal, folder):
    journal.write_bytes(journal.read_bytes()[:-60])
    status, _, err = kvcore("journal", "cut", "j.jsonl", "--from", 20, "--to", 9999, "-o", "c.jsonl")
    assert (status, err.count("\n")) == (0, 1)
    assert "j.jsonl: " in err
    assert err.endswith("was cut short\n")


def test_a_type_of_admission_policy_that_is_not_known_is_one_line(kvcore, folder):
    one = PolicyClass("only", 1, policy_family="f", cache_bucket="b", admission=AdmissionSpec("hold"))
    config = SchedulerConfig(profile=PolicyProfile((one,), (CacheBucket("b", 0),), "f"))
    with open("h.jsonl", "w", encoding="ascii") as stream, JournalWriter(stream, config) as writer:
        writer.batch((), ())
    status, out, err = kvcore("journal", "cut", "h.jsonl", "--from", 0, "--to", 0, "-o", "c.jsonl")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "unknown type 'hold'" in err
    assert os.listdir() == ["h.jsonl"]
