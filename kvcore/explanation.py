"""What `Scheduler.explain`, `decisions` and `queue_dump` return: values without payload, true when they were read.

Frozen dataclasses, written once here and given a C layout by explanation.pxd, because an explanation may name 64 ranks.
Times are absolute nanoseconds, as on events. None: it does not apply, or there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.request import Rank


@dataclass(frozen=True)
class Score:
    """One candidate of a decision, as it stood just before the booking.

    cost: in blocks, lower wins (DESIGN D8). overlap_blocks, cached_tokens: of the prompt, on this rank.
    prefill_tokens, requests: load of the rank without this request. decode_blocks: its active blocks with this request.
    """

    rank: Rank
    cost: float
    overlap_blocks: int
    cached_tokens: int
    prefill_tokens: int
    decode_blocks: int
    requests: int


@dataclass(frozen=True)
class Decision:
    """A dispatch and why it went there.

    class_index, class_name: as they were then.
    candidates: the cheapest 64 of candidates_count ranks that could have taken it, cheapest first, equal ones in
        canonical order; the chosen one always stands among them.
    margin: by how much the cheapest of the others was dearer than the chosen one: 0 in a tie, below 0 where a draw at
        a temperature took a dearer one; None if there was no other.
    rule: "pinned", "only one", "cheapest", "tie of k, drawn", or "sampled at temperature t".
    """

    request_id: str
    attempt: int
    now_ns: int
    class_index: int
    class_name: str
    rank: Rank
    candidates: tuple[Score, ...]
    candidates_count: int
    margin: float | None
    rule: str


@dataclass(frozen=True)
class RankView:
    """A rank that a request may use, and what on it matters to whether it may go there. Its load is all that counts:
    own bookings, those of other replicas, and what its engine reports beyond them.

    state: "open", "overloaded", "leased" (unavailable for a while) or "gone".
    takes: it would take the request now, whoever stands before it in the queue.
    busy: its prefill load is above busy_above_tokens, the bound of the request's class there; None: no bound.
    held_blocks: KV blocks taken or kept free, of total_kv_blocks. needs_blocks: what the request would add; None:
        capacity is advisory, and blocks and requests keep nobody waiting.
    """

    worker_id: int
    dp_rank: int
    state: str
    takes: bool
    busy: bool
    prefill_tokens: int
    busy_above_tokens: int | None
    requests: int
    max_requests: int | None
    held_blocks: int
    total_kv_blocks: int | None
    needs_blocks: int | None


@dataclass(frozen=True)
class Explanation:
    """Where one request stands and why, at now_ns.

    state: "waiting", "deferred" (held back by an admission policy), "refreshing" (RefreshOverlap is to be answered),
        "running", "evicted", "ended" (a decision about it is still kept), or "unknown".
    reasons: short sentences, what matters most first.
    lane: the rank that it is pinned to; None: the shared lane of its class.
    key: orders its lane, smaller first: strict priority, score (two words), seq, turned so that they sort ascending.
    wait_ns: since its arrival, until it runs. cost_tokens: charged when it is dispatched; 0 once it was put back.
    position: in its lane, 1 is the head; exact up to 1,000, else 1,000 and position_is_exact False: beyond that.
    ranks: the first 64, in canonical order, of ranks_count that it may use; where its pin is lost, that one, though
        ranks_count is 0. None of a request that runs.
    deficit_tokens, quantum: of its class.
    rounds_to_go: quanta that the class lacks to pay for this request, were it its head: ceil((cost - deficit) /
        quantum), 0 if it can pay. In both arbitration modes a round grants one quantum to every class whose head may
        run, so with other heads unchanged that is the number of rounds.
    overtaken_tokens: cost of younger requests served before it, of at most max_overtake_tokens (DESIGN D17).
    deferred_by: type of the admission policy.
    grace_end_ns: until when it waits for a rank or a fleet that is lost, 2^62: for ever. next_look_ns: when it is
        rejected if all its ranks are overloaded then. ticket, refresh_end_ns: of the question that is open.
    attempt, attempts: its last dispatch, and how many there were. rank: where it runs. decision: about that attempt;
        of an ended request the last one.
    """

    request_id: str
    state: str
    now_ns: int
    reasons: tuple[str, ...] = ()
    class_name: str | None = None
    class_index: int = -1
    lane: Rank | None = None
    key: tuple[int, int, int, int] | None = None
    strict_priority: int = 0
    seq: int | None = None
    arrival_ns: int | None = None
    wait_ns: int | None = None
    deadline_ns: int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cost_tokens: int = 0
    position: int | None = None
    position_is_exact: bool = True
    ranks: tuple[RankView, ...] = ()
    ranks_count: int = 0
    deficit_tokens: int | None = None
    quantum: int | None = None
    rounds_to_go: int | None = None
    overtaken_tokens: int | None = None
    max_overtake_tokens: int | None = None
    deferred_by: str | None = None
    grace_end_ns: int | None = None
    next_look_ns: int | None = None
    ticket: int | None = None
    refresh_end_ns: int | None = None
    attempt: int | None = None
    attempts: int = 0
    rank: Rank | None = None
    decision: Decision | None = None


@dataclass(frozen=True)
class QueueEntry:
    """One request that does not run, in a `queue_dump`. Fields as in Explanation."""

    request_id: str
    state: str
    class_name: str
    class_index: int
    lane: Rank | None
    key: tuple[int, int, int, int]
    seq: int
    wait_ns: int
    cost_tokens: int
