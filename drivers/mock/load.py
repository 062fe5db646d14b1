"""A load of our own for an OpenAI server: requests sent at once or so many at a time, and what came of each.

It is what the demo and the experiments use. Programs made for it (aiperf, guidellm, vllm bench) do more, and work too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import trio

from ..http.client import Pool
from ..http.values import Headers, UpstreamError

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

#: The last of a response that is kept to find the usage in.
_TAIL_BYTES = 4096
_CACHED = re.compile(rb'"cached_tokens":(\d+)')
_PROMPT = re.compile(rb'"prompt_tokens":(\d+)')
_MADE = re.compile(rb'"completion_tokens":(\d+)')
_FINISH = re.compile(rb'"finish_reason":"([a-z_]+)"')


@dataclass(frozen=True)
class Job:
    """One request to be sent. policy_class: goes into its header; None: none."""

    body: bytes
    path: str = CHAT
    policy_class: str | None = None

    @classmethod
    def of(cls, body: object, path: str = CHAT, policy_class: str | None = None) -> Job:
        """From a body that is not encoded yet."""
        return cls(msgspec.json.encode(body), path, policy_class)


@dataclass
class Outcome:
    """What came of a job. Seconds since its load began; first_s: first part of the body.

    status: 0: no response. error: why a response is missing or not whole. finish: why the answer ended. queue_ms,
    worker: as the gateway says. prompt_tokens, cached_tokens, made_tokens: as the engine says.
    """

    job: Job
    sent_s: float
    first_s: float = 0.0
    done_s: float = 0.0
    status: int = 0
    error: str = ""
    finish: str = ""
    queue_ms: float = 0.0
    worker: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    made_tokens: int = 0

    @property
    def is_good(self) -> bool:
        """Whether the answer is there and whole."""
        return self.status == 200 and not self.error and self.finish in ("stop", "length")


class Load:
    """Sends jobs to one address. outcomes: in the order in which they were complete. begun: whose body has begun."""

    def __init__(self, host: str, port: int) -> None:
        self.outcomes: list[Outcome] = []
        self.begun = 0
        self._pool = Pool(host, port, connect_s=120.0)
        self._began_s = 0.0

    async def all_at_once(self, jobs: Iterable[Job]) -> list[Outcome]:
        """Each on a connection of its own. Returns: outcomes."""
        self._began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for job in jobs:
                nursery.start_soon(self.send, job)
        return self.outcomes

    async def some_at_a_time(self, jobs: Iterable[Job], connections: int) -> list[Outcome]:
        """A closed loop: each connection sends its next job when the one before is complete. Returns: outcomes."""
        rest = iter(jobs)

        async def one_after_the_other() -> None:
            for job in rest:
                await self.send(job)

        self._began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(connections):
                nursery.start_soon(one_after_the_other)
        return self.outcomes

    async def send(self, job: Job) -> Outcome:
        """One job."""
        now, began_s = trio.current_time, self._began_s
        outcome = Outcome(job, now() - began_s)
        headers: Headers = [(b"content-type", b"application/json")]
        if job.policy_class is not None:
            headers.append((b"x-kvcore-policy-class", job.policy_class.encode()))
        tail = b""
        try:
            exchange = await self._pool.start("POST", job.path, headers, job.body)
            try:
                outcome.status = exchange.status
                for name, value in exchange.headers:
                    if name == b"x-kvcore-queue-ms":
                        outcome.queue_ms = float(value)
                    elif name == b"x-kvcore-worker-id":
                        outcome.worker = value.decode()
                while not exchange.is_complete:
                    part = await exchange.read()
                    if not outcome.first_s:
                        outcome.first_s = now() - began_s
                        self.begun += 1
                    tail = (tail + part)[-_TAIL_BYTES:]
            finally:
                exchange.close()
        except UpstreamError as error:
            outcome.error = str(error) or type(error).__name__
        outcome.done_s = now() - began_s
        outcome.prompt_tokens = int(_last(_PROMPT, tail) or 0)
        outcome.cached_tokens = int(_last(_CACHED, tail) or 0)
        outcome.made_tokens = int(_last(_MADE, tail) or 0)
        outcome.finish = _last(_FINISH, tail).decode()
        self.outcomes.append(outcome)
        return outcome

    def close(self) -> None:
        """Close idle connections."""
        self._pool.close()


def _last(pattern: re.Pattern[bytes], data: bytes) -> bytes:
    """What a pattern has found last; empty if nothing."""
    found: list[bytes] = pattern.findall(data)
    return found[-1] if found else b""
