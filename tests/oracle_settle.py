"""The oracle's settle: whoever may run goes, one after the other, until nothing changes any more (DESIGN D6, D8, D15).

A part of `Oracle`. Every verdict is found anew; each choice sees the bookings of those before it.
"""

from __future__ import annotations

from oracle_ledger import ceil_div, sequence_hashes
from oracle_state import Live

from kvcore.actions import Dispatch


class Settling:
    """The part of Oracle that lets requests run."""

    def _settle(self) -> None:
        """Heads that may run, then who may not be left over, then what policies hear of that; and again."""
        while True:
            while (entry := self.queue.pop(self._can_run)) is not None:
                self._popped(entry.payload)
            leftover = [x for x in self._waiting() if not x.may_wait]
            if leftover:
                self._leave_over(leftover[0])
            elif not self._deliver_all():
                return

    def _leave_over(self, live: Live) -> None:
        self._unqueue(live)
        self._reject(live.request, *self._would_queue(live.class_index))
        self._tell(live, "aborted")

    def _popped(self, live: Live) -> None:
        if self._is_worth_asking(live):
            self._ask(live)
        else:
            self._place(live)

    def _place(self, live: Live) -> None:
        """It has left its class: it is sent to a rank, or told why to none."""
        request = live.request
        ranks = self._candidates(request, self.profile.classes[live.class_index])
        if not ranks:
            reason = self._refusal_of_fleet(request) or self._refusal_without_candidates(request)
            del self.live[request.request_id]
            self._reject(request, reason, live.class_index)
            self._tell(live, "aborted")
            return
        rank = self._select(request, ranks)
        found = self._found(request, rank)
        load = self.loads_by_rank[rank]
        names = sequence_hashes(request, self.config.block_size)
        cached = min(found.cached, request.prompt_tokens)
        prefill = request.prompt_tokens - cached if request.track_prefill else 0
        private = ceil_div(request.prompt_tokens, self.config.block_size) - len(names)
        potential = load.active_blocks + len(names) - self._depth(request, rank) + private
        live.state, live.attempt, live.rank = "running", self.next_attempt, rank
        live.accepted, live.progress_ns = False, self.now_ns
        live.dispatches += 1
        live.booking = load.book(prefill, names, private, self._reserve(request), self.now_ns)
        self._use_blocks(live)
        self.next_attempt += 1
        self._count(live)
        self.actions.append(Dispatch(
            request.request_id, live.attempt, *rank, live.class_index, cached, int(found.device), prefill, potential,
            self.now_ns - live.arrival_ns))
        self._publish_booked(live)

    def _count(self, live: Live) -> None:
        """What has cost nothing tells nothing of the pace of its class."""
        if live.entry.cost > 0:
            self.recent[live.class_index].append((self.now_ns, live.entry.cost))
        self.counts.dispatched += 1
        self.class_counts[live.class_index].dispatched += 1
        self.class_counts[live.class_index].dispatched_cost_tokens += live.entry.cost
