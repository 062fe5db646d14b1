"""`kvcore serve`: one precedence order, mistakes in one line with their place, and a real process with its signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import httpx2
import pytest
import yaml
from kvcore.drivers.cli import cli, main, serve
from kvcore.drivers.gateway.config import SETTINGS, GatewayConfig, dump, resolve
from kvcore.drivers.gateway.config_file import read_file

from kvcore.policy_file import load_policy

POLICY = """\
default_policy_family: regular
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: regular, policy_family: regular, cache_bucket: all, quantum: 128}
"""
#: How long a process may take to start or to end on a busy machine.
PATIENCE_S = 180


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in [name for name in os.environ if name.startswith("KVCORE_SERVE_")]:
        monkeypatch.delenv(name)


def dumped(capsys, *arguments: str) -> tuple[dict, list[str]]:
    """The effective configuration, and the lines that say where its values came from."""
    assert main(["serve", "--dump-config", *arguments]) == 0
    text = capsys.readouterr().out
    assert resolve(read_file(text, "dump", GatewayConfig))[0] is not None
    return yaml.safe_load(text), re.findall(r"^# (\S+: .+)$", text, re.MULTILINE)


def refusal(capsys, *arguments: str) -> str:
    assert main(["serve", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("kvcore: error: ")
    return err.removeprefix("kvcore: error: ")[:-1]


def test_without_anything_the_defaults_are_in_force(capsys):
    assert dumped(capsys) == (dump(GatewayConfig()), [])


def test_flag_before_environment_before_file_before_default(capsys, monkeypatch, tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text("listen: {port: 1003, host: 127.0.0.3}\nlimits: {queue: 3}\nlog_level: error\n")
    monkeypatch.setenv("KVCORE_SERVE_PORT", "1002")
    monkeypatch.setenv("KVCORE_SERVE_HOST", "127.0.0.2")
    told, places = dumped(capsys, "--config", str(file), "--port", "1001")
    assert (told["listen"]["port"], told["listen"]["host"]) == (1001, "127.0.0.2")
    assert (told["limits"]["queue"], told["log_level"], told["limits"]["inbox"]) == (3, "error", 4096)
    assert places == [
        f"limits.queue: {file}:2:10", "listen.host: KVCORE_SERVE_HOST", "listen.port: --port", f"log_level: {file}:3:1"]


def test_workers_come_from_the_first_source_that_has_any(capsys, monkeypatch, tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text("workers: [http://file:1]\n")

    def urls(*arguments: str) -> list[str]:
        return [item["url"] for item in dumped(capsys, *arguments)[0]["workers"]]

    assert urls("--config", str(file)) == ["http://file:1"]
    monkeypatch.setenv("KVCORE_SERVE_CONFIG", str(file))
    assert urls() == ["http://file:1"]
    monkeypatch.setenv("KVCORE_SERVE_WORKERS", "http://env:1  http://env:2,max-requests=4")
    assert urls() == ["http://env:1", "http://env:2"]
    assert urls("--worker", "http://flag:1") == ["http://flag:1"]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_is_a_flag_and_a_variable_that_is_named_in_the_help(setting):
    command = cli.commands["serve"]
    options = {option.name: option for option in command.get_params(click.Context(command))}
    option = options[setting.key.replace(".", "__")]
    assert list(setting.flags) == option.opts
    assert option.envvar == setting.variable
    assert option.show_envvar


def test_a_dump_is_a_file_for_config(capsys, tmp_path):
    first, _ = dumped(capsys, "--worker", "http://h:1,taints=a+b", "--models", "a,b", "--router-temperature", "0.5")
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(first))
    assert dumped(capsys, "--config", str(file))[0] == first


@pytest.mark.parametrize(("arguments", "message"), [
    (["--port", "x"], "--port: must be a port 0..65535"),
    (["--limits-queue", "0"], "--limits-queue: must be a whole number 1.."),
    (["--worker", "ftp://x"], "--worker: must be http://HOST:PORT"),
    (["--worker", "http://a", "--worker", "http://a:80"], "--worker: workers: http://a:80 is given twice"),
    (["--admin-host", "0.0.0.0"], "--admin-host: admin.host: must be a loopback address"),
    (["--port", "8001"], "default: admin.port: must not be the public port"),
    (["--config", "/nothing/here"], "/nothing/here: No such file or directory"),
    (["--policy", "/nothing/here"], "/nothing/here: No such file or directory"),
    (["--prot", "1"], "No such option"),
    (["--tokenizer", "/nothing/here", "--dump-config", "extra"], "Got unexpected extra argument"),
])
def test_mistakes_are_one_line_that_says_where(capsys, arguments, message):
    assert refusal(capsys, *arguments).startswith(message)


def test_mistakes_in_the_environment_and_in_files_say_where(capsys, monkeypatch, tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text("listen:\n  prot: 1\n")
    assert refusal(capsys, "--config", str(file)) == f"{file}:2:3: listen.prot: unknown key, did you mean port?"
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.replace("128", "0"))
    assert refusal(capsys, "--policy", str(policy)).startswith(f"{policy}:4: ")
    monkeypatch.setenv("KVCORE_SERVE_PORT", "x")
    assert refusal(capsys) == "KVCORE_SERVE_PORT: must be a port 0..65535"


def test_a_mistake_in_a_file_is_one_also_where_a_flag_overrides_it(capsys, tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text("listen: {port: x}\n")
    assert refusal(capsys, "--config", str(file), "--port", "1").startswith(f"{file}:1:10: listen.port")


def test_a_missing_extra_is_named(capsys, monkeypatch):
    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'h11'", name="h11")

    monkeypatch.setattr(serve, "run", missing)
    assert refusal(capsys) == "kvcore serve needs h11: pip install 'kvcore[gateway]'"


@contextmanager
def serving(*arguments: str, log: Path) -> Iterator[tuple[subprocess.Popen, str, str]]:
    """A gateway of its own process: it, its public address, its log file's text so far (by the path)."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kvcore", "serve", "--port", "0", "--admin-port", "0", *arguments],
            stdout=stream, stderr=stream, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    try:
        said = until(log, r"listening on 127\.0\.0\.1:(\d+)", process)
        admin = until(log, r"administration on 127\.0\.0\.1:(\d+)", process)
        yield process, f"http://127.0.0.1:{said[1]}", f"http://127.0.0.1:{admin[1]}"
    finally:
        process.kill()
        process.wait()


