"""Hypothesis profiles: `dev` is quick and random, `ci` is deeper and repeats itself, `deep` is for a night.

HYPOTHESIS_PROFILE chooses; without it, `ci` under CI and `dev` elsewhere.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
}
settings.register_profile("dev", max_examples=100, **COMMON)
settings.register_profile("ci", max_examples=1_000, derandomize=True, **COMMON)
settings.register_profile("deep", max_examples=20_000, **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))
