"""Which class a request falls into (DESIGN D2), on profiles built by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.policy import CacheBucket, ClassTable, PolicyClass, PolicyProfile, QueuePolicy, synthetic_profile

TWO_53 = 2**53


def cell(name: str, family: str, bucket: str) -> PolicyClass:
    """A class that serves one family in one bucket."""
    return PolicyClass(name, 1, policy_family=family, cache_bucket=bucket)


#: Families and buckets out of order, an explicit class in between, and class names that look like something else.
PROFILE = PolicyProfile(
    classes=(
        cell("standard-far", "standard", "far"),
        PolicyClass("vip", 1),
        cell("premium", "premium", "near"),
        cell("x", "standard", "near"),
        cell("standard", "premium", "far"),
        PolicyClass("near", 1),
    ),
    buckets=(CacheBucket("near", 0), CacheBucket("far", 3072)),
    default_policy_family="premium",
)


@pytest.mark.parametrize(
    ("name", "uncached_tokens", "index"),
    [
        ("standard", 0, 3),
        ("standard", 3071, 3),
        ("standard", 3072, 0),
        ("standard", TWO_53, 0),
        ("premium", 3071, 2),
        ("premium", 3072, 4),  # the family, although a class is called so and another is called standard
        (None, 0, 2),
        (None, 3072, 4),
        ("", 3072, 4),
        ("unknown", 3071, 2),
        ("Standard", 3072, 4),
        ("standard ", 3072, 4),
        ("standard-far", 0, 2),  # the name of a matrix class is unknown: default family, bucket by tokens
        ("x", 3072, 4),
        ("far", 0, 2),  # so is the name of a bucket
        ("vip", 0, 1),
        ("vip", TWO_53, 1),
        ("near", 3072, 5),  # an explicit class may be called like a bucket
    ],
)
def test_resolution(name: str | None, uncached_tokens: int, index: int) -> None:
    assert PROFILE.resolve(name, uncached_tokens) == index
    assert ClassTable(PROFILE).resolve(name, uncached_tokens) == index


@pytest.mark.parametrize(
    ("name", "known"),
    [("vip", True), ("near", True), ("standard", True), ("premium", True),
     ("x", False), ("standard-far", False), ("far", False), ("", False), ("Vip", False)],
)
def test_known_names_are_explicit_classes_and_families(name: str, known: bool) -> None:
    assert ClassTable(PROFILE).names(name) is known
    assert ClassTable(synthetic_profile(QueuePolicy.FCFS, None)).names(name)


def test_the_table_numbers_families_by_first_appearance() -> None:
    table = ClassTable(PROFILE)
    assert table.families == {"standard": 0, "premium": 1}
    assert table.explicit == {"vip": 1, "near": 5}
    assert table.floors == (0, 3072)
    assert table.table == (3, 0, 2, 4)
    assert table.default_family == 1
    assert not table.synthetic


@pytest.mark.parametrize("name", [None, "", "default", "premium"])
@pytest.mark.parametrize("uncached_tokens", [0, 1, TWO_53])
def test_the_synthetic_profile_takes_every_request(name: str | None, uncached_tokens: int) -> None:
    profile = synthetic_profile(QueuePolicy.WSPT, 0.5)
    assert profile.resolve(name, uncached_tokens) == 0
    assert ClassTable(profile).synthetic


def test_the_synthetic_class() -> None:
    (only,) = synthetic_profile(QueuePolicy.EDF, 7.0).classes
    assert only == PolicyClass("default", 1, QueuePolicy.EDF, prefill_busy_threshold_frac=7.0)
    assert synthetic_profile(QueuePolicy.FCFS, None).classes == (PolicyClass("default", 1),)


names = st.sampled_from(["a", "b", "c", "d", "e"])


@st.composite
def profiles(draw: st.DrawFn) -> PolicyProfile:
    """A profile with up to five families and buckets, its classes shuffled, class 0.. named by number."""
    families = draw(st.lists(names, min_size=1, unique=True))
    floors = [0, *sorted(draw(st.sets(st.integers(1, 6), max_size=4)))]
    buckets = [CacheBucket(f"b{floor}", floor) for floor in floors]
    cells: list[tuple[str | None, str | None]] = [(family, bucket.name) for family in families for bucket in buckets]
    cells += [(None, None)] * draw(st.integers(0, 3))
    classes = [PolicyClass(str(index), 1, policy_family=family, cache_bucket=bucket)
               for index, (family, bucket) in enumerate(draw(st.permutations(cells)))]
    return PolicyProfile(tuple(classes), tuple(buckets), draw(st.sampled_from(families)))


@given(profiles(), st.none() | names | st.integers(0, 30).map(str), st.integers(0, 8))
def test_resolution_is_what_the_rules_say(profile: PolicyProfile, name: str | None, uncached_tokens: int) -> None:
    for index, item in enumerate(profile.classes):
        if item.policy_family is None and item.name == name:
            assert profile.resolve(name, uncached_tokens) == index
            return
    families = [item.policy_family for item in profile.classes]
    family = name if name is not None and name in families else profile.default_policy_family
    bucket = [item.name for item in profile.buckets if item.min_tokens <= uncached_tokens][-1]
    cells = [(item.policy_family, item.cache_bucket) for item in profile.classes]
    assert profile.resolve(name, uncached_tokens) == cells.index((family, bucket))
