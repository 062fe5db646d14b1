"""The worst case that `kvcore policy check` prints, held against the scheduler under streams made to reach it.

One worker that takes one prompt at a time, every class with threshold 0: so a class that has requests is dispatchable
whenever anything is popped, which is what the bound asks for. A victim waits; whatever the adversary sends and the core
serves before it is added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, repeat

import pytest
from hypothesis import event, given, target
from hypothesis import strategies as st

from kvcore import (
    CacheBucket,
    Dispatch,
    IndexMode,
    PolicyClass,
    PolicyProfile,
    PrefillCompleted,
    QueuePolicy,
    Rank,
    Request,
    RequestArrived,
    RequestCancelled,
    Scheduler,
    SchedulerConfig,
    WorkerConfig,
    WorkerUpserted,
)
from kvcore.policy_lint import worst_cases


@dataclass(frozen=True)
class Sent:
    """One request of the adversary. cost: prompt tokens; 0: the newest that waits in the class is cancelled instead."""

    name: str | None
    cost: int
    strict: int = 0
    jump: float = 0.0
    pinned: bool = False


@dataclass
class Siege:
    """A scheduler with one worker that runs one prompt, and who waits for it by class."""

    profile: PolicyProfile
    now_ns: int = 0
    sent: int = 0
    running: Dispatch | None = None
    waiting: dict[str, tuple[int, int]] = field(default_factory=dict)  # request_id -> class_index, cost

    def __post_init__(self) -> None:
        self.core = Scheduler(SchedulerConfig(profile=self.profile, index=IndexMode.OFF))
        self.core.step(WorkerUpserted(0, WorkerConfig(1)))

    def send(self, one: Sent) -> str:
        """Let one request arrive, or cancel; returns its id."""
        self.now_ns += 1
        class_index = self.profile.resolve(one.name, one.cost)
        if one.cost == 0:
            rivals = [name for name, (index, _) in self.waiting.items() if index == class_index and name != "victim"]
            for name in rivals[-1:]:
                del self.waiting[name]
                assert self.core.step(RequestCancelled(self.now_ns, name)) == ()
            return ""
        self.sent += 1
        request_id = f"r{self.sent}"
        self.arrive(request_id, one)
        return request_id

    def arrive(self, request_id: str, one: Sent) -> None:
        self.waiting[request_id] = (self.profile.resolve(one.name, one.cost), one.cost)
        request = Request(
            request_id, one.cost, policy_class=one.name, strict_priority=one.strict, priority_jump=one.jump,
            pinned=Rank(1) if one.pinned else None,
        )
        self.note(self.core.step(RequestArrived(self.now_ns, request)))

    def note(self, actions: Iterable[object]) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                assert self.running is None, "the worker is busy"
                self.running = action

    def serve(self) -> tuple[str, int, int]:
        """The running prompt is computed and the next one dispatched: its id, class and cost."""
        assert self.running is not None
        done, self.running = self.running, None
        self.now_ns += 1
        self.note(self.core.step(PrefillCompleted(self.now_ns, done.request_id, done.attempt)))
        assert self.running is not None, "somebody waits and the worker is free"
        return self.running.request_id, *self.waiting.pop(self.running.request_id)


def besiege(
    profile: PolicyProfile, before: Sequence[Sent | None], victim: Sent, floods: Iterable[Sequence[Sent]], largest: int,
) -> tuple[int, int]:
    """Tokens served before the victim, and their bound. The flood goes on until the victim runs or the bound breaks.

    before: what is sent, None for a prompt served, before the victim arrives. floods: what is sent before each prompt.
    """
    siege = Siege(profile)
    siege.waiting.pop(siege.send(Sent(None, 1)))
    for one in before:
        if one is not None:
            siege.send(one)
        elif siege.waiting:
            siege.serve()
    own = profile.resolve(victim.name, victim.cost)
    backlog = sum([cost for index, cost in siege.waiting.values() if index == own])
    overtaken = profile.classes[own].max_overtake_tokens
    bound = worst_cases(profile, largest)[own].served_tokens(backlog)
    assert bound is not None
    assert overtaken is not None
    siege.arrive("victim", victim)
    served = served_own = 0
    for flood in floods:
        for one in flood:
            siege.send(one)
        request_id, index, cost = siege.serve()
        if request_id == "victim":
            break
        served += cost
        served_own += cost if index == own else 0
        assert served_own <= backlog + overtaken
        assert served <= bound, (served, bound)
    assert siege.core.audit() == []
    return served, bound


# An adversary that knows what it does: it reaches the bound, or nearly.


def families(*quanta: int, overtaken: int | None, policy: QueuePolicy = QueuePolicy.WSPT) -> PolicyProfile:
    """Families f0, f1, ... in one bucket."""
    classes = [
        PolicyClass(f"c{i}", quantum, policy, f"f{i}", "all", prefill_busy_threshold=0, max_overtake_tokens=overtaken)
        for i, quantum in enumerate(quanta)
    ]
    return PolicyProfile(tuple(classes), (CacheBucket("all", 0),), "f0")


def worst_flood(profile: PolicyProfile, largest: int) -> tuple[list[Sent | None], list[Sent]]:
    """Before a victim of f0 and before each prompt: cheap urgent rivals in f0, dear prompts in all other families."""
    others = [Sent(f"f{i}", largest, strict=9) for i in range(1, len(profile.classes))]
    return [*others * 5, Sent("f0", largest), None, None], [Sent("f0", 1, strict=9), *others, *others]


@pytest.mark.parametrize(
    ("quanta", "overtaken", "largest", "reached", "bound"),
    [
        ((1,), 500, 100, 500, 500),
        ((1, 1), 50, 10, 110, 121),
        ((1, 1), 500, 10, 1010, 1021),
        ((1, 4), 0, 100, 700, 1004),
        ((4, 1), 50, 10, 60, 76),
        ((4, 1), 500, 100, 600, 751),
        ((3, 7), 500, 1, 1675, 1681),
        ((5, 2, 9), 500, 100, 1800, 2031),
        ((100, 1), 500, 10, 500, 517),
        ((1, 100), 0, 100, 19900, 20300),
        ((1, 100), 500, 100, 70400, 70800),
    ],
)
@pytest.mark.parametrize("policy", QueuePolicy)
def test_the_bound_is_nearly_reached(
    quanta: tuple[int, ...], overtaken: int, largest: int, reached: int, bound: int, policy: QueuePolicy,
) -> None:
    profile = families(*quanta, overtaken=overtaken, policy=policy)
    before, flood = worst_flood(profile, largest)
    served = besiege(profile, before, Sent("f0", largest), repeat(flood), largest)
    assert served == (reached, bound)
    assert 2 * reached >= bound


def test_own_backlog_counts_with_its_slope() -> None:
    """Ten older requests of 100 tokens, of which two are served before: the bound grows by 5 x 800, and is reached."""
    profile = families(1, 4, overtaken=50)
    before, flood = worst_flood(profile, 100)
    alone = besiege(profile, before, Sent("f0", 100), repeat(flood), 100)
    behind = besiege(profile, [*[Sent("f0", 100)] * 8, *before], Sent("f0", 100), repeat(flood), 100)
    assert behind[1] - alone[1] == 5 * 800
    assert behind[0] - alone[0] >= 5 * 700


def test_without_a_bound_on_overtaking_the_flood_wins() -> None:
    siege = Siege(families(1, 4, overtaken=None))
    siege.waiting.pop(siege.send(Sent(None, 1)))
    siege.arrive("victim", Sent("f0", 100))
    for _ in range(2000):
        siege.send(Sent("f0", 1, strict=9))
        siege.serve()
    assert list(siege.waiting) == ["victim"]


# An adversary that tries everything.


@st.composite
def profiles(draw: st.DrawFn, largest: int) -> PolicyProfile:
    """One or two families, one or two buckets, perhaps an explicit class."""
    names = ("f0", "f1")[: draw(st.integers(1, 2))]
    floors = [0, *([draw(st.integers(1, largest))] if draw(st.booleans()) else [])]
    buckets = tuple([CacheBucket(f"b{i}", floor) for i, floor in enumerate(floors)])
    cells: list[tuple[str | None, str | None]] = [(name, bucket.name) for name in names for bucket in buckets]
    cells += [(None, None)] * draw(st.integers(0, 1))
    classes = [
        PolicyClass(
            "x" if family is None else f"{family}-{bucket}", draw(st.sampled_from((1, 2, 3, 5, 8, 20))),
            draw(st.sampled_from(QueuePolicy)), family, bucket, prefill_busy_threshold=0,
            max_overtake_tokens=draw(st.integers(0, 60)),
        )
        for family, bucket in cells
    ]
    return PolicyProfile(tuple(classes), buckets, draw(st.sampled_from(names)))


@st.composite
def sieges(draw: st.DrawFn) -> tuple[PolicyProfile, list[Sent | None], Sent, list[list[Sent]], int]:
    """A profile, what comes before, the victim, the floods in turn, and the largest cost."""
    largest = draw(st.sampled_from((1, 3, 10, 40)))
    costs = st.sampled_from((1, largest)) | st.integers(1, largest)
    names = st.sampled_from(("f0", "f1", "x", None))
    rivals = st.builds(
        Sent, names, costs | st.just(0), st.integers(0, 3), st.sampled_from((0.0, 1.0, 1e9)), st.booleans(),
    )
    return (
        draw(profiles(largest)),
        draw(st.lists(st.none() | rivals, max_size=12)),
        draw(st.builds(Sent, names, costs, pinned=st.booleans())),
        draw(st.lists(st.lists(rivals, max_size=4), min_size=1, max_size=6)),
        largest,
    )


@given(sieges())
def test_no_stream_breaks_the_bound(
    siege: tuple[PolicyProfile, list[Sent | None], Sent, list[list[Sent]], int],
) -> None:
    profile, before, victim, floods, largest = siege
    served, bound = besiege(profile, before, victim, cycle(floods), largest)
    part = served / max(1, bound)
    target(part, label="part of the bound that was served first")
    event(f"served {int(10 * part) * 10} % of the bound")
