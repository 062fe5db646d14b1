"""The oracle in the place of the core, for mutants of it; and the plans on which each of them must be told apart."""

from __future__ import annotations

from functools import cache

from hypothesis import Phase, given, settings
from lockstep import LOAD_FIELDS, POTENTIAL_FIELDS
from oracle import Oracle
from strategies import plans
from strategies_letters import Resolver

PLANS = 200


class StandIn(Oracle):
    """The oracle in the place of the core."""

    def digest(self) -> str:
        queue = self.queue
        live = sorted((name, x.state, x.attempt, x.rank, x.progress_ns) for name, x in self.live.items())
        return repr((queue.cursor, queue.paid, queue.carry, [c.deficit for c in queue.classes], self.generator.state,
                     self.next_attempt, self.next_seq, live, self.workers,
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
    """The same plans for every mutant of a theme, with what the oracle says: [(events, actions, next_deadline_ns)]."""
    told = []

    @settings(max_examples=PLANS, derandomize=True, database=None, phases=[Phase.generate])
    @given(plans(theme))
    def collect(plan):
        oracle = Oracle(plan.config)
        rows = [(batch, oracle.step_many(batch), oracle.next_deadline_ns)
                for batch in Resolver(plan, oracle).batches()]
        told.append((plan, rows))

    collect()
    return told


def differs(mutant, plan, rows) -> bool:
    scheduler = mutant(plan.config)
    return any((scheduler.step_many(batch), scheduler.next_deadline_ns) != (wanted, due_ns)
               for batch, wanted, due_ns in rows)
