"""A replay over rows is the replay over events, to the last bit: same table, same digest, same counters."""

from __future__ import annotations

import json
import signal
import tempfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kvcore.drivers.replay import simulate as module
from kvcore.drivers.replay._rowloop import RowLoop
from kvcore.drivers.replay.classes import parse_classes
from kvcore.drivers.replay.presets import PRESETS
from kvcore.drivers.replay.report import summarize
from kvcore.drivers.replay.simulate import simulate
from kvcore.drivers.replay.traces import TraceRow, open_traces

from kvcore.config import IndexMode, SchedulerConfig
from kvcore.errors import InvalidEvent, InvalidTrace
from kvcore.policy import CacheBucket, Capacity, PolicyClass, PolicyProfile, QueuePolicy

MS = 10**6
MOCK = PRESETS["mock"]
BLOCK = 16


def ignore(events, actions, core):
    """A tap: somebody looks on, so the run is over events."""


def cells(**fields):
    return PolicyProfile(
        tuple(PolicyClass(name, quantum, policy_family=name, cache_bucket="all", **fields)
              for name, quantum in (("premium", 512), ("regular", 128))),
        (CacheBucket("all", 0),), "regular")


#: Nobody waits; some wait; some are refused; nobody may wait.
PROFILES = {
    "none": None, "waits": cells(prefill_busy_threshold=100),
    "full": cells(prefill_busy_threshold=100, request_queue_limit_per_worker=1),
    "tokens": cells(prefill_busy_threshold=50, raw_isl_token_queue_limit_per_worker=150),
    "never": cells(prefill_busy_threshold=0, request_queue_limit_per_worker=0),
}

CONFIGS = st.builds(
    SchedulerConfig,
    block_size=st.just(BLOCK), profile=st.sampled_from(list(PROFILES)).map(PROFILES.__getitem__),
    default_queue_policy=st.sampled_from([QueuePolicy.FCFS, QueuePolicy.WSPT]),
    capacity=st.sampled_from([None, Capacity.STRICT]),
    booking_ttl_ns=st.sampled_from([None, None, 8 * MS, 40 * MS]), seed=st.integers(0, 3),
    index=st.sampled_from([IndexMode.EVENTS, IndexMode.EVENTS, IndexMode.APPROXIMATE, IndexMode.OFF]))


