"""Base lines and their comparison (drivers/bench): files, verdicts, repeated ratios, marks."""

from __future__ import annotations

import json
import sys

import pytest
from kvcore.drivers.bench import measuring
from kvcore.drivers.bench.gate import BaseLines, InvalidBaseLine, Verdict, build_key, compare, processor, table
from kvcore.drivers.bench.measured import Work, serve
from kvcore.drivers.bench.measuring import MeasuringFailed, best_ratios, usual_ratios

BASE = {"counter: a": 100, "ratio: b": 2.0, "instructions: c": 1000.0, "counter: none": 0}


@pytest.mark.parametrize(("name", "value", "verdict"), [
    ("counter: a", 103, Verdict.SAME),
    ("counter: a", 104, Verdict.GROWN),
    ("counter: a", 97, Verdict.SAME),
    ("counter: a", 96, Verdict.SMALLER),
    ("ratio: b", 2.05, Verdict.SAME),
    ("ratio: b", 2.07, Verdict.GROWN),
    ("instructions: c", 1030.0, Verdict.SAME),
    ("instructions: c", 1030.1, Verdict.GROWN),
    ("counter: none", 0, Verdict.SAME),
    ("counter: none", 1, Verdict.GROWN),
    ("counter: new", 5, Verdict.NEW),
])
def test_verdicts(name, value, verdict):
    (row,) = compare(BASE, {name: value})
    assert (row.name, row.now, row.verdict) == (name, value, verdict)


def test_tolerance_is_the_users():
    assert compare(BASE, {"counter: a": 110}, 0.1)[0].verdict is Verdict.SAME
    assert compare(BASE, {"counter: a": 101}, 0.0)[0].verdict is Verdict.GROWN


def test_what_has_grown_comes_first():
    lines = table(compare(BASE, {"counter: a": 100, "ratio: b": 3.0, "counter: x": 1}))
    assert [line.split("  ")[0] for line in lines] == ["figure", "ratio: b", "counter: a", "counter: x"]
    assert lines[1].endswith("+50.00%  GROWN")
    assert lines[3].endswith("no base line")


def test_a_file_is_read_as_it_was_written(tmp_path):
    lines = BaseLines(tmp_path / "b.json", {"workers": 4})
    lines.record("one", BASE, "first")
    lines.record("two", {"counter: a": 1}, "other machine")
    lines.record("one", {"counter: a": 90}, "a better heap")
    lines.path.write_text(lines.text(), encoding="utf-8")
    again = BaseLines.read(lines.path)
    assert (again.load, again.text()) == ({"workers": 4}, lines.text())
    assert again.builds["one"].reason == "a better heap"
    assert again.builds["one"].on(processor()) == BASE | {"counter: a": 90}
    assert again.builds["two"].on(processor()) == {"counter: a": 1}


def test_ratios_belong_to_a_processor(tmp_path):
    lines = BaseLines(tmp_path / "b.json")
    lines.record("one", BASE, "first", "here")
    lines.add_ratios("one", BASE | {"ratio: b": 3.0}, "there")
    assert lines.builds["one"].on("here") == BASE
    assert lines.builds["one"].on("there") == BASE | {"ratio: b": 3.0}
    assert "ratio: b" not in lines.builds["one"].on("elsewhere")
    lines.record("one", {"ratio: b": 1.0}, "faster", "here")
    assert (lines.builds["one"].on("here")["ratio: b"], lines.builds["one"].on("there")["ratio: b"]) == (1.0, 3.0)


def entry(**changes):
    return {"reason": "r", "figures": {"counter: a": 1}} | changes


