"""`kvcore replay`: outputs, exit statuses, messages; determinism across processes."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from kvcore.drivers.cli import main, replay_run
from kvcore.drivers.replay.presets import PRESETS
from kvcore.drivers.replay.report import CSV_COLUMNS
from kvcore.drivers.replay.traces import FORMATS

POLICY = """
default_policy_family: regular
uncached_isl_buckets:
  - {min_tokens: 0, bucket: all}
policy_classes:
  - {name: premium, policy_family: premium, cache_bucket: all, quantum: 512, prefill_busy_threshold: 500}
  - {name: regular, policy_family: regular, cache_bucket: all, quantum: 128, prefill_busy_threshold: 500}
"""
MODELS_ONLY = "models:\n  llama:\n" + "".join(f"    {line}\n" for line in POLICY.strip().splitlines())
MIX = "premium=0.3,regular=0.7"


def trace_text(count):
    """Mooncake rows 3 ms apart; prompts share one of seven first blocks."""
    lines = []
    for i in range(count):
        prompt_tokens = 600 + 37 * i % 900
        blocks = -(-prompt_tokens // 512)
        lines.append(json.dumps({
            "timestamp": i * 3, "input_length": prompt_tokens, "output_length": 1 + i % 40,
            "hash_ids": [i % 7] + [1000 + 10 * i + block for block in range(1, blocks)],
        }))
    return "\n".join(lines) + "\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder to work in, with a trace and a policy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "t.jsonl").write_text(trace_text(200))
    (tmp_path / "p.yaml").write_text(POLICY)
    (tmp_path / "models.yaml").write_text(MODELS_ONLY)
    return tmp_path


@pytest.fixture
def kvcore(capsys):
    """Run the program in this process: (status, stdout, stderr)."""

    def run(*argv):
        status = main([str(item) for item in argv])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def process_of(command, stdout=subprocess.PIPE, **environment):
    return subprocess.run(
        command, env=os.environ | environment, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )


def process(*argv, stdout=subprocess.PIPE, **environment):
    """Run the program in a process of its own."""
    return process_of([sys.executable, "-W", "error", "-P", "-m", "kvcore", *argv], stdout, **environment)


def report_of(kvcore, *argv):
    status, out, err = kvcore("replay", *argv, "--json", "-")
    assert (status, err) == (0, "")
    return json.loads(out)


# What comes out.


def test_table_is_plain_and_fits_80_columns(kvcore):
    status, out, err = kvcore("replay", "t.jsonl", "--workers", 4, "--policy", "p.yaml", "--classes", MIX)
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out
    for word in ("premium", "regular", "queue wait", "TTFT", "ITL", "E2E", "p50", "p90", "p99", "quantum share",
                 "prefix hit", "simulated", "events/s", "digest", "200 read, 0 skipped, 200 completed"):
        assert word in out


def test_quiet_says_nothing(kvcore):
    assert kvcore("replay", "t.jsonl", "--quiet") == (0, "", "")


def test_json_holds_configuration_counts_and_numbers(kvcore):
    chosen = ["--workers", 4, "--policy", "p.yaml", "--classes", MIX, "--seed", 5, "--engine", "mock"]
    got = report_of(kvcore, "t.jsonl", *chosen)
    assert got["requests"] == {"read": 200, "skipped": 0, "completed": 200, "rejected": 0, "evicted": 0}
    assert [entry["name"] for entry in got["classes"]] == ["premium", "regular"]
    assert sum(entry["requests"] for entry in got["classes"]) == 200
    config = got["config"]
    assert (config["seed"], config["workers"], config["classes"]) == (5, 4, MIX)
    assert config["scheduler"]["block_size"] == 512
    assert config["engine"]["name"] == "mock"
    assert config["engine"]["block_size"] == 512
    assert config["traces"][0]["path"] == "t.jsonl"
    assert config["traces"][0]["format"] == "mooncake"
    assert len(config["traces"][0]["sha256"]) == 64
    assert [item["quantum"] for item in config["policy"]["policy_classes"]] == [512, 128]
    assert len(got["digest"]) == 32
    assert set(got["run"]) == {
        "wall_s", "cpu_s", "events_per_s", "peak_memory_bytes", "finished_at", "versions", "machine"
    }
    assert got["run"]["peak_memory_bytes"] > 1 << 20
    assert got["total"]["prefix_hit"]["engine_tokens"] > 0


def test_csv_has_one_line_per_request(kvcore):
    status, out, err = kvcore("replay", "t.jsonl", "--csv", "-", "--policy", "p.yaml", "--classes", MIX)
    assert (status, err) == (0, "")
    assert "\r" not in out
    lines = list(csv.DictReader(io.StringIO(out)))
    assert tuple(lines[0]) == CSV_COLUMNS
    assert [item["id"] for item in lines] == [f"r0-{i}" for i in range(1, 201)]
    assert [int(item["arrival_ns"]) for item in lines] == [i * 3_000_000 for i in range(200)]
    for item in lines:
        assert item["file"] == "t.jsonl"
        assert item["class"] in ("premium", "regular")
        assert (item["outcome"], item["reason"], item["worker"]) == ("completed", "", "0")
        assert int(item["wait_ns"]) <= int(item["ttft_ns"]) <= int(item["e2e_ns"])
        gaps = int(item["output_tokens"]) - 1
        whole = int(item["e2e_ns"]) - int(item["ttft_ns"])
        assert item["itl_ns"] == (str(whole // gaps) if gaps else "")


def test_csv_of_rejected_requests(kvcore, folder):
    limited = "prefill_busy_threshold: 0, request_queue_limit_per_worker: 2}"
    (folder / "p.yaml").write_text(POLICY.replace("prefill_busy_threshold: 500}", limited))
    status, out, _ = kvcore("replay", "t.jsonl", "--csv", "-", "--policy", "p.yaml")
    assert status == 0
    rejected = [item for item in csv.DictReader(io.StringIO(out)) if item["outcome"] == "rejected"]
    assert rejected
    for item in rejected:
        assert item["reason"] == "QUEUE_FULL_REQUESTS"
        assert item["worker"] == item["wait_ns"] == item["ttft_ns"] == item["itl_ns"] == item["e2e_ns"] == ""
    got = report_of(kvcore, "t.jsonl", "--policy", "p.yaml")
    assert got["requests"]["rejected"] == len(rejected)
    assert got["requests"]["completed"] == 200 - len(rejected)
    assert got["classes"][0]["rejected"] == {"QUEUE_FULL_REQUESTS": len(rejected)}
    assert f"{len(rejected)} QUEUE_FULL_REQUESTS" in kvcore("replay", "t.jsonl", "--policy", "p.yaml")[1]


def test_files_and_standard_output_hold_the_same(kvcore, folder):
    assert kvcore("replay", "t.jsonl", "-q", "--json", "o.json", "--csv", "o.csv") == (0, "", "")
    piped = report_of(kvcore, "t.jsonl")
    written = json.loads((folder / "o.json").read_text())
    assert {**written, "run": None} == {**piped, "run": None}
    assert kvcore("replay", "t.jsonl", "--csv", "-")[1] == (folder / "o.csv").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["models.yaml", "o.csv", "o.json", "p.yaml", "t.jsonl"]


def test_several_traces_are_merged(kvcore):
    got = report_of(kvcore, "t.jsonl", "t.jsonl")
    assert got["requests"]["completed"] == 400
    assert len(got["config"]["traces"]) == 2


# The same in every process.


def test_same_bytes_in_every_process():
    outputs = []
    for hash_seed in ("0", "1", "4242"):
        done = process(
            "replay", "t.jsonl", "--workers", "3", "--policy", "p.yaml", "--classes", MIX, "--seed", "9", "--json", "-",
            PYTHONHASHSEED=hash_seed,
        )
        assert (done.returncode, done.stderr) == (0, "")
        outputs.append(json.dumps(json.loads(done.stdout) | {"run": None}, sort_keys=True, indent=2))
        assert done.stdout.startswith('{\n  "classes"')
    assert outputs[0] == outputs[1] == outputs[2]
    first, second = (process("replay", "t.jsonl", "--csv", "-", PYTHONHASHSEED=seed).stdout for seed in "01")
    assert first == second


def test_limit_and_skipped_rows_do_not_shift_classes(kvcore, folder):
    def classes(*argv):
        out = kvcore("replay", *argv, "--policy", "p.yaml", "--classes", MIX, "--seed", 3, "--csv", "-")[1]
        return {item["row"]: item["class"] for item in csv.DictReader(io.StringIO(out))}

    whole = classes("t.jsonl")
    assert set(whole.values()) == {"premium", "regular"}
    assert classes("t.jsonl", "--limit", 50) == {row: name for row, name in whole.items() if int(row) <= 50}
    broken = trace_text(200).splitlines()
    broken[20] = "{"
    broken[77] = '{"timestamp": 1}'
    (folder / "broken.jsonl").write_text("\n".join(broken) + "\n")
    left = {row: name for row, name in whole.items() if row not in ("21", "78")}
    assert classes("broken.jsonl", "--skip-bad") == left


@pytest.mark.parametrize("limit", [(), ("--limit", 90)])
def test_counts_add_up(kvcore, folder, limit):
    lines = trace_text(100).splitlines()
    lines[3] = "not json"
    lines[50] = json.dumps({"timestamp": 150, "input_length": PRESETS["mock"].kv_tokens, "output_length": 1})
    (folder / "broken.jsonl").write_text("\n".join(lines) + "\n")
    status, out, err = kvcore("replay", "broken.jsonl", "--engine", "mock", "--skip-bad", "--json", "-", *limit)
    counts = json.loads(out)["requests"]
    assert status == 0
    assert counts["skipped"] == 2
    assert counts["read"] == sum(counts[key] for key in ("skipped", "completed", "rejected", "evicted"))
    assert counts["read"] == (91 if limit else 100)
    assert err.splitlines()[0] == "kvcore: note: skipped 1 bad rows; the first:"
    assert err.splitlines()[1].startswith("kvcore: note: broken.jsonl:4: ")
    assert err.splitlines()[2] == "kvcore: note: skipped 1 requests that no worker could ever hold"


def test_speedup_and_closed_loop(kvcore):
    fast = report_of(kvcore, "t.jsonl", "--speedup", "2.5")
    assert fast["config"]["load"] == {"mode": "open", "speedup": "5/2"}
    lines = csv.DictReader(io.StringIO(kvcore("replay", "t.jsonl", "--speedup", "2.5", "--csv", "-")[1]))
    assert [int(item["arrival_ns"]) for item in lines] == [i * 1_200_000 for i in range(200)]
    closed = report_of(kvcore, "t.jsonl", "--concurrency", 4)
    assert closed["config"]["load"] == {"mode": "closed", "concurrency": 4}
    assert closed["requests"]["completed"] == 200


# Errors: one line, status 2, nothing left behind.


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["replay"], "Missing argument 'TRACE...' (see kvcore replay --help)"),
        (["replay", "gone.jsonl"], "gone.jsonl: "),
        (["replay", "."], ".: "),
        (["replay", "empty"], "empty: "),
        (["replay", "bad.jsonl"], "bad.jsonl:2: "),
        (["replay", "unfit.jsonl"], "unfit.jsonl:1: "),
        (["replay", "t.jsonl", "--workers", "0"], "Invalid value for '--workers'"),
        (["replay", "t.jsonl", "--workers", "x"], "Invalid value for '--workers'"),
        (["replay", "t.jsonl", "--seed", "-1"], "--seed must be 0 .. 2^64-1"),
        (["replay", "t.jsonl", "--limit", "0"], "Invalid value for '--limit'"),
        (["replay", "t.jsonl", "--speedup", "0"], "Invalid value for '--speedup'"),
        (["replay", "t.jsonl", "--speedup", "nan"], "Invalid value for '--speedup'"),
        (["replay", "t.jsonl", "--speedup", "1e999999999"], "Invalid value for '--speedup'"),
        (["replay", "t.jsonl", "--concurrency", "0"], "Invalid value for '--concurrency'"),
        (["replay", "t.jsonl", "--concurrency", "2", "--speedup", "2"], "--speedup does nothing beside --concurrency"),
        (["replay", "t.jsonl", "--queue-threshold", "nan"], "--queue-threshold must be a number of 0 or more"),
        (["replay", "t.jsonl", "--queue-threshold", "-1"], "--queue-threshold must be a number of 0 or more"),
        (["replay", "t.jsonl", "--queue-policy", "lifo"], "Invalid value for '--queue-policy'"),
        (["replay", "t.jsonl", "--block-size", "0"], "Invalid value for '--block-size'"),
        (["replay", "t.jsonl", "--block-size", "100"], "t.jsonl: block size 100"),
        (["replay", "t.jsonl", "--block-size", "99999999999"], "block_size must be"),
        (["replay", "t.jsonl", "--speedup", "0.000000000001"], "virtual time beyond 2^62 ns"),
        (["replay", "late.jsonl"], "virtual time beyond 2^62 ns"),
        (["replay", "azure.csv", "--block-size", "9999999"], "block size 9999999 is larger than the KV cache"),
        (["replay", "t.jsonl", "--engine", "generik"], "--engine: unknown 'generik'; did you mean 'generic'?"),
        (["replay", "t.jsonl", "--format", "moncake"], "--format: unknown 'moncake'; did you mean 'mooncake'?"),
        (["replay", "t.jsonl", "--polcy", "p.yaml"], "No such option '--polcy'"),
        (["replay", "t.jsonl", "--policy", "gone.yaml"], "gone.yaml: No such file or directory"),
        (["replay", "t.jsonl", "--policy", "."], ".: Is a directory"),
        (["replay", "t.jsonl", "--policy", "t.jsonl"], "t.jsonl:"),
        (["replay", "t.jsonl", "--policy", "latin"], "latin: "),
        (["replay", "t.jsonl", "--policy", "models.yaml"], "models.yaml has no root profile: name one of"),
        (["replay", "t.jsonl", "--policy", "p.yaml", "--queue-policy", "fcfs"],
         "--queue-policy and --queue-threshold do nothing beside --policy"),
        (["replay", "t.jsonl", "--model", "m"], "--model needs --policy"),
        (["replay", "t.jsonl", "--classes", "premium=1"], "--classes needs --policy"),
        (["replay", "t.jsonl", "--policy", "p.yaml", "--classes", "premum=1"],
         "--classes: unknown class or family 'premum'; did you mean 'premium'?"),
        (["replay", "t.jsonl", "--policy", "p.yaml", "--classes", "premium"], "--classes: 'premium' is not NAME"),
        (["replay", "t.jsonl", "--json", "-", "--csv", "-"], "--json and --csv must go to different places"),
        (["replay", "t.jsonl", "--json", "o", "--csv", "./o"], "--json and --csv must go to different places"),
        (["replay", "t.jsonl", "--json", "."], "--json .: is a directory"),
        (["replay", "t.jsonl", "--json", "gone/o.json"], "--json gone/o.json: cannot be written: No such file"),
        (["replay", "t.jsonl", "--csv", "p.yaml/o"], "--csv p.yaml/o: cannot be written: Not a directory"),
        (["replay", "t.jsonl", "--csv", "t.jsonl"], "--csv t.jsonl: is also an input file"),
        (["replay", "t.jsonl", "--policy", "p.yaml", "--json", "p.yaml"], "--json p.yaml: is also an input file"),
        (["policy", "check", "gone.yaml"], "gone.yaml: No such file or directory"),
        (["repaly"], "No such command 'repaly'"),
        (["--verion"], "No such option '--verion'"),
    ],
)
def test_errors_are_one_line(kvcore, folder, argv, message):
    (folder / "empty").write_bytes(b"")
    (folder / "azure.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,48,10\n")
    last = '{"timestamp": %d, "input_length": 1, "output_length": 99999}\n'
    (folder / "late.jsonl").write_text(last % 0 + last % (2**62 // 10**6))
    (folder / "latin").write_bytes(b"caf\xe9: 1\n")
    (folder / "bad.jsonl").write_text(trace_text(1) + '{"timestamp": 1, "input_length": -5, "output_length": 1}\n')
    (folder / "unfit.jsonl").write_text('{"timestamp": 0, "input_length": 99999999, "output_length": 1}\n')
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    status, out, err = kvcore(*argv)
    assert (status, out) == (2, "")
    assert err.startswith(f"kvcore: error: {message}")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_bad_row_leaves_no_output(kvcore, folder):
    (folder / "o.json").write_text("old")
    (folder / "bad.jsonl").write_text(trace_text(150) + "{\n")
    status, out, err = kvcore("replay", "bad.jsonl", "--json", "o.json", "--csv", "o.csv")
    assert (status, out) == (2, "")
    assert err.startswith("kvcore: error: bad.jsonl:151: ")
    assert (folder / "o.json").read_text() == "old"
    assert not (folder / "o.csv").exists()


def test_failure_while_writing_leaves_no_output(kvcore, folder, monkeypatch):
    def fail(*args):
        raise OSError(28, "No space left on device")

    (folder / "o.json").write_text("old")
    monkeypatch.setattr(replay_run, "write_csv", fail)
    status, out, err = kvcore("replay", "t.jsonl", "--json", "o.json", "--csv", "o.csv")
    assert (status, out, err) == (2, "", "kvcore: error: o.csv: No space left on device\n")
    assert (folder / "o.json").read_text() == "old"
    assert sorted(path.name for path in folder.iterdir()) == ["models.yaml", "o.json", "p.yaml", "t.jsonl"]


def test_output_keeps_mode_and_link_of_the_file_it_replaces(kvcore, folder):
    real = folder / "real.json"
    real.write_text("old")
    real.chmod(0o640)
    (folder / "link.json").symlink_to(real)
    assert kvcore("replay", "t.jsonl", "-q", "--json", "link.json")[0] == 0
    assert (folder / "link.json").is_symlink()
    assert json.loads(real.read_text())["requests"]["read"] == 200
    assert real.stat().st_mode & 0o777 == 0o640


def test_devices_are_written_in_place(kvcore):
    assert kvcore("replay", "t.jsonl", "-q", "--json", os.devnull, "--csv", os.devnull) == (0, "", "")
    assert not os.path.isfile(os.devnull)


def test_models(kvcore):
    assert kvcore("replay", "t.jsonl", "-q", "--policy", "models.yaml", "--model", "llama") == (0, "", "")
    status, _, err = kvcore("replay", "t.jsonl", "--policy", "p.yaml", "--model", "llama", "--json", "-")
    assert (status, err) == (0, "kvcore: note: p.yaml has no profile of model 'llama': the root profile applies\n")


# Signals, pipes, terminals.


def test_interrupt(kvcore, folder, monkeypatch):
    def interrupted(*args, **options):
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the signal should have come first")

    (folder / "o.json").write_text("old")
    monkeypatch.setattr(replay_run, "simulate", interrupted)
    # A shell starts what runs in its background with SIGINT ignored, and Python keeps it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status, out, err = kvcore("replay", "t.jsonl", "--json", "o.json", "--csv", "o.csv")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (status, out, err.strip()) == (130, "", "kvcore: interrupted")
    assert (folder / "o.json").read_text() == "old"
    assert not (folder / "o.csv").exists()


@pytest.mark.parametrize("argv", [["replay", "t.jsonl", "--csv", "-"], ["replay", "t.jsonl"], ["replay", "--help"]])
def test_closed_pipe_is_no_error(argv):
    read, write = os.pipe()
    os.close(read)
    done = process(*argv, stdout=write)
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 0


def test_closed_pipe_does_not_spoil_files(folder):
    read, write = os.pipe()
    os.close(read)
    done = process("replay", "t.jsonl", "--csv", "-", "--json", "o.json", stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((folder / "o.json").read_text())["requests"]["completed"] == 200


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize(
    ("argv", "place"),
    [(("--csv", "-"), "standard output"), ((), "standard output"), (("--json", "/dev/full"), "/dev/full")])
def test_full_disk_is_one_line(argv, place):
    with open("/dev/full", "w") as full:
        done = process("replay", "t.jsonl", *argv, stdout=full)
    assert done.returncode == 2
    assert done.stderr == f"kvcore: error: {place}: No space left on device\n"


def test_closed_standard_output():
    script = 'exec "$0" -m kvcore replay t.jsonl "$@" >&-'
    done = process_of(["sh", "-c", script, sys.executable, "--csv", "-"])
    assert done.returncode == 2
    assert done.stderr == "kvcore: error: --csv -: standard output is closed (see kvcore replay --help)\n"
    assert process_of(["sh", "-c", script, sys.executable, "--csv", "o.csv"]).stderr == ""


def test_progress_bar_on_a_terminal_only():
    parent, child = pty.openpty()
    argv = [sys.executable, "-P", "-m", "kvcore", "replay", "t.jsonl"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=child, timeout=60, check=False)
    os.close(child)
    shown = os.read(parent, 1 << 16)
    os.close(parent)
    assert done.returncode == 0
    assert b"requests" in shown
    assert process("replay", "t.jsonl").stderr == ""


def test_ascii_output():
    done = process("replay", "t.jsonl", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u" not in done.stdout


# Help.


def test_help_lists_presets_and_formats(kvcore):
    status, out, _ = kvcore("replay", "--help")
    assert status == 0
    for name in (*PRESETS, *FORMATS, "Examples:", "--skip-bad", "ns"):
        assert name in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("argv", [[], ["--help"], ["policy"], ["policy", "check", "--help"]])
def test_help_of_the_rest(kvcore, argv):
    status, out, err = kvcore(*argv)
    assert (status, err) == (0, "")
    assert out.startswith("Usage: kvcore")


def test_version(kvcore):
    status, out, _ = kvcore("--version")
    assert status == 0
    assert out.startswith("kvcore ")


def test_help_does_not_load_the_heavy_modules():
    code = (
        "import sys; from kvcore.drivers.cli import main; main(['--help']); "
        "print(sorted({'rich', 'kvcore.drivers.replay.simulate', 'kvcore.drivers.replay._engine'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
