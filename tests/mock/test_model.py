"""The mock's engine: held against the engine of `kvcore replay`, and what only the mock does."""

from __future__ import annotations

from array import array

import pytest
from engine_cases import tight
from hypothesis import given
from hypothesis import strategies as st
from kvcore.drivers.mock import model as module
from kvcore.drivers.mock.model import Chain, EngineModel, NeverFits
from kvcore.drivers.mock.tokens import encode
from kvcore.drivers.replay._engine import Fleet

from kvcore.events import BlocksRemoved, BlocksStored, PrefillCompleted, RequestFinished

PS = 1_000


class PromptOnly(Chain):
    """Names for the prompt, as the traces of `kvcore replay` have them: what an answer fills stays without one."""

    __slots__ = ("is_whole",)

    def extend(self, tokens, block_size) -> None:
        if not hasattr(self, "is_whole"):
            super().extend(tokens, block_size)
        self.is_whole = True


class Arrival:
    """A request of a random run: at_us when it comes, gone_us when its client goes, or None."""

    def __init__(self, number, at_us, prompt, output, gone_us) -> None:
        self.key, self.prompt, self.output = f"r{number}", prompt, output
        self.at_ns = at_us * 1_000
        self.gone_ns = None if gone_us is None else self.at_ns + gone_us * 1_000

    def __repr__(self) -> str:
        return f"{self.key}({self.at_ns}, {self.prompt.tolist()}, {self.output}, {self.gone_ns})"


@st.composite
def runs(draw):
    """An engine and requests whose prompts share beginnings. Odd nanoseconds: no arrival falls on a boundary."""
    spec = tight(draw(st.integers(5, 24)), tokens=draw(st.integers(4, 48)), seqs=draw(st.integers(1, 4)))
    arrivals = []
    at_us = 0
    for number in range(draw(st.integers(1, 12))):
        at_us += draw(st.sampled_from([0, 1, 3_001, 17_003, 90_007]))
        base, length = draw(st.integers(0, 2)), draw(st.integers(1, 17))
        prompt = array("I", [base + 1] * length)
        output = draw(st.integers(1, min(14, spec.kv_tokens - length)))
        gone = draw(st.sampled_from([None, None, None, 7_001, 33_003, 61_007]))
        arrivals.append(Arrival(number, at_us, prompt, output, gone))
    return spec, arrivals


def names_of(prompt, size) -> tuple[int, ...]:
    chain = Chain(None)
    chain.extend(prompt, size)
    return tuple(chain.names)


def changes(arrivals):
    """(ns, arrives, request) in order."""
    found = [(one.at_ns, 0, number, one) for number, one in enumerate(arrivals)]
    found += [(one.gone_ns, 1, number, one) for number, one in enumerate(arrivals) if one.gone_ns is not None]
    return [(at_ns, not goes, one) for at_ns, goes, _, one in sorted(found, key=lambda item: item[:3])]


def through_fleet(spec, arrivals):
    """Facts of the engine of `kvcore replay`, and what each finished request had cached."""
    fleet, facts = Fleet(1, spec, spec.block_size), []
    for at_ns, arrives, one in changes(arrivals):
        facts += fleet.advance(at_ns)
        if arrives:
            fleet.submit(0, one.key, 0, len(one.prompt), one.output, names_of(one.prompt, spec.block_size), at_ns)
        else:
            fleet.cancel(one.key, at_ns)
    while (next_ns := fleet.next_ns) is not None:
        facts += fleet.advance(next_ns)
    log = []
    for fact in facts:
        match fact:
            case PrefillCompleted():
                log.append((fact.now_ns, "first", fact.request_id))
            case RequestFinished():
                log.append((fact.now_ns, "last", fact.request_id))
            case BlocksStored():
                log += [(fact.now_ns, "stored", name) for name in fact.block_hashes]
            case BlocksRemoved():
                log += [(fact.now_ns, "removed", name) for name in fact.block_hashes]
    return sorted(log, key=str), {row[0]: (row[3], row[4]) for row in fleet.finished()}


