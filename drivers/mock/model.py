"""The engine of a mock worker: what one iteration schedules, how long it lasts and what it brings about. No clock.

The rules, and the cost of an iteration, are those of `kvcore replay`'s engine, which follows vLLM V1; they are written
down in drivers/replay/_engine.pyx, and a test holds the two against each other. That one leaps from fact to fact in
virtual time. This one goes iteration by iteration, because a client wants to see every token when it comes; and it
knows token ids, so what an answer has filled gets a name too, as in vLLM.

    duration_ps = model.begin()     # schedules: decodes, the prefill that goes on, admissions
    ...                             # the caller lets that time pass; submit() and cancel() may be called meanwhile
    step = model.end()              # tokens, ends, changes of the cache

A cancelled sequence says nothing more, and its slot is free for the next iteration, as after an abort in vLLM.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from ..replay.presets import EngineSpec
from .blocks import BlockCache
from .tokens import Answer


class NeverFits(ValueError):
    """A prompt with its answer that the KV cache can never hold."""


class Chain:
    """Names of a sequence's full blocks: each names its block and everything before it."""

    __slots__ = ("_last", "_salt", "names")

    def __init__(self, salt: str | None) -> None:
        self.names: list[int] = []
        self._salt = b"" if salt is None else blake2b(salt.encode(), digest_size=8).digest()
        self._last = b""

    def extend(self, tokens: array[int], block_size: int) -> None:
        """Names of the blocks that these tokens fill, from the first one without a name."""
        data = memoryview(tokens)
        for end in range((len(self.names) + 1) * block_size, len(tokens) + 1, block_size):
            # As in vLLM a salt goes into the first block only, and from there into all that follow.
            parts = blake2b(self._last or self._salt, digest_size=8)
            parts.update(data[end - block_size:end])
            self._last = parts.digest()
            self.names.append(int.from_bytes(self._last, "big"))


class Seq:
    """A request inside the engine.

    key: the caller's. tokens: prompt and answer so far. prompt: how many of them are prompt. total: how many there will
    be. computed: of how many the cache holds keys and values once this iteration is over. cached: how many of the
    prompt's were hit when it was first admitted; -1 before that. decodes: whether it runs and its prompt is computed.
    chunk: tokens that it computes in this iteration. doomed: it leaves when this iteration is over.
    """

    __slots__ = ("answer", "blocks", "cached", "chain", "chunk", "computed", "decodes", "doomed", "key", "preemptions",
                 "prompt", "salt", "tokens", "total")

    def __init__(self, key: Any, tokens: array[int], total: int, salt: str | None) -> None:
        self.key, self.tokens, self.prompt, self.total, self.salt = key, tokens[:], len(tokens), total, salt
        self.chain, self.answer = Chain(salt), Answer(tokens)
        self.blocks: list[int] = []
        self.computed = self.chunk = self.preemptions = 0
        self.cached = -1
        self.decodes = self.doomed = False


@dataclass(frozen=True, slots=True)
class Stored:
    """Consecutive blocks have got their names. parent: that of the block before them; None: they begin a prompt."""

    names: tuple[int, ...]
    parent: int | None
    tokens: array[int]
    salt: str | None


@dataclass(slots=True)
class Step:
    """What an iteration has brought about.

    tokens: (sequence, its new token's bytes), in order of admission. ended: sequences that are complete. removed:
    names evicted when it began; stored: names given at its end; cleared: all names were dropped before either.
    """

    tokens: list[tuple[Seq, bytes]] = field(default_factory=list)
    ended: list[Seq] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    cleared: bool = False


