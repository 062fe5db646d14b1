"""Policy files as text, for the tests of the loader and of what stands on it."""

from __future__ import annotations

import re

import pytest

from kvcore.errors import InvalidPolicy
from kvcore.policy import PolicyClass
from kvcore.policy_file import load_policy

TWO_53 = 2**53

# The class of `policy()` begins on line 5; its keys follow, one a line.
HEAD = """\
default_policy_family: f
uncached_isl_buckets:
  - {min_tokens: 0, bucket: b}
policy_classes:
"""


def policy(name: str = "c", quantum: str = "1", **keys: str) -> str:
    """A valid policy of one class, with more keys of that class written as given."""
    keys = {"policy_family": "f", "cache_bucket": "b"} | keys
    lines = [f"  - name: {name}", f"    quantum: {quantum}"] + [f"    {key}: {value}" for key, value in keys.items()]
    return HEAD + "\n".join(lines) + "\n"


def only_class(text: str) -> PolicyClass:
    """The last class of the root profile."""
    profile = load_policy(text).root
    assert profile is not None
    return profile.classes[-1]


def refused(text: str) -> InvalidPolicy:
    """The error that the text meets, checked for its form."""
    with pytest.raises(InvalidPolicy) as caught:
        load_policy(text, "p.yaml")
    error = caught.value
    assert error.source == "p.yaml"
    assert str(error).startswith("p.yaml")
    assert str(error).isprintable()
    assert error.line is None or 1 <= error.line <= len(re.findall("\r\n|[\r\n\x85\u2028\u2029]", text)) + 1
    return error


def indent(text: str, by: int) -> str:
    """The text, every line further to the right."""
    return "".join([" " * by + line + "\n" for line in text.splitlines()])


def cell(name: str, family: str, bucket: str) -> str:
    """One class of a matrix, on one line."""
    return f"  - {{name: {name}, quantum: 1, policy_family: {family}, cache_bucket: {bucket}}}\n"


EXPLICIT = "  - {name: %s, quantum: 1}\n"
MODEL_AND_ROOT = """\
models:
  replaced:
    default_policy_family: standard
    uncached_isl_buckets:
      - {min_tokens: 0, bucket: cached}
      - {min_tokens: 64, bucket: uncached}
    policy_classes:
      - {name: near, policy_family: standard, cache_bucket: cached, quantum: 1}
      - {name: far, policy_family: standard, cache_bucket: uncached, quantum: 1, prefill_busy_threshold_frac: 0.0}
default_policy_family: standard
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: root_class, policy_family: standard, cache_bucket: all, quantum: 1, prefill_busy_threshold: 100}
"""

SAMPLE_CLASSES = [("premium", "cached"), ("premium", "uncached"), ("standard", "cached"), ("standard", "uncached")]
SAMPLE = (
    "default_policy_family: standard\n"
    "uncached_isl_buckets: [{min_tokens: 0, bucket: cached}, {min_tokens: 3072, bucket: uncached}]\n"
    "policy_classes:\n"
    + "".join(cell(f"{family}_{bucket}", family, bucket) for family, bucket in SAMPLE_CLASSES)
)

#: Two classes, three to one, each busy as soon as anything is under way.
THREE_TO_ONE = """
default_policy_family: regular
uncached_isl_buckets:
  - {min_tokens: 0, bucket: all}
policy_classes:
  - {name: premium, policy_family: premium, cache_bucket: all, quantum: 300, prefill_busy_threshold: 0}
  - {name: regular, policy_family: regular, cache_bucket: all, quantum: 100, prefill_busy_threshold: 0}
"""
