"""What is watched adds up to what the replay counts by itself, and to what the core says."""

from __future__ import annotations

import numpy as np
import pytest
from kvcore.drivers.replay.report import summarize
from kvcore.drivers.replay.result import COLUMNS, RunOutcome
from kvcore.drivers.report.meters import Grid
from kvcore.drivers.report.replay import RunsDiffer, watched
from kvcore.drivers.report.tables import EDGES_NS, gather, looks, slowest
from kvcore.drivers.report.watch import ROWS_MAX, Watch
from reports import azure, mooncake, shared

from kvcore import Dispatch, RequestArrived


def look(run, bins=30):
    """A watched run: (result, watch, tables)."""
    first = run()
    slow = slowest(first, 5)
    watch = Watch(Grid.over(first.start_ns, first.end_ns, bins), 2, run.workers, run.block_size, looks(slow))
    second = run(watch.tap, decisions_kept=64)
    assert second.digest == first.digest
    watch.finish(second.end_ns)
    return second, watch, gather(second, watch, slow)


def column(result, name):
    """A column of the table of requests."""
    return result.table.rows()[:, COLUMNS.index(name)]


def total(meters):
    """Level times time, of all meters."""
    return sum(sum(meter.area) for meter in meters)


@pytest.fixture(scope="module")
def seen():
    """The run with contention."""
    return look(azure())


def test_contended_tokens_are_those_that_the_replay_counts(seen):
    result, watch, tables = seen
    found = {}
    for part in watch.contended:
        for waiting, tokens in part.items():
            found[waiting] = [a + b for a, b in zip(found.get(waiting, [0, 0]), tokens, strict=True)]
    assert found == dict(result.contended)
    assert sum(found[3]) > 10_000
    assert sum(tables["shares"].column("contended_tokens")) == sum(found[3])


def test_time_in_the_queue_is_what_requests_waited(seen):
    result, watch, _ = seen
    waits = column(result, "wait_ns")
    assert total(watch.queued) == waits.sum() > 0
    assert total(watch.queued_tokens) == (waits * column(result, "prompt_tokens")).sum()
    assert [meter.level for meter in (*watch.queued, *watch.running, *watch.prefill)] == [0] * 8


def test_time_on_workers_is_what_requests_ran(seen):
    result, watch, _ = seen
    sent = column(result, "arrival_ns") + column(result, "wait_ns")
    uncached = column(result, "prompt_tokens") - column(result, "cached_tokens")
    for worker in range(3):
        mine = column(result, "worker") == worker
        assert total([watch.running[worker]]) == (column(result, "finish_ns") - sent)[mine].sum() > 0
        assert total([watch.prefill[worker]]) == ((column(result, "first_token_ns") - sent) * uncached)[mine].sum()


def test_tables_hold_every_request_once(seen):
    result, _, tables = seen
    numbers = summarize(result)
    for entry in numbers["classes"]:
        served = tables["shares"].where("class", entry["name"]).column("uncached_tokens")
        assert sum(served) == entry["served_uncached_tokens"]
        for key, spread in entry["latency_ns"].items():
            rows = tables["distributions"].where("class", entry["name"]).where("latency", key)
            assert rows.column("requests")[-1] == spread["count"]
            assert rows.rows[-1][-1] == 1
            # The share at an edge is exact: half of the requests lie at or below the edge after the median.
            assert next(row[2] for row in rows.rows if row[-1] >= 0.5) == EDGES_NS[
                np.searchsorted(EDGES_NS, spread["p50"])]


def test_refusals_by_class_and_reason():
    result, watch, tables = look(azure(queue=1, speedup=10))
    numbers = summarize(result)
    told = [
        (entry["name"], reason, count) for entry in numbers["classes"] for reason, count in entry["rejected"].items()]
    assert tables["rejects"].rows == told
    assert numbers["requests"]["rejected"] > 5
    assert [meter.level for meter in watch.queued] == [0, 0]
    ran = column(result, "worker") >= 0
    assert total(watch.queued) == column(result, "wait_ns")[ran].sum(), "whoever is refused at arrival never waits"


@pytest.mark.parametrize("make", [lambda folder: mooncake(), shared])
def test_reachable_is_the_most_that_a_worker_has_cached(make, tmp_path):
    """The core's own index, asked at each dispatch, is the judge."""
    run = make(tmp_path)
    first = run()
    watch = Watch(Grid.over(first.start_ns, first.end_ns, 10), 2, run.workers, run.block_size)
    requests, best = {}, {}

    def tap(events, actions, core):
        watch.tap(events, actions, core)
        for event in events:
            if isinstance(event, RequestArrived):
                requests[event.request.request_id] = event.request
        for action in actions:
            if isinstance(action, Dispatch):
                request = requests[action.request_id]
                most = int(core.potential_loads(request)["cached_tokens"].max())
                best[action.request_id] = min(most, (request.prompt_tokens - 1) // run.block_size * run.block_size)

    result = run(tap)
    assert list(watch.reachable) == [best[name] for name in requests]
    assert sum(best.values()) > 0
    watch.finish(result.end_ns)
    hits = gather(result, watch, slowest(result))["hits"]
    assert sum(hits.column("reachable_tokens")) == sum(best.values())
    assert sum(hits.column("achieved_tokens")) == column(result, "engine_cached_tokens").sum()
    lost = np.maximum(np.array(watch.reachable) - column(result, "engine_cached_tokens"), 0)
    assert sum(hits.column("lost_tokens")) == lost.sum()


def test_the_slowest_are_the_slowest_and_explained(seen):
    result, watch, tables = seen
    ttft = column(result, "first_token_ns") - column(result, "arrival_ns")
    assert tables["slowest"].column("ttft_ns") == sorted(ttft.tolist(), reverse=True)[:5]
    for name, wait_ns in zip(tables["slowest"].column("id"), tables["slowest"].column("queue_wait_ns"), strict=True):
        assert f"'{name}'" in watch.chosen[name]
        assert "decision" in watch.chosen[name]
        assert wait_ns > 0
        assert "waiting" in watch.waited[name]
        assert "busy" in watch.waited[name]


def test_only_completed_requests_are_slow():
    result = azure(queue=1, speedup=10)()
    kept = slowest(result, 10_000)
    assert len(kept) == (column(result, "outcome") == RunOutcome.COMPLETED).sum() < len(result.table)
    assert all(column(result, "row")[position] == row["row"] for position, row in kept)


def test_many_workers_share_the_rows_of_the_map():
    watch = Watch(Grid.over(0, 10, 5), 1, 3 * ROWS_MAX - 1, 16)
    assert (len(watch.running), watch.workers_per_row, sum(watch.row_sizes)) == (ROWS_MAX, 3, 3 * ROWS_MAX - 1)
    assert watch.row_sizes[-1] == 2


def test_another_second_run_is_refused():
    run, other = azure(limit=40), azure(limit=39)
    first = run()
    with pytest.raises(RunsDiffer):
        watched(first, {}, run.workers, run.block_size, other)
