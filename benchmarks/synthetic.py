"""A synthetic trace in the Mooncake format, the same on every machine.

    python benchmarks/synthetic.py PATH [--requests N] [--rate R] [--seed S]

Poisson arrivals; prompts of about 1,000 tokens and outputs of about 200. Four of five prompts begin with one or two
blocks of 512 tokens that they share with others of their family, of 200 families of which some are much more popular;
what follows is a request's own. Only Random.random() is used, whose sequence Python promises to keep.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
from collections.abc import Iterator

BLOCK = 512
FAMILIES = 200
OUTPUT_MEAN = 200
#: With 0.2, 0.6 and 0.2 of all prompts sharing 0, 1 and 2 blocks this makes 1,000 tokens on average.
OWN_MEAN = 488


def rows(requests: int, rate: float, seed: int) -> Iterator[dict[str, object]]:
    """The rows of a trace; rate is in requests per second of its time."""
    draw = random.Random(seed).random
    arrival_ms = 0.0
    fresh = 2 * FAMILIES
    for _ in range(requests):
        arrival_ms -= 1000.0 / rate * math.log(1.0 - draw())
        chance = draw()
        depth = 0 if chance < 0.2 else 1 if chance < 0.8 else 2
        family = int(FAMILIES * draw() ** 3)
        own = _length(draw(), draw(), OWN_MEAN)
        names = [2 * family, 2 * family + 1][:depth]
        blocks = -(-own // BLOCK)
        names += range(fresh, fresh + blocks)
        fresh += blocks
        yield {
            "timestamp": int(arrival_ms), "input_length": depth * BLOCK + own,
            "output_length": _length(draw(), draw(), OUTPUT_MEAN), "hash_ids": names,
        }


def _length(first: float, second: float, mean: int) -> int:
    """Two exponential stages from two uniform draws: seldom tiny, with a tail of some six times the mean."""
    return max(1, round(-mean / 2 * math.log((1.0 - first) * (1.0 - second))))


def write(path: str | os.PathLike[str], requests: int, rate: float, seed: int = 1) -> None:
    """Write a trace as JSON lines. A shorter trace of the same rate and seed is the beginning of a longer one."""
    with open(path, "w", encoding="ascii") as file:
        for row in rows(requests, rate, seed):
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a synthetic trace in the Mooncake format.")
    parser.add_argument("path")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=400.0, help="requests per second (default: 400)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    write(options.path, options.requests, options.rate, options.seed)
