"""Configuration: one order of precedence, every setting by flag, environment and file, refusals with their place."""

from __future__ import annotations

from dataclasses import fields

import pytest
import yaml
from kvcore.drivers.gateway.config import (
    SETTINGS,
    Admin,
    GatewayConfig,
    HintCaps,
    Index,
    LogLevel,
    PromptSource,
    SchedulerSettings,
    TokenizerSettings,
    dump,
    resolve,
)
from kvcore.drivers.gateway.config_file import Given, InvalidGatewayConfig, read_file
from kvcore.drivers.gateway.settings import NOTHING
from kvcore.drivers.gateway.upstreams import UpstreamSpec, is_loopback

from kvcore.config import IndexMode, OnOverload, SchedulerConfig
from kvcore.policy import Capacity
from kvcore.request import WorkerConfig

#: A text that each setting takes and that is not its default.
OTHERS = {
    "policy": "p.yaml", "model": "llama", "models": "a,b", "overload_status": "529", "log_level": "debug",
    "listen.host": "0.0.0.0", "listen.port": "9000", "admin.host": "::1", "scheduler.index": "events",
    "scheduler.default_queue_policy": "wspt",
    "scheduler.capacity": "strict", "scheduler.on_overload": "reject", "hints.trust": "none", "hints.pins": "false",
    "hints.output_reserve": "max_tokens", "tokenizer.source": "estimate", "tokenizer.file": "t.json",
}


def from_text(text: str) -> GatewayConfig:
    return resolve(read_file(text, "g.yaml", GatewayConfig))[0]


def refusal(text: str) -> str:
    with pytest.raises(InvalidGatewayConfig) as caught:
        from_text(text)
    return str(caught.value)


def at(config: GatewayConfig, key: str) -> object:
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def nested(key: str, value: object) -> dict:
    *sections, name = key.split(".")
    found: dict = {name: value}
    for section in reversed(sections):
        found = {section: found}
    return found


def test_the_defaults_are_loopback_and_bounded():
    config = from_text("")
    assert config == GatewayConfig()
    assert (config.listen.host, config.listen.port) == ("127.0.0.1", 8000)
    assert (config.admin.host, config.admin.port) == ("127.0.0.1", 8001)
    assert config.limits.body_bytes == 8 << 20
    assert config.limits.header_bytes == 64 << 10


def test_what_is_not_configured_reads_like_the_effective_defaults():
    """Whoever looks at a dump sees what is in force (E70): pinned, so that a changed default is a changed test."""
    assert dump(GatewayConfig())["timeouts"] == {
        "header_s": 30.0, "body_s": 60.0, "keep_alive_s": 75.0, "write_s": 60.0, "connect_s": 5.0,
        "first_byte_s": 600.0, "idle_s": 120.0, "drain_s": 30.0, "probe_s": 2.0, "probe_interval_s": 5.0,
        "pause_s": 1.0}
    assert dump(GatewayConfig())["limits"] == {
        "body_bytes": 8388608, "body_bytes_total": 1073741824, "header_bytes": 65536, "connections": 8192,
        "queue": 65536, "inbox": 4096}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_reads_the_same_from_a_file_and_from_text(setting):
    default = setting.default
    text = OTHERS.get(setting.key) or str(default + 1 if isinstance(default, int | float) else 3)
    if setting.key.endswith(("host_cache_hit_weight", "disk_cache_hit_weight", "shared_cache_multiplier")):
        text = "0.5"
    value = setting.kind.read(text)
    assert value != default
    written = from_text(yaml.safe_dump(nested(setting.key, yaml.safe_load(text)))) if "," not in text else from_text(
        yaml.safe_dump(nested(setting.key, text.split(","))))
    assert at(written, setting.key) == value
    assert at(resolve({setting.key: Given(value, "--flag")})[0], setting.key) == value
    assert setting.flags[0].startswith("--")
    assert setting.variable == "KVCORE_SERVE_" + setting.flags[0][2:].upper().replace("-", "_")
    assert setting.help.endswith(".")


def test_flags_and_variables_are_unique():
    flags = [flag for setting in SETTINGS for flag in setting.flags]
    assert len(set(flags)) == len(flags)
    assert len({setting.variable for setting in SETTINGS}) == len(SETTINGS)


def test_the_first_source_decides_and_says_where_from():
    flag, environment, file = (
        {"listen.port": Given(port, place)} for port, place in ((1, "--port"), (2, "KVCORE_SERVE_PORT"), (3, "f:1:1")))
    for sources, port, place in (
        ((flag, environment, file), 1, "--port"), (({}, environment, file), 2, "KVCORE_SERVE_PORT"),
        (({}, {}, file), 3, "f:1:1"),
    ):
        config, places = resolve(*sources)
        assert (config.listen.port, places) == (port, {"listen.port": place})
    assert resolve({}, {}, {}) == (GatewayConfig(), {})


