"""SchedulerConfig: defaults, the profile in force, and what no scheduler can run."""

from __future__ import annotations

import dataclasses
import math

import pytest

from kvcore.config import IndexMode, OnOverload, PrefillDecay, Role, SchedulerConfig
from kvcore.errors import InvalidConfig, InvalidPolicy, KvcoreError
from kvcore.policy import AdmissionSpec, CacheBucket, Capacity, PolicyClass, PolicyProfile, QueuePolicy
from kvcore.request import SelectionWeights
from kvcore.scheduler import Scheduler

PROFILE = PolicyProfile((PolicyClass("cell", 7, policy_family="f", cache_bucket="b"), PolicyClass("vip", 9)),
                        (CacheBucket("b", 0),), "f")


def test_defaults():
    config = SchedulerConfig()
    assert dataclasses.asdict(config) == {
        "block_size": 16, "profile": None, "default_queue_policy": QueuePolicy.FCFS,
        "default_busy_threshold_frac": None, "booking_ttl_ns": None, "index": IndexMode.EVENTS, "seed": 0,
        "weights": dataclasses.asdict(SelectionWeights()), "role": Role.PREFILL, "on_overload": OnOverload.REJECT,
        "overload_wait_ns": 30 * 10**9, "prefill_decay": PrefillDecay.NONE, "predict_ttl_ns": None,
        "reported_load_ttl_ns": None, "capacity": None, "attempts_max": 8, "refresh_after_ns": None,
        "refresh_timeout_ns": 10**9, "pin_grace_ns": 0, "empty_fleet_wait_ns": 0, "decisions_kept": 0, "replica": None,
        "replica_generation": 0}
    assert Scheduler().config == Scheduler(None).config == config


def test_without_a_profile_one_class_takes_all():
    (only,) = SchedulerConfig().effective_profile().classes
    assert only == PolicyClass("default", 1)
    config = SchedulerConfig(default_queue_policy=QueuePolicy.LCFS, default_busy_threshold_frac=0.5)
    assert config.effective_profile().classes == (
        PolicyClass("default", 1, QueuePolicy.LCFS, prefill_busy_threshold_frac=0.5),)


def test_a_profile_is_taken_as_it_is():
    config = SchedulerConfig(profile=PROFILE, default_queue_policy=QueuePolicy.WSPT, default_busy_threshold_frac=3.0)
    assert config.effective_profile() is PROFILE
    assert [row.name for row in Scheduler(config).stats().classes] == ["cell", "vip"]


def test_a_configuration_is_immutable():
    config = SchedulerConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1
    with pytest.raises(AttributeError):
        Scheduler(config).config = config


@pytest.mark.parametrize(
    "keys",
    [
        {"block_size": 1}, {"block_size": 2**31 - 1}, {"seed": 2**64 - 1}, {"booking_ttl_ns": 1},
        {"decisions_kept": 2**20},
        {"booking_ttl_ns": 2**62 - 1}, {"default_busy_threshold_frac": 0.0}, {"default_busy_threshold_frac": -0.0},
        {"default_busy_threshold_frac": math.inf}, {"index": IndexMode.OFF}, {"profile": PROFILE},
    ],
)
def test_what_a_scheduler_can_run(keys):
    config = SchedulerConfig(**keys)
    assert Scheduler(config).config is config


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"block_size": 0}, "block_size must be 1..2^31-1, not 0"),
        ({"block_size": -16}, "block_size must be 1..2^31-1, not -16"),
        ({"block_size": 2**31}, "block_size must be 1..2^31-1, not 2147483648"),
        ({"seed": -1}, "seed must be 0..2^64-1, not -1"),
        ({"seed": 2**64}, "seed must be 0..2^64-1, not 18446744073709551616"),
        ({"booking_ttl_ns": 0}, "booking_ttl_ns must be 1..2^62-1 or None, not 0"),
        ({"booking_ttl_ns": 2**62}, "booking_ttl_ns must be 1..2^62-1 or None, not 4611686018427387904"),
        ({"default_busy_threshold_frac": -0.1}, "default_busy_threshold_frac must be >= 0, not -0.1"),
        ({"default_busy_threshold_frac": math.nan}, "default_busy_threshold_frac must be >= 0, not nan"),
        ({"default_busy_threshold_frac": -math.inf}, "default_busy_threshold_frac must be >= 0, not -inf"),
    ],
)
def test_numbers_out_of_range(keys, message):
    with pytest.raises(InvalidConfig) as caught:
        SchedulerConfig(**keys)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "keys",
    [
        {"block_size": 16.0}, {"block_size": True}, {"block_size": "16"}, {"block_size": None}, {"seed": 1.0},
        {"seed": False}, {"seed": None}, {"booking_ttl_ns": 1e9}, {"booking_ttl_ns": True}, {"booking_ttl_ns": "1"},
        {"default_busy_threshold_frac": True}, {"default_busy_threshold_frac": "0.5"}, {"index": "events"},
        {"index": None}, {"default_queue_policy": "fcfs"}, {"profile": "default"}, {"profile": PROFILE.classes},
    ],
    ids=str,
)
def test_values_of_another_type(keys):
    """C would take a float or a boolean for a number without a word."""
    (name,) = keys
    with pytest.raises(InvalidConfig, match=f"^{name} must be "):
        SchedulerConfig(**keys)


