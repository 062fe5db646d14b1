"""What the loader builds: model profiles, our own keys, aliases; the reference's scenarios (6.3); describe."""

from __future__ import annotations

from pathlib import Path

import pytest
from policy_texts import EXPLICIT, HEAD, MODEL_AND_ROOT, SAMPLE, TWO_53, indent, only_class, policy, refused

from kvcore.admission import SessionConcurrency
from kvcore.config import SchedulerConfig
from kvcore.errors import InvalidPolicy
from kvcore.policy import (
    AdmissionSpec,
    Arbitration,
    CacheBucket,
    PolicyClass,
    PolicyProfile,
    QueuePolicy,
    synthetic_profile,
)
from kvcore.policy_file import PolicyDocument, check_admission, describe, load_policy

EXAMPLES = Path(__file__).parents[2] / "examples" / "policies"


# Model profiles, and our keys.


def test_model_names_are_any_text_and_match_exactly() -> None:
    names = ["123", "null", "~", "a/b c", "on", "模型", "\U0001f600"]
    document = load_policy("models:\n" + "".join(f"  {name}:\n" + indent(policy(name=f"c{i}"), 4)
                                                 for i, name in enumerate(names)))
    assert list(document.models) == names
    found = [document.profile_for(name) for name in names]
    assert [profile and profile.classes[0].name for profile in found] == [f"c{i}" for i in range(7)]
    assert document.profile_for("A/b c") is document.profile_for("") is document.profile_for() is None


def test_profile_for_prefers_the_model_then_the_root() -> None:
    document = load_policy(policy() + "models:\n  m:\n" + indent(policy(name="d"), 4))
    assert document.root is not None
    assert document.profile_for() is document.profile_for("M") is document.profile_for("") is document.root
    assert document.profile_for("m") is document.models["m"]
    assert document.models["m"].classes == (PolicyClass("d", 1, QueuePolicy.FCFS, "f", "b"),)


@pytest.mark.parametrize(
    ("top", "own", "root", "model"),
    [
        ("", "", ("exact", "advisory"), ("exact", "advisory")),
        ("arbitration: reference\n", "", ("reference", "advisory"), ("reference", "advisory")),
        ("capacity: strict\n", "arbitration: reference\n", ("exact", "strict"), ("reference", "strict")),
        ("arbitration: reference\ncapacity: strict\n", "arbitration: exact\ncapacity: advisory\n",
         ("reference", "strict"), ("exact", "advisory")),
        ("arbitration: ~\ncapacity: null\n", "arbitration:\n", ("exact", "advisory"), ("exact", "advisory")),
    ],
)
def test_arbitration_and_capacity(top: str, own: str, root: tuple[str, str], model: tuple[str, str]) -> None:
    document = load_policy(top + policy() + "models:\n  m:\n" + indent(policy() + own, 4))
    assert document.root is not None
    profiles = [document.root, document.models["m"]]
    assert [(item.arbitration.value, item.capacity.value) for item in profiles] == [root, model]


def test_top_level_values_hold_for_models_without_a_root() -> None:
    document = load_policy("arbitration: reference\nmodels:\n  m:\n" + indent(policy(), 4))
    assert document.root is None
    assert document.models["m"].arbitration is Arbitration.REFERENCE


@pytest.mark.parametrize("key", ["arbitration: exact", "capacity: advisory"])
def test_arbitration_and_capacity_need_a_profile(key: str) -> None:
    error = refused(f"router: {{a: b}}\n{key}\n")
    assert (error.key, error.line) == (key.split(":")[0], 2)
    assert error.reason == "no profile in this file to which it could apply"


