"""The journal: writing it (encoding alone), and replaying it: decode, build, step, compare. Nanoseconds an event.

Cycles of three events, one a batch, on 16 workers: arrival, prefill, finish; "32 hashes": with a prompt of 32 named
blocks. The journal lies in memory, so that no disk is measured.
"""

from __future__ import annotations

import io

import pytest
from harness import digest, shown, times

import kvcore as kv

TABLE = "Journal: one event"
CYCLES = {"small": 200, "large": 33_334}
KINDS = {"plain": 0, "32 hashes": 32}
WORKERS = 16
PROMPT = 512

Batches = list[tuple[tuple[kv.AnyEvent, ...], tuple[kv.AnyAction, ...]]]


def recorded(cycles: int, blocks: int) -> tuple[Batches, str]:
    """What is stepped and answered, and the text of its journal."""
    core = kv.Scheduler(kv.SchedulerConfig(seed=1))
    batches: Batches = []

    def step(*events: kv.AnyEvent) -> None:
        batches.append((events, core.step_many(events)))

    step(*[kv.WorkerUpserted(0, kv.WorkerConfig(worker)) for worker in range(WORKERS)])
    for i in range(cycles):
        name = f"r{i}"
        path = tuple((1 << 63) + i * blocks + j for j in range(blocks))
        step(kv.RequestArrived(i, kv.Request(name, PROMPT, block_hashes=path)))
        step(kv.PrefillCompleted(i, name, i + 1))
        step(kv.RequestFinished(i, name, i + 1))
    return batches, write(core.config, batches)


def write(config: kv.SchedulerConfig, batches: Batches) -> str:
    """The journal without digests of the state."""
    stream = io.StringIO()
    with kv.JournalWriter(stream, config) as journal:
        for events, actions in batches:
            journal.batch(events, actions)
    return stream.getvalue()


def replay(lines: list[str]) -> kv.JournalReplay:
    """Step it again."""
    return kv.replay_journal(kv.JournalReader(lines))


@pytest.mark.parametrize("kind", KINDS)
def test_write(kind, benchmark, report, size):
    batches, text = recorded(CYCLES[size], KINDS[kind])
    config, items = kv.SchedulerConfig(seed=1), sum(len(events) for events, _ in batches)
    figure = report.measure(benchmark, lambda: (config, batches), write, items, digest(text), size)
    report.add(TABLE, f"write, {kind}", time=shown(figure), x=times(figure), digest=digest(text))


@pytest.mark.parametrize("kind", KINDS)
def test_replay(kind, benchmark, report, size):
    batches, text = recorded(CYCLES[size], KINDS[kind])
    lines, items = text.splitlines(keepends=True), sum(len(events) for events, _ in batches)
    result = replay(lines)
    assert (result.batches, result.events) == (len(batches), items)
    figure = report.measure(benchmark, lambda: (lines,), replay, items, digest(result.digest), size)
    report.add(TABLE, f"replay, {kind}", time=shown(figure), x=times(figure), digest=digest(result.digest))
