"""One mode in a process of its own; prints its figures as one JSON object.

    python benchmarks/modes_child.py SIZE MODE CHANGE         CHANGE: none, output or leave

First the whole run: core, fleet and callers together. Then a fresh core is stepped through the same batches: that is
the core alone, and must end in the same state. Last once more with a clock around each step.
"""

from __future__ import annotations

import gc
import json
import sys
import time

from harness import BaseLine, digest
from modes_world import SIZES, Mode, Story, World, new_core

import kvcore as kv


def check(mode: Mode, world: World, leave: bool) -> None:
    """The run was what it should be: all workers at work, every request accounted for, nothing left in the books."""
    story, core = world.story, world.core
    assert story.used == set(range(mode.workers)), f"{mode.workers - len(story.used)} workers were never used"
    assert story.asked == mode.sessions * mode.turns, f"{story.asked} asked"
    assert story.completed + story.cancelled + story.rejected == story.asked
    assert story.rejected == 0
    if leave:
        assert story.cancelled >= 0.4 * story.asked, f"only {story.cancelled} of {story.asked} left"
    else:
        assert story.waiting_peak >= mode.waiting_min, f"only {story.waiting_peak} waited"
        assert story.live_peak >= mode.live_min, f"only {story.live_peak} were live"
    loads = core.loads()
    for name in ("requests", "prefill_tokens", "active_blocks", "held_blocks"):
        assert not loads[name].any(), f"{name} left in the ledger"
    stats = core.stats()
    assert stats.waiting_requests == 0
    assert stats.live_requests == 0
    assert core.audit() == []


def percentile(values: list[int], percent: int) -> int:
    """Nearest rank."""
    return sorted(values)[max(0, (percent * len(values) + 99) // 100 - 1)] if values else 0


def stepped(mode: Mode, story: Story) -> tuple[int, str]:
    """Nanoseconds of CPU of the core alone, and the digest of the state that it ends in."""
    core = new_core(mode)
    step = core.step_many
    gc.collect()
    gc.disable()
    start = time.thread_time_ns()
    for batch in story.batches:
        step(batch)
    spent = time.thread_time_ns() - start
    gc.enable()
    return spent, core.digest()


def arrivals(mode: Mode, story: Story) -> list[float]:
    """Nanoseconds of the steps that hold arrivals, per arrival, less what looking at the clock costs."""
    core = new_core(mode)
    step, clock = core.step_many, time.perf_counter_ns
    overhead = min(-(clock() - clock()) for _ in range(1000))
    found = []
    gc.disable()
    for batch in story.batches:
        count = sum(1 for event in batch if isinstance(event, kv.RequestArrived))
        start = clock()
        step(batch)
        spent = clock() - start
        if count:
            found.append(max(0, spent - overhead) / count)
    gc.enable()
    return found


def figures(size: str, name: str, change: str) -> dict[str, object]:
    """Run a mode once."""
    mode = SIZES[size][name]
    world = World(mode, change == "output", change == "leave")
    cpu, wall = time.process_time(), time.perf_counter()
    story = world.run()
    cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
    check(mode, world, change == "leave")
    passes = [stepped(mode, story) for _ in range(3)]
    assert {state for _, state in passes} == {world.core.digest()}
    base = BaseLine()
    steps = sorted(arrivals(mode, story))
    return {
        "asked": story.asked, "completed": story.completed, "cancelled": story.cancelled,
        "waiting_peak": story.waiting_peak, "live_peak": story.live_peak,
        "events": sum(map(len, story.batches)), "cpu_s": cpu_s, "wall_s": wall_s,
        "core_ns": min(spent for spent, _ in passes), "base_ns": min(base.ns() for _ in range(20)),
        "arrival_p50_ns": steps[len(steps) // 2], "arrival_p99_ns": steps[len(steps) * 99 // 100],
        "ttft_p95_ns": percentile(story.ttft_ns, 95), "after_first_p95_ns": percentile(story.after_first_ns, 95),
        "digest": digest(world.core.digest(), story.completed, story.cancelled, story.ttft_ns, story.after_first_ns),
    }


if __name__ == "__main__":
    print(json.dumps(figures(*sys.argv[1:4])))