def test_a_dump_reads_back_as_the_same():
    config = from_text("""
policy: p.yaml
models: [a, b]
listen: {port: 9000}
admin: {port: none}
workers:
  - http://127.0.0.1:8101
  - url: http://[::1]:8102/
    max_requests: 4
    taints: [gpu-a, gpu-b]
    kv_events: tcp://127.0.0.1:5557
hints:
  classes:
    premium: {strict_priority_max: 3, deadline_max_s: 5}
    bulk:
scheduler: {capacity: strict, booking_ttl_s: none}
""")
    assert config.workers[1].url == "http://[::1]:8102"
    assert config.admin == Admin("127.0.0.1", None)
    assert config.hints.classes == {"premium": HintCaps(strict_priority_max=3, deadline_max_s=5.0), "bulk": HintCaps()}
    assert from_text(yaml.safe_dump(dump(config))) == config
    assert from_text(yaml.safe_dump(dump(GatewayConfig()))) == GatewayConfig()


def test_a_dump_holds_every_field():
    def keys(value, prefix=""):
        for name, part in value.items():
            yield from keys(part, f"{prefix}{name}.") if isinstance(part, dict) and part else [prefix + name]

    assert set(keys(dump(GatewayConfig()))) == {setting.key for setting in SETTINGS} | {"workers", "hints.classes"}


@pytest.mark.parametrize(("text", "message"), [
    ("listen: {prot: 1}", "g.yaml:1:10: listen.prot: unknown key, did you mean port?"),
    ("nothing_like_it: 1", "g.yaml:1:1: nothing_like_it: unknown key; known are policy, "),
    ("listen:\n  port: x", "g.yaml:2:3: listen.port: must be a port 0..65535, not 'x'"),
    ("listen:\n  port: 70000", "g.yaml:2:3: listen.port: must be a port 0..65535, not '70000'"),
    ("listen:\n  port: [1]", "g.yaml:2:3: listen.port: must be PORT, not a list"),
    ("listen: {port: 1, port: 2}", "g.yaml:1:19: listen.port: duplicate key, first on line 1"),
    ("listen: 3", "g.yaml:1:9: listen: must be a mapping, not '3'"),
    ("- 3", "g.yaml:1:1: must be a mapping, not a list"),
    ("[1]: 3", "g.yaml:1:1: a key must be text, not a list"),
    ("workers: [ftp://x]", "g.yaml:1:11: workers[0]: must be http://HOST:PORT"),
    ("workers: [{dp_size: 2}]", "g.yaml:1:11: workers[0]: url is required"),
    ("workers: {url: http://a}", "g.yaml:1:1: workers: must be a list, not a mapping"),
    ("workers: [http://a:1, {url: 'http://a:1/'}]", "g.yaml:1:1: workers: http://a:1 is given twice"),
    ("workers: [{url: http://a, max_requests: 0}]", "g.yaml:1:27: workers[0].max_requests: must be a whole number 1.."),
    ("admin: {host: 0.0.0.0}", "g.yaml:1:9: admin.host: must be a loopback address, not '0.0.0.0'"),
    ("admin: {port: 8000}", "g.yaml:1:9: admin.port: must not be the public port"),
    ("listen: {port: 8001}", "default: admin.port: must not be the public port"),
    ("overload_status: 503", "g.yaml:1:1: overload_status: must be 429 or 529"),
    ("hints: {classes: {a: {priority_max: x}}}", "g.yaml:1:23: hints.classes.a.priority_max: must be a number"),
    ("hints: {classes: {a: {nope: x}}}", "g.yaml:1:23: hints.classes.a.nope: unknown key"),
    ("models: [{a: 1}]", "g.yaml:1:1: models: must be a list of texts without commas"),
    ("timeouts: {idle_s: 0}", "g.yaml:1:12: timeouts.idle_s: must be a number 0.001..1e+06, not '0'"),
    ("timeouts: {idle_s: .inf}", "g.yaml:1:12: timeouts.idle_s: must be a number"),
    ("timeouts: {idle_s: nan}", "g.yaml:1:12: timeouts.idle_s: must be a number"),
    ("limits: {body_bytes: 1_000}", "g.yaml:1:10: limits.body_bytes: must be a whole number"),
    ("limits: {body_bytes: 10, body_bytes_total: 9}",
     "g.yaml:1:26: limits.body_bytes_total: must not be less than limits.body_bytes, 10"),
    ("limits: {body_bytes: 0x10}", "g.yaml:1:10: limits.body_bytes: must be a whole number"),
    ("hints: {pins: maybe}", "g.yaml:1:9: hints.pins: must be true or false, not 'maybe'"),
    ("a: [", "g.yaml:1:5: not valid YAML"),
    ("a: b: c", "g.yaml:1:5: not valid YAML"),
    ("a: \x00", "g.yaml: not valid YAML"),
    ("a: 1\n---\nb: 1", "g.yaml:2:1: not valid YAML"),
    ("x: &a [*a]", "g.yaml:1:1: x: unknown key"),
    ("[" * 500, "g.yaml:1:33: not valid YAML: nested deeper than 32 levels"),
    ("{a: " * 5000, "g.yaml:1:126: not valid YAML: nested deeper than 32 levels"),
    ("- " * 5000, "g.yaml:1:65: not valid YAML: nested deeper than 32 levels"),
    ("#" + "x" * (1 << 20), "g.yaml: longer than 1048576 characters"),
])
def test_refusals_name_their_place(text, message):
    assert refusal(text).startswith(message), refusal(text)