def test_admission_is_kept() -> None:
    written = """
      type: budget-1
      parameters:
        text: [on, "1", 'null', 010, 1_000, 1:30, "", 2001-01-01]
        none: [null, ~, ]
        nothing:
        flags: [true, False]
        numbers: [0, +1, -1, -0x10, 0o10, 0b11, 9007199254740992, -9007199254740992]
        floats: [1.5, -.5, 1e3, 5.]
        nested: {1: {a: []}, null: {}}"""
    loaded = only_class(policy(admission=written)).admission
    assert loaded == AdmissionSpec("budget-1", {
        "text": ["on", "1", "null", "010", "1_000", "1:30", "", "2001-01-01"],
        "none": [None, None],
        "nothing": None,
        "flags": [True, False],
        "numbers": [0, 1, -1, -16, 8, 3, TWO_53, -TWO_53],
        "floats": [1.5, -0.5, 1000.0, 5.0],
        "nested": {"1": {"a": []}, "null": {}},
    })
    assert loaded is not None
    assert [type(item) for item in loaded.parameters["floats"]] == [float] * 4  # type: ignore[attr-defined]


@pytest.mark.parametrize("written", ["{type: t}", "{type: t, parameters: {}}", "{type: t, parameters: null}"])
def test_admission_without_parameters(written: str) -> None:
    assert only_class(policy(admission=written)).admission == AdmissionSpec("t", {})


@pytest.mark.parametrize("written", ["null", "~", ""])
def test_no_admission(written: str) -> None:
    assert only_class(policy(admission=written)).admission is None


@pytest.mark.parametrize(
    ("written", "part", "key", "reason"),
    [
        ("budget", "", "admission", "must be a mapping, not budget"),
        ("{}", ", admission", "type", "is required"),
        ("{type: ~}", ", admission", "type", "A-Z"),
        ("{type: t, parameters: []}", ", admission", "parameters", "must be a mapping, not a list"),
        ("{type: t, parameters: {a: {b: 1, b: 2}}}", ", admission, parameters", "b", "duplicate key"),
        ("{type: t, parameters: {a: {<<: 1}}}", ", admission, parameters", "<<", "merge keys"),
        ("{type: t, parameters: {a: [.nan]}}", ", admission, parameters", "a", "must be finite, not .nan"),
        ("{type: t, parameters: {a: -.inf}}", ", admission, parameters", "a", "must be finite, not -.inf"),
        ("{type: t, parameters: {a: 9007199254740993}}", ", admission, parameters", "a", "outside -2^53..2^53"),
        ("{type: t, parameters: {a: -%s}}" % ("9" * 5000), ", admission, parameters", "a", "outside -2^53..2^53"),
        ("{type: t, parameters: {a: !!int 1}}", None, None, "tags are not supported"),
    ],
)
def test_bad_admission(written: str, part: str | None, key: str | None, reason: str) -> None:
    error = refused(policy(admission=written))
    assert (error.location, error.key, error.line) == ("root" if part is None else f'root, class "c"{part}', key, 9)
    assert reason in error.reason


@pytest.mark.parametrize(
    ("written", "part", "key", "line"),
    [
        ("{type: mine}", "", "type", 9),
        ("\n      parameters: {}\n      type: session_concurrency", ", parameters", "max_running", 10),
        ("\n      type: session_concurrency\n      parameters: {max_running: 1,\n        b: 1}",
         ", parameters", "b", 12),
        ("\n      type: program_budget\n      parameters:\n        kv_token_budget: 1\n        max_programs: [1]",
         ", parameters", "max_programs", 13),
    ],
)
def test_admission_that_cannot_be_built(written: str, part: str, key: str, line: int) -> None:
    document = load_policy(policy() + "models:\n  m:\n" + indent(policy(admission=written), 4))
    with pytest.raises(InvalidPolicy) as caught:
        check_admission(document)
    assert (caught.value.location, caught.value.key) == (f'model "m", class "c", admission{part}', key)
    assert caught.value.line == line + policy().count("\n") + 2


def test_admission_of_a_type_that_is_given() -> None:
    document = load_policy(policy(admission="{type: mine, parameters: {max_running: 1}}"))
    check_admission(document, {"mine": SessionConcurrency})
    with pytest.raises(InvalidPolicy, match=r":9: .*, admission: type: unknown type 'mine'"):
        check_admission(load_policy(policy(admission="{type: mine}")))