@pytest.mark.parametrize(
    "profile",
    [
        {"classes": ()}, {"classes": [PolicyClass("a", 1)]},
        {"classes": (PolicyClass("a", 1), PolicyClass("b", 1))}, {"classes": (PolicyClass("a", 0),)},
        {"classes": (PolicyClass("a", 2**53 + 1),)}, {"classes": (PolicyClass("a", 1.5),)},
        {"classes": (PolicyClass("a", True),)},
        {"classes": (PolicyClass("a", 1, prefill_busy_threshold_frac=math.nan),)},
        {"classes": (PolicyClass("a", 1, prefill_busy_threshold_frac=-0.5),)},
        {"classes": (PolicyClass("a", 1, request_queue_limit_per_worker=-5),)},
        {"classes": (PolicyClass("a", 1, prefill_busy_threshold=0.5),)},
        {"classes": (PolicyClass("a", 1, policy_family="f"),)},
        {"classes": PROFILE.classes, "buckets": (CacheBucket("b", 1),), "default_policy_family": "f"},
        {"classes": PROFILE.classes, "buckets": (CacheBucket("z", 0),), "default_policy_family": "f"},
        {"classes": PROFILE.classes, "buckets": PROFILE.buckets, "default_policy_family": "g"},
        {"classes": PROFILE.classes, "buckets": PROFILE.buckets},
    ],
    ids=str,
)
def test_a_profile_built_by_hand_is_checked(profile):
    """Whatever reaches the core can be divided by, indexed with and compared."""
    with pytest.raises(InvalidPolicy):
        PolicyProfile(**profile)


def test_an_admission_policy_that_nobody_knows_is_refused_with_the_class():
    classes = (*PROFILE.classes, PolicyClass("b", 1, admission=AdmissionSpec("x")))
    with pytest.raises(InvalidPolicy, match="class \"b\": admission: unknown type 'x'"):
        Scheduler(SchedulerConfig(profile=dataclasses.replace(PROFILE, classes=classes)))


def test_capacity_given_with_the_configuration_wins():
    strict = dataclasses.replace(PROFILE, capacity=Capacity.STRICT)
    for profile in (None, PROFILE, strict):
        for capacity in Capacity:
            assert SchedulerConfig(profile=profile, capacity=capacity).effective_profile().capacity is capacity
    assert SchedulerConfig(profile=strict).effective_profile() is strict
    assert SchedulerConfig().effective_profile().capacity is Capacity.ADVISORY


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weights": SelectionWeights(overlap_score_credit=-0.1)},
         "weights: overlap_score_credit must be finite and >= 0, not -0.1"),
        ({"weights": SelectionWeights(active_request_weight=NAN)},
         "weights: active_request_weight must be finite and >= 0, not nan"),
        ({"weights": SelectionWeights(temperature=INF)}, "weights: temperature must be finite and >= 0, not inf"),
        ({"weights": SelectionWeights(host_cache_hit_weight=1.1)},
         "weights: host_cache_hit_weight must be 0..1, not 1.1"),
        ({"weights": SelectionWeights(shared_cache_multiplier=1.1)},
         "weights: shared_cache_multiplier must be 0..1, not 1.1"),
        ({"weights": None}, "weights must be a SelectionWeights, not None"),
        ({"role": "decode"}, "role must be one of Role.PREFILL, Role.DECODE, not 'decode'"),
        ({"on_overload": None}, "on_overload must be one of OnOverload.REJECT, OnOverload.WAIT, not None"),
        ({"overload_wait_ns": 0}, "overload_wait_ns must be 1..2^62-1, not 0"),
        ({"overload_wait_ns": 1.0}, "overload_wait_ns must be 1..2^62-1, not 1.0"),
        ({"predict_ttl_ns": 0}, "predict_ttl_ns must be 1..2^62-1 or None, not 0"),
        ({"reported_load_ttl_ns": 2**62}, "reported_load_ttl_ns must be 1..2^62-1 or None, not 4611686018427387904"),
        ({"prefill_decay": True}, "prefill_decay must be one of PrefillDecay.NONE, PrefillDecay.LINEAR, not True"),
        ({"decisions_kept": -1}, "decisions_kept must be 0..2^20, not -1"),
        ({"decisions_kept": 2**20 + 1}, "decisions_kept must be 0..2^20, not 1048577"),
        ({"decisions_kept": True}, "decisions_kept must be 0..2^20, not True"),
        ({"attempts_max": 0}, "attempts_max must be 1..2^31-1, not 0"),
        ({"attempts_max": True}, "attempts_max must be 1..2^31-1, not True"),
        ({"capacity": "strict"}, "capacity must be None or one of Capacity.ADVISORY, Capacity.STRICT, not 'strict'"),
    ],
)
def test_capacity_and_selection_are_checked(fields, message):
    """Credits above 1 are allowed; tier weights and the shared multiplier are shares."""
    SchedulerConfig(weights=SelectionWeights(overlap_score_credit=1.5, prefill_load_scale=0.0))
    with pytest.raises(InvalidConfig) as caught:
        SchedulerConfig(**fields)
    assert str(caught.value) == message


def test_a_wrong_configuration_is_a_value_error_of_ours():
    assert issubclass(InvalidConfig, KvcoreError)
    assert issubclass(InvalidConfig, ValueError)


@pytest.mark.parametrize("config", [1, "fcfs", PROFILE, {}, SchedulerConfig])
def test_anything_else_is_no_configuration(config):
    with pytest.raises(TypeError, match="config must be a SchedulerConfig, not"):
        Scheduler(config)
