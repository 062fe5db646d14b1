"""Hypothesis profiles, and a look at which kvcore is about to be tested.

Profiles: `dev` is quick and random, `ci` is deeper and repeats itself, `deep` is for a night. HYPOTHESIS_PROFILE
chooses; without it, `ci` under CI and `dev` elsewhere. Under CI `dev` repeats itself too: a gate must not roll dice.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
}
settings.register_profile("dev", max_examples=60, derandomize=bool(os.environ.get("CI")), **COMMON)
settings.register_profile("ci", max_examples=100, derandomize=True, **COMMON)
settings.register_profile("deep", max_examples=20_000, **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

SOURCES = Path(__file__).resolve().parent.parent / "kvcore"


def tested_folder() -> Path | None:
    """Folder that `import kvcore` would take, found without importing it."""
    spec = importlib.util.find_spec("kvcore")
    return None if spec is None or spec.origin is None else Path(spec.origin).resolve().parent


def is_installed_elsewhere() -> bool:
    """Whether a kvcore is installed that is not an editable one: then this tree must not stand in its way."""
    links = [
        json.loads(found.read_text("direct_url.json") or "{}")
        for found in importlib.metadata.distributions(name="kvcore") if found.read_text("RECORD") is not None
    ]
    return any(not link.get("dir_info", {}).get("editable", False) for link in links)


def why_untestable() -> str | None:
    """What is wrong with the kvcore that would be imported, or None."""
    folder = tested_folder()
    if folder is None:
        return "kvcore is not installed: run `pip install '.[test]'` first"
    if folder == SOURCES and is_installed_elsewhere():
        return (f"the source tree {folder} hides the installed kvcore: run plain `pytest` (not `python -m pytest`), "
                "and keep this tree out of PYTHONPATH")
    if not any((folder / f"scheduler{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
        return f"kvcore in {folder} is not compiled: run `pip install -e .` or `python setup.py build_ext --inplace`"
    return None


def pytest_configure() -> None:
    """Stop before any test is collected if the wrong kvcore would be tested.

    What belongs to this run alone is taken out of the environment, which processes started by tests inherit.
    """
    for name in ("PYTEST_ADDOPTS", *(name for name in os.environ if name.startswith("PYTEST_XDIST"))):
        os.environ.pop(name, None)
    if (fault := why_untestable()) is not None:
        raise pytest.UsageError(fault)


def pytest_report_header() -> str:
    """Say which build is tested, and whether it is older than its source."""
    folder = tested_folder()
    stale = [] if folder is None else [
        path.name for path in folder.glob("*.pyx") for suffix in EXTENSION_SUFFIXES
        if (built := path.with_name(path.stem + suffix)).exists() and built.stat().st_mtime < path.stat().st_mtime
    ]
    return f"kvcore: {folder}" + (f" (changed since it was built: {', '.join(sorted(stale))})" if stale else "")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their length: gzip data holds the time, and processes that share the tests must agree on names."""
    return f"{argname}{len(val)}" if isinstance(val, bytes) else None
