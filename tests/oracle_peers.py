"""The oracle's view of other replicas: what they have said of each of their attempts, and what of it weighs here (D19).

A part of `Oracle`. Nothing is ever forgotten but with a generation: every attempt that is over is kept by name, which
the core has to do without. What it tells of own bookings is here too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from oracle_ledger import Booking, ceil_div, sequence_hashes
from oracle_state import Live

from kvcore.actions import Publish
from kvcore.events import PeerBooked, PeerLost, PeerPrefillCompleted, PeerReleased, PeerSynced
from kvcore.replica import FactKind, PeerFact, ReplicaFacts

PEER_EVENTS = (PeerBooked, PeerPrefillCompleted, PeerReleased, PeerLost, PeerSynced)
RankName = tuple[int, int]


@dataclass
class Peer:
    """One replica. live: attempt -> its rank and booking. adrift: live there, on ranks that are not here.

    synced_below: a sync has told of every attempt below. prefilled: attempts whose prefill is over, booked here or not.
    """

    generation: int
    lost: bool = False
    live: dict[int, tuple[RankName, Booking]] = field(default_factory=dict)
    adrift: set[int] = field(default_factory=set)
    over: set[int] = field(default_factory=set)
    prefilled: set[int] = field(default_factory=set)
    synced_below: int = 1

    def is_over(self, attempt: int) -> bool:
        """Whether it will never live again."""
        if attempt in self.live or attempt in self.adrift:
            return False
        return attempt in self.over or attempt < self.synced_below


class Peers:
    """The part of Oracle that knows other replicas."""

    # What the others hear.

    def _publish(self, kind: FactKind, live: Live, **fields) -> None:
        if self.config.replica is not None:
            self.actions.append(Publish(self._fact(kind, live, **fields)))

    def _fact(self, kind: FactKind, live: Live, **fields) -> PeerFact:
        return PeerFact(kind, self.config.replica, self.config.replica_generation, live.attempt, **fields)

    def _publish_booked(self, live: Live) -> None:
        self._publish(FactKind.BOOKED, live, **self._booked_fields(live))

    def _booked_fields(self, live: Live) -> dict:
        names = sequence_hashes(live.request, self.config.block_size)
        return {
            "worker_id": live.rank[0], "dp_rank": live.rank[1], "incarnation": self.workers[live.rank[0]].incarnation,
            "sequence_hashes": names, "prefill_tokens": live.booking.prefill_tokens,
            "unnamed_blocks": ceil_div(live.request.prompt_tokens, self.config.block_size) - len(names),
            "reserve_blocks": self._reserve(live.request)}

    def replica_facts(self) -> ReplicaFacts:
        """All own bookings."""
        facts = []
        running = [live for live in self.live.values() if live.state == "running"]
        for live in sorted(running, key=lambda x: x.attempt):
            facts.append(self._fact(FactKind.BOOKED, live, **self._booked_fields(live)))
            if live.booking.prefill_done:
                facts.append(self._fact(FactKind.PREFILL_COMPLETED, live))
        return ReplicaFacts(self.config.replica, self.config.replica_generation, self.next_attempt, tuple(facts))

    # What the others say.

    def _heard(self, event) -> None:
        peer = self._speaker(event.peer, event.generation)
        if peer is None:
            self.counts.stale_events += 1
        elif isinstance(event, PeerLost):
            self._release_peers(peer, sorted(peer.live))
            self.peers[event.peer] = Peer(event.generation, lost=True)
        elif isinstance(event, PeerSynced):
            self._synced(peer, event)
        elif isinstance(event, PeerBooked):
            self._peer_booked(peer, event)
        elif isinstance(event, PeerPrefillCompleted):
            self._peer_prefilled(peer, event.attempt)
        else:
            self._peer_released(peer, event.attempt, event.completed)

    def _speaker(self, name: str, generation: int) -> Peer | None:
        """Whoever says something, if it is to be listened to."""
        known = self.peers.get(name)
        if name == self.config.replica:
            return None
        if known is None or generation > known.generation:
            if known is not None:
                self._release_peers(known, sorted(known.live))
            self.peers[name] = Peer(generation)
            return self.peers[name]
        return None if known.lost or generation < known.generation else known

    def _peer_booked(self, peer: Peer, event: PeerBooked) -> None:
        rank, attempt = (event.worker_id, event.dp_rank), event.attempt
        told = attempt in peer.live or attempt in peer.adrift or peer.is_over(attempt)
        if told or not self._is_current(rank, event.incarnation):
            self.counts.stale_events += 1
        else:
            self._book_for(peer, event)

    def _book_for(self, peer: Peer, fact: PeerBooked | PeerFact) -> None:
        rank = (fact.worker_id, fact.dp_rank)
        done = fact.attempt in peer.prefilled
        booking = self.loads_by_rank[rank].book(
            0 if done else fact.prefill_tokens, fact.sequence_hashes, fact.unnamed_blocks, fact.reserve_blocks,
            self.now_ns)
        booking.prefill_done = done
        peer.live[fact.attempt] = (rank, booking)
        peer.adrift.discard(fact.attempt)

    def _peer_prefilled(self, peer: Peer, attempt: int) -> None:
        if attempt in peer.prefilled or peer.is_over(attempt):
            self.counts.stale_events += 1
            return
        peer.prefilled.add(attempt)
        if attempt in peer.live:
            rank, booking = peer.live[attempt]
            self.loads_by_rank[rank].complete_prefill(booking, self.now_ns, self._rate(rank))

    def _peer_released(self, peer: Peer, attempt: int, completed: bool) -> None:
        if peer.is_over(attempt):
            self.counts.stale_events += 1
            return
        self._release_peers(peer, [attempt] if attempt in peer.live else [], completed)
        peer.adrift.discard(attempt)
        peer.over.add(attempt)

    def _synced(self, peer: Peer, event: PeerSynced) -> None:
        """It tells which attempts below next_attempt live; what has been heard to be over does not come back."""
        named = {fact.attempt for fact in event.facts}
        known = {*peer.live, *peer.adrift, *peer.prefilled}
        gone = sorted(a for a in known if a < event.next_attempt and a not in named)
        self._release_peers(peer, [attempt for attempt in gone if attempt in peer.live])
        peer.adrift.difference_update(gone)
        peer.over.update(gone)
        told = [fact for fact in event.facts if not peer.is_over(fact.attempt)]
        done = {fact.attempt for fact in told if fact.kind is FactKind.PREFILL_COMPLETED} - peer.prefilled
        for fact in told:
            if fact.kind is FactKind.PREFILL_COMPLETED:
                continue
            if fact.attempt in done:
                self._peer_prefilled(peer, fact.attempt)
            if fact.attempt in peer.live:
                continue
            if self._is_current((fact.worker_id, fact.dp_rank), fact.incarnation):
                self._book_for(peer, fact)
            else:
                peer.adrift.add(fact.attempt)
                self.counts.stale_events += 1
        peer.synced_below = max(peer.synced_below, event.next_attempt)

    def _release_peers(self, peer: Peer, attempts: list[int], completed: bool = False) -> None:
        for attempt in attempts:
            rank, booking = peer.live.pop(attempt)
            self.loads_by_rank[rank].release(booking, self.now_ns, self._rate(rank), completed)

    def _strand(self, ranks: list[RankName]) -> None:
        """Ranks go, and what peers run there goes with them; should they come back, a sync must say that it lives."""
        for peer in self.peers.values():
            for attempt in [a for a, (rank, _) in peer.live.items() if rank in ranks]:
                self._release_peers(peer, [attempt])
                peer.adrift.add(attempt)

    def _peer_requests(self, rank: RankName) -> int:
        return len([1 for peer in self.peers.values() for at, _ in peer.live.values() if at == rank])
