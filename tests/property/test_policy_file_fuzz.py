"""The loader under any policy and any text: descriptions load again, and nothing but InvalidPolicy ever escapes."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from policy_texts import MODEL_AND_ROOT, SAMPLE, TWO_53, policy, refused

from kvcore.errors import InvalidPolicy
from kvcore.policy import AdmissionSpec, Arbitration, CacheBucket, Capacity, PolicyClass, PolicyProfile, QueuePolicy
from kvcore.policy_file import PolicyDocument, describe, load_policy
from kvcore.policy_lint import lint, worst_cases

#: For tests whose inputs take long to draw or to write out: a fifth of what the profile in use asks for.
slow_examples = max(20, settings().max_examples // 5)

names = st.text("abcXYZ019_.-", min_size=1, max_size=6)
counts = st.none() | st.integers(0, TWO_53)
leaves = st.none() | st.booleans() | st.integers(-TWO_53, TWO_53) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    leaves | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
#: YAML wants the colon of a plain key within 1,024 characters, and JSON may need 12 for one of ours.
parameters = st.dictionaries(st.text(max_size=80), values, max_size=2)


@st.composite
def profiles(draw: st.DrawFn) -> PolicyProfile:
    """A valid profile: every family in every bucket, and some explicit classes, in any order."""
    families = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    bucket_names = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    floors = draw(st.lists(st.integers(1, TWO_53), min_size=len(bucket_names) - 1, max_size=len(bucket_names) - 1,
                           unique=True))
    cells: list[tuple[str | None, str | None]] = [(family, bucket) for family in families for bucket in bucket_names]
    cells += [(None, None)] * draw(st.integers(0, 2))
    taken = draw(st.lists(names.filter(lambda name: name not in families), min_size=len(cells), max_size=len(cells),
                          unique=True))
    classes = [
        PolicyClass(
            name=name,
            quantum=draw(st.integers(1, TWO_53)),
            queue_policy=draw(st.sampled_from(QueuePolicy)),
            policy_family=family,
            cache_bucket=bucket,
            prefill_busy_threshold=draw(counts),
            prefill_busy_threshold_frac=draw(st.none() | st.floats(0, allow_nan=False, allow_infinity=False)),
            request_queue_limit_per_worker=draw(counts),
            raw_isl_token_queue_limit_per_worker=draw(counts),
            cached_token_queue_limit_per_worker=draw(counts),
            max_overtake_tokens=draw(counts),
            admission=draw(st.none() | st.builds(AdmissionSpec, names, parameters)),
        )
        for name, (family, bucket) in zip(taken, draw(st.permutations(cells)), strict=True)
    ]
    return PolicyProfile(
        classes=tuple(classes),
        buckets=tuple(CacheBucket(*pair) for pair in zip(bucket_names, [0, *sorted(floors)], strict=True)),
        default_policy_family=draw(st.sampled_from(families)),
        arbitration=draw(st.sampled_from(Arbitration)),
        capacity=draw(st.sampled_from(Capacity)),
    )


def sections_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mappings whose keys are those of a policy file, at whatever level."""
    keys = [*describe(PolicyDocument()), "name", "quantum", "bucket", "min_tokens", "admission", "type"]
    return st.dictionaries(st.sampled_from(keys), inner, max_size=4)


documents = st.builds(
    PolicyDocument, profiles(), st.dictionaries(st.text(min_size=1, max_size=6), profiles(), max_size=2)
)


@settings(max_examples=slow_examples)
@given(documents, st.booleans())
def test_describe_is_a_policy_file_that_loads_to_the_same(document: PolicyDocument, ascii_only: bool) -> None:
    text = json.dumps(describe(document), ensure_ascii=ascii_only, allow_nan=False)
    assert all(isinstance(line, str) for line in lint(document, 1000))
    if ascii_only or text.isprintable():
        assert load_policy(text) == document
    else:
        # YAML does not allow all characters that JSON lets stand unescaped; the program writes JSON in ASCII.
        check_total(text)


def mutate(text: str, edits: list[tuple[float, int, str]]) -> str:
    """The text after edits (position 0..1, characters removed, text put in their place)."""
    for where, removed, put in edits:
        start = int(where * len(text))
        text = text[:start] + put + text[start + removed:]
    return text


#: Pieces of YAML that change what the text around them means.
TOKENS = [
    "\n", "\n  ", "\n- ", ": ", "- ", "? ", "[", "]", "{", "}", ", ", "&a ", "*a", "*a ", "!", "!!int ", "!<x> ",
    "|\n", ">-\n", "'", '"', "#", "%YAML 1.1\n", "---\n", "...\n", "<<: ", "\t", "\x00", "\x85", "\u2028", "\ufeff",
    "\\u", '"\\x', "~", "null", ".nan", "0x", "1_0", "-1", "quantum: 2", "models:\n  m:\n    ", "name: x\n    ",
    "admission: {type: t, parameters: {a: ",
]
edits = st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(TOKENS) | st.text(max_size=4))


def check_total(text: str) -> None:
    """Whatever the text, it loads or is refused properly, and what loads can be described and run through lint."""
    try:
        document = load_policy(text, "p.yaml")
    except InvalidPolicy:
        refused(text)
    else:
        json.dumps(describe(document), allow_nan=False)
        for max_prompt_tokens in (None, 1, TWO_53):
            assert all(isinstance(line, str) and "\n" not in line for line in lint(document, max_prompt_tokens))
        for profile in [*document.models.values(), *([] if document.root is None else [document.root])]:
            assert [case.class_name for case in worst_cases(profile, 1)] == [item.name for item in profile.classes]


@given(st.lists(edits, min_size=1, max_size=6), st.sampled_from([policy(), MODEL_AND_ROOT, SAMPLE]))
def test_mutated_policies_never_break_the_loader(changes: list[tuple[float, int, str]], text: str) -> None:
    check_total(mutate(text, changes))


@given(st.text() | st.lists(st.sampled_from(TOKENS) | st.text(max_size=3), max_size=30).map("".join))
@example("? |")
@example("- &a\n- *a")
def test_random_text_never_breaks_the_loader(text: str) -> None:
    check_total(text)


@settings(max_examples=slow_examples)
@given(st.recursive(leaves | st.sampled_from("fbc"), lambda inner: st.lists(inner, max_size=3) | sections_of(inner)))
def test_random_values_never_break_the_loader(value: Any) -> None:
    check_total(yaml.safe_dump(value))
