"""What the tests ask of a gateway and of the engines behind it."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import vllm_processes

#: Seconds for something to show that is on its way: engines tell their metrics late on a busy machine.
PATIENCE_S = 60
WORDS = ["the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not"]


@dataclass
class Said:
    """A whole answer. headers: lower-case names."""

    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def prompt(self) -> int:
        """Tokens of the prompt, by the engine."""
        return self.body["usage"]["prompt_tokens"]

    @property
    def cached(self) -> int:
        """Those of them that were in its cache, by the engine."""
        return (self.body["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    @property
    def worker(self) -> str:
        """Where the gateway has sent it."""
        return self.headers["x-kvcore-worker-id"]


@dataclass
class Fleet:
    """url: the gateway's. admin: its other port's. workers: the engines'."""

    url: str
    admin: str
    workers: list[str]

    def ask(self, body: dict[str, Any], url: str | None = None, **headers: str) -> Said:
        """A chat, through the gateway unless a url is given."""
        with connection(url or self.url) as server:
            server.request("POST", "/v1/chat/completions", json.dumps(body), fields(headers))
            answer = server.getresponse()
            data = answer.read()
            assert answer.status == 200, data
            return Said({name.lower(): value for name, value in answer.getheaders()}, json.loads(data))

    def tell(self, what: str) -> Any:
        """What the admin port says."""
        return json.loads(vllm_processes.fetch(f"{self.admin}/{what}"))

    def own_metric(self, name: str) -> float:
        """Of the gateway."""
        lines = vllm_processes.fetch(f"{self.url}/metrics").decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].split(" ")[0] == name)

    def metric(self, name: str) -> float:
        """The sum over both engines and all series."""
        lines = [line for url in self.workers for line in vllm_processes.fetch(f"{url}/metrics").decode().splitlines()]
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


@contextmanager
def connection(url: str) -> Iterator[http.client.HTTPConnection]:
    """One, which is closed whatever it was doing."""
    server = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
    try:
        yield server
    finally:
        server.close()


def fields(more: dict[str, str]) -> dict[str, str]:
    return {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in more.items()}}


def chat(opening: str, question: str, max_tokens: int = 4, **more: Any) -> dict[str, Any]:
    """A conversation with a shared opening."""
    return {
        "model": vllm_processes.MODEL, "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, **more,
        "messages": [{"role": "system", "content": opening}, {"role": "user", "content": question}]}


def text(seed: int, words: int = 200) -> str:
    """Some words, always the same ones of a seed."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words))


def until(condition) -> None:
    """Wait until something holds."""
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.1)
