"""The keys of a policy file as Markdown, from the tables by which kvcore reads one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import Enum

from kvcore import _policy_keys as keys
from kvcore.admission import BUILT_IN
from kvcore.policy import PolicyClass, PolicyProfile

_HEAD = ["| key | meaning | may be | if absent |", "| --- | --- | --- | --- |"]


def _defaults(kind: type) -> dict[str, object]:
    """Defaults of a value by field; field names are keys."""
    return {item.name: item.default for item in fields(kind) if item.default is not MISSING}


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _absent(name: str, key: keys.Key, defaults: Mapping[str, object]) -> str:
    if key.is_required:
        return "**required**"
    return _shown(defaults[name]) if name in defaults else "none"


def _table(known: Mapping[str, keys.Key], defaults: Mapping[str, object]) -> str:
    rows = [
        f"| `{name}` | {key.about} | {key.kind} | {_absent(name, key, defaults)} |" for name, key in known.items()]
    return "\n".join([*_HEAD, *rows])


def _parameters(name: str) -> str:
    rows = []
    for key, item in BUILT_IN[name].PARAMETERS.items():
        absent = "**required**" if item.is_required else "none"
        rows.append(f"| `{key}` | {item.about} | whole number, {item.least} to 2^53 | {absent} |")
    return "\n".join([f"#### `{name}`", "", *_HEAD, *rows])


def page() -> str:
    """Every key, mapping by mapping."""
    root = {**keys.PROFILE, "models": keys.MODELS, **keys.IGNORED}
    return "\n\n".join([
        "## At the top", _table(root, _defaults(PolicyProfile)),
        "The first three come together or not at all: a file may have `models` alone. A model's profile needs all.",
        "## A bucket", "Each item of `uncached_isl_buckets`.", _table(keys.BUCKET, {}),
        "## A class", "Each item of `policy_classes`.", _table(keys.CLASS, _defaults(PolicyClass)),
        "### An admission policy", "What stands under `admission`.", _table(keys.ADMISSION, {}),
        "Built in are:", *[_parameters(name) for name in sorted(BUILT_IN)],
        "## Selection of workers", "What stands under `worker_selection`.", _table(keys.SELECTION, {}),
        "### An instance", "Each item of `instances`.", _table(keys.INSTANCE, {}),
    ])
