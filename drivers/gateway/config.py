"""GatewayConfig: everything a gateway is started with, and where each value came from.

Each setting is a field of a section below; settings.py says how text becomes its value, so a flag, an environment
variable and a key of a file read the same. One order of precedence: flag, environment, file, default.

Never here: opening files, listening, click.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from kvcore.config import IndexMode, OnOverload, SchedulerConfig
from kvcore.errors import InvalidConfig
from kvcore.policy import Capacity, PolicyProfile, QueuePolicy
from kvcore.request import SelectionWeights

from .config_file import Given, InvalidGatewayConfig
from .settings import (
    PATH,
    PORT,
    TEXT,
    TEXTS,
    YES_NO,
    Setting,
    choice,
    real,
    seconds,
    setting,
    settings_of,
    shown,
    whole,
)
from .upstreams import UpstreamSpec, is_loopback

T = TypeVar("T")
COUNT = whole(0, 2**53)
CREDIT = real(0.0, 1e9)
SHARE = real(0.0, 1.0)


class Trust(Enum):
    """What becomes of hints: taken within the caps, or not looked at."""

    CAPPED = "capped"
    NONE = "none"


class Index(Enum):
    """Where cached prefixes are known from; auto: engine events where a worker publishes them, own dispatches else."""

    AUTO = "auto"
    EVENTS = "events"
    APPROXIMATE = "approximate"
    OFF = "off"


class OutputReserve(Enum):
    """Where the expected length of an answer comes from: the client's hint, else its max_tokens, or nowhere."""

    HINT = "hint"
    MAX_TOKENS = "max_tokens"
    NONE = "none"


class PromptSource(Enum):
    """Where prompt lengths come from; auto: the best that there is."""

    AUTO = "auto"
    LOCAL = "local"
    ENGINE = "engine"
    ESTIMATE = "estimate"


class LogLevel(Enum):
    """How much is written to standard error."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Listen:
    """The public listener."""

    host: str = setting("127.0.0.1", TEXT, "Address to listen on; loopback unless told otherwise.", flag="--host")
    port: int = setting(8000, PORT, "Port of the API; 0: any free one.", flag="--port")


@dataclass(frozen=True)
class Admin:
    """The administrators' listener: loopback only, never the public port. port None: there is none."""

    host: str = setting("127.0.0.1", TEXT, "Address of the admin listener; must be loopback.")
    port: int | None = setting(8001, PORT.or_none(), "Port of the admin listener; 0: any free one; none: off.")


@dataclass(frozen=True)
class SchedulerSettings:
    """What the scheduler is built with; see SchedulerConfig."""

    block_size: int = setting(16, whole(1, 2**31 - 1), "Tokens per KV block, as the engines have it.")
    index: Index = setting(
        Index.AUTO, choice(Index),
        "Where cached prefixes are known from; auto: engine events where workers publish them, own dispatches else.")
    default_queue_policy: QueuePolicy = setting(
        QueuePolicy.FCFS, choice(QueuePolicy), "Order of requests where no policy is given.",
        alias="--router-queue-policy")
    default_busy_threshold_frac: float | None = setting(
        None, real(0.0, 1e9).or_none(), "Busy threshold where no policy is given; none: requests never wait.",
        alias="--router-queue-threshold")
    capacity: Capacity | None = setting(
        None, choice(Capacity).or_none(), "What a dispatch promises about its worker; none: as the policy says.")
    on_overload: OnOverload = setting(
        OnOverload.WAIT, choice(OnOverload), "What becomes of a request when all its workers are overloaded.")
    overload_wait_s: float = setting(30.0, seconds(), "How long such a request waits at most.")
    booking_ttl_s: float | None = setting(
        900.0, seconds().or_none(), "A run without progress for so long is given up.")
    predict_ttl_s: float | None = setting(
        None, seconds().or_none(), "How long a dispatched prompt counts as cached without the engine saying so.")
    reported_load_ttl_s: float | None = setting(None, seconds().or_none(), "How long an engine's load report counts.")
    attempts_max: int = setting(8, whole(1, 2**31 - 1), "Dispatches of one request.")
    pin_grace_s: float = setting(0.0, seconds(0.0), "How long a request waits for a pinned worker that is gone.")
    empty_fleet_wait_s: float = setting(0.0, seconds(0.0), "How long a request waits while there is no worker.")
    decisions_kept: int = setting(256, whole(0, 2**20), "Decisions kept for explain.")
    seed: int = setting(0, whole(0, 2**64 - 1), "Seed of ties and of the jitter of Retry-After.")


@dataclass(frozen=True)
class WeightSettings:
    """What makes a worker cheap or dear; see SelectionWeights."""

    overlap_score_credit: float = setting(
        1.0, CREDIT, "Blocks saved per cached block.", alias="--router-kv-overlap-score-credit")
    overlap_score_credit_decay: float = setting(
        0.0, CREDIT, "How fast that credit shrinks with prefill load.", alias="--router-kv-overlap-score-credit-decay")
    prefill_load_scale: float = setting(
        1.0, CREDIT, "Weight of prefill against decode blocks.", alias="--router-prefill-load-scale")
    host_cache_hit_weight: float = setting(0.75, SHARE, "Credit per block in host memory.")
    disk_cache_hit_weight: float = setting(0.25, SHARE, "Credit per block on disk.")
    shared_cache_multiplier: float = setting(0.0, SHARE, "Credit per block of a shared cache.")
    active_request_weight: float = setting(0.0, CREDIT, "Blocks that a running request counts on top of its own.")
    temperature: float = setting(
        0.0, CREDIT, "Above 0 workers are drawn, cheap ones more often.", alias="--router-temperature")


