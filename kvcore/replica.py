"""Values that replicas exchange: what a scheduler tells the others of its own bookings (DESIGN D19).

A replica is one of several schedulers in front of the same workers. Its attempts count up from 1 from the start of its
generation, so a fact is named by (replica, generation, attempt, kind): whatever a link does to facts, losing some,
repeating them, turning their order round, a receiver can tell what it knows already.

All replicas of a fleet have the same block_size. Output blocks are nobody else's business and never told.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class FactKind(IntEnum):
    """What has happened to a booking."""

    BOOKED = 1
    PREFILL_COMPLETED = 2
    RELEASED = 3


@dataclass(frozen=True)
class PeerFact:
    """One thing that has happened to one booking of a replica.

    replica, generation: SchedulerConfig.replica and replica_generation of who tells it. attempt: names the booking.
    Of BOOKED only:
    worker_id, dp_rank, incarnation: where it is.
    sequence_hashes: names of its complete prompt blocks, root to leaf; blocks of the same name on a rank are shared.
    unnamed_blocks: its other prompt blocks, the partial tail included. prefill_tokens: prefill load booked.
    reserve_blocks: kept free for its output.
    Of RELEASED only:
    completed: its run has come to its end, so what was left of its prefill has been computed, not dropped.
    """

    kind: FactKind
    replica: str
    generation: int
    attempt: int
    worker_id: int = 0
    dp_rank: int = 0
    incarnation: int = 0
    sequence_hashes: tuple[int, ...] = ()
    unnamed_blocks: int = 0
    prefill_tokens: int = 0
    reserve_blocks: int = 0
    completed: bool = False


@dataclass(frozen=True)
class ReplicaFacts:
    """All that a replica has booked at one moment: what `Scheduler.replica_facts()` returns and PeerSynced carries.

    next_attempt: lowest attempt that has not been made; a lower one that is not in facts is over.
    facts: BOOKED for each booking, by attempt, each followed by PREFILL_COMPLETED if that has happened.
    """

    replica: str
    generation: int
    next_attempt: int
    facts: tuple[PeerFact, ...]
