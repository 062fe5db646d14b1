"""`kvcore compare --report`: one page, what it says of equal policies and of lost shares, and its pictures by hand."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest
from kvcore.drivers.cli import compare_run, main
from kvcore.drivers.report.comparison import _stretches
from kvcore.drivers.report.contrasts import _behind, drifts, forests
from kvcore.drivers.report.tables import Table
from kvcore.drivers.report.theme import PAPER, SERIES
from pages import check_alone, read
from policy_texts import THREE_TO_ONE as POLICY

LOAD = ["--trace", "t.jsonl", "--classes", "premium=0.5,regular=0.5", "--engine", "mock", "--resamples", "20",
        "--trace-block-size", "50"]


KINDS = ("mean", "p50", "p90", "p99")


def fill(folder):
    """A trace in which classes wait together and prompts have a beginning in common, and policies."""
    rows = [{"timestamp": i, "input_length": 100, "output_length": 2, "hash_ids": [i % 3, 3 + i]} for i in range(200)]
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "a.yaml").write_text(POLICY)
    (folder / "same.yaml").write_text("# another file\n" + POLICY)
    (folder / "reference.yaml").write_text("arbitration: reference\n" + POLICY)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A page, and the numbers that stand on it: (HTML, JSON)."""
    folder = tmp_path_factory.mktemp("page")
    fill(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        status = main(["compare", "a.yaml", "reference.yaml", "same.yaml", *LOAD, "-q", "--json", "o.json", "--report",
                       "o.html"])
    assert status == 0
    return (folder / "o.html").read_text(), json.loads((folder / "o.json").read_text())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in."""
    monkeypatch.chdir(tmp_path)
    fill(tmp_path)
    return tmp_path


@pytest.fixture
def kvcore(capsys, folder):
    """Run the program in this process: (status, stdout, stderr)."""

    def run(*argv):
        return main(list(argv)), *capsys.readouterr()

    return run


def cells(html, title):
    """The rows of a table as texts."""
    table = html[html.index(f"<caption>{title}</caption>"):]
    rows = table[table.index("<tbody>"):table.index("</tbody>")].split("<tr>")[1:]
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


def test_the_page_is_alone_in_the_world_and_has_everything(made):
    html, known = made
    check_alone(read(html))
    for title in ("Differences from a.yaml", "Distributions side by side", "Shares over time", "Caches",
                  "The bound of deficit round robin", "Policies in effect", "Configuration in full"):
        assert f"<h2>{title}</h2>" in html
    figures = set(re.findall(r'<figure id="([\w-]+)">', html))
    assert figures == {
        "difference-parts", "drift", *(f"difference-{key}" for key in ("queue_wait", "ttft", "itl", "e2e")),
        *(f"{key}-{number}" for key in ("queue_wait", "ttft", "itl", "e2e") for number in range(2)),
        *(f"{key}-{number}" for key in ("shares", "lost", "hits") for number in range(3))}
    assert [row[5] for row in cells(html, "What is compared")] == [item["digest"] for item in known["candidates"]]


def test_a_report_changes_no_number(made, kvcore):
    status, out, err = kvcore("compare", "a.yaml", "reference.yaml", "same.yaml", *LOAD, "--json", "-")
    assert (status, err) == (0, "")
    assert json.loads(out) == made[1]


def test_equal_policies_show_exactly_nothing(made):
    html, known = made
    assert "same.yaml against a.yaml: every request had the same class, worker and times" in html
    rows = cells(html, "same.yaml against a.yaml")
    assert len(rows) == 3 * 14
    for _, _, base, other, difference, interval, star in rows:
        assert base == other
        assert difference in ("0 ns", "0 pp")
        assert (interval, star) == (f"{difference} .. {difference}", "")
    for drawing in forests(["same.yaml"], known["differences"][1:]):
        bars = [line for line in drawing.figure.axes[0].lines if line.get_color() == SERIES[1]]
        assert {value for line in bars for value in line.get_xdata()} == {0}


def test_where_the_reference_loses_shares(made):
    """Quanta 3:1, and one slot freed at a time: the reference gives 1:1, all the time that both wait."""
    html = made[0]
    rows = cells(html, "When classes lost their shares: reference.yaml (reference)")
    assert {row[0] for row in rows} == {"premium"}
    assert "When classes lost their shares: a.yaml" not in html
    assert all(40 <= float(row[4].split()[0]) <= 60 and row[5] == "75.0 %" for row in rows)
    assert sum(int(row[3].replace(",", "")) for row in rows) > 1_000
    assert "reference.yaml (reference): while premium and regular waited, premium was given" in html


def shares(*windows):
    """Per window: what a and b were given, and what a was due."""
    rows = []
    for number, (one, other, due) in enumerate(windows):
        rows += [(number * 10, name, 0, None, None, given, None, part) for name, given, part in (
            ("a", one, due), ("b", other, None if due is None else 1 - due))]
    return Table("shares", ("start_ns", "class", "uncached_tokens", "share", "quantum_share", "contended_tokens",
                            "contended_share", "due_share"), rows)


def test_lost_tokens_by_hand():
    table = shares((50, 50, 0.75), (60, 40, 0.5), (0, 0, None), (10, 90, 0.5), (0, 100, 0.5), (98, 100, 0.5))
    assert _behind(table) == {"a": [25, 15, 15, 55, 105, 106], "b": [-25, -15, -15, -55, -105, -106]}
    assert _stretches(table, 0) == [
        ("a", "0 ns", "10 ns", "25", "50.0 %", "75.0 %"),
        ("b", "10 ns", "20 ns", "10", "40.0 %", "50.0 %"),
        ("a", "30 ns", "60 ns", "91", "27.1 %", "50.0 %"),
    ]
    assert _stretches(shares((99, 100, 0.5), (0, 0, None)), 0) == [], "less than one in a hundred"


def difference(base, other, low, high):
    return {"base": base, "other": other, "difference": other - base, "low": low, "high": high,
            "is_clear": low > 0 or high < 0}


def test_a_forest_stands_where_the_numbers_say():
    nothing = {"base": None, "other": None, "difference": None, "low": None, "high": None, "is_clear": False}
    entry = {"classes": [
        {"name": "gold", "figures": {f"ttft_{kind}": difference(5, 3, -4, -1) for kind in KINDS}},
        {"name": "rest", "figures": {f"ttft_{kind}": difference(5, 6, -2, 3) for kind in KINDS[:3]} | {
            "ttft_p99": nothing}}]}
    for item in entry["classes"]:
        item["figures"] |= {f"{key}_{kind}": nothing for key in ("queue_wait", "itl", "e2e")
                            for kind in KINDS} | {"completed": nothing, "prefix_hit": nothing}
    (drawing,) = forests(["other.yaml"], [entry])
    assert drawing.name == "difference-ttft"
    axes = drawing.figure.axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        *(f"gold  {kind}" for kind in KINDS), *(f"rest  {kind}" for kind in KINDS[:3])]
    bars = [line for line in axes.lines if line.get_label() != "other.yaml"][:14]
    spans = [tuple(line.get_xdata()) for line in bars]
    assert spans == [(-4, -1), (-2,)] * 4 + [(-2, 3), (1,)] * 3
    assert [line.get_ydata()[0] for line in bars[::2]] == list(range(7)), "in the middle of its row"
    assert [line.get_markerfacecolor() for line in bars[1::2]] == [SERIES[1]] * 4 + [PAPER] * 3
    assert axes.get_xlim()[0] <= -4
    assert axes.get_xlim()[1] >= 3


def test_drift_is_drawn_beside_its_bound():
    def item(drift, promised):
        pair = {"classes": ["a", "b"], "drift_rounds": drift, "bound_rounds": 2.5, "broken": 0, "looks": 1}
        return {"label": "x", "fairness": {"is_promised": promised, "pairs": [pair]}}

    (drawing,) = drifts(["one", "two"], [item(2.0, True), item(100.0, False)])
    axes = drawing.figure.axes[0]
    assert [(patch.get_width(), bool(patch.get_hatch())) for patch in axes.patches] == [(2.0, False), (100.0, True)]
    assert [line.get_xdata()[0] for line in axes.lines[:2]] == [2.5, 2.5]
    assert axes.get_xscale() == "log"
    assert drifts(["x"], [{"label": "x", "fairness": {"is_promised": True, "pairs": []}}]) == []


@pytest.mark.parametrize(("options", "message"), [
    (["--report", "t.jsonl"], "--report t.jsonl: is also an input file"),
    (["--report", "no/o.html"], "cannot be written"),
    (["--report", "o", "--json", "o"], "--json and --report must go to different places"),
])
def test_destinations_are_checked_first(kvcore, folder, monkeypatch, options, message):
    monkeypatch.setattr(compare_run, "replay_candidate", None)
    before = sorted(os.listdir(folder))
    status, out, err = kvcore("compare", "a.yaml", "same.yaml", *LOAD, *options)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert sorted(os.listdir(folder)) == before


def test_without_the_extra_nothing_is_run(kvcore, monkeypatch):
    monkeypatch.setattr(compare_run, "replay_candidate", None)
    for name in [name for name in sys.modules if name.startswith("kvcore.drivers.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, err = kvcore("compare", "a.yaml", "same.yaml", *LOAD, "--report", "o.html")
    assert status == 2
    assert err == "kvcore: error: --report needs matplotlib: pip install 'kvcore[report]'\n"


def test_a_trace_that_changes_in_between(kvcore, monkeypatch, folder):
    real = compare_run.compare

    def meddled(*arguments, **more):
        (folder / "t.jsonl").write_text("".join((folder / "t.jsonl").read_text().splitlines(keepends=True)[:-1]))
        return real(*arguments, **more)

    monkeypatch.setattr(compare_run, "compare", meddled)
    status, _, err = kvcore("compare", "a.yaml", "same.yaml", *LOAD, "--report", "o.html")
    assert (status, "a trace has changed" in err) == (2, True)
    assert not (folder / "o.html").exists()
