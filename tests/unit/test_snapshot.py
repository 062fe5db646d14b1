"""Snapshots: the same bytes for the same state, and nothing but InvalidSnapshot for any others."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from stories import Story, arrive, profile

from kvcore import InvalidSnapshot, KvcoreError, Scheduler, SchedulerConfig, SelectionWeights
from kvcore.admission import AdmissionPolicy, Defer
from kvcore.config import IndexMode, OnOverload, PrefillDecay
from kvcore.events import (
    BlocksStored,
    LoadReported,
    OutputBlockAdded,
    PolicyReplaced,
    RequestArrived,
    RequestFinished,
    Tier,
    TimerFired,
    WorkerStatusChanged,
)
from kvcore.policy import AdmissionSpec, PolicyClass, PolicyProfile, QueuePolicy
from kvcore.request import Overlap, Rank, Request

MAGIC = b"kvcoreSN"
CHECKSUM = 16


class Hold(AdmissionPolicy):
    """Holds everybody back, and knows whom."""

    def __init__(self) -> None:
        self.held: list[str] = []

    def decide(self, view):
        self.held.append(view.request_id)
        return Defer()

    def dump(self):
        return list(self.held)

    def load(self, value):
        if type(value) is not list or not all(type(item) is str for item in value):
            raise ValueError("must be names")
        self.held = value


ADMISSION = {"hold": lambda parameters: Hold()}


def busy() -> Scheduler:
    """A scheduler with something of everything in it, but for questions to an outside index."""
    plain = profile(10, 20, 5, prefill_busy_threshold=0, max_overtake_tokens=1_000)
    classes = (*plain.classes[:2], replace(plain.classes[2], admission=AdmissionSpec("hold")))
    config = SchedulerConfig(
        4, replace(plain, classes=classes), booking_ttl_ns=1_000, on_overload=OnOverload.WAIT, overload_wait_ns=50,
        prefill_decay=PrefillDecay.LINEAR, predict_ttl_ns=500, reported_load_ttl_ns=300, pin_grace_ns=70, seed=9)
    core = Scheduler(config, admission=ADMISSION)
    story = Story()
    story.core = core
    story.upsert(1, dp_size=2, prefill_tokens_per_s=10**8, taints=frozenset({"a", "b"}), total_kv_blocks=100)
    story.upsert(2, incarnation=3, max_requests=5)
    story.upsert(3)
    story.many(
        BlocksStored(0, 1, 0, 0, (1, 2, 3)), BlocksStored(0, 2, 0, 3, (1, 9), Tier.HOST),
        BlocksStored(0, 2, 0, 3, (7,), Tier.DISK), WorkerStatusChanged(0, 3, 0, "health", False, False, None),
        WorkerStatusChanged(0, 2, 3, "router", True, True, 400), LoadReported(0, 1, 1, 0, 4, 3, 2, 1))
    story.at(5).many(
        RequestArrived(5, Request("r1", 20, "f0", block_hashes=(1, 2, 3), expected_output_tokens=9)),
        RequestArrived(5, Request("r2", 20, "f0", block_hashes=(1, 2, 4), pinned=Rank(1, 1), priority_jump=0.5)))
    story.many(OutputBlockAdded(5, "r1", 1, 0.5))
    story.many(
        arrive(5, "w1", 17, policy_class="f1", deadline_ns=900, weights=SelectionWeights(temperature=0.5)),
        arrive(5, "w2", 3, policy_class="f1", allowed_workers=frozenset({1, 2}), preferred_taints=(("a", 0.5),)),
        arrive(5, "p", pinned=Rank(3)), arrive(5, "q", pinned=Rank(7)), arrive(5, "d1", policy_class="f2"),
        arrive(5, "o", 9, overlap=Overlap(((Rank(1), 2),), shared=((2, 3),))))
    story.many(arrive(6, "gone", pinned=Rank(1)), RequestFinished(6, "r2", 2), TimerFired(7))
    story.fail("r1", 1, retry=True)
    stats = core.stats()
    assert (stats.deferred_requests, stats.running_requests > 0, stats.waiting_requests > 4) == (1, True, True)
    return core


def sealed(content: bytes) -> bytes:
    """Content under a checksum that is right."""
    return content + hashlib.blake2b(content, digest_size=CHECKSUM).digest()


def restore(data: bytes) -> Scheduler:
    return Scheduler.restore(data, admission=ADMISSION)


@pytest.fixture(scope="module")
def data():
    return busy().snapshot()


def test_it_is_bytes_with_a_name_and_a_version(data):
    assert type(data) is bytes
    assert data.startswith(MAGIC + (1).to_bytes(4, "little"))
    assert data == sealed(data[:-CHECKSUM])


def test_a_new_scheduler_comes_back():
    core = Scheduler()
    twin = Scheduler.restore(core.snapshot())
    assert (twin.config, twin.digest(), twin.stats()) == (core.config, core.digest(), core.stats())
    assert twin.snapshot() == core.snapshot()


def test_what_is_restored_is_the_same_and_goes_on(data):
    core, twin = busy(), restore(data)
    again = restore(twin.snapshot())
    for now_ns in (*range(8, 120, 7), 300, 450, 901, 1_200, 5_000):
        events = (arrive(now_ns, f"n{now_ns}", 8), TimerFired(now_ns))
        told = core.step_many(events)
        for other in (twin, again):
            assert other.step_many(events) == told
            assert (other.digest(), other.stats(), other.next_deadline_ns, other.audit()) == (
                core.digest(), core.stats(), core.next_deadline_ns, [])
            assert other.loads().tolist() == core.loads().tolist()
        assert twin.snapshot() == core.snapshot()


def test_reading_changes_nothing():
    core, unread = busy(), busy()
    before = core.digest()
    core.snapshot()
    assert core.digest() == before
    assert core.step(TimerFired(400)) == unread.step(TimerFired(400))
    assert core.snapshot() == unread.snapshot()


def test_other_kinds_of_bytes_will_do(data):
    assert restore(bytearray(data)).digest() == restore(memoryview(data)).digest() == restore(data).digest()
    for wrong in ("text", None, 5):
        with pytest.raises(TypeError):
            Scheduler.restore(wrong)


def test_the_profile_in_force_comes_back():
    story = Story(1, profile=profile(2, 3))
    story.arrive("a", policy_class="f1")
    story.many(PolicyReplaced(0, profile(7, prefill_busy_threshold=3, queue_policy=QueuePolicy.LCFS)))
    story.many(arrive(0, "b"), arrive(0, "c"))
    twin = Scheduler.restore(story.core.snapshot())
    assert (twin.profile, twin.config) == (story.core.profile, story.core.config)
    assert twin.stats() == story.core.stats()


def test_a_poisoned_scheduler_has_none():
    class Broken(Hold):
        def decide(self, view):
            raise RuntimeError

    core = Scheduler(busy().config, admission={"hold": lambda parameters: Broken()})
    story = Story()
    story.core = core
    story.upsert(1)
    with pytest.raises(KvcoreError):
        core.step(arrive(0, "a", policy_class="f2"))
    with pytest.raises(RuntimeError):
        core.snapshot()


def test_a_policy_that_cannot_be_dumped_has_none():
    class Silent(AdmissionPolicy):
        def decide(self, view):
            return Defer()

    core = Scheduler(busy().config, admission={"hold": lambda parameters: Silent()})
    with pytest.raises(NotImplementedError):
        core.snapshot()


# The same state, the same bytes.


def slots(order: str) -> Story:
    story = Story(1)
    story.many(arrive(0, "x"), arrive(0, "y"))
    for name in order:
        story.cancel(name)
    story.many(arrive(0, "a", block_hashes=(1, 2)), arrive(0, "b", block_hashes=(1, 3)))
    return story


def upserted(order) -> Story:
    story = Story(index=IndexMode.EVENTS)
    for worker_id in order:
        story.upsert(worker_id, dp_size=2)
    for worker_id in (2, 1):
        story.store(worker_id, *order)
    return story


def marked(order) -> Story:
    story = Story(1)
    for source in order:
        story.many(WorkerStatusChanged(0, 1, 0, source, True, True, 5))
    return story


@pytest.mark.parametrize(("make", "one", "other"), [
    (slots, "xy", "yx"), (upserted, (1, 2, 3), (3, 2, 1)), (marked, "abc", "cab")])
def test_roads(make, one, other):
    assert make(one).core.snapshot() == make(other).core.snapshot()


# Other bytes.


def fault(data: bytes) -> str:
    with pytest.raises(InvalidSnapshot) as caught:
        restore(data)
    assert isinstance(caught.value, KvcoreError)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value) == f"snapshot: {caught.value.reason}"
    return caught.value.reason


def test_what_is_wrong_is_said(data):
    assert fault(b"") == fault(b"kvcoreXX" + data[8:]) == "not a snapshot of kvcore"
    assert fault(MAGIC) == fault(data[:20]) == "it breaks off"
    assert fault(data[:8] + b"\2\0\0\0" + data[12:]) == "format version 2; this version reads 1"
    assert fault(data[:-1]) == fault(data + b"\0") == fault(data[:100] + b"!" + data[101:]) == "its checksum is wrong"
    assert fault(sealed(data[:-CHECKSUM - 1])) == fault(sealed(data[:-CHECKSUM] + b"\0")) == (
        "something stands behind its end")
    assert "hold" in fault_without_admission(data)


def fault_without_admission(data: bytes) -> str:
    with pytest.raises(InvalidSnapshot) as caught:
        Scheduler.restore(data)
    return caught.value.reason


def test_another_digest_is_another_state(data):
    content = bytearray(data[:-CHECKSUM])
    content[-1] ^= 1
    assert fault(sealed(bytes(content))) == "it is of no state that can be"


def test_every_byte_counts(data):
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        fault(bytes(damaged))


def test_every_length_but_one_is_wrong(data):
    for size in range(len(data)):
        fault(data[:size])


def survives(content: bytes) -> None:
    """Whatever it is under a right checksum: refused, or the snapshot of a scheduler that works."""
    try:
        core = restore(sealed(content))
    except InvalidSnapshot:
        return
    assert core.snapshot() == sealed(content)
    assert core.audit() == []
    core.step(TimerFired(2**62 - 1))
    assert core.audit() == []


@pytest.mark.parametrize("change", [lambda byte: byte ^ 1, lambda byte: 0xFF, lambda byte: byte ^ 0x80, lambda byte: 0],
                         ids=["low", "ones", "high", "zero"])
def test_nonsense_under_a_right_checksum(data, change):
    content = data[:-CHECKSUM]
    for at in range(12, len(content)):
        damaged = bytearray(content)
        damaged[at] = change(damaged[at])
        survives(bytes(damaged))


def test_cut_under_a_right_checksum(data):
    content = data[:-CHECKSUM]
    for size in range(12, len(content), 3):
        fault(sealed(content[:size]))
        fault(sealed(content[:size] + content[size + 8:]))
        fault(sealed(content[:size] + bytes(8) + content[size:]))


def test_a_policy_may_want_to_be_called_at_once():
    """Nothing has been stepped yet, so that its time has come and it has not been called."""

    class Eager(AdmissionPolicy):
        def __init__(self, parameters):
            pass

        def next_deadline_ns(self):
            return 0

        def dump(self):
            return None

        def load(self, value):
            pass

    profile = PolicyProfile((PolicyClass("default", 1, admission=AdmissionSpec("eager")),))
    scheduler = Scheduler(SchedulerConfig(profile=profile), {"eager": Eager})
    assert Scheduler.restore(scheduler.snapshot(), admission={"eager": Eager}).digest() == scheduler.digest()
