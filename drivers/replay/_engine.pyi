from typing import Self, final

import numpy as np
import numpy.typing as npt

from kvcore.events import AnyEvent

from .presets import EngineSpec

@final
class Fleet:
    def __new__(cls, workers: int, spec: EngineSpec, block_size: int) -> Self: ...
    def submit(
        self,
        worker: int,
        request_id: str,
        attempt: int,
        prompt_tokens: int,
        output_tokens: int,
        block_hashes: tuple[int, ...],
        now_ns: int,
    ) -> None: ...
    def cancel(self, request_id: str, now_ns: int) -> bool: ...
    @property
    def next_ns(self) -> int | None: ...
    def advance(self, now_ns: int) -> list[AnyEvent]: ...
    def finished(self) -> list[tuple[str, int, int, int, int]]: ...
    def counters(self) -> npt.NDArray[np.void]: ...
    def blocks(self, worker: int) -> tuple[int, int, list[int]]: ...