def test_sections_may_be_left_empty():
    assert from_text("listen:\nworkers:\nhints:\n  classes: {}\n") == GatewayConfig()


def test_nothing_is_written_in_many_ways():
    for word in NOTHING:
        assert from_text(f"scheduler: {{booking_ttl_s: {word}}}").scheduler.booking_ttl_s is None


def test_a_worker_as_text():
    spec = UpstreamSpec.of_text("http://h:81,max-requests=4,taints=a+b,kv-events=tcp://h:5557,kv_bind=yes")
    assert spec == UpstreamSpec(
        "http://h:81", max_requests=4, taints=("a", "b"), kv_events="tcp://h:5557", kv_bind=True)
    assert spec.address == ("h", 81)
    assert spec.worker(7) == WorkerConfig(7, max_requests=4, taints=frozenset({"a", "b"}))
    assert UpstreamSpec.of_text("http://[::1]").address == ("::1", 80)


@pytest.mark.parametrize("text", [
    "", "h:80", "ftp://h",
    "http://", "http://h:0", "http://h:99999", "http://h/v1", "http://u:p@h", "http://h?x=1",
    "http://h#f", "http://h a", "http://h\r\nx: y", "http://h:80,max_requests", "http://h,nope=1", "http://h,dp_size=0",
    "http://h,dp_size=1,dp-size=2", "http://h,url=http://g", "http://-", "http://.", "http://a..b",
])
def test_what_is_no_worker_is_refused(text):
    if text == "http://-":  # a strange name, and a name
        assert UpstreamSpec.of_text(text).address == ("-", 80)
        return
    with pytest.raises(ValueError, match=r"."):
        UpstreamSpec.of_text(text)


@pytest.mark.parametrize(("host", "is_local"), [
    ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
    ("10.0.0.1", False), ("localhost.example.org", False), ("", False), ("::ffff:127.0.0.1", False),
])
def test_loopback(host, is_local):
    import sys

    if host == "::ffff:127.0.0.1" and sys.version_info >= (3, 13):
        is_local = True  # a mapped address is what it maps to, as newer Pythons have it
    assert is_loopback(host) is is_local


def test_the_schedulers_configuration_is_what_was_configured():
    assert GatewayConfig().scheduler_config == SchedulerConfig(
        index=IndexMode.APPROXIMATE, on_overload=OnOverload.WAIT, booking_ttl_ns=900 * 10**9, decisions_kept=256)
    config = from_text("""
scheduler: {block_size: 32, capacity: strict, pin_grace_s: 1.5, overload_wait_s: 2, seed: 7, attempts_max: 2}
weights: {temperature: 0.5, overlap_score_credit: 2}
""").scheduler_config
    assert (config.block_size, config.capacity, config.pin_grace_ns) == (32, Capacity.STRICT, 1_500_000_000)
    assert (config.overload_wait_ns, config.seed, config.attempts_max) == (2 * 10**9, 7, 2)
    assert (config.weights.temperature, config.weights.overlap_score_credit) == (0.5, 2.0)


@pytest.mark.parametrize(("index", "events", "mode"), [
    ("auto", (), IndexMode.APPROXIMATE),
    ("auto", (None, None), IndexMode.APPROXIMATE),
    ("auto", ("tcp://h:1", "tcp://h:2"), IndexMode.EVENTS),
    ("auto", ("tcp://h:1", None), IndexMode.EVENTS),
    ("events", (None,), IndexMode.EVENTS),
    ("off", ("tcp://h:1",), IndexMode.OFF),
    ("approximate", ("tcp://h:1",), IndexMode.APPROXIMATE),
])
def test_where_caches_are_known_from(index, events, mode):
    workers = tuple([UpstreamSpec(f"http://h:{port}", kv_events=where) for port, where in enumerate(events, 1)])
    config = GatewayConfig(workers=workers, scheduler=SchedulerSettings(index=Index(index))).scheduler_config
    assert config.index is mode


def test_every_field_is_a_setting_or_a_section():
    """A field without a flag could be set by a file only."""
    plain = [item.name for item in fields(GatewayConfig) if not item.metadata and item.default is not None]
    assert set(plain) == {"listen", "admin", "limits", "timeouts", "hints", "tokenizer", "scheduler", "weights"}
    assert TokenizerSettings().source is PromptSource.AUTO
    assert GatewayConfig().log_level is LogLevel.INFO
