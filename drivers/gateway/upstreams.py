"""UpstreamSpec: one worker as a configuration or an administrator names it.

As text: `http://HOST:PORT` or `https://HOST:PORT`, and behind it `,key=value` for what is known of it:
`http://10.0.0.7:8101,max-requests=64`.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, fields
from ipaddress import ip_address
from urllib.parse import urlsplit

from kvcore.request import WorkerConfig

from ..http.tls import trusting
from .settings import PATH, TEXT, TEXTS, YES_NO, Kind, setting, whole

#: Ports of addresses that name none.
_PORTS = {"http": 80, "https": 443}


def _url(text: str) -> str:
    """The address in its one form, `http://host:port` or `https://host:port`."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"must be http://HOST:PORT or https://HOST:PORT ({error})") from error
    host = parts.hostname
    plain = not (parts.username or parts.password or parts.query or parts.fragment) and parts.path in ("", "/")
    if parts.scheme not in _PORTS or not host or not plain or port == 0 or not _is_host(host):
        raise ValueError("must be http://HOST:PORT or https://HOST:PORT, without a path or a user")
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port or _PORTS[parts.scheme]}"


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
    ca_file: of an https worker, whose signature on its certificate counts, in place of the system's authorities.
    Raises: ValueError, for a ca_file that holds no certificate as well.
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
    ca_file: str | None = setting(None, PATH.or_none(), "Authorities in PEM that an https worker's certificate is of.")

    def __post_init__(self) -> None:
        if not self.url:
            raise ValueError("url is required")
        if self.ca_file is not None:
            if not self.is_tls:
                raise ValueError("ca_file is for https workers")
            try:
                trusting(self.ca_file)
            except OSError as error:
                reason = "no certificates in PEM" if isinstance(error, ssl.SSLError) else error.strerror
                raise ValueError(f"ca_file: {self.ca_file}: {reason}") from error

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
        return parts.hostname or "", parts.port or _PORTS[parts.scheme]

    @property
    def is_tls(self) -> bool:
        """Whether it is spoken to under TLS."""
        return self.url.startswith("https:")

    def worker(self, worker_id: int) -> WorkerConfig:
        """What the scheduler is told."""
        return WorkerConfig(
            worker_id, self.dp_start, self.dp_size, self.max_batched_tokens, self.total_kv_blocks, self.max_requests,
            frozenset(self.taints), self.prefill_tokens_per_s)
