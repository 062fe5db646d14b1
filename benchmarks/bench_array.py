"""Whole arrays of events: `step_array` against `step`, and two threads with a scheduler each.

64 workers, 8 classes. The mixed cycle is a life in four events, arrival, prefill, one output block, finish, of waves of
256 requests: a wave arrives, then all that have been dispatched go through each phase together. "nobody waits": the
busy threshold is never reached. "many wait": one request makes a worker busy, so three of four wait and rounds are
made.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from harness import Recorder, digest, shown, times

import kvcore as kv
from kvcore.records import actions_from_records, records_from_events

WORKERS = 64
CLASSES = 8
WAVE = 256
PROMPT = 512
NAMES = tuple(f"c{i}" for i in range(CLASSES))
PHASES = (kv.PrefillCompleted, kv.OutputBlockAdded, kv.RequestFinished)


def core(threshold: int) -> kv.Scheduler:
    """threshold: prefill tokens above which a rank is busy."""
    profile = kv.PolicyProfile(
        (kv.PolicyClass("rest", 1, policy_family="all", cache_bucket="all", prefill_busy_threshold=threshold),
         *(kv.PolicyClass(name, 512 * (1 + i), prefill_busy_threshold=threshold) for i, name in enumerate(NAMES))),
        (kv.CacheBucket("all", 0),), "all")
    made = kv.Scheduler(kv.SchedulerConfig(profile=profile, seed=1))
    made.step_many([kv.WorkerUpserted(0, kv.WorkerConfig(worker, 0, 1, 8192)) for worker in range(WORKERS)])
    return made


def script(threshold: int, count: int) -> tuple[list[kv.AnyEvent], np.ndarray]:
    """The events of so many waves for a fresh scheduler, in which all ends, as objects and as rows."""
    made = core(threshold)
    events: list[kv.AnyEvent] = []
    running: list[kv.Dispatch] = []

    def step(event: kv.AnyEvent) -> None:
        events.append(event)
        running.extend(action for action in made.step(event) if isinstance(action, kv.Dispatch))

    wave = 0
    while wave < count or running:
        for i in range(WAVE if wave < count else 0):
            step(kv.RequestArrived(wave, kv.Request(str(wave * WAVE + i), PROMPT, NAMES[i % CLASSES])))
        present, running = running, []
        for phase in PHASES:
            for action in present:
                step(phase(wave, action.request_id, action.attempt))
        wave += 1
    rows, _ = records_from_events(events, NAMES)
    return events, rows


class Rig:
    """A scheduler through which the same script goes again and again, later each time and with later attempts."""

    def __init__(self, threshold: int, count: int) -> None:
        self.core = core(threshold)
        self.events, self.rows = script(threshold, count)
        self.lives = count * WAVE
        self.span = int(self.rows["now_ns"][-1]) + 1

    def next_rows(self) -> np.ndarray:
        """The script as rows, for its next time."""
        rows = self.rows.copy()
        self.rows["now_ns"] += self.span
        self.rows["attempt"] += self.lives
        return rows

    def next_events(self) -> list[kv.AnyEvent]:
        """The script as objects, for its next time."""
        events = self.events
        self.events = [
            kv.RequestArrived(event.now_ns + self.span, event.request) if isinstance(event, kv.RequestArrived)
            else type(event)(event.now_ns + self.span, event.request_id, event.attempt + self.lives)
            for event in events]
        return events


NEVER, SOMETIMES = 1 << 40, 511
WAVES = pytest.mark.sizes("count", small=(2,), large=(16,))
THRESHOLD = pytest.mark.parametrize("threshold", [NEVER, SOMETIMES], ids=["nobody waits", "many wait"])
TABLE = "The mixed cycle, an event (W = 64, 8 classes)"


def label(threshold: int) -> str:
    return "nobody waits" if threshold == NEVER else "many wait"


@THRESHOLD
@WAVES
def test_array(threshold, count, benchmark, report, size):
    trial, rig = Rig(threshold, count), Rig(threshold, count)
    made = recorded(trial)
    actions = actions_from_records(rig.core.step_array(rig.next_rows(), names=NAMES))
    assert digest(list(actions), rig.core.digest()) == made
    figure = report.measure(
        benchmark, lambda: (rig.core.step_array, rig.next_rows()), step_rows, len(rig.rows), made, size)
    report.add(TABLE, label(threshold), array=shown(figure), array_x=times(figure), digest=made)


@THRESHOLD
@WAVES
def test_single_steps(threshold, count, benchmark, report, size):
    trial, rig = Rig(threshold, count), Rig(threshold, count)
    made = recorded(trial)
    figure = report.measure(
        benchmark, lambda: (rig.core.step, rig.next_events()), step_events, len(rig.events), made, size)
    report.add(TABLE, label(threshold), step=shown(figure), step_x=times(figure))


def recorded(rig: Rig) -> str:
    """The digest of single steps."""
    recorder = Recorder(rig.core)
    for event in rig.next_events():
        recorder.step(event)
    return recorder.digest()


def step_rows(step_array, rows) -> None:
    step_array(rows, names=NAMES)


def step_events(step, events) -> None:
    for event in events:
        step(event)


@WAVES
def test_two_threads(count, benchmark, report, size):
    """Elapsed time of the same work on one thread, twice, and on two threads, once each."""
    rounds = 2 if size == "small" else 20
    alone, together = [], []
    rigs = Rig(NEVER, count), Rig(NEVER, count)

    def one_by_one() -> None:
        for rig in rigs:
            step_rows(rig.core.step_array, work[rig])

    def at_once() -> None:
        threads = [threading.Thread(target=step_rows, args=(rig.core.step_array, work[rig])) for rig in rigs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    for _ in range(rounds):
        for run, times_of in ((one_by_one, alone), (at_once, together)):
            work = {rig: rig.next_rows() for rig in rigs}
            start = time.perf_counter_ns()
            run()
            times_of.append(time.perf_counter_ns() - start)
    made = digest(rigs[0].core.digest(), rigs[1].core.digest())
    assert rigs[0].core.digest() == rigs[1].core.digest()
    benchmark.pedantic(lambda: None, rounds=1)
    report.digests[benchmark.fullname] = made
    report.add("Two threads, a scheduler each", f"{count} waves of {WAVE}",
               speed_up=f"{min(alone) / min(together):.2f}",
               one_by_one=f"{min(alone) / 1e6:.1f} ms", at_once=f"{min(together) / 1e6:.1f} ms", digest=made)