@pytest.mark.parametrize(("content", "told"), [
    ("", "b.json:1: not JSON"),
    ("{\n\n1}", "b.json:3: not JSON"),
    ("[]", "b.json: no base lines"),
    ({"format": "other", "builds": {}}, "b.json: no base lines"),
    ({"format": "kvcore-gate-2"}, "`builds` must be"),
    ({"format": "kvcore-gate-2", "load": 1, "builds": {}}, "`load` and"),
    ({"format": "kvcore-gate-2", "builds": {"k": 1}}, "'k' must be an object"),
    ({"format": "kvcore-gate-2", "builds": {"k": entry(reason="")}}, "'k' needs a `reason`"),
    ({"format": "kvcore-gate-2", "builds": {"k": entry(figures=[])}}, "and `figures`"),
    ({"format": "kvcore-gate-2", "builds": {"k": entry(figures={"time: a": 1})}}, "'time: a' is of no kind"),
    ({"format": "kvcore-gate-2", "builds": {"k": entry(figures={"ratio: a": 1})}}, "'ratio: a' is of no kind"),
    ({"format": "kvcore-gate-2", "builds": {"k": entry(ratios={"cpu": {"counter: a": 1}})}}, "'counter: a' is of no"),
    ({"format": "kvcore-gate-2", "builds": {"k": entry(ratios=[])}}, "`ratios` must be"),
    ({"format": "kvcore-gate-2", "builds": {"k": entry(ratios={"cpu": 1})}}, "`ratios` must be"),
    ({"format": "kvcore-gate-2", "builds": {"k": entry(figures={"counter: a": "1"})}}, "'counter: a' must be a number"),
    ({"format": "kvcore-gate-2", "builds": {"k": entry(figures={"counter: a": True})}}, "must be a number"),
    ({"format": "kvcore-gate-2", "builds": {"k": entry(figures={"counter: a": -1})}}, "must be a number"),
])
def test_files_that_hold_no_base_lines(content, told, tmp_path):
    file = tmp_path / "b.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    with pytest.raises(InvalidBaseLine) as error:
        BaseLines.read(file)
    assert told in str(error.value)
    assert str(error.value).startswith(str(file))


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "b.json").write_bytes(b"\xff{}")
    with pytest.raises(InvalidBaseLine, match=r"b\.json: not UTF-8"):
        BaseLines.read(tmp_path / "b.json")


def test_a_build_is_named_by_its_tools():
    assert "Cython 3." in build_key()
    assert sys.version.split()[0] in build_key()


@pytest.fixture
def scripted(tmp_path):
    """A command that answers with one ratio after the other, of as many works as are asked for, and counts."""
    script = tmp_path / "script.py"
    script.write_text(
        "import json, sys\nfrom pathlib import Path\n"
        "file = Path(__file__).with_name('calls')\n"
        "calls = file.read_text().splitlines() if file.exists() else []\n"
        "file.write_text('\\n'.join([*calls, ' '.join(sys.argv[2:])]))\n"
        "values = {'a': [5, 4, 9, 3, 7], 'b': [2, 8, 1, 8, 8]}\n"
        "print(json.dumps({name: values[name][len(calls)] for name in sys.argv[2:]}))\n")
    return [sys.executable, str(script)], lambda: (tmp_path / "calls").read_text().splitlines()


def test_a_base_line_is_the_median(scripted, monkeypatch):
    monkeypatch.setattr(measuring, "TRIES", 5)
    assert usual_ratios(scripted[0], ["a", "b"]) == {"a": 5, "b": 8}
    assert len(scripted[1]()) == 5


def test_a_ratio_is_measured_again_only_while_it_is_over(scripted, monkeypatch):
    monkeypatch.setattr(measuring, "TRIES", 5)
    assert best_ratios(scripted[0], ["a", "b"], lambda name, value: value <= 4) == {"a": 4, "b": 2}
    assert scripted[1]() == ["a b", "a"]


def test_the_best_of_all_counts_where_none_is_good_enough(scripted, monkeypatch):
    monkeypatch.setattr(measuring, "TRIES", 5)
    assert best_ratios(scripted[0], ["a"], lambda name, value: False) == {"a": 3}
    assert len(scripted[1]()) == 5


def test_a_measured_process_that_fails_says_why(tmp_path):
    with pytest.raises(MeasuringFailed, match="no such work"):
        usual_ratios([sys.executable, "-c", "raise SystemExit('no such work')"], ["a"])


FORKS = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@FORKS
def test_works_are_run_alike_and_apart(capfd):
    """Each in a process of its own, warmed; what is printed are ratios above nothing."""
    kept = []

    def prepare():
        kept.append(1)
        return lambda: sum(range(1000))

    assert serve({"one": Work(prepare, 10), "two": Work(prepare, 10)}, ["ratios", "two", "one"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert list(answer) == ["two", "one"]
    assert all(value > 0 for value in answer.values())
    assert kept == []


@FORKS
def test_work_that_fails_fails_the_whole(capfd):
    def prepare():
        raise ValueError("cannot be prepared")

    with pytest.raises(RuntimeError, match="has failed"):
        serve({"one": Work(prepare, 1)}, ["ratios", "one"])
    assert "cannot be prepared" in capfd.readouterr().err
