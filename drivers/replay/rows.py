"""A row of a trace, compiled: one is made for each request of a replay."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TraceRow:
    """One request of a trace.

    arrival_ns: from the start of the merged trace, whose first row has 0; never decreases.
    prompt_tokens, output_tokens: 1..2^53.
    block_hashes: shape (ceil(prompt_tokens / TraceStream.block_size),) or (); names of the prompt's blocks, root to
        leaf, each naming its whole prefix and its file, 0..2^64-1. (): the content is unknown.
    session_id: rows of one file with an equal one belong together, those of sub-agents included.
    delay_ns: pause after the answer, or the last of the answers, that the request waits for.
    after: row numbers of the same file that must have ended before this request is sent. The first is the one whose
        answer it continues, the others may have ended in any way; (): it waits for none; None: it continues the row
        before it of its session, if there is one.
    priority: seconds of head start. strict_priority: 0..2^32-1, higher first. policy_class: class or family name.
    file_index: position of its file among the paths, from 0.
    row: number of the data row in its file, from 1; blank lines and the header do not count, bad rows do.
    """

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    block_hashes: tuple[int, ...] = ()
    session_id: str | None = None
    delay_ns: int | None = None
    priority: float = 0.0
    strict_priority: int = 0
    policy_class: str | None = None
    file_index: int = 0
    row: int = 1
    after: tuple[int, ...] | None = None