@dataclass(slots=True)
class Totals:
    """Counters since the start. queries, hits: prompt tokens looked up in the prefix cache, and found."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    queries: int = 0
    hits: int = 0
    preemptions: int = 0


class EngineModel:
    """One worker. spec: what it costs and holds."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.cache = BlockCache(spec.kv_blocks)
        self.waiting: deque[Seq] = deque()
        self.running: list[Seq] = []
        self.totals = Totals()
        self._prefilled: list[Seq] = []           # those that compute prompt tokens in this iteration
        self._under_way = self._cleared = False

    @property
    def has_work(self) -> bool:
        """Whether there is anything to schedule."""
        return bool(self.running or self.waiting)

    def submit(self, key: Any, prompt: array[int], output_tokens: int, salt: str | None = None) -> Seq:
        """A request arrives. Raises: NeverFits."""
        total = len(prompt) + output_tokens
        if (total - 1) // self.spec.block_size + 1 > self.spec.kv_blocks:
            raise NeverFits(f"{total} tokens of prompt and answer never fit into {self.spec.kv_tokens}")
        sequence = Seq(key, prompt, total, salt)
        sequence.chain.extend(prompt, self.spec.block_size)
        self.waiting.append(sequence)
        return sequence

    def cancel(self, sequence: Seq) -> None:
        """Stop one that has not ended. O(sequences)."""
        if sequence not in self.running:
            self.waiting.remove(sequence)
        elif self._under_way:
            sequence.doomed = True
        else:
            self._leave(sequence)

    def clear_cache(self) -> bool:
        """Forget every cached block; who hears of the cache is told with the next iteration. As in vLLM, False and
        nothing has changed as long as somebody holds blocks.
        """
        if self.running:
            return False
        self.cache.forget_all()
        self.cache.dropped.clear()
        self._cleared = True
        return True

    # One iteration.

    def begin(self) -> int:
        """Schedule. Returns: how long the iteration lasts, in picoseconds."""
        spec, self._under_way = self.spec, True
        crowded = self._grow()
        decoding = [sequence for sequence in self.running if sequence.decodes]
        budget = spec.max_num_batched_tokens - len(decoding)
        context = 0
        for sequence in decoding:
            context += len(sequence.tokens)
            sequence.computed = len(sequence.tokens)
        prefilled = self._prefilled = [sequence for sequence in self.running if not sequence.decodes]
        computed = 0
        for sequence in prefilled:
            computed += self._give(sequence, budget - computed)
        while self.waiting and budget > computed and len(self.running) < spec.max_num_seqs and not crowded:
            sequence = self.waiting[0]
            if not self._place(sequence):
                break
            self.waiting.popleft()
            self.running.append(sequence)
            prefilled.append(sequence)
            computed += self._give(sequence, budget - computed)
        return (spec.base_ps + spec.prefill_token_ps * computed + spec.decode_seq_ps * len(decoding)
                + spec.kv_token_ps * context)

    def end(self) -> Step:
        """What the iteration scheduled last has brought about."""
        step = Step(removed=self.cache.dropped, cleared=self._cleared)
        self.cache.dropped, self._cleared, self._under_way = [], False, False
        size = self.spec.block_size
        for sequence in self._prefilled:
            if not sequence.doomed:
                self._name(sequence, sequence.computed - sequence.chunk, step)
        for sequence in self.running:
            if sequence.decodes and not sequence.doomed and sequence.computed % size == 0:
                self._name(sequence, sequence.computed - 1, step)
        for sequence in list(self.running):
            if sequence.doomed:
                self._leave(sequence)
            elif sequence.computed == len(sequence.tokens):
                self._speak(sequence, step)
        self._prefilled = []
        return step

    def _speak(self, sequence: Seq, step: Step) -> None:
        """Its next token. One that is computed again after a preemption has said its earlier ones already."""
        token, text = sequence.answer.next()
        sequence.tokens.append(token)
        sequence.decodes = True
        self.totals.output_tokens += 1
        step.tokens.append((sequence, text))
        if len(sequence.tokens) == sequence.total:
            step.ended.append(sequence)
            self._leave(sequence)

    def _leave(self, sequence: Seq) -> None:
        self.running.remove(sequence)
        for block in reversed(sequence.blocks):
            self.cache.release(block)
        sequence.blocks.clear()
        sequence.decodes = False
        sequence.computed = 0

    def _grow(self) -> bool:
        """A block for each sequence whose newest token starts one. True: somebody had to give way."""
        crowded = False
        for sequence in list(self.running):
            if not sequence.decodes or len(sequence.blocks) * self.spec.block_size >= len(sequence.tokens):
                continue
            while sequence.decodes and not self.cache.free:
                crowded = True
                self._preempt(self.running[-1])
            if sequence.decodes:
                sequence.blocks.append(self.cache.take())
        return crowded

    def _preempt(self, sequence: Seq) -> None:
        """Back to the front of the queue, without blocks."""
        self._leave(sequence)
        sequence.preemptions += 1
        self.totals.preemptions += 1
        self.waiting.appendleft(sequence)

    def _place(self, sequence: Seq) -> bool:
        """Give the first in the queue all the blocks that its present tokens need. False: they are not there."""
        size, cache, length = self.spec.block_size, self.cache, len(sequence.tokens)
        names = sequence.chain.names
        found = cache.match(names[:(length - 1) // size])   # one token at least is computed
        need = (length - 1) // size + 1 - len(found)
        if need + cache.idle(found) > cache.free:
            return False
        for block in found:
            cache.hold(block)
        sequence.blocks = found + [cache.take() for _ in range(need)]
        sequence.computed = len(found) * size
        if sequence.cached < 0:
            sequence.cached = sequence.computed
            self.totals.prompt_tokens += sequence.prompt
            self.totals.queries += sequence.prompt
            self.totals.hits += sequence.computed
        return True

    def _give(self, sequence: Seq, budget: int) -> int:
        """The next chunk of its prompt, as long as the budget lasts."""
        sequence.chunk = min(len(sequence.tokens) - sequence.computed, budget)
        sequence.computed += sequence.chunk
        return sequence.chunk

    def _name(self, sequence: Seq, before: int, step: Step) -> None:
        """Names of the blocks that have become full since `before` tokens were computed."""
        size, chain = self.spec.block_size, sequence.chain
        chain.extend(sequence.tokens, size)
        run: list[int] = []
        for number in range(before // size, min(sequence.computed // size, len(chain.names))):
            if self.cache.store(sequence.blocks[number], chain.names[number]):
                run.append(number)
            else:
                self._tell(sequence, run, step)
                run = []
        self._tell(sequence, run, step)

    def _tell(self, sequence: Seq, run: Sequence[int], step: Step) -> None:
        if not run:
            return
        first, last, names, size = run[0], run[-1] + 1, sequence.chain.names, self.spec.block_size
        step.stored.append(Stored(
            tuple(names[first:last]), names[first - 1] if first else None, sequence.tokens[first * size:last * size],
            sequence.salt))
