"""The oracle's reload: another policy comes into force, and every request keeps its place in time (DESIGN D16).

A part of `Oracle`. Classes are the same if they have the same name; a policy object lives on if its class does and
asks for the same.
"""

from __future__ import annotations

from collections import deque

from oracle_queue import PolicyQueue
from oracle_state import ClassStats, Host, Live

from kvcore.actions import RejectReason
from kvcore.admission import Bypass, Defer, Ready, Refuse
from kvcore.events import PolicyReplaced
from kvcore.policy import PolicyProfile

INT64_TOP = 2**63 - 1


class Reloads:
    """The part of Oracle that changes its policy."""

    def _policy_replaced(self, event: PolicyReplaced) -> None:
        old, new = self.profile, self.config.in_force(event.profile)
        if new == old:
            return
        self._replace_hosts(old, new)
        self._replace_classes(old, new)
        self.profile = new
        for live in self._in("waiting", "deferred", "refreshing", "running", "evicted"):
            self._classify_again(live)
        self._close_empty_classes()
        for live in self._in("deferred"):
            if live.host is None:
                self._decide_anew(live)

    def _replace_hosts(self, old: PolicyProfile, new: PolicyProfile) -> None:
        """What a dead policy has managed is managed by none."""
        known = {item.name: (item.admission, host) for item, host in zip(old.classes, self.hosts, strict=True)}
        hosts: list[Host | None] = self._new_hosts(new)
        for index, item in enumerate(new.classes):
            spec, host = known.get(item.name, (None, None))
            if host is not None and spec == item.admission:
                hosts[index] = host
        self.hosts = hosts
        for live in self.live.values():
            if live.host not in hosts:
                live.host = None

    def _replace_classes(self, old: PolicyProfile, new: PolicyProfile) -> None:
        """Credit in proportion, counters as they are, the cursor on its class or on the next that is still there."""
        before = {item.name: index for index, item in enumerate(old.classes)}
        queue = PolicyQueue([item.quantum for item in new.classes], new.arbitration,
                            [item.max_overtake_tokens for item in new.classes])
        for item, ring in zip(new.classes, queue.classes, strict=True):
            if item.name in before:
                credit = self.queue.classes[before[item.name]]
                ring.deficit = min(INT64_TOP, credit.deficit * ring.quantum // credit.quantum)
        queue.place = self._place_after(old, new)
        self.queue = queue
        recent, counts = self.recent, self.class_counts
        self.recent = [recent[before[item.name]] if item.name in before else deque(maxlen=32) for item in new.classes]
        self.class_counts = [counts[before[item.name]] if item.name in before else ClassStats(item.name)
                             for item in new.classes]

    def _place_after(self, old: PolicyProfile, new: PolicyProfile) -> tuple[int, str]:
        names = [item.name for item in new.classes]
        cursor, visit = self.queue.place
        if old.classes[cursor].name in names:
            return names.index(old.classes[cursor].name), visit
        ring = old.classes[cursor + 1 :] + old.classes[:cursor]
        return next((names.index(item.name) for item in ring if item.name in names), 0), "none"

    def _classify_again(self, live: Live) -> None:
        """Its class, key and looks are those of the new policy; what it costs and since when it waits stay."""
        live.class_index = self._class_of(live.request, live.cached)
        live.entry.key = self._key(live)
        if live.state == "waiting":
            live.entry.overtaken = 0
            live.look_ns = self._next_look_ns(live)
            self.queue.push(live.class_index, live.entry)

    def _close_empty_classes(self) -> None:
        for index, ring in enumerate(self.queue.classes):
            if ring.entries:
                continue
            ring.deficit = 0
            cursor, visit = self.queue.place
            if cursor == index and visit != "none":
                self.queue.place = (index + 1) % len(self.queue.classes), "none"

    def _decide_anew(self, live: Live) -> None:
        """Who held it back is gone."""
        host = self._host_of(live.request, live.class_index)
        answer = Bypass() if host is None else self._decide(host, live.request, live.class_index, live.cached)
        match answer:
            case Bypass():
                self._make_ready(live, None)
            case Ready():
                live.host = host
                self._make_ready(live, answer.placement)
            case Defer():
                live.host = host
            case Refuse():
                self._turn_away(live, RejectReason.ADMISSION_REFUSED)