@st.composite
def traces(draw) -> list[TraceRow]:
    """Bursts, shared prefixes, named and unknown classes, sessions, priorities."""
    now_ns, found = 0, []
    for i in range(draw(st.integers(1, 14))):
        now_ns += draw(st.sampled_from([0, 0, 1, MS, 7 * MS, 100 * MS]))
        prompt = draw(st.integers(1, 120))
        family = draw(st.integers(0, 2)) << 40
        names = tuple(family + k for k in range(-(-prompt // BLOCK))) if draw(st.booleans()) else ()
        found.append(TraceRow(
            now_ns, prompt, draw(st.integers(1, 40)), names, draw(st.sampled_from([None, "a", "b"])),
            draw(st.sampled_from([None, 0, 3 * MS])), draw(st.sampled_from([0.0, 1.5, -2.0])),
            draw(st.sampled_from([0, 0, 7])), draw(st.sampled_from([None, "premium", "regular", "other"])), 0, i + 1))
    return found


def facts(result):
    """All that a run leaves, and its report."""
    return (
        result.table.rows().tolist(), result.digest, result.audit, result.events, result.steps, result.ignored,
        result.contended, result.stats, list(result.workers), result.unfit, result.abandoned, result.start_ns,
        result.end_ns, list(result.sessions.names()), json.dumps(summarize(result), sort_keys=True))


def both(rows, config, workers, **options):
    """The run over rows, and that over events."""
    return [facts(simulate(rows, config, MOCK, workers, tap=tap, **options)) for tap in (None, ignore)]


@given(traces(), CONFIGS, st.integers(1, 3), st.sampled_from([{}, {"concurrency": 2}, {"closed_loop": True}]),
       st.booleans(), st.sampled_from([1, 3, "0.5"]), st.booleans())
@example([TraceRow(i * MS, 100, 30, row=i + 1) for i in range(6)], SchedulerConfig(
    block_size=BLOCK, booking_ttl_ns=8 * MS), 1, {}, False, 1, False)
def test_rows_are_events(rows, config, workers, loop, tell_output, speedup, mixed):
    mix = parse_classes("premium=1,regular=2") if mixed and config.profile is not None else None
    by_rows, by_events = both(
        rows, config, workers, tell_output=tell_output, speedup=speedup, classes=mix, **loop)
    assert by_rows == by_events


def text_of(row: TraceRow) -> str:
    fields = {"timestamp": row.arrival_ns // MS, "input_length": row.prompt_tokens, "output_length": row.output_tokens}
    if row.block_hashes:
        fields["hash_ids"] = [name & 0xFFFF for name in row.block_hashes]
    if row.session_id == "a":
        fields |= {"session_id": "a"}
    if row.policy_class == "other":
        fields |= {"policy_class": "premium", "strict_priority": row.strict_priority, "priority": row.priority}
    return json.dumps(fields) + "\n"


@given(traces(), CONFIGS, st.sampled_from([1, 3]), st.booleans(), st.sampled_from([None, 5]))
def test_rows_of_files_are_events(rows, config, speedup, skip, limit):
    """Through the files: what is read in place becomes what TraceRows become."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.jsonl")
        path.write_text("".join(map(text_of, rows)))
        found = []
        for tap in (None, ignore):
            with open_traces([path, path], block_size=BLOCK, trace_block_size=BLOCK, limit=limit) as stream:
                result = simulate(stream, config, MOCK, 2, tap=tap, speedup=speedup, skip_unfit=skip)
                found.append((facts(result), stream.read, stream.reordered, stream.skipped))
    assert found[0] == found[1]


@pytest.fixture
def loops(monkeypatch):
    """Which loops have been made."""
    made = []

    def seen(*parts, **options):
        made.append(RowLoop)
        return RowLoop(*parts, **options)

    monkeypatch.setattr(module, "RowLoop", seen)
    return made


def test_rows_are_taken_where_nobody_looks_on(loops):
    """Otherwise the comparisons above compare events with events."""
    rows = [TraceRow(0, 10, 2)]
    simulate(rows, SchedulerConfig(), MOCK, 1, tap=ignore)
    assert not loops
    simulate(rows, SchedulerConfig(), MOCK, 1)
    assert loops


def test_signals_have_their_turn(tmp_path):
    """Ctrl-C and others: while rows are still to come, not when the run is through."""
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f'{{"timestamp": {i}, "input_length": 9, "output_length": 1}}\n' for i in range(20_000)))
    stream = open_traces([path])
    closed, seen = [], []
    close = stream._lines[0].close
    stream._lines[0].close = partial(closed.append, True)   # nothing that is interpreted

    def stop(*_):
        seen.append(bool(closed))
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(InterruptedError):
            simulate(stream, SchedulerConfig(block_size=512), MOCK, 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        close()
    assert seen == [False]


def test_evictions_are_among_what_is_compared():
    rows = [TraceRow(i * MS, 100, 30, row=i + 1) for i in range(6)]
    result = simulate(rows, SchedulerConfig(block_size=BLOCK, booking_ttl_ns=8 * MS), MOCK, 1)
    assert summarize(result)["total"]["evicted"] > 0


@pytest.mark.parametrize("fields", [{"block_hashes": (-1,)}, {"block_hashes": (1 << 64,)}, {"block_hashes": (True,)},
                                    {"block_hashes": ("x",)}, {"strict_priority": 1 << 32}, {"priority": float("nan")}])
def test_rows_that_no_reader_gives_are_refused_alike(fields):
    rows = [TraceRow(0, 10, 2, **fields)]
    said = []
    for tap in (None, ignore):
        try:
            said.append(simulate(rows, SchedulerConfig(block_size=BLOCK), MOCK, 1, tap=tap).digest)
        except (InvalidEvent, OverflowError, TypeError) as error:
            said.append((type(error), str(error)))
    assert said[0] == said[1]


def test_unfit_rows_are_refused_alike(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 99999999, "output_length": 1}\n'
                    '{"timestamp": 0, "input_length": 9, "output_length": 1}\n')
    said = []
    for tap in (None, ignore):
        with open_traces([path]) as stream, pytest.raises(InvalidTrace) as raised:
            simulate(stream, SchedulerConfig(block_size=512), MOCK, 1, tap=tap, paths=["it"])
        said.append(str(raised.value))
        with open_traces([path]) as stream:
            result = simulate(stream, SchedulerConfig(block_size=512), MOCK, 1, tap=tap, skip_unfit=True)
        said.append((result.unfit, result.digest))
    assert said[:2] == said[2:]
    assert said[0].startswith("it: row 1: 100000000 tokens")
