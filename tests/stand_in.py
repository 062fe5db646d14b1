"""The oracle in the place of the core, for mutants of it; and the plans on which each of them must be told apart."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path

from hypothesis import Phase, given, seed, settings
from lockstep import LOAD_FIELDS, POTENTIAL_FIELDS
from oracle import Oracle
from policies import logged
from strategies import plans
from strategies_letters import Resolver

#: Plans come in small lots, each from its own beginning: within one, many are alike.
LOTS = range(100, 110)
PLANS = 25


class StandIn(Oracle):
    """The oracle in the place of the core."""

    def digest(self) -> str:
        queue = self.queue
        live = sorted((name, x.state, x.attempt, x.rank, x.progress_ns, x.class_index, x.ticket, x.age_ns,
                       x.request.pinned) for name, x in self.live.items())
        policies = [None if host is None else host.policy.dump() for host in self.hosts]
        return repr((queue.place, [c.deficit for c in queue.classes], self.generator.state, self.profile, policies,
                     self.next_attempt, self.next_seq, self.next_ticket, live, self.workers, self.lost_ns,
                     [(rank, vars(load)) for rank, load in self.loads_by_rank.items()],
                     [(rank, [sorted(names) for names in cache.told.values()]) for rank, cache in self.index.items()]))

    def audit(self) -> list[str]:
        return []

    def loads(self):
        return [dict(zip(LOAD_FIELDS, row, strict=True)) for row in super().loads()]

    def potential_loads(self, request):
        names = (*POTENTIAL_FIELDS, "cost")
        return [dict(zip(names, row, strict=True)) for row in super().potential_loads(request)]


@cache
def corpus(theme):
    """The same plans for every mutant of a theme, with the oracle's answers: [(plan, [(events, what it says)])]."""
    told = []

    for lot in LOTS:
        @seed(lot)
        @settings(max_examples=PLANS, derandomize=False, database=None, phases=[Phase.generate])
        @given(plans(theme))
        def collect(plan):
            log = []
            oracle = Oracle(plan.config, logged(log))
            told.append((plan, [(batch, said(oracle, log, batch)) for batch in Resolver(plan, oracle).batches()]))

        collect()
    return told


def said(scheduler, log, batch) -> tuple:
    """What a batch is answered, what policies are told meanwhile, and when there is more to do."""
    log.clear()
    return scheduler.step_many(batch), tuple(log), scheduler.next_deadline_ns


def differs(mutant, plan, rows) -> bool:
    log = []
    scheduler = mutant(plan.config, logged(log))
    return any(said(scheduler, log, batch) != wanted for batch, wanted in rows)


def story(subject: str, name: str) -> Callable[[type[Oracle]], None]:
    """A story of tests/unit/test_oracle_SUBJECT.py, to be told on any scheduler."""
    path = Path(__file__).parent / "unit" / f"test_oracle_{subject}.py"
    spec = importlib.util.spec_from_file_location(f"stories_of_{subject}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, f"test_{name}")
