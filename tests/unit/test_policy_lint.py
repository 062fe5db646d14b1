"""What lint warns of and what not, case by case, and the formula of the worst case."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from policy_texts import TWO_53, indent, policy

from kvcore.policy import Arbitration, CacheBucket, Capacity, PolicyClass, PolicyProfile, QueuePolicy, synthetic_profile
from kvcore.policy_file import load_policy
from kvcore.policy_lint import REQUESTS_MAX, WorstCase, lint, worst_cases

EXAMPLES = Path(__file__).parents[2] / "examples" / "policies"
REQUESTS, RAW, CACHED = (
    "request_queue_limit_per_worker", "raw_isl_token_queue_limit_per_worker", "cached_token_queue_limit_per_worker",
)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_give_no_reason_for_warnings(path: Path) -> None:
    document = load_policy(path.read_text("utf-8"), str(path))
    assert lint(document) == lint(document, 32_768) == []


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        (policy(), []),
        ("router: {a: b}\nworker_selection: {decode: default}\n",
         ["root: router: not used", "root: worker_selection: not used"]),
        (policy(queue_policy="lcfs"), ['root, class "c": queue_policy: lcfs serves the newest']),
        (policy(queue_policy="lcfs", prefill_busy_threshold="1", max_overtake_tokens="9"), []),
        (policy(queue_policy="edf"), []),
        (policy(request_queue_limit_per_worker="0"), ['root, class "c": queue limits without a busy threshold']),
        (policy(request_queue_limit_per_worker="0", prefill_busy_threshold_frac="0"), []),
        (policy(cached_token_queue_limit_per_worker="1", prefill_busy_threshold="0"), []),
        (policy(max_overtake_tokens="9", prefill_busy_threshold="0"), []),
        (policy(max_overtake_tokens="9"), ['root, class "c": max_overtake_tokens without a busy threshold orders one']),
        (policy(max_overtake_tokens="0", prefill_busy_threshold="0"),
         ['root, class "c": max_overtake_tokens: 0 lets no request pass']),
        ('models:\n  "a\\"\\u2028":\n' + indent(policy(queue_policy="lcfs"), 4),
         ['model "a\\"\\u2028", class "c": queue_policy: lcfs']),
    ],
)
def test_one_class(text: str, warnings: list[str]) -> None:
    found = lint(load_policy(text))
    assert [line[: len(start)] for line, start in zip(found, warnings, strict=True)] == warnings


def test_admission_policies_need_room_for_those_whom_they_hold_back() -> None:
    def warnings(**keys: str) -> list[str]:
        return [line.split(": ", 1)[1] for line in lint(load_policy(policy(admission="{type: t}", **keys)))]

    never = "0 means that whoever the admission policy holds back is rejected at once"
    assert warnings() == []
    assert warnings(request_queue_limit_per_worker="1") == []  # it has an effect, also if nobody waits for capacity
    assert warnings(raw_isl_token_queue_limit_per_worker="0", prefill_busy_threshold="0") == [f"{RAW}: {never}"]
    assert warnings(request_queue_limit_per_worker="0", cached_token_queue_limit_per_worker="0") == [
        f"{REQUESTS}: {never}", f"{CACHED}: {never}"]


def test_what_no_version_refuses_any_more() -> None:
    assert lint(load_policy(policy(prefill_busy_threshold="0", max_overtake_tokens="1000"))) == []


@pytest.mark.parametrize(
    ("absolute", "frac", "max_prompt_tokens", "warning"),
    [
        (1536, None, 1, None),
        (None, 0.5, 1, None),
        (100, 16.0, 1000, None),
        (7, 16.0, None, "prefill_busy_threshold_frac: 16.0 never decides: prefill_busy_threshold 7 fires no later"),
        (16, 16.0, None, "prefill_busy_threshold_frac: 16.0 never decides"),
        (0, 0.0, None, "prefill_busy_threshold_frac: 0.0 never decides"),
        (1, 0.0, None, "prefill_busy_threshold: 1 never decides: with prefill_busy_threshold_frac 0 any"),
        (1, 0.001, None, None),
        (TWO_53 - 1, None, None, None),
        (TWO_53, None, None, f"prefill_busy_threshold: {TWO_53}, the largest value there is"),
        (REQUESTS_MAX * 10, None, 10, f"prefill_busy_threshold: {REQUESTS_MAX * 10} can never fire: 2^31 prompts"),
        (REQUESTS_MAX * 10 - 1, None, 10, None),
        (REQUESTS_MAX * 10, None, None, None),
        (TWO_53, None, 10, f"prefill_busy_threshold: {TWO_53} can never fire"),
        (None, REQUESTS_MAX * 10.0, 10, "prefill_busy_threshold_frac: 21474836480.0 can never fire"),
        (None, REQUESTS_MAX * 10.0, 11, None),
        (None, math.inf, None, "prefill_busy_threshold_frac: inf can never fire"),
    ],
)
def test_thresholds(
    absolute: int | None, frac: float | None, max_prompt_tokens: int | None, warning: str | None,
) -> None:
    item = PolicyClass(
        "c", 1, policy_family="f", cache_bucket="b",
        prefill_busy_threshold=absolute, prefill_busy_threshold_frac=frac,
    )
    found = lint(PolicyProfile((item,), (CacheBucket("b", 0),), "f"), max_prompt_tokens)
    assert [line.startswith(f'profile, class "c": {warning}') for line in found] == [True] * (warning is not None)


def two(first: str, second: str, *quanta: int, **keys: tuple[Any, Any]) -> PolicyProfile:
    """Families `first` and `second` in one bucket, with a threshold; keys: what the two classes have."""
    values = [{key: pair[i] for key, pair in keys.items()} for i in range(2)]
    classes = [
        PolicyClass(name, quantum, policy_family=name, cache_bucket="b", **{"prefill_busy_threshold": 0} | more)
        for name, quantum, more in zip((first, second), quanta, values, strict=True)
    ]
    return PolicyProfile(tuple(classes), (CacheBucket("b", 0),), second)


def inverted(key: str, room: str) -> str:
    """The warning about class a, which has the larger quantum."""
    return f'profile, class "a": {key}, while class "b", of smaller quantum, may have {room} waiting'


@pytest.mark.parametrize(
    ("quanta", "keys", "warnings"),
    [
        ((2, 1), {REQUESTS: (10, 11)}, [inverted(f"{REQUESTS}: 10", "11")]),
        ((2, 1), {REQUESTS: (10, 10)}, []),
        ((2, 1), {REQUESTS: (11, 10)}, []),
        ((1, 1), {REQUESTS: (10, 11)}, []),
        ((2, 1), {REQUESTS: (10, None)}, [inverted(f"{REQUESTS}: 10", "any number")]),
        ((2, 1), {REQUESTS: (10, None), RAW: (None, 5)}, []),
        ((2, 1), {REQUESTS: (None, 10)}, []),
        ((2, 1), {REQUESTS: (0, 1)}, [inverted(f"{REQUESTS}: 0 means dispatch or refuse", "1")]),
        ((2, 1), {REQUESTS: (0, 0)}, []),
        ((2, 1), {RAW: (10, 11), CACHED: (1, 2)}, [inverted(f"{RAW}: 10", "11"), inverted(f"{CACHED}: 1", "2")]),
        ((2, 1), {REQUESTS: (10, 11), "prefill_busy_threshold": (0, None)}, ["queue limits without a busy threshold"]),
    ],
)
def test_limits_that_invert_priority(
    quanta: tuple[int, int], keys: dict[str, tuple[Any, Any]], warnings: list[str],
) -> None:
    found = lint(two("a", "b", *quanta, **keys))
    assert len(found) == len(warnings)
    assert all(warning in line for line, warning in zip(found, warnings, strict=True))


def test_limits_are_compared_with_the_roomiest_lighter_class_of_the_same_bucket() -> None:
    def item(name: str, quantum: int, family: str, bucket: str, limit: int | None) -> PolicyClass:
        return PolicyClass(
            name, quantum, policy_family=family, cache_bucket=bucket, prefill_busy_threshold=0,
            request_queue_limit_per_worker=limit,
        )

    classes = [
        item("a0", 5, "a", "low", 10), item("a1", 5, "a", "high", 10),
        item("b0", 5, "b", "low", 99), item("b1", 6, "b", "high", 99),
        item("c0", 4, "c", "low", 20), item("c1", 5, "c", "high", 40),
        item("d0", 3, "d", "low", 30), item("d1", 7, "d", "high", 1),
    ]
    explicit = PolicyClass("x", 1, prefill_busy_threshold=0)
    profile = PolicyProfile((*classes, explicit), (CacheBucket("low", 0), CacheBucket("high", 8)), "a")
    assert [(line.split('"')[1], line.split('"')[3], line.split()[-2]) for line in lint(profile)] == [
        ("a0", "d0", "30"), ("c0", "d0", "30"), ("d1", "b1", "99"),
    ]
    merged = PolicyProfile((*classes[::2], explicit), (CacheBucket("low", 0),), "a")
    assert [line.split('"')[3] for line in lint(merged)] == ["x"] * 4


@pytest.mark.parametrize(
    ("first", "second", "quanta", "asks"),
    [
        ("premium", "regular", (1, 2), True),
        ("premium", "regular", (2, 2), False),
        ("premium", "regular", (2, 1), False),
        ("eu-Latency.v2", "nightly_BATCH", (1, 2), True),
        ("real-time", "best-effort", (1, 2), True),
        ("premiumbatch", "bulky", (1, 2), False),
        ("latency", "latency-batch", (1, 2), False),
        ("a", "batch", (1, 2), False),
        ("premium", "b", (1, 2), False),
        ("gold", "platinum", (1, 2), False),
    ],
)
def test_names_that_contradict_quanta(first: str, second: str, quanta: tuple[int, int], asks: bool) -> None:
    assert lint(two(first, second, *quanta)) == [
        f'profile, class "{first}": quantum: {quanta[0]} is a smaller share than that of class "{second}", '
        f'{quanta[1]}: is that meant, by the name of "{first}"?'
    ] * asks


def test_names_of_explicit_classes_count() -> None:
    classes = (two("bulk", "b", 9, 9).classes[0], PolicyClass("vip", 1, prefill_busy_threshold=0))
    (question,) = lint(PolicyProfile(classes, (CacheBucket("b", 0),), "bulk"))
    assert question.endswith('by the name of "vip"?')


def test_a_family_hidden_by_an_explicit_class() -> None:
    """The loader refuses such a file; a profile can be built by hand."""
    family = two("a", "b", 1, 1)
    classes = (replace(family.classes[0], name="z"), family.classes[1], PolicyClass("a", 1))
    hidden = replace(family, classes=classes)
    assert lint(hidden) == [
        'profile, class "z": an explicit class has its family\'s name and gets the requests that name it',
    ]
    assert [hidden.classes[hidden.resolve(name, 0)].name for name in ("a", "b", None)] == ["a", "b", "b"]


def buckets(*floors: int, quanta: tuple[int, ...], **keys: Any) -> PolicyProfile:
    """One family, a class per bucket, then explicit classes for what is left of the quanta."""
    classes = [
        PolicyClass(f"c{i}", quantum, **{"prefill_busy_threshold": 0} | keys)
        for i, quantum in enumerate(quanta)
    ]
    cells = [replace(item, policy_family="f", cache_bucket=f"b{i}") for i, item in enumerate(classes[: len(floors)])]
    named = tuple([CacheBucket(f"b{i}", floor) for i, floor in enumerate(floors)])
    return PolicyProfile((*cells, *classes[len(floors) :]), named, "f")


@pytest.mark.parametrize(
    ("max_prompt_tokens", "warned"), [(None, []), (8191, ["c1", "c2"]), (8192, ["c2"]), (10**5, [])],
)
def test_classes_that_are_never_chosen(max_prompt_tokens: int | None, warned: list[str]) -> None:
    profile = buckets(0, 8192, 10**5, quanta=(100, 100, 100, 100))
    found = lint(profile, max_prompt_tokens)
    assert [line.split('"')[1] for line in found] == warned
    assert all(": can never be chosen: its bucket starts at " in line for line in found)
    if max_prompt_tokens is not None:
        chosen = {profile.resolve(name, max_prompt_tokens >> by) for name in ("f", "c3") for by in range(18)}
        assert {f"c{i}" for i in range(4)} - {profile.classes[i].name for i in chosen} == set(warned)


@pytest.mark.parametrize(
    ("profile", "max_prompt_tokens", "warnings"),
    [
        (buckets(0, quanta=(10, 20)), 10_000, []),
        (buckets(0, quanta=(10, 20)), 10_001, ["c0 10 10001 1001 20020"]),
        (buckets(0, quanta=(10, 20)), None, []),
        (buckets(0, quanta=(10,)), 10**6, []),
        (buckets(0, 5000, quanta=(5, 5)), 4999, []),
        (buckets(0, 5002, quanta=(5, 6)), 5001, []),
        (buckets(0, 5002, quanta=(5, 9, 6)), 5001, ["c0 5 5001 1001 6006"]),
        (buckets(0, 6, quanta=(1, 1)), 1000, []),
        (buckets(0, 6, quanta=(1, 1)), 1001, ["c1 1 1001 1001 1001"]),
        (synthetic_profile(QueuePolicy.FCFS, 0.5), TWO_53, []),
    ],
)
def test_small_quanta(profile: PolicyProfile, max_prompt_tokens: int | None, warnings: list[str]) -> None:
    found = [line for line in lint(profile, max_prompt_tokens) if "never be chosen" not in line]
    numbers = [
        " ".join([line.split('"')[1], *[word for word in line.split('"')[2].split() if word.isdigit()]])
        for line in found if "quantum: " in line
    ]
    assert len(found) == len(warnings)
    assert [line[: len(start)] for line, start in zip(numbers, warnings, strict=True)] == warnings


@pytest.mark.parametrize("max_prompt_tokens", [0, -1, TWO_53 + 1])
def test_no_such_prompt(max_prompt_tokens: int) -> None:
    with pytest.raises(ValueError, match="max_prompt_tokens must be"):
        lint(buckets(0, quanta=(1,)), max_prompt_tokens)
    with pytest.raises(ValueError, match="max_prompt_tokens must be"):
        worst_cases(buckets(0, quanta=(1,)), max_prompt_tokens)


# Worst cases; tests/property/test_worst_case.py holds them against the scheduler.


def test_the_formula() -> None:
    profile = buckets(0, quanta=(4, 1, 6), max_overtake_tokens=100)
    assert worst_cases(profile, 50) == [
        WorstCase("c0", 1 + Fraction(7, 4), 100 + Fraction(7 * 150, 4) + 7 + 100),
        WorstCase("c1", Fraction(11), Fraction(100 + 10 * 150 + 10 + 100)),
        WorstCase("c2", 1 + Fraction(5, 6), 100 + Fraction(5 * 150, 6) + 5 + 100),
    ]
    assert [case.served_tokens(0) for case in worst_cases(profile, 50)] == [470, 1710, 330]
    assert worst_cases(profile, 50)[0].served_tokens(1) == math.ceil(Fraction(7 * 150, 4) + 207 + Fraction(11, 4))


def test_one_class_alone() -> None:
    assert worst_cases(buckets(0, quanta=(7,), max_overtake_tokens=9), 50) == [
        WorstCase("c0", Fraction(1), Fraction(9)),
    ]


def test_costs_end_where_the_next_bucket_starts() -> None:
    """Bucket 0 holds costs of 1 only, bucket 1 up to 9; nobody reaches the last."""
    found = worst_cases(buckets(0, 1, 10, 99, quanta=(1, 1, 1, 1), max_overtake_tokens=0), 50)
    assert [case.constant for case in found] == [1 * 2 + 2 + 59, 9 * 2 + 2 + 51, 50 * 2 + 2 + 10, None]
    assert found[3] == WorstCase("c3", None, None, "never chosen: its bucket starts above the largest prompt")


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        (buckets(0, quanta=(1,)), "unbounded: no max_overtake_tokens"),
        (replace(buckets(0, quanta=(1,), max_overtake_tokens=1), arbitration=Arbitration.REFERENCE),
         "unbounded: arbitration reference promises no bound"),
        (buckets(0, quanta=(1,), max_overtake_tokens=1, prefill_busy_threshold=None), "never waits: no busy threshold"),
        (buckets(0, quanta=(1,), max_overtake_tokens=1, raw_isl_token_queue_limit_per_worker=0),
         "never waits: dispatched or refused at once, as a limit is 0"),
        (synthetic_profile(QueuePolicy.FCFS, None), "never waits: no busy threshold"),
        (synthetic_profile(QueuePolicy.FCFS, 0.5), "unbounded: no max_overtake_tokens"),
        (replace(synthetic_profile(QueuePolicy.FCFS, None), capacity=Capacity.STRICT),
         "unbounded: no max_overtake_tokens"),
    ],
)
def test_why_there_is_no_number(profile: PolicyProfile, reason: str) -> None:
    (case,) = worst_cases(profile, 100)
    assert (case.slope, case.constant, case.reason, case.served_tokens(0)) == (None, None, reason, None)


def test_numbers_stay_exact() -> None:
    (case, _) = worst_cases(buckets(0, quanta=(3, TWO_53), max_overtake_tokens=TWO_53), TWO_53)
    exact = TWO_53 + Fraction(TWO_53 * 2 * TWO_53, 3) + TWO_53 + TWO_53
    assert case.constant == exact
    assert case.served_tokens(3) == math.ceil(exact + 3 + TWO_53)