@pytest.mark.parametrize("key", ["router", "request_classifier"])
@pytest.mark.parametrize("content", ["{}", "[1, {a: .nan}]", "text", "{type: t, parameters: 1}", "9999999999999999"])
def test_ignored_keys_are_named_and_not_looked_at(key: str, content: str) -> None:
    document = load_policy(f"{key}: {content}\n")
    assert document == PolicyDocument(None, {}, (key,))
    assert load_policy(f"{key}: {content}\n" + policy()).ignored_keys == (key,)
    assert load_policy(f"{key}: null\n" + policy()).ignored_keys == ()


SELECTION = """\
worker_selection:
  aggregated: default
  decode: near
  encode: ~
  instances:
    - {name: near, type: kv, parameters: {weight: 1.5, list: [1, on]}}
    - {name: far, type: kv}
"""


@pytest.mark.parametrize(
    "text",
    [SELECTION, "worker_selection: {aggregated: default}\n", "worker_selection: {instances: [{name: a, type: b}]}\n"],
)
def test_worker_selection_is_checked_and_not_used(text: str) -> None:
    assert load_policy(text) == PolicyDocument(ignored_keys=("worker_selection",))
    assert load_policy(text + policy()).ignored_keys == ("worker_selection",)
    assert load_policy("worker_selection: null\n" + policy()).ignored_keys == ()


@pytest.mark.parametrize(
    ("old", "new", "where", "key", "line", "reason"),
    [
        ("aggregated", "agregated", "", "agregated", 2, "unknown key, did you mean aggregated?"),
        ("decode: near", "decode: nera", "", "decode", 3, 'no instance is called "nera", did you mean near?'),
        ("decode: near", "decode: Default", "", "decode", 3, 'no instance is called "Default", did you mean default?'),
        ("decode: near", "decode: [near]", "", "decode", 3, "must be text, not a list"),
        ("encode: ~", "decode: far", "", "decode", 4, "duplicate key, first on line 3"),
        ("{name: far, type: kv}", "far", ", instance 2", None, 7, "must be a mapping, not far"),
        ("name: far, ", "", ", instance 2", "name", 7, "is required"),
        (", type: kv}", "}", ', instance "far"', "type", 7, "is required"),
        ("type: kv}", "type: kv, params: {}}", ', instance "far"', "params", 7, "unknown key, did you mean"),
        ("type: kv}", "type: k v}", ', instance "far"', "type", 7, "must be one or more of"),
        ("name: far", "name: f/r", ', instance "f/r"', "name", 7, "must be one or more of"),
        ("name: far", "name: near", ', instance "near"', "name", 7, "another instance has this name, on line 6"),
        ("name: far", "name: default", ', instance "default"', "name", 7, "default is reserved"),
        ("{weight: 1.5, list: [1, on]}", "[1]", ', instance "near"', "parameters", 6, "must be a mapping, not a list"),
        ("{weight: 1.5, list: [1, on]}", "~", ', instance "near"', "parameters", 6, "must be a mapping, not ~"),
        ("1.5, list", "1.5, weight", ', instance "near", parameters', "weight", 6, "duplicate key, first on line 6"),
    ],
)
def test_what_is_wrong_with_worker_selection(
    old: str, new: str, where: str, key: str | None, line: int, reason: str
) -> None:
    assert SELECTION.count(old) == 1
    error = refused(SELECTION.replace(old, new) + policy())
    assert (error.location, error.key, error.line) == ("root, worker_selection" + where, key, line)
    assert error.reason.startswith(reason)


@pytest.mark.parametrize("content", ["{}", "{instances: []}", "{decode: null}", "text", "[decode]"])
def test_an_empty_worker_selection(content: str) -> None:
    assert refused(policy() + f"worker_selection: {content}\n").line == 1 + policy().count("\n")


# Aliases: followed where they are harmless, refused quickly where they are not.


