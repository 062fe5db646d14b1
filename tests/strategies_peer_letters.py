"""Letters of other replicas, a part of `Resolver`: what two of them, and an echo of our own name, may say.

Attempts come from around the last sync, generations from around the one that is known, so that facts meet each other:
booked twice, released before they are booked, late after a sync, a loss or a restart.
"""

from __future__ import annotations

from kvcore.events import PeerBooked, PeerLost, PeerPrefillCompleted, PeerReleased, PeerSynced
from kvcore.replica import FactKind, PeerFact

OWN_NAME = "me"
PEERS = ("a", "a", "a", "b", "b", OWN_NAME)
ATTEMPTS = (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 2, 1, 0)
PEER_PREFILLS = (8, 1, 3, 5, 20, 40, 0, 2**53)
#: Whether a sync names an attempt that lives, or one that does not, by a byte.
KEEPS = (True, True, True, True, False)
ADDS = (False, False, False, False, True)


class PeerLetters:
    """The letters of peers; Resolver has the rest."""

    def speaker(self) -> tuple[str, int]:
        """A peer and a generation, mostly the one that is known."""
        name = self.pick(PEERS)
        known = self.oracle.peers.get(name)
        return name, max(0, (1 if known is None else known.generation) + self.pick((0,) * 9 + (1, -1)))

    def attempt(self, name: str) -> int:
        """An attempt, mostly one that no sync has told of."""
        known = self.oracle.peers.get(name)
        return max(1, (1 if known is None else known.synced_below) - 3 + self.pick(ATTEMPTS))

    def told_attempt(self, name: str) -> int:
        """An attempt, mostly one that lives, here or on a rank that has gone."""
        known = self.oracle.peers.get(name)
        live = sorted({*known.live, *known.adrift}) if known is not None else []
        number = self.attempt(name)
        return live[number % len(live)] if live and self.pick((True, True, False)) else number

    def load(self, paths) -> dict:
        """Where a peer has booked something, and how much of it."""
        rank = self.rank(self.pick(range(8)), self.pick((True,) * 7 + (False,)))
        path = self.pick(((), *paths), "path")[: 1 + self.pick(range(6))]
        return {"worker_id": rank.worker_id, "dp_rank": rank.dp_rank, "incarnation": self.incarnation(rank.worker_id),
                "sequence_hashes": path, "unnamed_blocks": self.pick((1, 0, 2)),
                "prefill_tokens": self.pick(PEER_PREFILLS), "reserve_blocks": self.pick((0, 0, 1, 3))}

    def peer_booked(self) -> PeerBooked:
        name, generation = self.speaker()
        attempt = self.pick((self.attempt,) * 5 + (self.told_attempt,))(name)
        return PeerBooked(self.now_ns, name, generation, attempt, **self.load(self.paths))

    def peer_prefill(self) -> PeerPrefillCompleted:
        name, generation = self.speaker()
        return PeerPrefillCompleted(self.now_ns, name, generation, self.told_attempt(name))

    def peer_released(self) -> PeerReleased:
        name, generation = self.speaker()
        return PeerReleased(self.now_ns, name, generation, self.told_attempt(name), self.pick((False, True)))

    def peer_lost(self) -> PeerLost:
        return PeerLost(self.now_ns, *self.speaker())

    def peer_synced(self) -> PeerSynced:
        """Most of what lives, now and then something else; two loads, taken in turns, for what we have not booked."""
        name, generation = self.speaker()
        known = self.oracle.peers.get(name)
        live = {} if known is None else known.live
        next_attempt = self.attempt(name)
        first, second, keep, add = self.pick(range(5)), self.pick(range(5)), self.pick(range(5)), self.pick(range(3))
        loads = (self.load(self.paths), self.load(self.paths))
        facts = []
        for attempt in sorted({*live, *range(max(1, next_attempt - 12), next_attempt)}):
            if attempt >= next_attempt:
                break
            if not (KEEPS[(attempt + keep) % 5] if attempt in live else ADDS[(attempt * (1 + add) + first) % 5]):
                continue
            facts.append(PeerFact(FactKind.BOOKED, name, generation, attempt, **loads[attempt % 2]))
            if (attempt + second) % 3 == 0:
                facts.append(PeerFact(FactKind.PREFILL_COMPLETED, name, generation, attempt))
        return PeerSynced(self.now_ns, name, generation, next_attempt, tuple(facts))
