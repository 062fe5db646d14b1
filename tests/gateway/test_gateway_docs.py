"""docs/gateway.md and examples/gateway.yaml tell the truth: flags, headers, keys, paths and statuses in them exist."""

from __future__ import annotations

import re

import pytest
from kvcore.drivers.cli import cli
from kvcore.drivers.gateway import admin, echo, hints
from kvcore.drivers.gateway.config import SETTINGS, GatewayConfig, resolve
from kvcore.drivers.gateway.config_file import read_file
from kvcore.drivers.gateway.errors import TABLE
from kvcore.drivers.gateway.upstreams import UpstreamSpec
from tree import ROOT

from kvcore.policy import Capacity
from kvcore.policy_file import load_policy

PAGE = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
EXAMPLE = (ROOT / "examples" / "gateway.yaml").read_text(encoding="utf-8")
ROWS = [row for rows in TABLE.values() for row in rows.values()]
FLAGS = {flag for setting in SETTINGS for flag in setting.flags} | {"--config", "--worker", "--dump-config", "--help"}


def test_flags_exist():
    #: Those of engines and of other commands.
    others = {"--max-num-seqs", "--kv-events-config", "--silent", "--retry", "--retry-connrefused", "--retry-delay",
              "--retry-all-errors"}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert named - FLAGS - others - {"--port"} == set()
    assert {f"--{option}" for option in ("worker", "policy", "tokenizer")} <= named


def test_headers_are_those_that_are_read_and_written():
    named = set(re.findall(r"`(x-[a-z0-9-]+)", PAGE)) - {"x-should-retry"}
    known = {name.decode() for name in hints.NAMES | echo.NAMES}
    assert named - known == set()
    old = {"x-gateway-inference-objective", "x-gateway-inference-fairness-id"}
    own = {"x-should-retry", "retry-after", "retry-after-ms"}
    assert known - named - old - own == set(), "not in the page"


def test_every_admin_path_of_the_page_is_one_and_every_one_is_in_the_page():
    told = set(re.findall(r"`(GET|POST|DELETE) (/admin/[\w/]+)", PAGE)) | set(
        re.findall(r"(GET|POST|DELETE) (/admin/[\w/]+)`", PAGE))
    listed = {(method, path) for line in str(admin.__doc__).splitlines() if line.startswith("    ")
              for method, rest in [line.split(None, 1)] for path in re.findall(r"/admin/[\w/]+", rest)}
    assert told == listed
    assert len(listed) == 13


def test_statuses_and_codes_exist():
    statuses = {int(text) for row in re.findall(r"^\| ([\d, ]{3,}) ", PAGE, re.MULTILINE) for text in row.split(",")}
    assert statuses == {row.status for row in ROWS} - {403, 409, 499, 500} | {529}
    assert "`admission_refused`" in PAGE
    assert "admission_refused" in {row.code for row in ROWS}


def test_settings_named_by_their_key_exist():
    keys = {setting.key for setting in SETTINGS} | {"hints.classes"}
    sections = "|".join(sorted({key.partition(".")[0] for key in keys}))
    named = set(re.findall(rf"`((?:{sections})\.\w+)`", PAGE))
    assert named - keys == set()
    assert named


def test_links_of_the_page_exist():
    linked = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert [path for path in linked if not (ROOT / "docs" / path).exists()] == []
    assert linked


@pytest.mark.parametrize("command", sorted(set(re.findall(r"kvcore (\w[\w-]+)", PAGE + EXAMPLE))))
def test_commands_exist(command):
    assert command in cli.commands


def test_the_example_is_a_configuration_and_its_policy_fits():
    config, _ = resolve(read_file(EXAMPLE, "examples/gateway.yaml", GatewayConfig))
    assert config.scheduler.capacity is Capacity.STRICT
    assert [item.max_requests for item in config.workers] == [64, 64]
    assert config.policy is not None
    profile = load_policy((ROOT / config.policy).read_text(encoding="utf-8")).root
    assert set(config.hints.classes) <= hints.names_of(profile)


def test_workers_of_the_page_are_workers():
    for text in re.findall(r"--worker (http\S+)", PAGE + (ROOT / "README.md").read_text(encoding="utf-8")):
        assert UpstreamSpec.of_text(text).max_requests == 64
