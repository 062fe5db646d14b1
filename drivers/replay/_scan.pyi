from .values import RowFacts

PLAIN: dict[str, int]

def plain_row(line: bytes, trace_block_size: int, block_size: int, names_max: int) -> RowFacts | None: ...