def through_model(spec, arrivals):
    """The same of the mock's."""
    model, log, done, live, said = EngineModel(spec), [], {}, {}, set()
    todo = changes(arrivals)
    now_ps = 0

    def apply(until_ps) -> None:
        while todo and todo[0][0] * PS <= until_ps:
            _, arrives, one = todo.pop(0)
            if arrives:
                live[one.key] = model.submit(one.key, one.prompt, one.output)
            elif one.key in live:
                model.cancel(live.pop(one.key))

    while True:
        if not model.has_work:
            if not todo:
                return sorted(log, key=str), done
            now_ps = max(now_ps, todo[0][0] * PS)
        apply(now_ps)
        if not model.has_work:
            continue
        end_ps = now_ps + model.begin()
        apply(end_ps - 1)
        step, now_ps = model.end(), end_ps
        now_ns = now_ps // PS
        for seq, _ in step.tokens:
            if seq.key not in said:
                said.add(seq.key)
                log.append((now_ns, "first", seq.key))
        for seq in step.ended:
            del live[seq.key]
            log.append((now_ns, "last", seq.key))
            done[seq.key] = (seq.cached, seq.preemptions)
        log += [(now_ns, "removed", name) for name in step.removed]
        log += [(now_ns, "stored", name) for stored in step.stored for name in stored.names]


@given(runs())
def test_it_does_what_the_engine_of_replay_does(run):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Chain", PromptOnly)
        assert through_model(*run) == through_fleet(*run)


def play(model: EngineModel):
    """All iterations to come: (ms, step)."""
    found = []
    while model.has_work:
        found.append((model.begin() / 1e9, model.end()))
    return found


def test_slots_bound_what_runs_and_a_cancel_frees_one():
    model = EngineModel(tight(64, seqs=2))
    first, second, third = (model.submit(number, encode("four" * 3), 5) for number in range(3))
    model.begin()
    model.end()
    assert (model.running, list(model.waiting)) == ([first, second], [third])
    model.cancel(first)                     # between iterations
    assert model.running == [second]
    model.begin()
    assert model.running == [second, third]
    model.cancel(second)                    # in one: it says nothing more
    assert [seq for seq, _ in model.end().tokens] == [third]
    assert model.running == [third]


def test_what_an_answer_fills_has_a_name_and_is_hit_in_the_next_turn():
    model = EngineModel(tight(64))
    seq = model.submit("a", encode("one two three fo"), 9)      # one block of prompt, two of answer and a token
    stored = [stored for _, step in play(model) for stored in step.stored]
    assert [len(one.names) for one in stored] == [1, 1, 1]
    assert [one.parent for one in stored] == [None, *seq.chain.names[:2]]
    again = model.submit("b", seq.tokens[:12] + encode("more"), 1)
    model.begin()
    assert again.cached == 12


def test_a_salt_keeps_equal_prompts_apart():
    model = EngineModel(tight(64))
    prompt = encode("equal to others.")
    names = [tuple(model.submit(salt, prompt, 1, salt).chain.names) for salt in (None, "x", "y", "x")]
    assert len(set(names)) == 3
    assert names[1] == names[3]


def test_a_cleared_cache_hits_nothing_and_is_told_with_the_next_step():
    model = EngineModel(tight(64))
    prompt = encode("four" * 8)
    model.submit("a", prompt, 2)
    model.begin()
    assert not model.clear_cache()      # somebody holds blocks
    model.end()
    play(model)
    assert model.clear_cache()
    again = model.submit("b", prompt, 1)
    steps = play(model)
    assert [step.cleared for _, step in steps] == [True]
    assert again.cached == 0


def test_what_never_fits_is_refused():
    model = EngineModel(tight(4))
    model.submit("a", array("I", [1] * 14), 2)
    with pytest.raises(NeverFits, match="17 tokens"):
        model.submit("b", array("I", [1] * 14), 3)
    assert len(model.waiting) == 1