@dataclass(frozen=True)
class LimitSettings:
    """Bounds of everything that clients could make grow."""

    body_bytes: int = setting(8 << 20, whole(1, 2**40), "Largest request body.")
    body_bytes_total: int = setting(
        1 << 30, whole(1, 2**50), "Request bodies that are held at a time, all together; beyond, 429.")
    header_bytes: int = setting(64 << 10, whole(1024, 2**24), "Largest request line and headers.")
    connections: int = setting(8192, whole(1, 2**20), "Open client connections.")
    queue: int = setting(65_536, whole(1, 2**31 - 1), "Requests inside the gateway, waiting or running.")
    inbox: int = setting(4096, whole(1, 2**31 - 1), "Arrivals that may wait for the scheduler's task.")


@dataclass(frozen=True)
class TimeoutSettings:
    """How long somebody is waited for."""

    header_s: float = setting(30.0, seconds(), "For a client's request headers.")
    body_s: float = setting(60.0, seconds(), "For a client's request body.")
    keep_alive_s: float = setting(75.0, seconds(), "For the next request on a connection.")
    write_s: float = setting(60.0, seconds(), "For a client that does not read.")
    connect_s: float = setting(5.0, seconds(), "For a connection to a worker.")
    first_byte_s: float = setting(600.0, seconds(), "For a worker's first byte, prefill included.")
    idle_s: float = setting(120.0, seconds(), "For a worker's next byte.")
    drain_s: float = setting(30.0, seconds(0.0), "For running requests after SIGTERM.")
    probe_s: float = setting(2.0, seconds(), "For the answer to a health probe or to /tokenize.")
    probe_interval_s: float = setting(5.0, seconds(0.05), "Between health probes of a worker.")
    pause_s: float = setting(1.0, seconds(), "Pause of a worker that says 429 or 503 without saying for how long.")


@dataclass(frozen=True)
class HintCaps:
    """The most that hints can ask for in one class."""

    allowed: bool = setting(True, YES_NO, "Whether a client may name this class; else it gets the default one.")
    priority_max: float = setting(60.0, real(0.0, 1e9), "Head start in seconds.")
    strict_priority_max: int = setting(15, whole(0, 2**32 - 1), "Tier inside the class.")
    deadline_max_s: float | None = setting(None, seconds().or_none(), "Longest wait in the queue; none: no bound.")
    expected_output_max: int = setting(2**20, COUNT, "Expected output tokens.")


@dataclass(frozen=True)
class HintSettings:
    """How far clients are believed. classes: caps by class or family name, in place of the ones here."""

    trust: Trust = setting(Trust.CAPPED, choice(Trust), "Whether hints are taken, within the caps.")
    priority_max: float = setting(60.0, real(0.0, 1e9), "Most head start in seconds that a client gets.")
    strict_priority_max: int = setting(15, whole(0, 2**32 - 1), "Highest tier that a client gets.")
    deadline_max_s: float | None = setting(
        None, seconds().or_none(), "Longest wait in the queue, also of requests that name no deadline.")
    expected_output_max: int = setting(2**20, COUNT, "Most output tokens that a client can announce.")
    pins: bool = setting(True, YES_NO, "Whether a client may choose its worker.")
    output_reserve: OutputReserve = setting(
        OutputReserve.HINT, choice(OutputReserve), "Where the expected length of an answer comes from.")
    classes: Mapping[str, HintCaps] = field(default_factory=dict, metadata={"entries": HintCaps})


@dataclass(frozen=True)
class TokenizerSettings:
    """Where prompt lengths and block hashes come from."""

    source: PromptSource = setting(
        PromptSource.AUTO, choice(PromptSource),
        "auto: a local file, else the engine, else an estimate; or only one of them.", flag="--prompt-source")
    file: str | None = setting(
        None, PATH.or_none(), "tokenizer.json of the model; its chat template is taken from beside it.",
        flag="--tokenizer")
    bytes_per_token: float = setting(4.0, real(0.25, 64.0), "What an estimate starts from.")


