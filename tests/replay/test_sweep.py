"""`kvcore sweep`: tables, back ends, resuming, failing points, messages."""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import warnings

import pytest
from kvcore.drivers.cli import main
from kvcore.drivers.study.case import Case, Load
from kvcore.drivers.study.points import Task
from kvcore.drivers.study.processes import SearchFailed, on_processes
from policy_texts import THREE_TO_ONE as POLICY

from kvcore.policy_file import load_policy

SPACE = """
policy: p.yaml
objective: minimise premium.ttft_p99, minimise regular.ttft_p99 subject to regular.completed >= 0.9
keys:
  premium.quantum: [50, 100, 400, 0]
  fleet.workers: [1, 2]
"""
MIX = "premium=0.5,regular=0.5"
LOAD = ["--trace", "t.jsonl", "--classes", MIX, "--engine", "mock"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder to work in, with a trace, a policy and a space."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    rows = [json.dumps({"timestamp": i, "input_length": 100, "output_length": 2}) + "\n" for i in range(300)]
    (tmp_path / "t.jsonl").write_text("".join(rows))
    (tmp_path / "p.yaml").write_text(POLICY)
    (tmp_path / "s.yaml").write_text(SPACE)
    return tmp_path


@pytest.fixture
def kvcore(capsys):
    """Run the program in this process: (status, stdout, stderr)."""

    def run(*argv):
        status = main([str(item) for item in argv])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def swept(kvcore, *argv):
    status, out, err = kvcore("sweep", "s.yaml", *LOAD, "--csv", "-", *argv)
    assert (status, err) == (0, "")
    return out


def test_every_point_is_tried_and_has_the_figures_of_its_replay(kvcore):
    rows = list(csv.DictReader(io.StringIO(swept(kvcore, "--jobs", 1))))
    assert [row["point"] for row in rows] == [str(number) for number in range(1, 9)]
    assert [row["premium.quantum"] for row in rows[:3]] == ["50", "50", "100"]
    assert [row["fleet.workers"] for row in rows[:3]] == ["1", "2", "1"]
    assert [row["status"] for row in rows[6:]] == ["failed", "failed"]
    assert "quantum: must be 1.." in rows[6]["error"]
    with open("q.yaml", "w", encoding="utf-8") as stream:
        stream.write(POLICY.replace("quantum: 300", "quantum: 400"))
    status, out, _ = kvcore("replay", *LOAD[1:2], *LOAD[2:], "--policy", "q.yaml", "--workers", 2, "--json", "-")
    assert status == 0
    known = {entry["name"]: entry for entry in json.loads(out)["classes"]}
    for name, entry in known.items():
        assert int(rows[5][f"{name}.ttft_p99"]) == entry["latency_ns"]["ttft"]["p99"]
        assert float(rows[5][f"{name}.share"]) == entry["contended"]["share"]


def test_the_best_point_is_the_best_and_its_policy_is_written(kvcore, folder):
    rows = list(csv.DictReader(io.StringIO(swept(kvcore, "--best", "best.yaml"))))
    met = [row for row in rows if row["status"] != "failed"]
    ranked = sorted(met, key=lambda row: [int(row[name]) for name in ("premium.ttft_p99", "regular.ttft_p99", "point")])
    assert [row["point"] for row in rows if row["status"] == "best"] == [ranked[0]["point"]]
    text = (folder / "best.yaml").read_text()
    assert f"#   premium.ttft_p99 = {ranked[0]['premium.ttft_p99']}\n" in text
    assert f"#   fleet.workers: {ranked[0]['fleet.workers']}\n" in text
    profile = load_policy(text).root
    assert [item.quantum for item in profile.classes] == [int(ranked[0]["premium.quantum"]), 100]
    assert kvcore("policy", "check", "best.yaml")[0] == 0


def test_the_table_shows_the_best_and_what_failed(kvcore):
    status, out, err = kvcore("sweep", "s.yaml", *LOAD)
    assert (status, err) == (0, "")
    assert "\x1b" not in out
    assert "8 tried, 6 meet the constraints, 2 failed" in out
    assert "failed     point 7 (premium.quantum 0, fleet.workers 1): policy of the point:" in out
    assert out.index("best") < out.index("front      ")


def test_constraints_and_values_as_figures(kvcore):
    """The fewest workers that keep a promise."""
    status, out, _ = kvcore("sweep", "s.yaml", *LOAD, "--objective", "minimise fleet.workers, minimise all.ttft_p99 "
                            "subject to all.ttft_p99 <= 1 ms", "--best", "b.yaml")
    assert status == 2
    assert "0 meet the constraints" in out
    assert not os.path.exists("b.yaml")
    rows = list(csv.DictReader(io.StringIO(swept(kvcore, "--objective", "minimise fleet.workers"))))
    assert [row["fleet.workers"] for row in rows if row["status"] == "best"] == ["1"]


def test_any_number_of_processes_gives_the_same_bytes(kvcore, folder):
    tables = [swept(kvcore, "--jobs", jobs, "--results", f"r{jobs}.jsonl") for jobs in (1, 3)]
    assert tables[0] == tables[1]
    assert (folder / "r1.jsonl").read_bytes() == (folder / "r3.jsonl").read_bytes()
    assert multiprocessing.active_children() == []


def test_a_process_that_is_killed_ends_the_search(folder):
    os.mkfifo(folder / "silence")   # nobody will ever write there
    tasks = [Task(number, {"fleet.workers": 1}, Case(Load(("silence",)), None)) for number in (1, 2, 3)]
    with on_processes(tasks, 2) as answers:
        for child in multiprocessing.active_children():
            child.kill()
        with pytest.raises(SearchFailed, match="a process has ended under its work"):
            list(answers)
    assert multiprocessing.active_children() == []


def test_workers_end_with_the_one_who_forked_them(folder):
    """However it ends: here it is killed."""
    program = ("import os, signal, time; from multiprocessing import active_children; "
               "from kvcore.drivers.study import processes; processes.try_point = time.sleep\n"
               "with processes.on_processes([600, 600], 2): os.kill(os.getpid(), signal.SIGKILL)")
    process = subprocess.Popen([sys.executable, "-P", "-c", program], process_group=0)
    assert process.wait(60) == -signal.SIGKILL
    assert ends(process.pid), "a worker is left"


def test_the_processes_of_joblib_give_the_same_bytes(kvcore):
    pytest.importorskip("joblib")
    assert swept(kvcore, "--backend", "loky", "--jobs", 2) == swept(kvcore)


def test_random_search_is_seeded(kvcore, folder):
    (folder / "s.yaml").write_text(SPACE.replace("keys:", "search: random\npoints: 4\nkeys:").replace(
        "[50, 100, 400, 0]", "{min: 10, max: 1000, scale: log}"))
    one = swept(kvcore, "--seed", 4)
    assert one == swept(kvcore, "--seed", 4, "--jobs", 1)
    assert one != swept(kvcore, "--seed", 5)
    assert one.count("\n") == 5


def ends(group):
    """Whether all processes of a group are gone within a while."""
    for _ in range(2_000):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_a_sweep_that_was_interrupted_goes_on(kvcore, folder):
    """By Ctrl-C, as a terminal sends it: to all processes of the group."""
    (folder / "s.yaml").write_text(SPACE.replace("[50, 100, 400, 0]", str(list(range(10, 310, 10)))))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "kvcore", "sweep", "s.yaml", *LOAD, "--results", "r.jsonl", "--csv", "o.csv"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    try:
        until = time.monotonic() + 120
        while not (os.path.exists("r.jsonl") and (folder / "r.jsonl").read_text().count("\n") > 5):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "kvcore: interrupted"
    assert "Traceback" not in err
    assert not os.path.exists("o.csv")
    assert ends(process.pid), "a worker is left"
    known = (folder / "r.jsonl").read_text().count("\n") - 1
    assert 5 <= known < 60
    status, out, err = kvcore("sweep", "s.yaml", *LOAD, "--results", "r.jsonl", "--csv", "-")
    assert status == 0
    assert err == f"kvcore: note: {known} of 60 points are known from r.jsonl\n"
    assert out == swept(kvcore, "--results", "fresh.jsonl")
    assert (folder / "r.jsonl").read_bytes() == (folder / "fresh.jsonl").read_bytes()


def test_what_is_known_is_not_tried_again_but_failures_are(kvcore, folder):
    swept(kvcore, "--results", "r.jsonl")
    lines = (folder / "r.jsonl").read_text().splitlines(keepends=True)
    entry = json.loads(lines[1])
    entry["figures"]["premium.ttft_p99"] = 12345
    lines[1] = json.dumps(entry) + "\n"
    (folder / "r.jsonl").write_text("".join(lines))
    status, out, err = kvcore("sweep", "s.yaml", *LOAD, "--results", "r.jsonl", "--csv", "-")
    assert (status, err) == (0, "kvcore: note: 6 of 8 points are known from r.jsonl\n")
    first = next(csv.DictReader(io.StringIO(out)))
    assert (first["premium.ttft_p99"], first["status"]) == ("12345", "best")


def test_results_of_another_sweep_are_refused_and_kept(kvcore, folder):
    swept(kvcore, "--results", "r.jsonl")
    before = (folder / "r.jsonl").read_bytes()
    status, _, err = kvcore("sweep", "s.yaml", *LOAD, "--results", "r.jsonl", "--seed", 1)
    assert status == 2
    assert err.startswith("kvcore: error: r.jsonl: is of another sweep")
    assert (folder / "r.jsonl").read_bytes() == before


def test_json_holds_everything_and_the_machine_apart(kvcore, folder):
    argv = ["--jobs", 1, "--json", "-", "--csv", "o.csv", "--best", "b.yaml"]
    status, out, err = kvcore("sweep", "s.yaml", *LOAD, *argv)
    assert (status, err) == (0, "")
    report = json.loads(out)
    rows = list(csv.DictReader(io.StringIO((folder / "o.csv").read_text())))
    assert [(str(item["point"]), item["status"], item["error"] or "") for item in report["points"]] == [
        (row["point"], row["status"], row["error"]) for row in rows]
    for item, row in zip(report["points"], rows, strict=True):
        assert {key: str(value) for key, value in item["values"].items()} == {key: row[key] for key in item["values"]}
        for name, value in (item["figures"] or {}).items():
            assert row[name] == ("" if value is None else str(value))
    (best,) = [item["point"] for item in report["points"] if item["status"] == "best"]
    assert (report["best"]["point"], report["ranked"][0], report["front"][0]) == (best, best, best)
    assert len(report["ranked"]) == 6
    assert load_policy(json.dumps(report["best"]["policy"])).root == load_policy((folder / "b.yaml").read_text()).root
    assert report["goals"][0] == {"figure": "premium.ttft_p99", "minimise": True}
    assert report["constraints"] == ["regular.completed >= 0.9"]
    assert report["config"]["space"]["keys"][0] == ["premium.quantum", [50, 100, 400, 0]]
    assert len(report["config"]["policy_file"]["sha256"]) == 64
    again = json.loads(kvcore("sweep", "s.yaml", *LOAD, "--json", "-")[1])
    assert (report.pop("run")["jobs"], again.pop("run")["jobs"]) == (1, None)
    assert again == report


@pytest.mark.parametrize("form", ["svg", "png"])
def test_the_front_is_drawn(kvcore, folder, form):
    pytest.importorskip("matplotlib")
    swept(kvcore, "--plot", f"f.{form}")
    first = (folder / f"f.{form}").read_bytes()
    assert first[:5] == (b"<?xml" if form == "svg" else b"\x89PNG\r")
    swept(kvcore, "--plot", f"f.{form}")
    assert (folder / f"f.{form}").read_bytes() == first


@pytest.fixture
def cluster():
    """A dask cluster of two processes on this machine."""
    distributed = pytest.importorskip("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1") as made:
            yield made


def test_a_dask_cluster_gives_the_same_bytes(kvcore, folder, cluster):
    here = swept(kvcore, "--results", "here.jsonl")
    there = subprocess.run(
        [sys.executable, "-P", "-m", "kvcore", "sweep", "s.yaml", *LOAD, "--csv", "-", "--results", "there.jsonl",
         "--backend", "dask", "--address", cluster.scheduler_address],
        capture_output=True, text=True, timeout=120, check=False)
    assert (there.returncode, there.stderr) == (0, "")
    assert there.stdout == here
    assert (folder / "there.jsonl").read_bytes() == (folder / "here.jsonl").read_bytes()


@pytest.fixture
def ray_cluster():
    """A ray cluster on this machine."""
    ray = pytest.importorskip("ray.cluster_utils", reason="needs ray: pip install 'kvcore[ray]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = ray.Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        yield made
        made.shutdown()


def test_a_ray_cluster_gives_the_same_bytes(ray_cluster, kvcore, folder):
    here = swept(kvcore, "--results", "here.jsonl")
    there = subprocess.run(
        [sys.executable, "-P", "-m", "kvcore", "sweep", "s.yaml", *LOAD, "--csv", "-", "--results", "there.jsonl",
         "--backend", "ray", "--address", ray_cluster.address],
        capture_output=True, text=True, timeout=120, check=False)
    assert (there.returncode, there.stderr) == (0, "")
    assert there.stdout == here
    assert (folder / "there.jsonl").read_bytes() == (folder / "here.jsonl").read_bytes()


def test_without_ray_the_extra_is_named(kvcore, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert kvcore("sweep", "s.yaml", *LOAD, "--backend", "ray", "--address", "127.0.0.1:1") == (
        2, "", "kvcore: error: --backend ray needs ray: pip install 'kvcore[ray]'\n")


@pytest.mark.parametrize(("argv", "words"), [
    (["--address", "tcp://127.0.0.1:1"], "--address needs --backend dask or ray"),
    (["--backend", "dask"], "--backend dask needs --address"),
    (["--backend", "ray", "--address", "127.0.0.1:1", "--jobs", "2"], "--jobs does nothing beside --backend ray"),
    (["--json", "o", "--csv", "o"], "must go to different places"),
    (["--json", "s.yaml"], "--json s.yaml: is also an input file"),
    (["--backend", "dask", "--address", "tcp://127.0.0.1:1", "--jobs", "2"], "--jobs does nothing"),
    (["--objective", "minimise premum.ttft_p99"], "did you mean 'premium.ttft_p99'?"),
    (["--objective", "smallest"], "is not `minimise FIGURE`"),
    (["--plot", "f.svg", "--objective", "minimise all.ttft_p99"], "--plot needs an objective with two goals"),
    (["--plot", "f.gif"], "must end in .svg, .png, .pdf"),
    (["--best", "p.yaml"], "--best p.yaml: is also an input file"),
    (["--best", "-"], "--best needs a file"),
    (["--best", "o", "--csv", "o"], "must go to different places"),
    (["--results", "no/r.jsonl"], "cannot be written"),
    (["--engine", "moc"], "did you mean 'mock'?"),
    (["--trace", "gone.jsonl"], "gone.jsonl: No such file"),
    (["--trace", "p.yaml"], "p.yaml"),
    (["--block-size", "7", "--trace-block-size", "16"], "block"),
    (["--frobnicate"], "No such option"),
])
def test_errors_are_one_line_and_touch_nothing(kvcore, folder, argv, words):
    before = sorted(os.listdir(folder))
    status, out, err = kvcore("sweep", "s.yaml", *LOAD, *argv)
    assert (status, out) == (2, "")
    assert err.startswith("kvcore: error: ")
    assert words in err
    assert err.count("\n") == 1
    assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize(("old", "new", "words"), [
    ("premium.quantum", "premum.quantum", "s.yaml:5:3: unknown class 'premum'; did you mean 'premium'?"),
    ("policy: p.yaml", "policy: gone.yaml", "s.yaml:2:1: policy gone.yaml: No such file"),
    ("premium.ttft_p99,", "premum.ttft_p99,", "s.yaml:3:1: objective: unknown figure 'premum.ttft_p99'; did"),
    ("objective:", "objectve:", "s.yaml:3:1: unknown key 'objectve'; did you mean 'objective'?"),
    ("keys:", "keys: [", "s.yaml:"),
])
def test_faults_of_a_space_are_named(kvcore, folder, old, new, words):
    (folder / "s.yaml").write_text(SPACE.replace(old, new))
    status, _, err = kvcore("sweep", "s.yaml", *LOAD)
    assert status == 2
    assert err.startswith(f"kvcore: error: {words}")


def test_a_bad_row_is_told_at_once(kvcore, folder):
    (folder / "t.jsonl").write_text((folder / "t.jsonl").read_text() + "nonsense\n")
    status, out, err = kvcore("sweep", "s.yaml", *LOAD)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "t.jsonl:301: " in err
    status, _, err = kvcore("sweep", "s.yaml", *LOAD, "--skip-bad", "--quiet")
    assert (status, err) == (0, "")


def test_a_sweep_of_which_every_point_fails_is_an_error(kvcore, folder):
    (folder / "s.yaml").write_text(SPACE.replace("[50, 100, 400, 0]", "[-1, 0, 0.5, x]"))
    status, out, err = kvcore("sweep", "s.yaml", *LOAD)
    assert status == 2
    assert "8 tried, 0 meet the constraints, 8 failed" in out
    assert err.startswith("kvcore: error: every point failed; the first: ")
    assert "quantum: must be" in err


def test_no_scheduler_is_an_error(kvcore, folder):
    """Nobody listens there."""
    pytest.importorskip("distributed")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    program = ("import sys; from kvcore.drivers.study import search; search._CONNECT_S = 1; "
               "from kvcore.drivers.cli import main; sys.exit(main(sys.argv[1:]))")
    got = subprocess.run(
        [sys.executable, "-c", program, "sweep", "s.yaml", *LOAD, "--backend", "dask", "--address",
         f"tcp://127.0.0.1:{port}"], capture_output=True, text=True, timeout=120, check=False)
    assert got.returncode == 2
    assert got.stderr.splitlines()[-1].startswith(f"kvcore: error: --address tcp://127.0.0.1:{port}: no dask scheduler")
    assert "Traceback" not in got.stderr
