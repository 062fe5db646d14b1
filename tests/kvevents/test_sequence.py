"""The order of a publisher's messages: gaps, replays, duplicates, restarts, and links that do all of it at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvcore.drivers.kvevents.sequence import DIGESTS_MAX, HELD_BYTES_MAX, Ask, Broken, Deliver, Lost, Reset, Sequencer


def data(sequence, start=0) -> bytes:
    """What the publisher of this start says under this number."""
    return b"%d/%d" % (start, sequence)


def deliver(*sequences, start=0) -> list[Deliver]:
    return [Deliver(sequence, data(sequence, start)) for sequence in sequences]


class Hand:
    """A sequencer, turned by hand."""

    def __init__(self, can_ask=True, began=True, **options) -> None:
        self.sequencer = Sequencer(can_ask, **options)
        if began:
            self.sequencer.start()
            self.sequencer.end()

    def live(self, *sequences, start=0) -> list:
        return [step for item in sequences for step in self.sequencer.live(item, data(item, start))]

    def answer(self, *sequences, start=0, ends=True) -> list:
        steps = [step for item in sequences for step in self.sequencer.answer(item, data(item, start))]
        return steps + (self.sequencer.end() if ends else [])


def test_from_the_first_message_on():
    hand = Hand()
    assert hand.live(0, 1, 2) == deliver(0, 1, 2)
    assert hand.sequencer.last == 2


def test_the_beginning_is_asked_for():
    assert Hand(began=False).sequencer.start() == [Ask(0)]
    assert Hand(can_ask=False, began=False).sequencer.start() == []


def test_what_was_said_before_we_came():
    hand = Hand(began=False)
    hand.sequencer.start()
    assert hand.answer(0, 1, ends=False) == [Reset(), *deliver(0, 1)]
    assert hand.live(2) == [], "live messages wait for the end of the replay"
    assert hand.answer() == deliver(2)


def test_a_first_number_above_0_is_a_gap():
    hand = Hand()
    assert hand.live(2) == [Ask(0)]
    assert hand.live(3) == []
    assert hand.answer(0, 1, 2, 3) == [Reset(), *deliver(0, 1, 2, 3)]


def test_a_gap_is_asked_for_from_the_last_one_on():
    hand = Hand()
    hand.live(0, 1, 2)
    assert hand.live(5) == [Ask(2)]
    assert hand.answer(2, 3, 4, 5) == deliver(3, 4, 5)
    assert hand.live(6) == deliver(6)


def test_a_late_message_fills_its_gap_once():
    hand = Hand()
    hand.live(0)
    assert hand.live(2) == [Ask(0)]
    assert hand.live(1) == []
    assert hand.answer(0, 1, 2) == [Reset(), *deliver(0, 1, 2)]


def test_repetitions_are_dropped():
    hand = Hand()
    hand.live(0, 1, 2)
    assert hand.live(0, 1, 2, 2) == []
    assert hand.sequencer.stale == 4


def test_a_gap_that_cannot_be_asked_for_is_lost():
    hand = Hand(can_ask=False)
    assert hand.live(3, 4, 7) == [Lost(0, 2), *deliver(3, 4), Lost(5, 6), *deliver(7)]


def test_what_was_lost_and_comes_late_is_dropped():
    hand = Hand(can_ask=False)
    hand.live(0, 3)
    assert hand.live(1, 2) == []
    assert hand.live(4) == deliver(4)


def test_a_buffer_that_is_too_short():
    hand = Hand()
    hand.live(0)
    hand.live(9)
    assert hand.answer(6, 7, 8, 9) == [Lost(1, 5), *deliver(6, 7, 8, 9)]
    fresh = Hand(began=False)
    fresh.sequencer.start()
    assert fresh.answer(4, 5) == [Lost(0, 3), *deliver(4, 5)]


def test_what_breaks_off_is_lost_or_asked_for_again():
    hand = Hand()
    hand.live(0, 1)
    hand.live(6)
    hand.answer(1, 2, 3, ends=False)
    assert hand.sequencer.again() == [Ask(3)]
    assert hand.answer(3, 4, ends=False) == deliver(4)
    assert hand.sequencer.fail() == [Lost(5, 5), *deliver(6)]
    assert hand.sequencer.fail() == hand.sequencer.again() == hand.sequencer.end() == []


def test_an_answer_with_a_hole_is_asked_for_while_it_brings_something():
    hand = Hand()
    hand.live(0, 1)
    hand.live(9)
    assert hand.answer(1, 2, 4, 5) == [*deliver(2), Ask(2)]
    assert hand.answer(2, 4, 5) == [Lost(3, 3), *deliver(4, 5), Ask(5)]
    assert hand.answer(5) == [Lost(6, 8), *deliver(9)]


def test_a_restart_is_seen_by_other_bytes_under_a_known_number():
    hand = Hand()
    hand.live(0, 1, 2)
    assert hand.live(0, start=1) == [Reset(), Ask(0)]
    assert hand.answer(0, 1, start=1) == [Reset(), *deliver(0, 1, start=1)]
    assert hand.live(2, start=1) == deliver(2, start=1)
    assert hand.sequencer.restarts == 1


def test_a_restart_that_has_come_beyond_the_old_numbers():
    hand = Hand()
    hand.live(0, 1, 2)
    assert hand.live(7, start=1) == [Ask(2)]
    assert hand.answer(2, start=1, ends=False) == [Reset(), Ask(0)]
    assert hand.answer(*range(8), start=1) == [Reset(), *deliver(*range(8), start=1)]


def test_a_restart_behind_a_quiet_link_is_seen_by_looking():
    hand = Hand()
    hand.live(0, 1, 2)
    assert hand.sequencer.verify() == [Ask(2)]
    assert hand.answer() == [Reset(), Ask(0)]
    assert hand.answer() == []
    assert hand.live(0, start=1) == deliver(0, start=1)


def test_a_look_finds_the_last_message_that_was_lost():
    hand = Hand()
    hand.live(0, 1)
    hand.sequencer.verify()
    assert hand.answer(1, 2) == deliver(2)
    hand.sequencer.verify()
    assert hand.answer(2) == []


def test_the_whole_tale_again():
    hand = Hand()
    hand.live(0, 1)
    assert hand.sequencer.start() == [Ask(0)]
    assert hand.answer(0, 1, 2) == [Reset(), *deliver(0, 1, 2)]
    assert hand.sequencer.restarts == 0
    hand.sequencer.start()
    assert hand.answer(1, 2, 3) == deliver(3), "it begins too late, but nothing of it is new but the end"
    hand.sequencer.start()
    assert hand.answer(2, start=1, ends=False) == [Reset(), Ask(0)], "another publisher"


def test_a_link_that_was_down_takes_what_is_held_with_it():
    hand = Hand(began=False)
    hand.sequencer.start()
    hand.live(0, 1)
    assert hand.sequencer.verify(was_down=True) == [Ask(0)]
    assert hand.answer(0, start=1) == [Reset(), *deliver(0, start=1)]


def test_a_link_that_was_down_and_a_question_without_an_answer():
    hand = Hand()
    hand.live(0, 1)
    assert hand.sequencer.verify(was_down=True) == [Ask(1)]
    assert hand.sequencer.fail() == [Broken()]
    hand.sequencer.verify()
    assert hand.sequencer.fail() == [], "that the link is slow is no proof that something was missed"


def test_a_whole_tale_that_ends_before_ours_is_another_publishers():
    hand = Hand()
    hand.live(2)
    assert hand.answer(2) == [Lost(0, 1), *deliver(2)]
    hand.sequencer.start()
    assert hand.answer(1, start=1) == [Reset(), Ask(0)]
    assert hand.answer(1, start=1) == [Lost(0, 0), *deliver(1, start=1)]


def test_without_replays_nobody_knows_what_a_broken_link_has_lost():
    hand = Hand(can_ask=False)
    assert hand.sequencer.verify(was_down=True) == []
    hand.live(0)
    assert hand.sequencer.verify() == []
    assert hand.sequencer.verify(was_down=True) == [Broken()]
    assert hand.live(1) == deliver(1)


def test_without_replays_a_lower_number_is_a_restart():
    hand = Hand(can_ask=False)
    hand.live(0, 1, 2)
    assert hand.live(0, start=1) == [Reset(), *deliver(0, start=1)]
    hand.live(1, 2, 3, 4, start=1)
    assert hand.live(2, start=2) == [Reset(), Lost(0, 1), *deliver(2, start=2)]
    assert hand.sequencer.restarts == 2


def test_a_doubt_that_nobody_answers_is_taken_for_a_restart():
    hand = Hand()
    hand.live(*range(DIGESTS_MAX + 2))
    assert hand.live(0, start=1) == [Ask(DIGESTS_MAX + 1)]
    assert hand.live(DIGESTS_MAX + 2, start=1) == []
    assert hand.sequencer.fail() == [Reset(), Lost(0, DIGESTS_MAX + 1), *deliver(DIGESTS_MAX + 2, start=1)]


def test_an_old_repetition_beyond_memory_is_asked_about_and_dropped():
    hand = Hand()
    hand.live(*range(DIGESTS_MAX + 2))
    assert hand.live(0) == [Ask(DIGESTS_MAX + 1)]
    assert hand.answer(DIGESTS_MAX + 1) == []
    assert hand.sequencer.restarts == 0


def test_who_keeps_nothing_is_asked_no_more():
    hand = Hand()
    hand.live(0)
    hand.live(3)
    assert hand.answer() == [Lost(1, 2), *deliver(3)]
    assert hand.sequencer.can_ask is False
    assert hand.sequencer.verify() == []


def test_two_empty_answers_in_a_row_show_it_too():
    hand = Hand()
    hand.live(0)
    hand.sequencer.verify()
    assert hand.answer() == [Reset(), Ask(0)]
    hand.answer()
    hand.live(0, start=1)
    hand.sequencer.verify()
    assert hand.answer() == [Broken()]
    assert (hand.sequencer.can_ask, hand.sequencer.last) == (False, 0)


def test_a_publisher_that_has_said_nothing_is_no_fault():
    hand = Hand()
    assert hand.sequencer.verify() == [Ask(0)]
    assert hand.answer() == []
    assert hand.sequencer.can_ask is True


def test_answers_that_nobody_has_asked_for_are_dropped():
    hand = Hand()
    hand.live(0, 1)
    assert hand.answer(0, 1, 2) == []
    hand.live(5)
    assert hand.answer(0, ends=False) == []


def test_what_is_held_is_bounded_and_asked_for_again():
    hand = Hand(held_max=2)
    hand.live(0)
    hand.live(2, 3, 4, 5)
    assert hand.sequencer.dropped == 2
    assert hand.answer(0, 1, 2, 3) == [Reset(), *deliver(0, 1, 2, 3)]
    assert hand.live(6) == [Ask(3)]
    assert hand.answer(3, 4, 5, 6) == deliver(4, 5, 6)


def test_what_is_held_is_bounded_in_bytes():
    sequencer = Sequencer(can_ask=True)
    half = bytes(HELD_BYTES_MAX // 2)
    for sequence in (2, 3, 4):
        sequencer.live(sequence, half)
    assert sequencer.dropped == 1
    for sequence in (0, 1):
        sequencer.answer(sequence, b"")
    sequencer.end()
    for sequence in (5, 6):
        sequencer.live(sequence, half)
    assert (sequencer.last, sequencer.dropped) == (3, 1), "what was delivered is not held any more"


def test_a_short_buffer_does_not_wait_in_what_is_held():
    hand = Hand(held_max=2)
    hand.live(0, 9)
    assert hand.answer(5, 6, 7, 8, 9) == [Lost(1, 4), *deliver(5, 6, 7, 8, 9)]


def test_a_doubt_and_an_answer_that_begins_too_late_is_a_restart():
    hand = Hand()
    hand.live(*range(DIGESTS_MAX + 2))
    assert hand.live(0, start=1) == [Ask(DIGESTS_MAX + 1)]
    assert hand.answer(DIGESTS_MAX + 5, start=1, ends=False) == [Reset(), Ask(0)]


def test_a_link_that_was_down_and_an_answer_that_begins_too_late():
    hand = Hand()
    hand.live(0, 1)
    hand.sequencer.verify(was_down=True)
    assert hand.answer(2) == [Broken(), *deliver(2)], "it may be the next one, or another publisher's"


def test_who_has_answered_before_keeps_a_buffer_and_nothing_in_it_is_a_restart():
    hand = Hand(began=False)
    hand.sequencer.start()
    hand.answer(0, 1)
    for start in (1, 2, 3):
        hand.sequencer.verify()
        assert hand.answer() == [Reset(), Ask(0)]
        hand.answer()
        assert hand.live(0, 1, start=start) == deliver(0, 1, start=start)


def test_a_number_from_nowhere_does_not_stop_the_rest():
    hand = Hand()
    hand.live(0, 1)
    assert hand.live(2**62) == [Ask(1)]
    steps = hand.answer(1)
    assert steps == [Lost(2, 2**62 - 1), *deliver(2**62)]
    assert hand.live(2) == [], "it was called lost"
    hand.sequencer.verify()
    assert hand.answer() == [Reset(), Ask(0)]
    assert hand.answer(0, 1, 2) == [Reset(), *deliver(0, 1, 2)]


def test_what_is_held_of_an_earlier_publisher_is_not_delivered_with_the_next_one_s():
    hand = Hand(began=False)
    hand.sequencer.start()
    assert hand.live(0) == []
    assert hand.live(0, start=1) == [Reset(), Ask(0)]
    hand.live(1, start=1)
    assert hand.answer() == deliver(0, 1, start=1)


def linked(buffer, moves) -> None:
    """A publisher with a buffer, and a link that loses, repeats, delays and breaks: what is delivered is judged."""
    sequencer = Sequencer(can_ask=True, held_max=4)
    starts, number, sent = 0, 0, []                 # of the publisher: its start, its next number, what it has sent
    delayed, told, is_whole, asked = [], [], False, None

    def take(steps) -> None:
        nonlocal told, is_whole, asked
        for step in steps:
            match step:
                case Reset():
                    told, is_whole = [], True
                case Lost():
                    is_whole = False
                    told += [None] * (step.last - step.first + 1)
                case Broken():
                    is_whole = False
                case Deliver():
                    assert step.sequence == len(told)
                    is_whole = is_whole or (step.sequence == 0 and not told)
                    told.append(step.payload)
                case Ask():
                    asked = step.start
        assert len(sequencer._held) <= 4

    def publish(reaches) -> None:
        nonlocal number
        sent.append((number, data(number, starts)))
        if reaches:
            take(sequencer.live(*sent[-1]))
        number += 1

    def replay(count=None) -> None:
        """Answer in part (count) or to the end, as long as something is asked for."""
        nonlocal asked
        for _ in range(50):
            if asked is None:
                return
            start, asked = asked, None
            answers = [item for item in sent[-buffer:] if item[0] >= start] if buffer else []
            for item in answers[:count]:
                take(sequencer.answer(*item))
                if asked is not None:
                    break
            else:
                if count is None:
                    take(sequencer.end())
                else:
                    take(sequencer.again() if count else sequencer.fail())
                    if count:
                        return
        raise AssertionError("it asks for ever")

    take(sequencer.start())
    for move, amount in moves:
        match move:
            case "say":
                publish(True)
            case "lose":
                publish(False)
            case "delay":
                publish(False)
                delayed.append(sent[-1])
            case "late" if delayed:
                take(sequencer.live(*delayed.pop(amount % len(delayed))))
            case "repeat" if sent:
                take(sequencer.live(*sent[amount % len(sent)]))
            case "restart":
                starts, number, sent, delayed = starts + 1, 0, [], []
                take(sequencer.verify(was_down=True))
            case "swap" if buffer:  # started anew, and nothing but its first message and what it keeps say so
                starts, number, sent, delayed = starts + 1, 0, [], []
                publish(True)
            case "torn" if asked is not None and sent:  # somebody speaks while an answer is on its way
                start, asked = asked, None
                for item in [item for item in sent[-buffer:] if item[0] >= start] if buffer else []:
                    take(sequencer.answer(*item))
                    if asked is not None:
                        break
                    if item[0] % 3 == amount % 3:
                        take(sequencer.answer(*item))  # twice
                        publish(amount % 2 == 0)
                        if asked is not None:
                            break
                else:
                    take(sequencer.end())
            case "replay":
                replay()
            case "part":
                replay(amount % 4)
            case "verify":
                take(sequencer.verify())
    if sequencer.can_ask:
        for _ in range(4):
            replay()
            take(sequencer.verify())
        replay()
        if buffer and sequencer.can_ask:
            assert len(told) == len(sent)
    if is_whole and None not in told and told:
        start = told[0].split(b"/")[0]
        assert told == [b"%s/%d" % (start, item) for item in range(len(told))], "two publishers are mixed"
        if sequencer.can_ask and buffer:
            assert told == [item for _, item in sent]


MOVES = st.lists(st.tuples(
    st.sampled_from(["say", "say", "say", "lose", "delay", "late", "repeat", "restart", "swap", "replay", "part",
                     "torn", "verify"]),
    st.integers(0, 50)), max_size=40)


@given(st.sampled_from([0, 1, 3, 100]), MOVES)
def test_any_link_with_replays(buffer, moves):
    linked(buffer, moves)


@pytest.mark.parametrize("seed", range(3))
def test_a_link_without_replays_delivers_in_order_and_says_what_is_lost(seed):
    hand = Hand(can_ask=False)
    shown = [item for item in range(60) if (item * 7 + seed) % 5]
    steps = hand.live(*shown)
    assert [step.sequence for step in steps if isinstance(step, Deliver)] == shown
    lost = [item for step in steps if isinstance(step, Lost) for item in range(step.first, step.last + 1)]
    assert sorted(lost + shown) == list(range(shown[-1] + 1))