def until(log: Path, pattern: str, process: subprocess.Popen) -> re.Match[str]:
    """Wait for a line of the log."""
    end = time.monotonic() + PATIENCE_S
    while (found := re.search(pattern, log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    return found


def test_a_process_serves_reloads_refuses_and_ends(tmp_path):
    policy, log = tmp_path / "policy.yaml", tmp_path / "log"
    policy.write_text(POLICY)
    with serving("--policy", str(policy), log=log) as (process, url, admin):
        assert httpx2.get(f"{url}/health").status_code == 200
        assert httpx2.get(f"{url}/ready").status_code == 503
        until(log, r"WARNING .*: no worker is named", process)
        assert httpx2.get(f"{url}/admin/policy").status_code == 404
        assert load_policy(httpx2.get(f"{admin}/admin/policy").text).root == load_policy(POLICY).root
        policy.write_text(POLICY.replace("128", "256"))
        process.send_signal(signal.SIGHUP)
        until(log, r"policy: \+  quantum: 256", process)
        policy.write_text(POLICY.replace("128", "x"))
        process.send_signal(signal.SIGHUP)
        assert until(log, r"the policy stays as it is: (.*)", process)[1].startswith(f"{policy}:4: ")
        assert "quantum: 256" in httpx2.get(f"{admin}/admin/policy").text
        answer = httpx2.post(f"{url}/v1/completions", json={"model": "m", "prompt": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_workers")
        assert int(answer.headers["retry-after"]) >= 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_a_port_that_is_taken_is_one_line(tmp_path):
    with serving(log=tmp_path / "log") as (_, url, _):
        answer = subprocess.run(
            [sys.executable, "-P", "-m", "kvcore", "serve", "--port", url.rpartition(":")[2], "--admin-port", "none"],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert answer.returncode == 2
    assert answer.stderr == f"kvcore: error: {url.removeprefix('http://')}: Address already in use\n"