def test_aliases_are_followed() -> None:
    document = load_policy(
        "models:\n  a: &a\n" + indent(policy().replace("quantum: 1", "quantum: &q 0x10"), 4)
        + "  b: *a\n  *q : *a\n" + policy(quantum="*q", max_overtake_tokens="*q")
    )
    assert document.models["a"] == document.models["b"] == document.models["0x10"]
    assert document.root is not None
    assert (document.root.classes[0].quantum, document.root.classes[0].max_overtake_tokens) == (16, 16)


@pytest.mark.parametrize(
    "text",
    [
        "&a [*a]", "router: &a {b: *a}", "router: &a [[[*a]]]", "router: &a {*a : 1}", "&a {models: *a}",
        policy(admission="{type: t, parameters: &p {a: [*p]}}"), HEAD.strip() + " &c [*c]\n",
    ],
)
def test_an_alias_inside_itself(text: str) -> None:
    assert "an alias stands inside its own anchor" in refused(text).reason


def bomb(levels: int, width: int) -> str:
    """A small mapping that stands for width ** levels values."""
    lines = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * width)}]\n" for i in range(levels)]
    return "".join(lines)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("router:\n" + indent(bomb(40, 10), 2), "more than 50000 keys and values once"),
        (policy(admission="\n      type: t\n      parameters:\n" + indent(bomb(40, 10), 8)), "more than 50000 keys"),
        ("router:\n" + indent(bomb(200, 1), 2), "nested deeper than 64 levels once aliases"),
        ("router: " + "[" * 100_000, "nested deeper than 64 levels"),
        ("router: " + "{a: " * 100_000, "nested deeper than 64 levels"),
        ("- " * 100_000, "nested deeper than 64 levels"),
        ("router:\n  [" + "x, " * 60_000 + "]", "more than 50000 keys and values"),
        (" " * (1 << 20) + "x", "longer than 1048576 characters"),
    ],
)
def test_hostile_sizes(text: str, reason: str) -> None:
    assert refused(text).reason.startswith(reason)


def test_the_largest_text_loads() -> None:
    text = policy()
    assert load_policy(text + "#" * ((1 << 20) - len(text))).root is not None


# Scenarios of the reference (section 6.3).


def test_6_3_1_only_worker_selection() -> None:
    document = load_policy("worker_selection:\n  instances:\n    - {name: a, type: t, parameters: {x: 1}}\n")
    assert document == PolicyDocument(ignored_keys=("worker_selection",))
    config = SchedulerConfig(profile=document.profile_for("any"), default_queue_policy=QueuePolicy.WSPT)
    assert config.effective_profile() == synthetic_profile(QueuePolicy.WSPT, None)


def test_6_3_2_all_four_stages() -> None:
    stages = "".join(f"  {stage}: default\n" for stage in ("aggregated", "prefill", "decode", "encode"))
    assert load_policy("worker_selection:\n" + stages).ignored_keys == ("worker_selection",)


def test_6_3_4_a_model_profile_replaces_the_root() -> None:
    document = load_policy(MODEL_AND_ROOT)
    replaced, root = document.profile_for("replaced"), document.profile_for("other")
    assert replaced is not None
    assert root is not None
    near, far = replaced.classes
    assert replaced.resolve(None, 0) == 0
    assert (near.prefill_busy_threshold, near.prefill_busy_threshold_frac) == (None, None)
    assert (far.prefill_busy_threshold, far.prefill_busy_threshold_frac) == (None, 0.0)
    assert [replaced.resolve("nobody", tokens) for tokens in (63, 64)] == [0, 1]
    assert [item.prefill_busy_threshold for item in root.classes] == [100]


def test_6_3_5_models_only() -> None:
    document = load_policy("models:\n  m:\n" + indent(
        policy(prefill_busy_threshold="10", prefill_busy_threshold_frac="0.5"), 4))
    only = document.models["m"].classes[0]
    assert (only.prefill_busy_threshold, only.prefill_busy_threshold_frac) == (10, 0.5)
    config = SchedulerConfig(
        profile=document.profile_for("other"), default_queue_policy=QueuePolicy.WSPT, default_busy_threshold_frac=7.0
    )
    assert config.effective_profile().classes == (
        PolicyClass("default", 1, QueuePolicy.WSPT, prefill_busy_threshold_frac=7.0),
    )


