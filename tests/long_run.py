"""A long run of core and oracle side by side: `python tests/long_run.py --events 10000000 [--seed N] [--processes 2]`.

Not part of the tests: it takes hours for ten million events. Configurations come from the strategies of the
differential test; each lives through ROUNDS rounds of random events of every kind, with cancels, failures and workers
that come and go. After each batch actions and deadlines are compared, now and then all that can be seen. A round ends
with everything live cancelled or finished: then nothing may be left in any ledger.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, Phase, given, seed, settings
from lockstep import answer, compare, look, views
from oracle import Oracle
from policies import ADMISSION
from strategies import LETTER_BYTES, Plan, plans
from strategies_letters import Resolver

from kvcore.events import DispatchFailed, Outcome, RequestCancelled, RequestFinished
from kvcore.scheduler import Scheduler

ROUNDS = 20
ROUND_BATCHES = 120
VIEWS_EVERY = 10
LOOKS_EVERY = 60


@dataclass
class Tally:
    """What has been played so far."""

    events: int = 0
    batches: int = 0
    dispatches: int = 0
    rests: int = 0
    configurations: int = 0


class Letters:
    """Batches of random letters, made as they are asked for; the first is the plan's own, the fleet."""

    def __init__(self, plan: Plan, chance: random.Random) -> None:
        self.first, self.chance = plan.batches[0], chance

    def __iter__(self) -> Iterator[tuple[bytes, ...]]:
        yield self.first
        for _ in range(ROUNDS * ROUND_BATCHES):
            yield tuple(self.chance.randbytes(LETTER_BYTES) for _ in range(self.chance.choice((1, 1, 1, 1, 2, 5))))

    def __getitem__(self, index: int) -> tuple[bytes, ...]:
        return (random.Random(index).randbytes(LETTER_BYTES),)

    def __len__(self) -> int:
        return ROUNDS * ROUND_BATCHES


def play(plan: Plan, chance: random.Random, tally: Tally, wanted: int) -> None:
    """One configuration, until its rounds or the wanted number of events are over."""
    plan = replace(plan, batches=Letters(plan, chance))
    scheduler, oracle = Scheduler(plan.config, ADMISSION), Oracle(plan.config, ADMISSION)
    resolver = Resolver(plan, oracle)
    tally.configurations += 1
    recent: list = []
    for number, events in enumerate(resolver.batches()):
        step(scheduler, oracle, events, plan, recent, tally)
        if number % VIEWS_EVERY == 0:
            for what, seen, expected in views(scheduler, oracle):
                compare(what, seen, expected, plan, recent)
        if number % LOOKS_EVERY == 0:
            look(scheduler, oracle, resolver, plan, recent)
        if number % ROUND_BATCHES == ROUND_BATCHES - 1:
            rest(scheduler, oracle, plan, chance, recent, tally)
            if tally.events >= wanted:
                return


def step(scheduler, oracle, events, plan: Plan, recent: list, tally: Tally) -> None:
    recent.append(events)
    del recent[:-ROUND_BATCHES]
    told, expected = answer(scheduler, events), answer(oracle, events)
    compare("actions", told, expected, plan, recent)
    compare("next_deadline_ns", scheduler.next_deadline_ns, oracle.next_deadline_ns, plan, recent)
    tally.events += len(events)
    tally.batches += 1
    tally.dispatches += sum(hasattr(action, "wait_ns") for action in told)


def rest(scheduler, oracle, plan: Plan, chance: random.Random, recent: list, tally: Tally) -> None:
    """End everything that lives, in any order, one way or another: the ledgers are empty then."""
    names = sorted(oracle.live)
    chance.shuffle(names)
    for name in names:
        live = oracle.live.get(name)
        if live is None:
            continue
        now_ns, attempt = oracle.now_ns, live.attempt
        if attempt and live.state != "waiting" and chance.random() < 0.7:
            event = chance.choice((
                RequestFinished(now_ns, name, attempt), RequestFinished(now_ns, name, attempt, Outcome.ABORTED),
                DispatchFailed(now_ns, name, attempt), DispatchFailed(now_ns, name, attempt, True)))
        else:
            event = RequestCancelled(now_ns, name)
        step(scheduler, oracle, (event,), plan, recent, tally)
    while oracle.live:  # what has come back, or has run since others ended
        step(scheduler, oracle, (RequestCancelled(oracle.now_ns, min(oracle.live)),), plan, recent, tally)
    loads = scheduler.loads()
    left = [int(loads[name].sum()) for name in ("requests", "prefill_tokens", "active_blocks", "held_blocks")]
    compare("ledger at rest", left, [0, 0, 0, 0], plan, recent)
    compare("audit at rest", scheduler.audit(), [], plan, recent)
    compare("live at rest", scheduler.stats().live_requests, 0, plan, recent)
    tally.rests += 1


def run(wanted: int, number: int) -> Tally:
    """So many events; number: seed of configurations and letters."""
    tally, chance = Tally(), random.Random(number)
    said = time.monotonic()
    while tally.events < wanted:
        @seed(chance.getrandbits(32))
        @settings(max_examples=50, database=None, deadline=None, phases=[Phase.generate],
                  suppress_health_check=list(HealthCheck))
        @given(plans())
        def some(plan):
            if tally.events < wanted and plan.batches:
                play(plan, chance, tally, wanted)

        some()
        if time.monotonic() - said > 60:
            said = time.monotonic()
            print(f"seed {number}: {tally}", file=sys.stderr, flush=True)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description="Core against oracle, for as long as it takes.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    share = -(-options.events // options.processes)
    with multiprocessing.Pool(options.processes) as pool:
        tallies = pool.starmap(run, [(share, options.seed + i) for i in range(options.processes)])
    for tally in tallies:
        print(tally)
    print(f"{sum(tally.events for tally in tallies)} events: core = oracle, every ledger empty at rest")


if __name__ == "__main__":
    main()
