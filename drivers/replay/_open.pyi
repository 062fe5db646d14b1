from collections.abc import Sequence
from fractions import Fraction
from typing import Self, final

from ._window import Feed

@final
class OpenRows:
    def __new__(
        cls, feed: Feed, kv_tokens: int, paths: Sequence[str], skip_unfit: bool, ratio: Fraction) -> Self: ...
    @property
    def unfit(self) -> int: ...
