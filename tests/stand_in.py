"""The oracle in the place of the core, for mutants of it; and the plans on which each of them must be told apart."""

from __future__ import annotations

from functools import cache

from hypothesis import Phase, given, seed, settings
from lockstep import LOAD_FIELDS, POTENTIAL_FIELDS
from oracle import Oracle
from policies import ADMISSION
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
    """The same plans for every mutant of a theme, with what the oracle says: [(events, actions, next_deadline_ns)]."""
    told = []

    for lot in LOTS:
        @seed(lot)
        @settings(max_examples=PLANS, derandomize=False, database=None, phases=[Phase.generate])
        @given(plans(theme))
        def collect(plan):
            oracle = Oracle(plan.config, ADMISSION)
            rows = [(batch, oracle.step_many(batch), oracle.next_deadline_ns)
                    for batch in Resolver(plan, oracle).batches()]
            told.append((plan, rows))

        collect()
    return told


def differs(mutant, plan, rows) -> bool:
    scheduler = mutant(plan.config, ADMISSION)
    return any((scheduler.step_many(batch), scheduler.next_deadline_ns) != (wanted, due_ns)
               for batch, wanted, due_ns in rows)
