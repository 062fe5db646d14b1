"""The replay loop: instants and batches, open and closed loop, class draws, and what stands in the report."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from kvcore.drivers.replay import report
from kvcore.drivers.replay import simulate as loop
from kvcore.drivers.replay.classes import ClassMix, exact, parse_classes
from kvcore.drivers.replay.presets import PRESETS
from kvcore.drivers.replay.quantiles import rank
from kvcore.drivers.replay.result import COLUMNS, ReplayResult, RequestTable, latencies_ns
from kvcore.drivers.replay.simulate import simulate
from kvcore.drivers.replay.traces import TraceRow

from kvcore.actions import RejectReason
from kvcore.config import SchedulerConfig
from kvcore.errors import InvalidConfig, InvalidTrace
from kvcore.events import RequestArrived, TimerFired, WorkerUpserted
from kvcore.policy import CacheBucket, PolicyClass, PolicyProfile, QueuePolicy
from kvcore.scheduler import Scheduler

MS = 10**6
MOCK = PRESETS["mock"]


def rows(count, *, gap_ns=5 * MS, prompt=100, output=5, **fields):
    """Rows at equal distance, numbered from 1."""
    return [TraceRow(i * gap_ns, prompt, output, row=i + 1, **fields) for i in range(count)]


def profile(*classes, family="regular"):
    """One bucket; classes as (name, quantum, more fields of PolicyClass)."""
    cells = [
        PolicyClass(name, quantum, policy_family=name, cache_bucket="all", **more) for name, quantum, more in classes
    ]
    return PolicyProfile(tuple(cells), (CacheBucket("all", 0),), family)


TWO = profile(("premium", 512, {"prefill_busy_threshold": 100}), ("regular", 128, {"prefill_busy_threshold": 100}))


class Recorder:
    """A scheduler that keeps what it is stepped through."""

    batches: list

    def __init__(self, config):
        self._core = Scheduler(config)
        type(self).batches = []

    def __getattr__(self, name):
        return getattr(self._core, name)

    def step_many(self, events):
        actions = self._core.step_many(events)
        self.batches.append((list(events), actions))
        return actions


@pytest.fixture
def batches(monkeypatch):
    monkeypatch.setattr(loop, "Scheduler", Recorder)
    return lambda: Recorder.batches


def column(result, name):
    return result.table.column(name).tolist()


def ended(result: ReplayResult) -> Counter:
    return Counter(column(result, "outcome"))


# Instants and batches.


def test_one_request_alone():
    result = simulate(rows(1, prompt=1000, output=11), SchedulerConfig(), MOCK, 1)
    first, finish = column(result, "first_token_ns")[0], column(result, "finish_ns")[0]
    assert first == 20 * MS, "one iteration: 10 ms and 10 us a prompt token"
    assert finish == first + 10 * 10 * MS
    assert column(result, "wait_ns") == [0]
    assert column(result, "worker") == [0]
    assert (result.start_ns, result.end_ns) == (0, finish)
    assert result.audit == []
    times = latencies_ns(result.table.rows())
    assert {name: values.tolist() for name, values in times.items()} == {
        "queue_wait": [0], "ttft": [first], "itl": [10 * MS], "e2e": [finish]
    }


def test_batches_hold_one_instant_engine_first(batches):
    config = SchedulerConfig(profile=TWO)
    simulate(rows(50, gap_ns=10 * MS, prompt=1000, output=3), config, replace(MOCK, max_num_seqs=4), 2)
    assert all(isinstance(event, WorkerUpserted) for event in batches()[0][0])
    together = 0
    for events, _ in batches()[1:]:
        assert len({event.now_ns for event in events}) == 1
        arrived = [isinstance(event, RequestArrived) for event in events]
        assert arrived == sorted(arrived), "arrivals after the engine's facts"
        assert not any(isinstance(event, TimerFired) for event in events), "nothing has a deadline here"
        together += arrived[-1] and not arrived[0]
    assert together, "some batch must hold both"
    times = [events[0].now_ns for events, _ in batches()]
    assert times == sorted(times)
    assert sum(len(events) for events, _ in batches()) == simulate(
        rows(50, gap_ns=10 * MS, prompt=1000, output=3), config, replace(MOCK, max_num_seqs=4), 2
    ).events


def test_arrivals_of_one_instant_are_one_batch_in_trace_order(batches):
    simulate(rows(20, gap_ns=0), SchedulerConfig(), MOCK, 3)
    events = batches()[1][0]
    assert [event.request.request_id for event in events] == [f"r0-{i}" for i in range(1, 21)]


def test_nothing_to_replay():
    result = simulate([], SchedulerConfig(), MOCK, 2)
    assert len(result.table) == 0
    summary = report.summarize(result)
    assert summary["classes"] == []
    assert summary["simulated_ns"] == 0
    assert summary["total"]["latency_ns"]["ttft"] == {"count": 0, "p50": None, "p90": None, "p99": None, "max": None}
    assert summary["workers"]["busy_share"] == {"min": None, "mean": None, "max": None, "cv": None}


def test_speedup_is_exact():
    times = [0, 1, 10, 10**9 + 7, 3 * 10**17 + 1]
    some = [TraceRow(time, 10, 1, row=i + 1) for i, time in enumerate(times)]
    for speedup, factor in ((1, Fraction(1)), ("3", Fraction(3)), (0.1, Fraction(1, 10)), (Fraction(7, 3),) * 2):
        result = simulate(some, SchedulerConfig(), MOCK, 1, speedup=speedup)
        assert column(result, "arrival_ns") == [time * factor.denominator // factor.numerator for time in times]
    with pytest.raises(InvalidConfig, match="speedup must be above 0"):
        simulate(some, SchedulerConfig(), MOCK, 1, speedup=0)


def test_same_input_same_result():
    config = SchedulerConfig(profile=TWO, seed=7)
    mix = parse_classes("premium=1,regular=3")
    first, second, other = (
        simulate(rows(300, gap_ns=MS, prompt=700), config, MOCK, 3, classes=mix, seed=seed) for seed in (7, 7, 8)
    )
    assert first.digest == second.digest
    assert first.table.rows().tolist() == second.table.rows().tolist()
    assert first.table.rows().tolist() != other.table.rows().tolist()


def test_reported_hits_are_the_engines_and_the_cores():
    hashes = tuple(range(100, 110))
    some = [TraceRow(i * 10**9, 160, 2, hashes, row=i + 1) for i in range(3)]
    result = simulate(some, SchedulerConfig(block_size=16), MOCK, 1)
    expected, found = column(result, "cached_tokens"), column(result, "engine_cached_tokens")
    assert expected[0] == found[0] == 0
    assert expected[1] == expected[2] == 160, "the index knows all blocks of the prompt"
    assert 0 < found[1] <= 160
    assert found[1] == found[2]


def test_priorities_reach_the_core():
    """Behind one that fills the worker, the strictest goes first, then the one with a head start, then the oldest."""
    some = [TraceRow(0, 1000, 1, row=1)] + [
        TraceRow(MS * i, 1000, 1, row=i + 1, priority=priority, strict_priority=strict)
        for i, priority, strict in [(1, 0.0, 0), (2, 10.0, 0), (3, 0.0, 1)]
    ]
    config = SchedulerConfig(profile=profile(("regular", 1, {"prefill_busy_threshold": 999})))
    result = simulate(some, config, replace(MOCK, max_num_seqs=1), 1)
    order = np.argsort(result.table.column("finish_ns"))
    assert order.tolist() == [0, 3, 2, 1]


# Closed loop.


@pytest.mark.parametrize("concurrency", [1, 3, 1000])
def test_closed_loop_keeps_n_in_flight(concurrency):
    some = rows(60, gap_ns=10**12, prompt=500, output=7)
    result = simulate(some, SchedulerConfig(), MOCK, 2, concurrency=concurrency)
    arrival, finish = column(result, "arrival_ns"), sorted(column(result, "finish_ns"))
    assert arrival[:concurrency] == [0] * min(60, concurrency)
    assert arrival[concurrency:] == finish[: max(0, 60 - concurrency)], "each arrives as another ends"


def test_closed_loop_goes_on_after_rejects():
    tight = profile(("regular", 1, {"prefill_busy_threshold": 0, "request_queue_limit_per_worker": 1}))
    result = simulate(rows(100), SchedulerConfig(profile=tight), MOCK, 1, concurrency=8)
    reasons = column(result, "reason")
    assert set(reasons) == {0, RejectReason.QUEUE_FULL_REQUESTS}
    assert ended(result)[2] == sum(reason > 0 for reason in reasons) == result.stats.rejected["QUEUE_FULL_REQUESTS"]
    assert ended(result)[1] + ended(result)[2] == 100
    assert result.audit == []


def test_bad_arguments():
    with pytest.raises(InvalidConfig, match="workers"):
        simulate([], SchedulerConfig(), MOCK, 0)
    with pytest.raises(InvalidConfig, match="concurrency"):
        simulate([], SchedulerConfig(), MOCK, 1, concurrency=0)
    with pytest.raises(InvalidConfig, match="needs a policy"):
        simulate([], SchedulerConfig(), MOCK, 1, classes=parse_classes("a=1"))


# Rows that fit no worker, and bookings that expire.


def test_unfit_row_is_bad_input():
    some = [TraceRow(0, MOCK.kv_tokens - 1, 1, row=1), TraceRow(1, MOCK.kv_tokens, 1, row=2), TraceRow(2, 10, 1, row=3)]
    with pytest.raises(InvalidTrace, match=r"^a\.csv: row 2: .* never fit"):
        simulate(some, SchedulerConfig(), MOCK, 1, paths=["a.csv"])
    result = simulate(some, SchedulerConfig(), MOCK, 1, skip_unfit=True)
    assert result.unfit == 1
    assert column(result, "row") == [1, 3]
    assert ended(result) == {1: 2}


def test_expired_bookings_end_as_evicted():
    """A prefill of many iterations makes no progress that the core sees; with a short TTL the booking expires."""
    some = [TraceRow(0, 20_000, 2, row=1), TraceRow(MS, 10, 2, row=2)]
    result = simulate(some, SchedulerConfig(booking_ttl_ns=50 * MS), MOCK, 2)
    assert ended(result)[3] == 1
    assert column(result, "finish_ns")[0] == -1
    assert result.stats.evicted == 1
    assert result.stats.live_requests == 0
    assert result.audit == []
    assert report.summarize(result)["requests"] == {"completed": 1, "rejected": 0, "evicted": 1}


def test_booking_that_expires_as_its_request_finishes():
    """First token at 11 ms, the last at 31 ms: the core hears of the expiry and of the end in one step."""
    result = simulate([TraceRow(0, 100, 3)], SchedulerConfig(booking_ttl_ns=20 * MS), MOCK, 1)
    assert column(result, "finish_ns") == [31 * MS]
    assert ended(result) == {1: 1}
    assert (result.stats.evicted, result.stats.completed, result.stats.live_requests) == (1, 1, 0)


def test_fact_of_an_expired_booking_is_ignored():
    """The booking expires at 11 ms, when its prompt is computed."""
    result = simulate([TraceRow(0, 100, 3)], SchedulerConfig(booking_ttl_ns=11 * MS), MOCK, 1)
    assert ended(result) == {3: 1}
    assert result.ignored == 1
    assert (result.stats.aborted, result.stats.live_requests) == (1, 0)


def test_deadlines_of_the_core_are_stepped(batches):
    simulate([TraceRow(0, 100, 3)], SchedulerConfig(booking_ttl_ns=5 * MS), MOCK, 1)
    assert [[type(event) for event in events] for events, _ in batches()][2] == [TimerFired]


def test_progress_is_told():
    told = []
    simulate(rows(900), SchedulerConfig(), MOCK, 1, progress=lambda requests, now_ns: told.append((requests, now_ns)))
    assert told == sorted(told)
    assert 0 < told[0][0] <= 900


# Class draws.


def test_classes_are_drawn_by_row_number_alone():
    mix = parse_classes("premium=0.2, regular=0.8")
    drawn = [mix.draw(3, 0, row) for row in range(1, 5001)]
    assert 900 < drawn.count("premium") < 1100
    config = SchedulerConfig(profile=TWO)
    whole = simulate(rows(400), config, MOCK, 4, classes=mix, seed=3)
    some = simulate([row for row in rows(400) if row.row % 3], config, MOCK, 4, classes=mix, seed=3)
    by_row = dict(zip(column(whole, "row"), column(whole, "class_index"), strict=True))
    assert [by_row[row] for row in column(some, "row")] == column(some, "class_index")
    assert list(by_row.values()) == [0 if name == "premium" else 1 for name in drawn[:400]]
    assert mix.draw(3, 0, 1 << 63) in ("premium", "regular")


def test_class_of_the_trace_wins_over_the_draw():
    result = simulate(
        rows(30, policy_class="premium"), SchedulerConfig(profile=TWO), MOCK, 4, classes=parse_classes("regular=1")
    )
    assert column(result, "class_index") == [0] * 30


def test_draw_is_exact():
    """A draw of h belongs to the first class whose cumulative share is above h / 2^64."""
    mix = ClassMix((("a", Fraction(1, 3)), ("none", Fraction(0)), ("b", Fraction(2, 3))))
    assert mix._bounds == ((2**64 + 2) // 3, (2**64 + 2) // 3, 2**64)
    assert {mix.draw(0, 0, row) for row in range(200)} == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not NAME=WEIGHT"), ("premium", "not NAME=WEIGHT"), ("premium=", "not NAME=WEIGHT"),
        ("premium=x", "not NAME=WEIGHT"), ("premium=nan", "not NAME=WEIGHT"), ("premium=-1", "not NAME=WEIGHT"),
        ("premium=1e9", "not NAME=WEIGHT"), ("premium=0.2,", "not NAME=WEIGHT"), ("=1", "without a name"),
        ("premium=0,regular=0", "above 0"), ("premium=1,premium=2", "given twice"),
    ],
)
def test_bad_class_specs(text, reason):
    with pytest.raises(InvalidConfig, match=reason):
        parse_classes(text)


def test_unknown_class_names_get_a_hint():
    with pytest.raises(InvalidConfig, match=r"'premum'; did you mean 'premium'\?"):
        parse_classes("premum=1").check(TWO)
    with pytest.raises(InvalidConfig, match="the policy has premium, regular"):
        parse_classes("xyz=1").check(TWO)


def test_exact_numbers():
    assert exact("0.1") == Fraction(1, 10)
    assert exact(".5") == Fraction(1, 2)
    assert exact("3.") == 3
    for text in ("", ".", "1e3", "-1", "+1", "1/2", "nan", "inf", " 1", "1_0", "١", "1" * 19):
        assert exact(text) is None


# The report.


def table(*cells):
    """A table of (arrival, prompt, output, class, outcome, reason, worker, wait, cached, first, finish, found)."""
    made = RequestTable()
    for i, (arrival, prompt, output, *rest) in enumerate(cells):
        made.add(0, i + 1, arrival, prompt, output, dict(zip(COLUMNS[5:], rest, strict=False)))
    return made


def result_of(made, **fields):
    run = simulate([], SchedulerConfig(profile=TWO), MOCK, 1)
    return replace(run, table=made, **fields)


def test_percentiles_are_nearest_rank():
    values = [15, 20, 35, 40, 50]
    assert [values[rank(percent, 5)] for percent in (5, 30, 40, 50, 100)] == [15, 20, 20, 35, 50]
    assert rank(99, 100) == 98
    assert rank(99, 101) == 99
    assert rank(50, 1) == 0


def test_summary_of_known_requests():
    made = table(
        (100, 1000, 4, 0, 1, 0, 0, 7, 400, 1100, 1110, 384, 2),
        (200, 500, 1, 1, 1, 0, 0, 0, 0, 900, 900, 0, 0),
        (300, 50, 9, 1, 2, int(RejectReason.QUEUE_FULL_REQUESTS), -1, -1, 0, -1, -1, 0, 0),
        (400, 60, 9, -1, 2, int(RejectReason.NO_WORKERS), -1, -1, 0, -1, -1, 0, 0),
    )
    summary = report.summarize(result_of(made, contended={0b11: [600, 200]}))
    premium, regular, none = summary["classes"]
    assert (premium["name"], regular["name"], none["name"]) == ("premium", "regular", None)
    assert premium["latency_ns"] == {
        "queue_wait": {"count": 1, "p50": 7, "p90": 7, "p99": 7, "max": 7},
        "ttft": {"count": 1, "p50": 1000, "p90": 1000, "p99": 1000, "max": 1000},
        "itl": {"count": 1, "p50": 3, "p90": 3, "p99": 3, "max": 3},
        "e2e": {"count": 1, "p50": 1010, "p90": 1010, "p99": 1010, "max": 1010},
    }
    assert regular["latency_ns"]["itl"]["count"] == 0, "one token has no gap"
    assert premium["prefix_hit"] == {
        "expected_tokens": 400, "expected_rate": 0.4, "engine_tokens": 384, "engine_rate": 0.384
    }
    assert premium["preemptions"] == 2
    assert (premium["served_uncached_tokens"], premium["served_share"]) == (600, round(600 / 1100, 6))
    assert (premium["quantum_share"], regular["quantum_share"]) == (0.8, 0.2)
    assert premium["contended"] == {"uncached_tokens": 600, "share": 0.75, "quantum_share": 0.8}
    assert (regular["requests"], regular["completed"], regular["rejected"]) == (2, 1, {"QUEUE_FULL_REQUESTS": 1})
    assert none["rejected"] == {"NO_WORKERS": 1}
    assert summary["requests"] == {"completed": 2, "rejected": 2, "evicted": 0}
    assert summary["total"]["requests"] == 4


def test_contended_share_of_a_subset_of_classes():
    three = profile(("a", 3, {}), ("b", 1, {}), ("regular", 4, {}))
    run = simulate([], SchedulerConfig(profile=three), MOCK, 1)
    shares = replace(run, contended={0b011: [30, 10, 0], 0b110: [0, 5, 35]}).contended_shares()
    assert [tokens for tokens, _, _ in shares] == [30, 15, 35]
    assert [share * 80 for _, share, _ in shares] == [30, 15, 35]
    assert [due * 80 for _, _, due in shares] == [30, 10 + 8, 32]


def test_worker_spread_is_exact():
    assert report._variation([1, 2, 3, 4], 1) == {"min": 1.0, "mean": 2.5, "max": 4.0, "cv": 0.447214}
    assert report._variation([5, 5], 10) == {"min": 0.5, "mean": 0.5, "max": 0.5, "cv": 0.0}
    assert report._variation([0, 0], 0) == {"min": None, "mean": None, "max": None, "cv": None}


def test_workers_share_the_requests_of_a_run():
    result = simulate(rows(200, gap_ns=MS), SchedulerConfig(), MOCK, 4)
    summary = report.summarize(result)["workers"]
    assert sum(each["requests"] for each in summary["each"]) == 200
    assert Counter(column(result, "worker")) == {i: each["requests"] for i, each in enumerate(summary["each"])}
    assert all(0 < each["busy_share"] <= 1 for each in summary["each"])
    assert summary["requests"]["mean"] == 50.0


def test_json_holds_only_json():
    text = io.StringIO()
    report.write_json(report.summarize(simulate(rows(10), SchedulerConfig(profile=TWO), MOCK, 2)), text)
    assert json.loads(text.getvalue())["requests"]["completed"] == 10


@pytest.mark.parametrize("policy", list(QueuePolicy))
def test_every_queue_policy_runs_to_the_end(policy):
    config = SchedulerConfig(default_queue_policy=policy, default_busy_threshold_frac=0.5)
    result = simulate(rows(200, gap_ns=MS, prompt=900), config, MOCK, 2)
    assert ended(result) == {1: 200}
    assert max(column(result, "wait_ns")) > 0
    assert result.audit == []
    assert result.ignored == 0
