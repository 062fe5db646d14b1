"""Explanations as text: what is shown, and that it stays within 100 columns whatever is in them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stories import Story, arrive, profile

from kvcore._explanation_text import COLUMNS, named, span, text
from kvcore.explanation import Decision, Explanation, RankView, Score
from kvcore.request import Rank

U64, I64 = 2**64 - 1, 2**63 - 1
WIDE = Score(Rank(U64, 2**32 - 1), 1.7976931348623157e308, I64, 2**53, I64, I64, I64)
DECISION = Decision("a", I64, 2**62 - 1, 2**31 - 1, "c" * 200, WIDE.rank, (WIDE,) * 64, 2**31 - 1, -1.1e-300, "pinned")
VIEW = RankView(U64, 2**32 - 1, "overloaded", False, True, I64, I64 - 1, I64, I64 - 1, I64, I64 - 1, I64)
EVERYTHING = Explanation(
    "id\n\x1b[31m\u202e" * 30, "waiting", 2**62 - 1, ("a word " * 60, "w" * 300), "class\n" * 30, 2**31 - 1,
    Rank(U64, 2**32 - 1), (2**32 - 1, U64, U64, U64), 2**32 - 1, U64, 0, 2**62 - 1, 2**62 - 1, 2**53, 2**53, 2**53,
    1000, False, (VIEW,) * 64, 2**31 - 1, I64, I64, I64, I64, I64, "policy", 2**62, 2**62 - 1, I64, 2**62 - 1, I64,
    2**31 - 1, WIDE.rank, DECISION)


def test_a_waiting_request():
    story = Story(1, 2, profile=profile(1000, 2000, prefill_busy_threshold=4096))
    story.many(arrive(0, "x", 6000, pinned=Rank(1)), arrive(0, "y", 5000, pinned=Rank(2)))
    story.at(1_500_000).arrive("it's a", 7000, deadline_ns=2_001_000_000)
    story.tick(2_000_000)
    assert text(story.core.explain("it's a")) == '''\
request    "it's a"
state      waiting for 500.000 us, position 1 in the shared lane
class      'c0', index 0
arrived    at 1500000 ns, seq 2, strict priority 0
tokens     7,000 in the prompt, 0 cached; cost 7,000
share      deficit 0, quantum 1,000: 7 rounds to go
timers     deadline in 1.999 s
because    2 of 2 ranks are busy for class 'c0': the prefill load of worker 2 rank 0 must fall from
           5,000 to 4,096 tokens
           class 'c0' has a deficit of 0 tokens: it can pay 7,000 after 7 more of its quantum of
           1,000
ranks      worker  rank  state  prefill  busy above  requests  of  blocks  of  needs
                1     0   busy    6,000       4,096         1   -   1,500   -      -
                2     0   busy    5,000       4,096         1   -   1,250   -      -
'''


def test_a_running_request_and_its_decision():
    story = Story(1, 2, decisions_kept=1)
    story.arrive("x", 40, pinned=Rank(1))
    story.at(3).arrive("a", 16, block_hashes=(1, 2))
    assert text(story.core.explain("a")) == '''\
request    'a'
state      running on worker 2 rank 0, dispatched once
class      'default', index 0
arrived    at 3 ns, seq 1, strict priority 0
tokens     16 in the prompt, 0 cached; cost 16
because    attempt 2 runs
decision   attempt 2 at 3 ns: worker 2 rank 0, cheapest, 10 blocks before the next
           worker  rank  cost  overlap  cached  prefill  decode  requests
                2     0     6        0       0        0       2         0  chosen
                1     0    16        0       0       40       2         1
'''


def test_nobody_is_told_of_in_three_lines():
    assert text(Story(1).core.explain("a")) == (
        "request    'a'\nstate      unknown\n"
        "because    no such request is live, and no decision about it is kept\n")


@pytest.mark.parametrize("shown", [1, 8, 64])
def test_lines_are_short_and_hold_nothing_that_a_terminal_obeys(shown):
    lines = text(EVERYTHING, shown=shown).splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert all(line.isprintable() and line == line.rstrip() for line in lines)
    assert sum(str(U64) in line for line in lines) >= 2 * shown
    assert f"and {2**31 - 1 - shown:,} more" in lines[-1]


def test_a_position_that_is_not_counted_out():
    told = replace(EVERYTHING, lane=Rank(7), rank=None, wait_ns=5)
    assert "position >1000 in the lane of worker 7 rank 0" in text(told).splitlines()[1]


def test_the_chosen_one_is_listed_wherever_it_stands():
    scores = tuple(Score(Rank(worker), float(worker), 0, 0, 0, 0, 0) for worker in range(64))
    told = Explanation("a", "ended", 0, decision=Decision(
        "a", 1, 0, 0, "c0", Rank(40), scores, 70, -40.0, "sampled at temperature 1.0"))
    lines = text(told, shown=3).splitlines()
    assert [line.split()[0] for line in lines[-5:-1]] == ["0", "1", "2", "40"]
    assert lines[-2].endswith("chosen")
    assert lines[-1].strip() == "and 66 more"
    assert "sampled at temperature 1.0, 40 blocks behind the cheapest" in " ".join(" ".join(lines).split())


@pytest.mark.parametrize(("length_ns", "expected"), [
    (0, "0 ns"), (999, "999 ns"), (1_000, "1.000 us"), (1_500_000, "1.500 ms"), (3_600 * 10**9, "3,600.000 s")])
def test_spans(length_ns, expected):
    assert span(length_ns) == expected


def test_names_are_shown_as_python_writes_them():
    assert named("a\nb") == "'a\\nb'"
    assert named("x" * 100) == "'" + "x" * 36 + "..."
