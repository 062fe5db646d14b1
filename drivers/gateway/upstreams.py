"""UpstreamSpec: one worker as a configuration or an administrator names it.

As text: `http://HOST:PORT`, and behind it `,key=value` for what is known of it: `http://10.0.0.7:8101,max-requests=64`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from ipaddress import ip_address
from urllib.parse import urlsplit

from kvcore.request import WorkerConfig

from .settings import TEXT, TEXTS, YES_NO, Kind, setting, whole


def _url(text: str) -> str:
    """The address in its one form, `http://host:port`."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"must be http://HOST:PORT ({error})") from error
    host = parts.hostname
    plain = not (parts.username or parts.password or parts.query or parts.fragment) and parts.path in ("", "/")
    if parts.scheme != "http" or not host or not plain or port == 0 or not _is_host(host):
        raise ValueError("must be http://HOST:PORT, without a path or a user")
    return f"http://{f'[{host}]' if ':' in host else host}:{port or 80}"


def _is_host(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        labels = host.removesuffix(".").split(".")
        return len(host) <= 253 and all(
            0 < len(label) <= 63 and label.isascii() and label.replace("-", "a").replace("_", "a").isalnum()
            for label in labels)
    return True


def is_loopback(host: str) -> bool:
    """Whether a listener there can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


URL = Kind("URL", _url)
ENDPOINT = Kind("tcp://HOST:PORT", TEXT.read).or_none()


@dataclass(frozen=True)
class UpstreamSpec:
    """A worker's address and what is known of it; see WorkerConfig. None: unknown.

    kv_events, kv_replay: zmq endpoints of its KV events, of rank 0; that of rank r has its port + r. kv_bind: whether
    to bind kv_events, for engines that connect to it. kv_topic: messages that begin otherwise are not taken.
    """

    url: str = setting("", URL, "Address.")
    dp_start: int = setting(0, whole(0, 2**32 - 1), "Its first data-parallel rank.")
    dp_size: int = setting(1, whole(1, 65_536), "Its data-parallel ranks.")
    max_requests: int | None = setting(None, whole(1, 2**53).or_none(), "Most running requests per rank.")
    max_batched_tokens: int | None = setting(None, whole(1, 2**53).or_none(), "Its tokens per iteration.")
    total_kv_blocks: int | None = setting(None, whole(1, 2**53).or_none(), "KV blocks per rank.")
    prefill_tokens_per_s: int | None = setting(None, whole(1, 2**53).or_none(), "How fast it computes prompts.")
    taints: tuple[str, ...] = setting((), TEXTS, "Labels that requests can require.")
    kv_events: str | None = setting(None, ENDPOINT, "Where it publishes KV events.")
    kv_replay: str | None = setting(None, ENDPOINT, "Where it repeats them.")
    kv_bind: bool = setting(False, YES_NO, "Whether to bind kv_events instead of connecting to it.")
    kv_topic: str = setting("", Kind("TEXT", str), "Topic of its KV events.")

    def __post_init__(self) -> None:
        if not self.url:
            raise ValueError("url is required")

    @classmethod
    def of_text(cls, text: str) -> UpstreamSpec:
        """`URL[,key=value...]`. Raises: ValueError."""
        url, *options = text.split(",")
        known = {item.name: item.metadata["kind"] for item in fields(cls)}
        values = {"url": URL.read(url)}
        for option in options:
            key, equals, value = option.partition("=")
            name = key.strip().replace("-", "_")
            if not equals or name not in known or name in values:
                raise ValueError(f"{option[:80]!r}: must be key=value, once each, of {', '.join(list(known)[1:])}")
            try:
                values[name] = known[name].read(value.replace("+", ",") if known[name].many else value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}, not {value[:80]!r}") from error
        return cls(**values)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 80

    def worker(self, worker_id: int) -> WorkerConfig:
        """What the scheduler is told."""
        return WorkerConfig(
            worker_id, self.dp_start, self.dp_size, self.max_batched_tokens, self.total_kv_blocks, self.max_requests,
            frozenset(self.taints), self.prefill_tokens_per_s)
