"""The oracle's limits: class of a request, how much may wait, when to come again (DESIGN D2, D6, D18).

A part of `Oracle`: reads its state, changes nothing.
"""

from __future__ import annotations

from oracle_capacity import queues
from oracle_ledger import ceil_div
from oracle_state import ClassStats, Live

from kvcore.actions import RejectReason
from kvcore.policy import PolicyClass
from kvcore.request import Request

RETRY_MIN_NS = 1_000_000
RETRY_MAX_NS = 3_600 * 10**9
R = RejectReason


class Limits:
    """The part of Oracle that knows classes and their bounds."""

    def _snapshot(self, request: Request) -> int:
        """Cached tokens on the best rank that it may use (DESIGN D1)."""
        best = max((self._found(request, rank).cached for rank in self._eligible(request)), default=0)
        return min(best, request.prompt_tokens)

    def _class_of(self, request: Request, cached: int) -> int:
        return self._classify(request.policy_class, request.prompt_tokens - cached)

    def _classify(self, name: str | None, uncached: int) -> int:
        """Explicit class, else family and the last bucket whose floor is reached."""
        if self.profile.default_policy_family is None:
            return 0
        for index, item in enumerate(self.profile.classes):
            if item.policy_family is None and item.name == name:
                return index
        family = name if name in self._families() else self.profile.default_policy_family
        bucket = [b.name for b in self.profile.buckets if b.min_tokens <= uncached][-1]
        return next(i for i, item in enumerate(self.profile.classes)
                    if item.policy_family == family and item.cache_bucket == bucket)

    def _families(self) -> set[str]:
        return {item.policy_family for item in self.profile.classes if item.policy_family is not None}

    def _knows(self, name: str | None) -> bool:
        """Whether a class name means something."""
        if name is None or self.profile.default_policy_family is None or name in self._families():
            return True
        return any(item.policy_family is None and item.name == name for item in self.profile.classes)

    def _queues(self, class_index: int) -> bool:
        return queues(self.profile.classes[class_index], self.profile.capacity)

    def _never_queues(self, class_index: int) -> bool:
        return any(bound == 0 for _, bound in self._bounds(class_index))

    def _bounds(self, class_index: int) -> tuple[tuple[RejectReason, int | None], ...]:
        item: PolicyClass = self.profile.classes[class_index]
        return ((R.QUEUE_FULL_REQUESTS, item.request_queue_limit_per_worker),
                (R.QUEUE_FULL_RAW_TOKENS, item.raw_isl_token_queue_limit_per_worker),
                (R.QUEUE_FULL_CACHED_TOKENS, item.cached_token_queue_limit_per_worker))

    def _waiting_in(self, class_index: int) -> list[Live]:
        """Ready and deferred ones."""
        return [x for x in self._in("waiting", "deferred") if x.class_index == class_index]

    def _usage(self, class_index: int) -> tuple[int, int, int]:
        """Waiting requests, their raw and their cached tokens."""
        waiting = self._waiting_in(class_index)
        return len(waiting), sum(x.request.prompt_tokens for x in waiting), sum(x.cached for x in waiting)

    def _queued_cost(self, class_index: int) -> int:
        return sum(x.entry.cost for x in self._waiting_in(class_index))

    def _over_limit(self, request: Request, class_index: int):
        """(reason, current, limit, retry_after_ns) of the first limit that refuses this arrival, or None."""
        if request.do_not_queue or self._never_queues(class_index):
            return None
        for (reason, bound), current in zip(self._bounds(class_index), self._usage(class_index), strict=True):
            if bound is not None and current >= bound * max(1, len(self.workers)):
                limit = bound * max(1, len(self.workers))
                return reason, current, limit, self._retry_after_ns(class_index, current, limit)
        return None

    def _retry_after_ns(self, class_index: int, current: int, limit: int) -> int | None:
        """How long the excess takes at the pace of the last 32 dispatches."""
        window = list(self.recent[class_index])
        if len(window) < 2 or current == 0:
            return None
        served = sum(cost for _, cost in window[1:])
        span_ns = window[-1][0] - window[0][0]
        if span_ns == 0:
            return None
        excess = ceil_div(self._queued_cost(class_index) * (current - limit + 1), current)
        return min(max(ceil_div(excess * span_ns, served), RETRY_MIN_NS), RETRY_MAX_NS)

    def _would_queue(self, index: int) -> tuple:
        """What is said to a request of a class that may not wait: (reason, class, current, limit, retry)."""
        for (reason, bound), current in zip(self._bounds(index), self._usage(index), strict=True):
            if bound == 0:
                return reason, index, current, 0, self._retry_after_ns(index, current, 0)
        return R.WOULD_QUEUE, index, 0, 0, None

    def _class_stats(self, index: int) -> ClassStats:
        stats = ClassStats(**vars(self.class_counts[index]))
        usage = self._usage(index)
        stats.waiting_requests, stats.waiting_raw_tokens, stats.waiting_cached_tokens = usage
        stats.waiting_cost_tokens = self._queued_cost(index)
        stats.deficit_tokens = self.queue.classes[index].deficit
        return stats
