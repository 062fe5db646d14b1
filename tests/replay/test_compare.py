"""`kvcore compare`: outputs, exit statuses, messages; equal policies; where the reference loses shares."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from kvcore.drivers.cli import compare_run, main
from policy_texts import THREE_TO_ONE as POLICY

MIX = "premium=0.5,regular=0.5"


def trace_text(count, gap_ms=1):
    return "".join(
        json.dumps({"timestamp": i * gap_ms, "input_length": 100, "output_length": 2}) + "\n" for i in range(count))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder to work in, with a trace and policies."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "t.jsonl").write_text(trace_text(300))
    (tmp_path / "a.yaml").write_text(POLICY)
    (tmp_path / "same.yaml").write_text("# another file\n" + POLICY)
    (tmp_path / "flat.yaml").write_text(POLICY.replace("quantum: 300", "quantum: 100"))
    (tmp_path / "reference.yaml").write_text("arbitration: reference\n" + POLICY)
    return tmp_path


@pytest.fixture
def kvcore(capsys):
    """Run the program in this process: (status, stdout, stderr)."""

    def run(*argv):
        status = main([str(item) for item in argv])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def compared(kvcore, *argv):
    status, out, err = kvcore("compare", *argv, "--trace", "t.jsonl", "--classes", MIX, "--engine", "mock",
                              "--resamples", 50, "--json", "-")
    assert (status, err) == (0, "")
    return json.loads(out)


def figures(report, candidate, name):
    """Differences of a class, by figure."""
    return next(item["figures"] for item in report["differences"][candidate]["classes"] if item["name"] == name)


def shares(report, candidate):
    return {item["name"]: item for item in report["candidates"][candidate]["fairness"]["shares"]}


def test_equal_policies_differ_by_exactly_nothing(kvcore):
    report = compared(kvcore, "a.yaml", "same.yaml")
    entry = report["differences"][0]
    assert entry["same_outcomes"]
    assert [item["name"] for item in entry["classes"]] == ["premium", "regular", "all"]
    for item in entry["classes"]:
        for figure in item["figures"].values():
            assert (figure["difference"], figure["low"], figure["high"]) == (0, 0, 0)
            assert figure["base"] == figure["other"] is not None
    one, two = report["candidates"]
    assert one["digest"] == two["digest"]
    assert one["fairness"] == two["fairness"]


def test_a_file_may_stand_twice(kvcore):
    report = compared(kvcore, "a.yaml", "a.yaml")
    assert [item["label"] for item in report["candidates"]] == ["a.yaml#1", "a.yaml#2"]


def test_figures_are_those_of_the_replay(kvcore):
    """What `kvcore replay` says of the same policy, it says too."""
    report = compared(kvcore, "flat.yaml", "a.yaml")
    status, out, _ = kvcore("replay", "t.jsonl", "--policy", "a.yaml", "--classes", MIX, "--engine", "mock",
                            "--json", "-")
    assert status == 0
    known = json.loads(out)
    assert report["candidates"][1]["digest"] == known["digest"]
    for entry, item in zip(known["classes"] + [known["total"]], report["candidates"][1]["classes"], strict=True):
        assert item["figures"]["requests"] == entry["requests"]
        assert item["figures"]["completed"] == round(entry["completed"] / entry["requests"], 6)
        for key, spread in entry["latency_ns"].items():
            for kind in ("p50", "p90", "p99"):
                assert item["figures"][f"{key}_{kind}"] == spread[kind]
    for entry, item in zip(known["classes"], shares(report, 1).values(), strict=True):
        contended = entry["contended"]
        assert (item["uncached_tokens"], item["share"], item["due"]) == (
            contended["uncached_tokens"], contended["share"], contended["quantum_share"])


def test_a_larger_quantum_waits_less_and_clearly_so(kvcore):
    report = compared(kvcore, "flat.yaml", "a.yaml")
    assert not report["differences"][0]["same_outcomes"]
    premium, regular = (figures(report, 0, name)["queue_wait_mean"] for name in ("premium", "regular"))
    assert premium["difference"] == premium["other"] - premium["base"] < 0
    assert premium["is_clear"]
    assert premium["high"] < 0 < regular["low"]


def test_the_reference_loses_shares_and_the_report_says_where(kvcore):
    """Quanta 3:1 and one slot freed at a time: exact gives 3:1, the reference 1:1."""
    report = compared(kvcore, "a.yaml", "reference.yaml")
    exact, reference = shares(report, 0), shares(report, 1)
    assert exact["premium"]["due"] == reference["premium"]["due"] == 0.75
    assert exact["premium"]["share"] == pytest.approx(0.75, abs=0.02)
    assert reference["premium"]["share"] == pytest.approx(0.5, abs=0.02)
    assert reference["premium"]["lost"] == pytest.approx(0.25, abs=0.02)
    held, lost = (item["fairness"] for item in report["candidates"])
    assert (held["is_promised"], lost["is_promised"]) == (True, False)
    assert (held["pairs"][0]["broken"], held["pairs"][0]["classes"]) == (0, ["premium", "regular"])
    assert held["pairs"][0]["drift_rounds"] <= held["pairs"][0]["bound_rounds"] == pytest.approx(7 / 3, abs=1e-6)
    assert lost["pairs"][0]["broken"] > 0
    assert lost["pairs"][0]["drift_rounds"] > 7 / 3
    (while_both,) = lost["contended"]
    assert while_both["waiting"] == ["premium", "regular"]
    status, out, _ = kvcore("compare", "a.yaml", "reference.yaml", "--trace", "t.jsonl", "--classes", MIX, "--engine",
                            "mock", "--resamples", 10)
    assert status == 0
    (line,) = [line for line in out.splitlines() if line.startswith("lost")]
    assert "reference.yaml (reference): while premium and regular waited, premium was given 49.8 % of" in line
    assert line.endswith("and was due 75.0 %")


def test_table_is_plain_and_names_what_differs(kvcore):
    status, out, err = kvcore("compare", "a.yaml", "same.yaml", "flat.yaml", "--trace", "t.jsonl", "--classes", MIX,
                              "--resamples", 20, "--confidence", 90)
    assert (status, err) == (0, "")
    assert "\x1b" not in out
    for text in ("same.yaml against a.yaml", "flat.yaml against a.yaml", "all differences are 0", "90 % interval",
                 "queue wait p99", "TTFT", "digest", "due", "bound"):
        assert text in out


def test_policies_that_rename_classes_are_compared_by_name(kvcore, folder):
    (folder / "renamed.yaml").write_text(POLICY.replace("name: premium", "name: gold"))
    report = compared(kvcore, "a.yaml", "renamed.yaml")
    entry = report["differences"][0]
    assert [item["name"] for item in entry["classes"]] == ["premium", "regular", "gold", "all"]
    assert not entry["same_outcomes"]
    assert figures(report, 0, "premium")["ttft_p50"]["other"] is None
    assert figures(report, 0, "gold")["ttft_p50"]["base"] is None
    assert figures(report, 0, "all")["ttft_p50"]["difference"] == 0


def test_the_same_command_gives_the_same_bytes_in_any_process(kvcore):
    argv = ["compare", "a.yaml", "flat.yaml", "--trace", "t.jsonl", "--classes", MIX, "--resamples", "20"]
    runs = [
        subprocess.run([sys.executable, "-W", "error", "-P", "-m", "kvcore", *argv, "--json", "-"], capture_output=True,
                       env=os.environ | {"PYTHONHASHSEED": seed}, timeout=60, check=True).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert json.loads(runs[0])["bootstrap"] == {"seed": 0, "resamples": 20, "confidence_percent": 95}


def test_seed_changes_the_class_draws(kvcore):
    counts = []
    for seed in (0, 1):
        one, _ = compared(kvcore, "a.yaml", "same.yaml", "--seed", seed)["candidates"]
        counts += [item["figures"]["requests"] for item in one["classes"]]
    assert counts[0] != counts[3]
    assert counts[2] == counts[5] == 300


def test_json_holds_the_configuration(kvcore, folder):
    status, out, err = kvcore("compare", "a.yaml", "flat.yaml", "--trace", "t.jsonl", "--json", "o.json", "--quiet",
                              "--resamples", 10, "--workers", 2, "--speedup", "0.5")
    assert (status, out, err) == (0, "", "")
    report = json.loads((folder / "o.json").read_text())
    config = report["config"]
    assert (config["workers"], config["speedup"], config["seed"]) == (2, "1/2", 0)
    assert [item["path"] for item in config["policies"]] == ["a.yaml", "flat.yaml"]
    assert len(config["traces"][0]["sha256"]) == 64
    assert [item["quantum"] for item in report["candidates"][1]["policy"]["policy_classes"]] == [100, 100]


def test_bad_rows_are_skipped_and_counted(kvcore, folder):
    (folder / "t.jsonl").write_text(trace_text(5) + "nonsense\n" + trace_text(5))
    status, _, err = kvcore("compare", "a.yaml", "flat.yaml", "--trace", "t.jsonl", "--skip-bad", "--resamples", 10)
    assert (status, err) == (0, "kvcore: note: skipped 1 rows that cannot be used\n")
    status, out, err = kvcore("compare", "a.yaml", "flat.yaml", "--trace", "t.jsonl")
    assert (status, out) == (2, "")
    assert err.startswith("kvcore: error: t.jsonl:6: ")


@pytest.mark.parametrize(("argv", "words"), [
    (["a.yaml"], "two policy files or more are needed (see kvcore compare --help)"),
    ([], "Missing argument"),
    (["a.yaml", "no.yaml"], "no.yaml: No such file or directory"),
    (["a.yaml", "flat.yaml", "--engine", "generc"], "did you mean 'generic'?"),
    (["a.yaml", "flat.yaml", "--classes", "premum=1"], "did you mean 'premium'?"),
    (["a.yaml", "flat.yaml", "--format", "csv"], "--format: unknown 'csv'"),
    (["a.yaml", "flat.yaml", "--json", "a.yaml"], "--json a.yaml: is also an input file"),
    (["a.yaml", "flat.yaml", "--json", "no/o.json"], "cannot be written"),
    (["a.yaml", "flat.yaml", "--resamples", "9"], "--resamples"),
    (["a.yaml", "flat.yaml", "--concurrency", "3", "--speedup", "2"], "--speedup does nothing beside --concurrency"),
    (["a.yaml", "flat.yaml", "--trace", "gone.jsonl"], "gone.jsonl"),
    (["a.yaml", "flat.yaml", "--frobnicate"], "No such option"),
])
def test_errors_are_one_line_and_touch_nothing(kvcore, folder, argv, words):
    before = sorted(os.listdir(folder))
    status, out, err = kvcore("compare", *argv, "--trace", "t.jsonl")
    assert (status, out) == (2, "")
    assert err.startswith("kvcore: error: ")
    assert words in err
    assert err.count("\n") == 1
    assert sorted(os.listdir(folder)) == before


def test_a_pipe_can_not_be_replayed_twice(kvcore, folder):
    os.mkfifo(folder / "pipe")
    status, _, err = kvcore("compare", "a.yaml", "flat.yaml", "--trace", "pipe")
    assert status == 2
    assert "pipe: is read once per replay" in err


def test_an_invalid_policy_is_named(kvcore, folder):
    (folder / "bad.yaml").write_text(POLICY.replace("quantum: 300", "quantum: none"))
    status, _, err = kvcore("compare", "a.yaml", "bad.yaml", "--trace", "t.jsonl")
    assert status == 2
    assert err.startswith("kvcore: error: bad.yaml:6")


def test_an_interrupt_leaves_no_output(kvcore, folder, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare_run, "replay_candidate", interrupt)
    status, out, err = kvcore("compare", "a.yaml", "flat.yaml", "--trace", "t.jsonl", "--json", "o.json")
    assert (status, out, err) == (130, "", "kvcore: interrupted\n")
    assert not (folder / "o.json").exists()
