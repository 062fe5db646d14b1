"""`kvcore bench`: what it prints, saves and refuses. Instructions are left out here: they have tests of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kvcore.drivers.bench import measuring
from kvcore.drivers.bench.gate import processor
from kvcore.drivers.bench.load import Load, mix, record, rows
from kvcore.drivers.cli import bench_run, main

from kvcore.policy_file import load_policy

POLICIES = Path(__file__).parents[2] / "examples" / "policies"
PREMIUM = str(POLICIES / "premium.yaml")
SMALL = ("--workers", "2", "--requests", "60", "--in-flight", "16")


@pytest.fixture
def bench(monkeypatch, capsys):
    """Run the program with one process per ratio and without valgrind: (status, stdout, stderr)."""
    monkeypatch.setattr(measuring, "TRIES", 1)
    monkeypatch.setattr(bench_run, "has_valgrind", lambda: False)

    def run(*arguments: object, policy: str = PREMIUM) -> tuple[int, str, str]:
        status = main(["bench", "--policy", policy, *SMALL, *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def edited(path: Path, change) -> Path:
    """The same file with every build changed."""
    data = json.loads(path.read_text(encoding="utf-8"))
    for build in data["builds"].values():
        change(build)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def base_line(tmp_path_factory):
    """A base line, whose ratio is set so high that it cannot be what a test depends on: its text."""
    path = tmp_path_factory.mktemp("base") / "base.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "TRIES", 1)
        patch.setattr(bench_run, "has_valgrind", lambda: False)
        assert main(["bench", "--policy", PREMIUM, *SMALL, "--save", str(path), "--reason", "as it is today"]) == 0

    def raise_ratio(build):
        (ratios,) = build["ratios"].values()
        ratios["ratio: step, per event"] = 1e6

    return edited(path, raise_ratio).read_text(encoding="utf-8")


@pytest.fixture
def saved(base_line, tmp_path):
    """A file of that base line."""
    path = tmp_path / "base.json"
    path.write_text(base_line, encoding="utf-8")
    return path


def test_it_prints_its_figures(bench):
    status, out, err = bench()
    assert status == 0
    assert "counter: wait in class premium, p90, ms" in out
    assert "ratio: step, per event" in out
    assert "instructions" not in out
    assert err == "kvcore: note: there is no valgrind here: instructions are not measured\n"


def test_what_is_saved_passes(bench, saved):
    (build,) = json.loads(saved.read_text(encoding="utf-8"))["builds"].values()
    assert build["reason"] == "as it is today"
    before = saved.read_text(encoding="utf-8")
    status, out, err = bench("--compare", saved)
    assert (status, "GROWN" in out, "grown" in err) == (0, False, False)
    assert saved.read_text(encoding="utf-8") == before


def test_what_has_grown_is_answered_with_3(bench, saved):
    def lower(build):
        build["figures"]["counter: actions"] *= 0.95

    edited(saved, lower)
    status, out, err = bench("--compare", saved)
    assert status == 3
    assert [line.split("  ")[0] for line in out.splitlines() if line.endswith("GROWN")] == ["counter: actions"]
    assert err.splitlines()[-1].endswith(f"more than 3 % over {saved}: counter: actions")
    assert bench("--compare", saved, "--tolerance", 10)[0] == 0


def test_another_policy_is_held_against_the_same_base_line(bench, saved):
    """The point of it: what a change of the policy costs."""
    text = Path(PREMIUM).read_text(encoding="utf-8").replace("quantum: 512", "quantum: 16")
    assert text != Path(PREMIUM).read_text(encoding="utf-8")
    other = saved.with_name("other.yaml")
    other.write_text(text, encoding="utf-8")
    status, out, _ = bench("--compare", saved, policy=str(other))
    assert status == 3
    grown = [line.partition("  ")[0] for line in out.splitlines() if line.endswith("GROWN")]
    assert "counter: wait in class premium, p90, ms" in grown


def test_a_build_that_is_not_known_is_recorded(bench, saved):
    data = json.loads(saved.read_text(encoding="utf-8"))
    (entry,) = data["builds"].values()
    data["builds"] = {"another": entry}
    saved.write_text(json.dumps(data), encoding="utf-8")
    status, _, err = bench("--compare", saved)
    assert status == 0
    assert f"{saved} knows nothing of this build: recorded there" in err
    assert len(json.loads(saved.read_text(encoding="utf-8"))["builds"]) == 2


def test_ratios_of_another_processor_are_not_held_against_this_one(bench, saved):
    def move(build):
        build["ratios"] = {"another": {"ratio: step, per event": 1e-9}}

    edited(saved, move)
    status, out, err = bench("--compare", saved)
    assert (status, "GROWN" in out) == (0, False)
    assert f"{saved} has no ratios of this processor: recorded there" in err
    (build,) = json.loads(saved.read_text(encoding="utf-8"))["builds"].values()
    assert len(build["ratios"]) == 2
    edited(saved, lambda build: build.update(ratios={processor(): {"ratio: step, per event": 1e-9}}))
    assert bench("--compare", saved)[0] == 3


@pytest.mark.parametrize(("options", "told"), [
    (("--compare", "base.json", "--requests", 61), "base.json: its base lines are of another load: requests 60, not"),
    (("--save", "base.json", "--seed", 1), "another load: seed 0, not 1"),
    (("--compare", "none.json"), "none.json: No such file"),
    (("--compare", "base.json", "--save", "base.json"), "give one or the other"),
    (("--reason", "why"), "--reason needs --save"),
    (("--save", "new.json", "--reason", " "), "--reason needs --save, and words"),
    (("--model", "m", "--workers", 0), "--workers"),
    (("--save", PREMIUM), "is also an input file"),
])
def test_refusals(options, told, bench, saved, monkeypatch):
    monkeypatch.chdir(saved.parent)
    before = saved.read_text(encoding="utf-8")
    status, out, err = bench(*options)
    assert (status, out) == (2, "")
    assert err.startswith("kvcore: error: ")
    assert told in err
    assert saved.read_text(encoding="utf-8") == before


@pytest.mark.parametrize(("text", "told"), [
    ("policy_classes: 3", "p.yaml:1"),
    (b"\xff", "p.yaml:1: not UTF-8"),
    (None, "p.yaml: No such file"),
    ("models:\n  m:\n    default_policy_family: a\n    uncached_isl_buckets: [{min_tokens: 0, bucket: b}]\n"
     "    policy_classes: [{name: a, policy_family: a, cache_bucket: b, quantum: 1}]\n", "no root profile"),
])
def test_policies_that_cannot_be_used(text, told, bench, tmp_path):
    path = tmp_path / "p.yaml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    status, out, err = bench(policy=str(path))
    assert (status, out) == (2, "")
    assert told in err


@pytest.mark.parametrize("name", sorted(path.name for path in POLICIES.glob("*.yaml")))
def test_every_example_can_be_run_and_is_the_same_each_time(name):
    document = load_policy((POLICIES / name).read_text(encoding="utf-8"), name)
    profile = document.profile_for(next(iter(document.models), None))
    first, second = (record(Load(2, 60, 16, 7), profile) for _ in range(2))
    assert (first.counters, first.digest, first.batches) == (second.counters, second.digest, second.batches)
    assert first.counters["counter: requests that wait, at most"] > 0
    run = first.prepare()
    assert run() == run() == first.digest


def test_the_load_uses_every_family_and_bucket():
    profile = load_policy((POLICIES / "cached-uncached.yaml").read_text(encoding="utf-8"), "p").root
    assert [name for name, _ in mix(profile).weights] == list(
        dict.fromkeys(item.policy_family or item.name for item in profile.classes))
    prompts = [row.prompt_tokens for row in rows(Load(1, 500, 1, 0))]
    assert min(prompts) < 128
    assert max(prompts) > 8192
