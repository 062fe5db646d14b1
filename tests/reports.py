"""Replays to be reported on: one with several classes and refusals, one whose prompts have content."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kvcore.drivers.replay.classes import parse_classes
from kvcore.drivers.replay.presets import PRESETS
from kvcore.drivers.replay.simulate import simulate
from kvcore.drivers.replay.traces import open_traces
from tree import ROOT

from kvcore.config import SchedulerConfig
from kvcore.policy_file import load_policy

TRACES = ROOT / "examples" / "traces"
POLICY = """
default_policy_family: regular
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: premium, policy_family: premium, cache_bucket: all, quantum: 512, prefill_busy_threshold: 500,
     request_queue_limit_per_worker: LIMIT}
  - {name: regular, policy_family: regular, cache_bucket: all, quantum: 128, prefill_busy_threshold: 500,
     request_queue_limit_per_worker: LIMIT}
"""


class Run:
    """A replay that can be run as often as one likes."""

    def __init__(self, trace, *, workers=3, limit=None, mix="premium=0.3,regular=0.7", queue=1000, speedup=4):
        self.trace, self.workers, self.limit = str(trace), workers, limit
        self.mix, self.speedup = parse_classes(mix), speedup
        self.profile = load_policy(POLICY.replace("LIMIT", str(queue)), "p.yaml").root

    def config(self, block_size, **more):
        """What the scheduler of the run is configured with."""
        return replace(SchedulerConfig(block_size=block_size, profile=self.profile), **more)

    def __call__(self, tap=None, **more):
        """Run it. more: fields of the configuration."""
        with open_traces([self.trace], limit=self.limit) as stream:
            self.block_size = stream.block_size
            return simulate(
                stream, self.config(stream.block_size, **more), PRESETS["generic"], self.workers, classes=self.mix,
                speedup=self.speedup, paths=[self.trace], tap=tap)


def azure(**more):
    """Prompts of unknown content; classes contend."""
    return Run(TRACES / "azure_code_sample.csv", **more)


def mooncake(**more):
    """Prompts whose blocks have names."""
    return Run(TRACES / "mooncake_sample.jsonl", **{"speedup": 8} | more)


def shared(folder: Path, count=120):
    """A trace in which prompts of 5 conversations grow, so that many of their blocks are cached somewhere."""
    lines = []
    for i in range(count):
        talk, turn = i % 5, i // 5 % 6
        blocks = [talk * 100 + block for block in range(2 + turn)]
        lines.append(f'{{"timestamp": {i * 40}, "input_length": {512 * len(blocks)}, "output_length": {5 + i % 9}, '
                     f'"hash_ids": {blocks}}}\n')
    path = folder / "shared.jsonl"
    path.write_text("".join(lines))
    return Run(path, speedup=1)
