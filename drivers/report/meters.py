"""Time in equal pieces, and levels summed over them: exact integers, in bounded memory whatever the length of a run."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Grid:
    """Time from start_ns cut into `count` bins of width_ns each; the last one may reach beyond the end of the run."""

    start_ns: int
    width_ns: int
    count: int

    @staticmethod
    def over(start_ns: int, end_ns: int, count: int) -> Grid:
        """At most `count` bins that hold every instant of start_ns .. end_ns."""
        width_ns = (end_ns - start_ns) // count + 1
        return Grid(start_ns, width_ns, (end_ns - start_ns) // width_ns + 1)

    def bin(self, now_ns: int) -> int:
        """The bin of an instant."""
        return (now_ns - self.start_ns) // self.width_ns

    def starts(self) -> list[int]:
        """When each bin begins."""
        return [self.start_ns + i * self.width_ns for i in range(self.count)]

    def coarser(self, count: int) -> Grid:
        """The same time in bins that are each some of these, at most `count` of them."""
        factor = -(-self.count // count)
        return Grid(self.start_ns, self.width_ns * factor, -(-self.count // factor))


class Meter:
    """A level that changes at instants, such as requests in a queue: per bin its integral over time, and its peak."""

    def __init__(self, grid: Grid) -> None:
        self.area = [0] * grid.count
        self.peak = [0] * grid.count
        self.level = 0
        self._grid = grid
        self._since_ns = grid.start_ns

    def add(self, now_ns: int, amount: int) -> None:
        """The level changes at now_ns, which never decreases."""
        self.pass_time(now_ns)
        self.level += amount
        at = self._grid.bin(now_ns)
        self.peak[at] = max(self.peak[at], self.level)

    def pass_time(self, now_ns: int) -> None:
        """The level has stood until now_ns."""
        grid, since_ns, level = self._grid, self._since_ns, self.level
        if not level:
            self._since_ns = now_ns
            return
        while since_ns < now_ns:
            at = grid.bin(since_ns)
            until_ns = min(now_ns, grid.start_ns + (at + 1) * grid.width_ns)
            self.area[at] += level * (until_ns - since_ns)
            self.peak[at] = max(self.peak[at], level)
            since_ns = until_ns
        self._since_ns = now_ns

    def means(self, parts: int = 1) -> list[float]:
        """The mean level of each bin, over so many equal parts; rounded to six decimals."""
        return [float(round(Fraction(area, self._grid.width_ns * parts), 6)) for area in self.area]
