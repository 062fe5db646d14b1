"""The policy file loader: scalars, structure, rules and their order, and the place that each error names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from policy_texts import EXPLICIT, HEAD, TWO_53, cell, indent, only_class, policy, refused

from kvcore.policy import PolicyClass, QueuePolicy
from kvcore.policy_file import load_policy

# Scalars (section 1.3).


@pytest.mark.parametrize(
    ("written", "value"),
    [("1", 1), ("+1", 1), ("0x10", 16), ("0o10", 8), ("0b101", 5), ("+0x10", 16), (str(TWO_53), TWO_53),
     ("0x20000000000000", TWO_53)],
)
def test_whole_numbers(written: str, value: int) -> None:
    assert only_class(policy(quantum=written)).quantum == value


@pytest.mark.parametrize(
    "written",
    ["1.0", "1e3", '"1"', "'1'", "true", "null", "~", "", "-1", "-0", "010", "00", "1_000", "0x", "0xg", "0o8", "0b2",
     "++1", "+-1", "0x-1", "1 0", "on", "0X10", "[1]", "{a: 1}", ".inf", "1:30", "\u0661", "2001-01-01"],
)
@pytest.mark.parametrize(
    "key",
    ["quantum", "prefill_busy_threshold", "request_queue_limit_per_worker", "raw_isl_token_queue_limit_per_worker",
     "cached_token_queue_limit_per_worker", "max_overtake_tokens"],
)
def test_what_is_no_whole_number(key: str, written: str) -> None:
    text = policy(**{key: written})
    if key != "quantum" and written in ("null", "~", ""):
        assert getattr(only_class(text), key) is None
        return
    error = refused(text)
    assert (error.location, error.key, error.line) == ('root, class "c"', key, 6 if key == "quantum" else 9)
    assert "must be a whole number >= 0" in error.reason


@pytest.mark.parametrize(
    "written", [str(TWO_53 + 1), "18446744073709551615", "18446744073709551616", "9" * 5000, "0x" + "f" * 5000]
)
@pytest.mark.parametrize("key", ["quantum", "prefill_busy_threshold", "max_overtake_tokens"])
def test_numbers_above_the_ceiling_are_refused_with_the_ceiling(key: str, written: str) -> None:
    error = refused(policy(**{key: written}))
    assert error.key == key
    assert "9007199254740992 (2^53)" in error.reason


def test_zero_is_a_limit_and_a_threshold() -> None:
    keys = [
        "prefill_busy_threshold", "request_queue_limit_per_worker", "raw_isl_token_queue_limit_per_worker",
        "cached_token_queue_limit_per_worker", "max_overtake_tokens",
    ]
    loaded = only_class(policy(**dict.fromkeys(keys, "0")))
    assert [getattr(loaded, key) for key in keys] == [0] * 5
    assert refused(policy(quantum="0")).reason == "must be 1..9007199254740992 (2^53), not 0"


@pytest.mark.parametrize(
    ("written", "value"),
    [("16", 16.0), ("16.0", 16.0), ("0.5", 0.5), (".5", 0.5), ("5.", 5.0), ("1e3", 1000.0), ("1E-3", 0.001),
     ("+2", 2.0), ("010", 10.0), ("0", 0.0), ("-0.0", 0.0)],
)
def test_fractions(written: str, value: float) -> None:
    loaded = only_class(policy(prefill_busy_threshold_frac=written)).prefill_busy_threshold_frac
    assert repr(loaded) == repr(value)


@pytest.mark.parametrize(
    "written", ['"1.0"', "1e400", "-1e400", "0x10", "1_0.0", "inf", "nan", "+.nan", "true", "[]", "1e"]
)
def test_what_is_no_fraction(written: str) -> None:
    error = refused(policy(prefill_busy_threshold_frac=written))
    assert error.key == "prefill_busy_threshold_frac"
    assert error.reason.startswith("must be a number")


@pytest.mark.parametrize("written", [".nan", ".inf", "-.inf", "+.INF", "-1", "-0.5"])
def test_fractions_out_of_range(written: str) -> None:
    error = refused(policy(prefill_busy_threshold_frac=written))
    assert (error.location, error.key, error.line) == ('root, class "c"', "prefill_busy_threshold_frac", 9)
    assert error.reason.startswith("must be finite and >= 0")


@pytest.mark.parametrize(
    "written",
    ["123", "1.5", "on", "yes", "true", "null", "Null", "010", "1_000", "0x10", "...x", "-", ".nan", "2001-01-01"],
)
def test_names_are_text_however_they_look(written: str) -> None:
    quoted = '"' + written + '"'
    assert only_class(policy(name=written if written != "-" else quoted)).name == written
    assert only_class(policy(name=quoted)).name == written


@pytest.mark.parametrize("written", ["~", "", '""', "a b", "a/b", "é", '"a\\n"', "|\n      a", '"a\\u0000"', "ａ"])
def test_names_must_be_identifiers(written: str) -> None:
    error = refused(policy(name=written))
    assert (error.key, error.line) == ("name", 5)
    assert error.reason.startswith("must be one or more of A-Z a-z 0-9 _ . -")


@pytest.mark.parametrize(("family", "bucket"), [("null", "~"), ("", "NULL"), ("~", "Null")])
def test_null_family_and_bucket_make_an_explicit_class(family: str, bucket: str) -> None:
    text = policy() + f"  - {{name: x, quantum: 1, policy_family: {family}, cache_bucket: {bucket}}}\n"
    loaded = only_class(text)
    assert (loaded.policy_family, loaded.cache_bucket) == (None, None)


def test_a_quoted_null_is_a_family() -> None:
    text = policy().replace("default_policy_family: f", "default_policy_family: 'null'")
    text = text.replace("policy_family: f", 'policy_family: "null"')
    assert only_class(text).policy_family == "null"


@pytest.mark.parametrize("written", ["fcfs", "wspt", "edf", "lcfs", '"wspt"'])
def test_queue_policies(written: str) -> None:
    assert only_class(policy(queue_policy=written)).queue_policy is QueuePolicy(written.strip('"'))


@pytest.mark.parametrize("written", ["null", "~", "", "FCFS", "Wspt", "fifo", "[fcfs]", "1"])
def test_unknown_queue_policies(written: str) -> None:
    error = refused(policy(queue_policy=written))
    assert (error.location, error.key, error.line) == ('root, class "c"', "queue_policy", 9)
    assert error.reason.startswith("must be ")


def test_defaults_of_a_class() -> None:
    assert only_class(policy()) == PolicyClass("c", 1, QueuePolicy.FCFS, "f", "b")


# Structure: one document, a mapping, known keys, each once.


@pytest.mark.parametrize(
    "text",
    ["", "\n\n", "# only a comment\n", "---\n", "{}", "models: {}", "models:\n", "models: null",
     "default_policy_family: null", "worker_selection: ~", "arbitration: exact"],
)
def test_nothing_is_defined(text: str) -> None:
    error = refused(text)
    assert (error.location, error.key, error.line) == ("root", None, 1)
    assert error.reason.startswith("nothing is defined")


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("- a\n", 1, "must be a mapping, not a list"),
        ("\nabc\n", 2, "must be a mapping, not abc"),
        ("~\n", 1, "must be a mapping, not ~"),
        ("'a'\n", 1, 'must be a mapping, not the text "a"'),
        ("policies/premium.yaml", 1, "load_policy takes what the file holds"),
        ("a.yaml\n", 1, "must be a mapping, not a.yaml"),
        (policy() + "---\n" + policy(), 9, "another document"),
        (policy() + "...\n---\n", 10, "another document"),
        (policy().replace("    quantum", "\tquantum"), 6, "cannot start any token"),
        ("a: b: c\n", 1, "mapping values are not allowed"),
        ("a: 'x\n", 2, "unexpected end of stream"),
        ("models: *nobody\n", 1, "undefined alias"),
        ("models: {a: &x 1, b: &x 2}\n", 1, "duplicate anchor"),
        ("router: !!str 1\n", 1, "tags are not supported"),
        ("router: !python/object:os.system x\n", 1, "tags are not supported"),
        ("? [a, b]\n: c\n", 1, "a key must be text, not a list"),
        ("? {a: b}\n: c\n", 1, "a key must be text, not a mapping"),
        ("a: b\n\0", 2, "character #x0000 is not allowed"),
        ("a: b\nc: \ud800\n", 2, "character #xd800 is not allowed"),
        ('router:\n  - "\\ud800"\n', 2, "half of a surrogate pair"),
        ('router: "\\UFFFFFFFF"\n', 1, "not valid YAML"),
        ("%YAML 1." + "9" * 5000 + "\n---\na: b\n", 1, "not valid YAML"),
        ("%YAML 2.0\n---\na: b\n", 1, "incompatible YAML document"),
    ],
)
def test_what_is_no_policy_at_all(text: str, line: int, reason: str) -> None:
    error = refused(text)
    assert (error.location, error.line) == ("root", line)
    assert reason in error.reason


@pytest.mark.parametrize(
    ("text", "location", "key", "line", "reason"),
    [
        ("worker_selction: {}\n", "root", "worker_selction", 1, "did you mean worker_selection?"),
        ("zzz: {}\n", "root", "zzz", 1, "known are default_policy_family"),
        (policy() + "polcy_classes: []\n", "root", "polcy_classes", 9, "did you mean policy_classes?"),
        (policy(quantm="1"), 'root, class "c"', "quantm", 9, "did you mean quantum?"),
        (policy(slo_ms="1"), 'root, class "c"', "slo_ms", 9, "unknown key"),
        (policy(arbitration="exact"), 'root, class "c"', "arbitration", 9, "unknown key"),
        (policy().replace("bucket: b}", "bucket: b, max: 1}"), 'root, bucket "b"', "max", 3, "known are min_tokens"),
        (policy(admission="{type: t, params: {}}"), 'root, class "c", admission', "params", 9, "mean parameters?"),
        ("models:\n  m:\n" + indent(policy(), 4) + "    router: {}\n", 'model "m"', "router", 11, "unknown key"),
        ("<<: {default_policy_family: f}\n", "root", "<<", 1, "merge keys are not supported"),
        (policy(**{"<<": "{quantum: 2}"}), 'root, class "c"', "<<", 9, "unknown key"),
        (policy() + "models:\n  <<: {}\n", "root, models", "<<", 10, "merge keys are not supported"),
        (policy(quantum="1\n    quantum: 2"), 'root, class "c"', "quantum", 7, "duplicate key, first on line 6"),
        (policy() + "default_policy_family: f\n", "root", "default_policy_family", 9, "first on line 1"),
        (policy() + '"default_policy_family": f\n', "root", "default_policy_family", 9, "duplicate key"),
        ("router:\n  a: 1\n  a: 1\n", "root, router", "a", 3, "duplicate key, first on line 2"),
        ("models:\n  m: {}\n", 'model "m"', "default_policy_family", 2, "is required"),
        ("models:\n  m:\n", 'model "m"', None, 2, "must be a mapping, not nothing"),
        ("models: []\n", "root", "models", 1, "must be a mapping, not a list"),
        ("policy_classes: {}\n", "root", "policy_classes", 1, "must be a list, not a mapping"),
        ("policy_classes: [a]\n", "root, class 1", None, 1, "must be a mapping, not a"),
        (HEAD + "  - quantum: 1\n", "root, class 1", "name", 5, "is required"),
        (HEAD + "  - name: x\n", 'root, class "x"', "quantum", 5, "is required"),
        (HEAD + "  - name: [x]\n", "root, class 1", "name", 5, "must be text, not a list"),
        ("uncached_isl_buckets:\n  - bucket: b\n", 'root, bucket "b"', "min_tokens", 2, "is required"),
        ("uncached_isl_buckets:\n  - min_tokens: 0\n", "root, bucket 1", "bucket", 2, "is required"),
        ("uncached_isl_buckets: [{min_tokens: 1.5, bucket: b}]", 'root, bucket "b"', "min_tokens", 1, "not 1.5"),
        ("default_policy_family: [f]\n", "root", "default_policy_family", 1, "must be text, not a list"),
        ("default_policy_family: {f: f}\n", "root", "default_policy_family", 1, "must be text, not a mapping"),
        (policy() + "arbitration: fair\n", "root", "arbitration", 9, "must be one of exact, reference, not fair"),
        (policy() + "capacity: EXACT\n", "root", "capacity", 9, "must be one of advisory, strict, not EXACT"),
    ],
)
def test_keys_and_types(text: str, location: str, key: str | None, line: int, reason: str) -> None:
    error = refused(text)
    assert (error.location, error.key, error.line) == (location, key, line)
    assert reason in error.reason


def test_duplicate_model_names_are_duplicate_keys() -> None:
    error = refused("models:\n  a:\n" + indent(policy(), 4) + "  a:\n" + indent(policy(), 4))
    assert (error.location, error.key, error.line) == ("root, models", "a", 11)
    assert error.reason == "duplicate key, first on line 2"


# Rules, in the order of section 1.4.


@pytest.mark.parametrize(
    ("text", "key", "line", "missing"),
    [
        ("default_policy_family: f\n", "default_policy_family", 1, "uncached_isl_buckets and policy_classes"),
        ("\npolicy_classes: []\n", "policy_classes", 2, "default_policy_family and uncached_isl_buckets"),
        ("uncached_isl_buckets: []\ndefault_policy_family: ~\n", "uncached_isl_buckets", 1, "default_policy_family"),
        (policy().replace("family: f\nunc", "family: null\nunc"), "uncached_isl_buckets", 2, "default_policy_family"),
        ("policy_classes: []\nmodels: {a: {}}\n", "default_policy_family", 2, "is required"),
    ],
)
def test_the_three_root_keys_come_together(text: str, key: str, line: int, missing: str) -> None:
    error = refused(text)
    assert (error.key, error.line) == (key, line)
    assert missing in error.reason


def two_buckets(second: str, classes: str) -> str:
    """A policy whose classes begin on line 6."""
    return (
        "default_policy_family: f\nuncached_isl_buckets:\n  - {min_tokens: 0, bucket: b}\n"
        f"  - {{{second}}}\npolicy_classes:\n{classes}"
    )


C = cell("c", "f", "b")
#: (text, where in the profile, key, line, part of the reason), in the order in which the rules are checked.
RULES = [
    (policy().replace("family: f\nunc", "family: f f\nunc"), "", "default_policy_family", 1, "A-Z"),
    (HEAD.strip() + " []\n", "", "policy_classes", 4, "at least one class"),
    (HEAD.replace("\n  - {min_tokens: 0, bucket: b}", " []") + C, "", "uncached_isl_buckets", 2, "at least one bucket"),
    (policy().replace("tokens: 0", "tokens: 1"), 'bucket "b"', "min_tokens", 3, "must start at 0, not 1"),
    (two_buckets("min_tokens: 0, bucket: d", C), 'bucket "d"', "min_tokens", 4, "0 is not above 0"),
    (two_buckets("min_tokens: 9, bucket: d/", C), 'bucket "d/"', "bucket", 4, "A-Z"),
    (two_buckets("min_tokens: 9, bucket: b", C), 'bucket "b"', "bucket", 4, "another bucket has this name, on line 3"),
    (policy(name="a:b"), 'class "a:b"', "name", 5, "A-Z"),
    (policy(quantum="0"), 'class "c"', "quantum", 6, "must be 1..9007199254740992 (2^53), not 0"),
    (policy(prefill_busy_threshold_frac="-.5"), 'class "c"', "prefill_busy_threshold_frac", 9, "finite and >= 0"),
    (policy(cache_bucket="null"), 'class "c"', "policy_family", 7, "needs cache_bucket beside it"),
    (policy(policy_family="null"), 'class "c"', "cache_bucket", 8, "needs policy_family beside it"),
    (policy(policy_family="f!"), 'class "c"', "policy_family", 7, "A-Z"),
    (policy(cache_bucket="b!"), 'class "c"', "cache_bucket", 8, "A-Z"),
    (policy(cache_bucket="bb"), 'class "c"', "cache_bucket", 8, 'called "bb", did you mean b?'),
    (policy(admission="{type: a b}"), 'class "c", admission', "type", 9, "A-Z"),
    (policy() + cell("c", "g", "b"), 'class "c"', "name", 9, "another class has this name, on line 5"),
    (policy(policy_family="ff"), "", "default_policy_family", 1, 'family "f", did you mean ff?'),
    (HEAD + EXPLICIT % "c", "", "default_policy_family", 1, "no class serves the family"),
    (HEAD + EXPLICIT % "f" + C, 'class "f"', "name", 5, "must not be called like a family"),
    (policy() + cell("d", "f", "b"), 'class "d"', "cache_bucket", 9, 'already served by class "c" on line 5'),
    (two_buckets("min_tokens: 9, bucket: d", C), "", "policy_classes", 5, 'serves family "f" in bucket "d"'),
    (two_buckets("min_tokens: 9, bucket: d", C + cell("e", "f", "d") + cell("g", "g", "d")), "", "policy_classes", 5,
     'no class serves family "g" in bucket "b"'),
]


@pytest.mark.parametrize(("text", "part", "key", "line", "reason"), RULES)
@pytest.mark.parametrize("model", [False, True], ids=["root", "model"])
def test_rules(text: str, part: str, key: str, line: int, reason: str, model: bool) -> None:
    location = "root"
    if model:
        text, location, line = "models:\n  m/1 é:\n" + indent(text, 4), 'model "m/1 é"', line + 2
        reason = reason.split(" on line")[0]
    error = refused(text)
    assert (error.location, error.key, error.line) == (location + (part and f", {part}"), key, line)
    assert reason in error.reason


#: Texts with several mistakes at once, each with the key of the one that is reported.
FIRST = [
    (policy(quantum="0", queue_policy="fifo"), "queue_policy"),  # types before rules, wherever they stand
    (policy(name="a b", quantum="0"), "name"),
    (policy(quantum="0", prefill_busy_threshold_frac="-1"), "quantum"),
    (policy(prefill_busy_threshold_frac="-1", policy_family="null"), "prefill_busy_threshold_frac"),
    (policy(policy_family="a b", cache_bucket="null"), "policy_family"),
    (policy(policy_family="a b", cache_bucket="c d"), "policy_family"),
    (policy(cache_bucket="zz") + cell("c", "f", "b"), "cache_bucket"),
    (policy() + cell("c", "f", "b"), "name"),  # the name before the cell
    (policy(policy_family="g") + EXPLICIT % "g", "default_policy_family"),
    (policy(quantum="0").replace("tokens: 0", "tokens: 1"), "min_tokens"),
    (policy(quantum="0").replace("family: f\nunc", "family: f f\nunc"), "default_policy_family"),
    ("a: 1\na: 1\n", "a"),
]


@pytest.mark.parametrize(("text", "key"), FIRST)
def test_the_first_failing_check_wins(text: str, key: str) -> None:
    assert refused(text).key == key


def test_the_root_comes_before_the_models_and_these_in_file_order() -> None:
    bad = indent(policy(quantum="0"), 4)
    assert refused("models:\n  z:\n" + bad + policy(name="a b")).location == 'root, class "a b"'
    assert refused("models:\n  z:\n" + bad + "  a:\n" + bad).location == 'model "z", class "c"'
    # Types are checked for the whole file first, so the second model's comes before the first one's rule.
    assert refused("models:\n  z:\n" + bad + "  a: 1\n").location == 'model "a"'


@pytest.mark.parametrize("name", ['""', "''"])
def test_a_model_name_is_not_empty(name: str) -> None:
    error = refused(f"models:\n  {name}:\n" + indent(policy(quantum="0"), 4))
    assert (error.location, error.key, error.line) == ('model ""', None, 2)
    assert error.reason == "a model name must not be empty"


@pytest.mark.parametrize("given", [b"a: b", Path("premium.yaml"), None])
def test_what_is_no_text_is_a_mistake_of_the_caller(given: Any) -> None:
    with pytest.raises(TypeError, match=f"takes the text of a policy file, not {type(given).__name__}"):
        load_policy(given)