def test_6_3_7_the_sample() -> None:
    document = load_policy(SAMPLE + EXPLICIT % "vip" + "models:\n  m:\n" + indent(SAMPLE, 4))
    assert document.root is not None
    assert len(document.root.classes) == 5
    resolve = document.root.resolve
    assert [resolve("premium", tokens) for tokens in (0, 3071, 3072, TWO_53)] == [0, 0, 1, 1]
    assert [resolve("standard", tokens) for tokens in (3071, 3072)] == [2, 3]
    assert [resolve(name, 3072) for name in (None, "", "unknown", "Premium")] == [3] * 4
    assert resolve("premium_cached", 3072) == 3  # the name of a matrix class is no way past the family
    assert [resolve("vip", tokens) for tokens in (0, 3072)] == [4, 4]
    assert [item.name for item in document.models["m"].classes] == [item.name for item in document.root.classes[:4]]
    assert document.models["m"].resolve("vip", 0) == 2


# Examples and describe.


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_load(path: Path) -> None:
    document = load_policy(path.read_text("utf-8"), str(path))
    SchedulerConfig(profile=document.profile_for())


def example_profile(name: str) -> PolicyProfile:
    """The root profile of an example file."""
    profile = load_policy((EXAMPLES / name).read_text("utf-8")).root
    assert profile is not None
    return profile


@pytest.mark.parametrize(("name", "premium", "regular"), [("premium.yaml", 512, 128), ("equal.yaml", 512, 512)])
def test_the_premium_examples(name: str, premium: int, regular: int) -> None:
    profile = example_profile(name)
    assert profile.default_policy_family == "regular"
    assert profile.buckets == (CacheBucket("all", 0),)
    assert [(item.name, item.policy_family, item.quantum) for item in profile.classes] == [
        ("premium", "premium", premium), ("regular", "regular", regular)]
    for item in profile.classes:
        assert item.queue_policy is QueuePolicy.FCFS
        assert (item.prefill_busy_threshold, item.request_queue_limit_per_worker) == (1536, 1024)


def test_the_cached_uncached_example() -> None:
    profile = example_profile("cached-uncached.yaml")
    assert profile.buckets == (CacheBucket("cached", 0), CacheBucket("uncached", 3072))
    assert [(item.name, item.queue_policy, item.quantum) for item in profile.classes] == [
        ("cached", QueuePolicy.WSPT, 2048), ("uncached", QueuePolicy.FCFS, 512)]
    assert [profile.resolve("standard", tokens) for tokens in (3071, 3072)] == [0, 1]


def test_describe_spells_every_default_out() -> None:
    profile = {
        "default_policy_family": "f",
        "uncached_isl_buckets": [{"bucket": "b", "min_tokens": 0}],
        "policy_classes": [{
            "name": "c", "policy_family": "f", "cache_bucket": "b", "queue_policy": "fcfs", "quantum": 1,
            "prefill_busy_threshold": None, "prefill_busy_threshold_frac": None,
            "request_queue_limit_per_worker": None, "raw_isl_token_queue_limit_per_worker": None,
            "cached_token_queue_limit_per_worker": None, "max_overtake_tokens": None, "admission": None,
        }],
        "arbitration": "exact",
        "capacity": "advisory",
    }
    assert describe(load_policy(policy())) == {**profile, "models": {}}
    assert describe(load_policy("models:\n  m:\n" + indent(policy(), 4))) == {
        **dict.fromkeys(profile), "models": {"m": profile}}


def test_describe_shares_nothing_with_the_document() -> None:
    document = load_policy(policy(admission="{type: t, parameters: {a: [1]}}"))
    describe(document)["policy_classes"][0]["admission"]["parameters"]["a"].append(2)
    assert describe(document)["policy_classes"][0]["admission"] == {"type": "t", "parameters": {"a": [1]}}
