"""The engine model of the replay driver once more: plain Python, one iteration at a time, obvious and slow.

Written from the rules at the top of drivers/replay/_engine.pyx, to be compared with it. It has no plan and no leaps: an
iteration is scheduled when its predecessor ends, and takes effect when it ends itself. Callers pass every instant at
which they submit or cancel to advance() first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvcore.drivers.replay.presets import EngineSpec

from kvcore.events import (
    AnyEvent,
    BlocksRemoved,
    BlocksStored,
    Outcome,
    OutputBlockAdded,
    PrefillCompleted,
    RequestFinished,
)

Done = tuple[str, int | None, int, int | None, int]


@dataclass(eq=False)
class Sequence:
    """tokens: prompt and output so far. computed: of them, before the iteration. chunk: of them, in the iteration.

    prefilling: admitted, and not all of its tokens computed yet. doomed: cancelled while running.
    """

    request_id: str
    attempt: int
    prompt: int
    output: int
    names: tuple[int, ...]
    tokens: int
    computed: int = 0
    chunk: int = 0
    prefilling: bool = True
    doomed: bool = False
    blocks: list[int] = field(default_factory=list)
    cached: int | None = None
    first_ns: int | None = None
    preemptions: int = 0


class SlowCache:
    """Blocks by number. free: in order of eviction. name: of named blocks. index: the other way round."""

    def __init__(self, total: int) -> None:
        self.free = list(range(total))
        self.refs = [0] * total
        self.name: dict[int, int] = {}
        self.index: dict[int, int] = {}
        self.evicted: list[int] = []

    def take(self) -> int:
        """The next block to be evicted."""
        block = self.free.pop(0)
        if block in self.name:
            self.evicted.append(self.name.pop(block))
            del self.index[self.evicted[-1]]
        self.refs[block] = 1
        return block

    def hold(self, block: int) -> None:
        """One user more."""
        if self.refs[block] == 0:
            self.free.remove(block)
        self.refs[block] += 1

    def release(self, blocks: list[int]) -> None:
        """One user less of each, leaf first."""
        while blocks:
            block = blocks.pop()
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free.append(block)

    def store(self, block: int, name: int) -> bool:
        """Name a block, unless another one has the name."""
        if name in self.index:
            return False
        self.index[name] = block
        self.name[block] = name
        return True


class SlowWorker:
    """One worker. start_ps, end_ps: of the iteration under way; while idle: end of the last one, and None."""

    def __init__(self, number: int, spec: EngineSpec) -> None:
        self.number = number
        self.spec = spec
        self.cache = SlowCache(spec.kv_blocks)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.start_ps = 0
        self.end_ps: int | None = None
        self.preempted = False
        self.done: list[Done] = []
        self.count = {"preemptions": 0, "evicted_blocks": 0, "stored_blocks": 0, "iterations": 0, "busy_ps": 0}

    def schedule(self) -> None:
        """What the iteration that starts now computes: running sequences, then new ones."""
        self.preempted = False
        for sequence in self.running:
            sequence.chunk = 0
        for sequence in list(self.running):
            if sequence not in self.running:
                continue  # preempted, for the sake of one before it
            sequence.chunk = min(sequence.tokens - sequence.computed, self.budget())
            while sequence in self.running and len(sequence.blocks) < self.blocks_of(sequence.tokens):
                if self.cache.free:
                    sequence.blocks.append(self.cache.take())
                else:
                    self.preempt(self.running[-1])
        self.admit()

    def budget(self) -> int:
        """Tokens that the iteration can still take."""
        return self.spec.max_num_batched_tokens - sum(sequence.chunk for sequence in self.running)

    def blocks_of(self, tokens: int) -> int:
        """Blocks that so many tokens fill or begin."""
        return -(-tokens // self.spec.block_size)

    def preempt(self, sequence: Sequence) -> None:
        """It gives up all that it has computed and goes to the front of the queue."""
        self.running.remove(sequence)
        self.waiting.insert(0, sequence)
        self.cache.release(sequence.blocks)
        sequence.computed = sequence.chunk = 0
        sequence.prefilling = True
        sequence.preemptions += 1
        self.count["preemptions"] += 1
        self.preempted = True

    def admit(self) -> None:
        """Admit to the iteration that starts now from the queue, then set its end."""
        while self.waiting and not self.preempted and self.budget() and len(self.running) < self.spec.max_num_seqs:
            sequence = self.waiting[0]
            hits: list[int] = []
            for name in sequence.names[: (sequence.tokens - 1) // self.spec.block_size]:
                if name not in self.cache.index:
                    break
                hits.append(self.cache.index[name])
            missing = self.blocks_of(sequence.tokens) - len(hits)
            if missing + sum(self.cache.refs[block] == 0 for block in hits) > len(self.cache.free):
                break
            for block in hits:
                self.cache.hold(block)
            sequence.blocks = hits + [self.cache.take() for _ in range(missing)]
            sequence.computed = len(hits) * self.spec.block_size
            if sequence.cached is None:
                sequence.cached = sequence.computed
            sequence.chunk = min(sequence.tokens - sequence.computed, self.budget())
            self.running.append(self.waiting.pop(0))
        self.end_ps = self.start_ps + self.duration_ps() if self.running else None

    def duration_ps(self) -> int:
        """Of the iteration."""
        spec = self.spec
        decoding = [sequence for sequence in self.running if not sequence.prefilling]
        prefill = sum(sequence.chunk for sequence in self.running if sequence.prefilling)
        tokens = sum(sequence.tokens for sequence in decoding)
        decode_ps = spec.decode_seq_ps * len(decoding) + spec.kv_token_ps * tokens
        return spec.base_ps + spec.prefill_token_ps * prefill + decode_ps

    def finish(self) -> list[AnyEvent]:
        """The iteration ends: its facts; then the next one starts."""
        assert self.end_ps is not None
        now_ns = self.end_ps // 1000
        prefilled: list[AnyEvent] = []
        grown: list[AnyEvent] = []
        finished: list[AnyEvent] = []
        stored: list[int] = []
        leaving: list[Sequence] = []
        for sequence in self.running:
            before, sequence.computed = sequence.computed, sequence.computed + sequence.chunk
            if sequence.doomed:
                leaving.append(sequence)
                continue
            if sequence.prefilling:
                size = self.spec.block_size
                for number in range(before // size, min(sequence.computed // size, len(sequence.names))):
                    if self.cache.store(sequence.blocks[number], sequence.names[number]):
                        stored.append(sequence.names[number])
            if sequence.computed < sequence.tokens:
                continue
            sequence.prefilling = False
            sequence.tokens += 1
            request_id, attempt = sequence.request_id, sequence.attempt
            if sequence.first_ns is None:
                sequence.first_ns = now_ns
                prefilled.append(PrefillCompleted(now_ns, request_id, attempt))
            if sequence.tokens == sequence.prompt + sequence.output:
                finished.append(RequestFinished(now_ns, request_id, attempt, Outcome.COMPLETED, sequence.tokens))
                self.done.append((request_id, sequence.first_ns, now_ns, sequence.cached, sequence.preemptions))
                leaving.append(sequence)
            elif self.blocks_of(sequence.tokens) > self.blocks_of(sequence.tokens - 1):
                grown.append(OutputBlockAdded(now_ns, request_id, attempt))
        for sequence in leaving:
            self.running.remove(sequence)
            self.cache.release(sequence.blocks)
        facts: list[AnyEvent] = []
        if self.cache.evicted:
            facts.append(BlocksRemoved(now_ns, self.number, 0, 0, tuple(self.cache.evicted)))
        if stored:
            facts.append(BlocksStored(now_ns, self.number, 0, 0, tuple(stored)))
        self.count["evicted_blocks"] += len(self.cache.evicted)
        self.count["stored_blocks"] += len(stored)
        self.count["iterations"] += 1
        self.count["busy_ps"] += self.end_ps - self.start_ps
        self.cache.evicted.clear()
        self.start_ps = self.end_ps
        self.schedule()
        return facts + prefilled + grown + finished

    def look_at_queue(self, now_ns: int) -> None:
        """The queue has changed: an iteration that starts at this instant admits from it, one under way does not."""
        if self.end_ps is None:
            self.start_ps = max(self.start_ps, 1000 * now_ns)
            self.schedule()
        elif self.start_ps // 1000 == now_ns:
            self.admit()


class SlowEngine:
    """The interface of Fleet as far as the tests need it."""

    def __init__(self, workers: int, spec: EngineSpec, block_size: int) -> None:
        self.spec = spec.scaled(block_size)
        self.workers = [SlowWorker(number, self.spec) for number in range(workers)]

    def submit(
        self, worker: int, request_id: str, attempt: int, prompt_tokens: int, output_tokens: int,
        block_hashes: tuple[int, ...], now_ns: int,
    ) -> None:
        """A request reaches a worker."""
        names = block_hashes[: prompt_tokens // self.spec.block_size]
        self.workers[worker].waiting.append(
            Sequence(request_id, attempt, prompt_tokens, output_tokens, names, prompt_tokens)
        )
        self.workers[worker].look_at_queue(now_ns)

    def cancel(self, request_id: str, now_ns: int) -> bool:
        """Stop a request."""
        for worker in self.workers:
            for sequence in worker.waiting:
                if sequence.request_id == request_id:
                    worker.waiting.remove(sequence)
                    worker.look_at_queue(now_ns)
                    return True
            for sequence in worker.running:
                if sequence.request_id == request_id and not sequence.doomed:
                    sequence.doomed = True
                    return True
        return False

    def advance(self, now_ns: int) -> list[AnyEvent]:
        """All facts due at or before now_ns."""
        facts: list[tuple[int, int, list[AnyEvent]]] = []
        for worker in self.workers:
            while worker.end_ps is not None and worker.end_ps // 1000 <= now_ns:
                end_ns = worker.end_ps // 1000
                facts.append((end_ns, worker.number, worker.finish()))
        facts.sort(key=lambda fact: fact[:2])
        return [event for _, _, events in facts for event in events]

    def finished(self) -> list[Done]:
        """Requests that have finished since the last call, worker by worker."""
        done = [row for worker in self.workers for row in worker.done]
        for worker in self.workers:
            worker.done.clear()
        return done
