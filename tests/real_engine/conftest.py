"""Two tiny vLLM engines and a gateway in front of them, once for all tests of this folder."""

from __future__ import annotations

import pytest
import vllm_processes
from vllm_fleet import Fleet
from vllm_model import write_model


@pytest.fixture(scope="session")
def fleet(tmp_path_factory):
    """They take minutes to start."""
    if vllm_processes.WHY_NOT:
        pytest.skip(vllm_processes.WHY_NOT)
    folder = tmp_path_factory.mktemp("engines")
    model = write_model(folder)
    with vllm_processes.replicas(model, folder, 2) as replicas:
        port, admin = vllm_processes.free_port(), vllm_processes.free_port()
        workers = [
            {"url": one.url, "max_requests": vllm_processes.SLOTS, "total_kv_blocks": vllm_processes.BLOCKS,
             "kv_events": one.events, "kv_replay": one.replay, "kv_bind": True} for one in replicas]
        config = {
            "listen": {"port": port}, "admin": {"port": admin}, "workers": workers,
            "scheduler": {"block_size": vllm_processes.BLOCK_SIZE, "capacity": "strict", "decisions_kept": 4096},
            "tokenizer": {"file": str(model / "tokenizer.json"), "source": "local"}}
        with vllm_processes.gateway(config, folder) as url:
            yield Fleet(url, f"http://127.0.0.1:{admin}/admin", [one.url for one in replicas])