@dataclass(frozen=True)
class GatewayConfig:
    """A gateway. profile: of the policy file in `policy`, for `model`; set by `with_profile`."""

    policy: str | None = setting(
        None, PATH.or_none(), "Policy file: classes of requests and their shares.", alias="--router-policy-config")
    model: str | None = setting(None, TEXT.or_none(), "Model whose profile in the policy file is in force.")
    models: tuple[str, ...] = setting((), TEXTS, "Model names to serve; none: what the workers say.")
    overload_status: int = setting(429, whole(429, 529), "429, or 529 where clients expect that for overload.")
    log_level: LogLevel = setting(LogLevel.INFO, choice(LogLevel), "How much is written to standard error.")
    listen: Listen = field(default_factory=Listen)
    admin: Admin = field(default_factory=Admin)
    workers: tuple[UpstreamSpec, ...] = field(default=(), metadata={"items": UpstreamSpec})
    limits: LimitSettings = field(default_factory=LimitSettings)
    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    hints: HintSettings = field(default_factory=HintSettings)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    weights: WeightSettings = field(default_factory=WeightSettings)
    profile: PolicyProfile | None = field(default=None, metadata={"derived": True})

    def with_profile(self, profile: PolicyProfile | None) -> GatewayConfig:
        """The same gateway under this policy."""
        return replace(self, profile=profile)

    @property
    def scheduler_config(self) -> SchedulerConfig:
        """What the scheduler is built with. Raises: InvalidConfig."""
        own = self.scheduler
        telling = [spec.kv_events is not None for spec in self.workers]
        # Single silent workers of a fleet that speaks are predicted by what reads its events (drivers/kvevents).
        mode = IndexMode.EVENTS if any(telling) else IndexMode.APPROXIMATE
        if own.index is not Index.AUTO:
            mode = IndexMode(own.index.value)
        return SchedulerConfig(
            block_size=own.block_size, profile=self.profile, default_queue_policy=own.default_queue_policy,
            default_busy_threshold_frac=own.default_busy_threshold_frac, booking_ttl_ns=_ns(own.booking_ttl_s),
            index=mode, seed=own.seed,
            weights=SelectionWeights(**{item.name: getattr(self.weights, item.name) for item in fields(self.weights)}),
            on_overload=own.on_overload, overload_wait_ns=_ns(own.overload_wait_s) or 1,
            predict_ttl_ns=_ns(own.predict_ttl_s), reported_load_ttl_ns=_ns(own.reported_load_ttl_s),
            capacity=own.capacity, attempts_max=own.attempts_max, pin_grace_ns=_ns(own.pin_grace_s) or 0,
            empty_fleet_wait_ns=_ns(own.empty_fleet_wait_s) or 0, decisions_kept=own.decisions_kept)


def _ns(span_s: float | None) -> int | None:
    return None if span_s is None else round(span_s * 1e9)


SETTINGS: tuple[Setting, ...] = tuple(settings_of(GatewayConfig))


def resolve(*sources: Mapping[str, Given]) -> tuple[GatewayConfig, dict[str, str]]:
    """A configuration, and where each key that is not a default came from. sources: the first to give a key decides.

    Raises: InvalidGatewayConfig for values that do not go together.
    """
    given: dict[str, Given] = {}
    for source in reversed(sources):
        given.update(source)
    config = _build(GatewayConfig, given, "")
    places = {key: item.place for key, item in given.items()}
    _check(config, places)
    return config, places


def _build(section: type[T], given: Mapping[str, Given], prefix: str) -> T:
    values: dict[str, Any] = {}
    plain = section()
    for item in fields(section):  # type: ignore[arg-type]
        key = prefix + item.name
        if key in given:
            values[item.name] = given[key].value
        elif "kind" not in item.metadata and is_dataclass(part := getattr(plain, item.name)):
            values[item.name] = _build(type(part), given, f"{key}.")
    return section(**values)


def _check(config: GatewayConfig, places: Mapping[str, str]) -> None:
    def refuse(key: str, reason: str) -> InvalidGatewayConfig:
        return InvalidGatewayConfig(places.get(key, "default"), key, reason)

    if config.overload_status not in (429, 529):
        raise refuse("overload_status", "must be 429 or 529")
    if not is_loopback(config.admin.host):
        raise refuse("admin.host", f"must be a loopback address, not {config.admin.host!r}")
    if config.admin.port and config.admin.port == config.listen.port:
        raise refuse("admin.port", "must not be the public port")
    if config.limits.body_bytes_total < config.limits.body_bytes:
        raise refuse("limits.body_bytes_total", f"must not be less than limits.body_bytes, {config.limits.body_bytes}")
    seen: dict[str, UpstreamSpec] = {}
    for spec in config.workers:
        if spec.url in seen:
            raise refuse("workers", f"{spec.url} is given twice")
        seen[spec.url] = spec
    try:
        config.scheduler_config  # noqa: B018 - it is built to see that it can be
    except InvalidConfig as error:
        raise refuse("scheduler", str(error)) from error


def dump(config: GatewayConfig) -> dict[str, Any]:
    """The configuration as a file holds it, every default spelled out; it reads back as the same."""
    return dict(_dumped(config))


def _dumped(section: Any) -> Iterator[tuple[str, Any]]:
    for item in fields(section):
        value = getattr(section, item.name)
        if "derived" in item.metadata:
            continue
        if "items" in item.metadata:
            yield item.name, [dict(_dumped(part)) for part in value]
        elif "entries" in item.metadata:
            yield item.name, {name: dict(_dumped(part)) for name, part in value.items()}
        elif is_dataclass(value):
            yield item.name, dict(_dumped(value))
        else:
            yield item.name, shown(value)
