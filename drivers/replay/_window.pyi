from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, final

from .lines import Lines
from .rows import TraceRow
from .values import RowFacts

@final
class Tally:
    def __new__(cls, skip_bad: bool, shown_max: int) -> Self: ...
    @property
    def read(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def reordered(self) -> int: ...
    @property
    def skipped_rows(self) -> list[tuple[str, int | None, str]]: ...

@final
class Window:
    parse: Callable[[Any], RowFacts]
    def __new__(
        cls, lines: Lines, items: Iterable[tuple[int | None, Any]] | None, parse: Callable[[Any], RowFacts],
        resolved: Callable[[int, RowFacts], RowFacts], tally: Tally, *, file_index: int, absolute: bool, plain: int,
        salt: int, trace_block_size: int, block_size: int, names_max: int, rows_max: int,
    ) -> Self: ...
    @property
    def absolute(self) -> bool: ...

@final
class Feed:
    def __new__(cls, windows: list[Window], limit: int | None, close: list[Callable[[], None]]) -> Self: ...
    def __iter__(self) -> Iterator[TraceRow]: ...
    def __next__(self) -> TraceRow: ...
    @property
    def windows(self) -> list[Window]: ...
