"""PeerBoard: what is known of each attempt of other replicas, whatever the order in which it is told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from probe_build import load

probe = load("_probe_peers")


def board(*names: str):
    """A board that has heard of these, generation 1."""
    found = probe.Board()
    for name in names:
        found.hear(name, 1)
    return found


def test_an_attempt_is_unknown_then_live_then_over():
    told = board("p")
    assert told.known("p", 1) == "unknown"
    assert told.book("p", 1, 7) is False
    assert (told.known("p", 1), told.owner(7), told.counts()) == ("live", ("p", 1), (1, 1))
    assert told.release("p", 1) == [7]
    assert (told.known("p", 1), told.owner(7), told.counts()) == ("over", None, (1, 0))
    assert told.release("p", 1) is None


def test_what_is_released_before_it_is_booked_is_over():
    told = board("p")
    assert told.release("p", 3) == []
    assert [told.known("p", attempt) for attempt in (1, 2, 3, 4)] == ["unknown", "unknown", "over", "unknown"]


def test_prefill_that_is_over_early_is_remembered_once():
    told = board("p")
    assert [told.note_prefilled("p", 2), told.note_prefilled("p", 2)] == [True, False]
    assert told.book("p", 2, 5) is True
    told.release("p", 2)
    assert told.dump() == [("p", 1, False, 1, [], [2], [])]


def test_the_floor_follows_what_is_known_and_forgets_what_is_over():
    told = board("p")
    for attempt in (2, 3, 5):
        told.release("p", attempt)
    assert (told.floor("p"), told.remembered("p")) == (1, 3)
    told.book("p", 1, 0)
    assert (told.floor("p"), told.remembered("p")) == (4, 1)
    told.release("p", 4)
    assert (told.floor("p"), told.remembered("p")) == (6, 0)
    assert [told.known("p", attempt) for attempt in range(1, 7)] == ["live", "over", "over", "over", "over", "unknown"]


def test_a_newer_generation_ends_the_older_one_by_attempt():
    told = board("p", "q")
    for attempt, slot in ((3, 0), (1, 1), (2, 2)):
        told.book("p", attempt, slot)
    told.book("q", 1, 3)
    told.release("p", 9)
    assert told.hear("p", 0) is None
    assert told.hear("p", 2) == [1, 2, 0]
    assert told.hear("p", 1) is None
    assert told.dump() == [("p", 2, False, 1, [], [], []), ("q", 1, False, 2, [], [], [])]
    assert (told.known("p", 9), told.known("q", 1)) == ("unknown", "live")


def test_a_lost_generation_does_not_come_back():
    told = board("p")
    told.book("p", 1, 4)
    assert told.lose("p", 1) == [4]
    assert (told.counts(), told.hear("p", 1), told.lose("p", 1), told.lose("p", 0)) == ((0, 0), None, None, None)
    assert told.hear("p", 2) == []
    assert told.counts() == (1, 0)
    assert told.lose("p", 1) is None


def test_a_loss_may_be_the_first_that_is_heard_of_a_replica():
    told = board()
    assert told.lose("p", 5) == []
    assert (told.hear("p", 5), told.counts()) == (None, (0, 0))
    assert told.hear("p", 6) == []


def test_a_loss_of_a_newer_generation_ends_the_known_one():
    told = board("p")
    told.book("p", 1, 0)
    assert told.lose("p", 3) == [0]
    assert (told.hear("p", 2), told.hear("p", 3), told.hear("p", 4)) == (None, None, [])


def test_a_sync_ends_what_it_does_not_name_and_leaves_what_is_newer():
    told = board("p")
    for attempt in (1, 2, 5, 9):
        told.book("p", attempt, attempt)
    told.release("p", 7)
    told.note_prefilled("p", 3)
    told.note_prefilled("p", 8)
    assert told.begin_sync("p", 6, {2, 3}) == [1, 5]
    told.book("p", 3, 3)
    told.end_sync("p", 6)
    assert told.dump() == [("p", 1, False, 6, [], [7], [8])]
    assert [told.known("p", attempt) for attempt in range(1, 10)] == [
        "over", "live", "live", "over", "over", "unknown", "over", "unknown", "live"]
    assert told.faults() == []


def test_an_older_sync_raises_nothing_again():
    told = board("p")
    told.begin_sync("p", 9, set())
    told.end_sync("p", 9)
    assert told.begin_sync("p", 4, {2}) == []
    assert told.known("p", 2) == "over"
    told.end_sync("p", 4)
    assert told.floor("p") == 9


def test_a_stranded_attempt_can_be_booked_again():
    told = board("p")
    told.book("p", 1, 0)
    told.strand("p", 1, True)
    assert (told.known("p", 1), told.owner(0), told.counts(), told.floor("p")) == ("adrift", None, (1, 0), 2)
    assert told.book("p", 1, 3) is True
    assert told.owner(3) == ("p", 1)
    told.strand("p", 1)
    assert told.release("p", 1) == []
    assert told.known("p", 1) == "over"


def test_live_bookings_stand_by_name_and_attempt():
    told = board("q", "p")
    for name, attempt, slot in (("q", 2, 0), ("p", 11, 1), ("q", 1, 2), ("p", 2, 3)):
        told.book(name, attempt, slot)
    assert told.live() == [("p", 2, 3), ("p", 11, 1), ("q", 1, 2), ("q", 2, 0)]


def test_a_dump_is_taken_up_again():
    told = board("p", "q")
    told.book("p", 1, 0)
    told.strand("p", 1, True)
    told.release("p", 4)
    told.note_prefilled("p", 6)
    told.book("q", 1, 3)
    told.lose("r", 2)
    again = probe.Board()
    again.load(told.dump())
    again.book("q", 1, 3)
    assert (again.dump(), again.live(), again.faults()) == (told.dump(), told.live(), [])


FACTS = st.lists(st.tuples(st.sampled_from(("book", "prefill", "release", "strand", "sync", "renew", "lose")),
                           st.integers(1, 9), st.integers(0, 2**9 - 1)))


class Model:
    """The same with nothing ever forgotten."""

    def __init__(self) -> None:
        self.generation, self.lost = 1, False
        self.clear()

    def clear(self) -> None:
        self.state: dict[int, str] = {}
        self.prefilled: set[int] = set()
        self.below = 1

    def known(self, attempt: int) -> str:
        return self.state.get(attempt, "over" if attempt < self.below else "unknown")


def play(told, model: Model, what: str, attempt: int, mask: int, slots) -> None:
    """One fact to both, as the exchange would tell it."""
    if what == "renew":
        model.generation += 1
        told.hear("p", model.generation)
        model.clear()
        model.lost = False
    elif what == "lose":
        assert (told.lose("p", model.generation) is None) == model.lost
        model.clear()
        model.lost = True
    elif model.lost:
        assert told.hear("p", model.generation) is None
    elif what == "book" and model.known(attempt) in ("unknown", "adrift"):
        assert told.book("p", attempt, next(slots)) == (attempt in model.prefilled)
        model.state[attempt] = "live"
        model.prefilled.discard(attempt)
    elif what == "prefill" and model.known(attempt) in ("unknown", "adrift"):
        assert told.note_prefilled("p", attempt) == (attempt not in model.prefilled)
        model.prefilled.add(attempt)
    elif what == "strand" and model.known(attempt) == "live":
        told.strand("p", attempt, mask & 1)
        model.state[attempt] = "adrift"
        model.prefilled |= {attempt} if mask & 1 else set()
    elif what == "release":
        assert (told.release("p", attempt) is None) == (model.known(attempt) == "over")
        model.state[attempt] = "over"
        model.prefilled.discard(attempt)
    elif what == "sync":
        sync(told, model, attempt, {number for number in range(1, attempt) if mask >> number & 1}, slots)


def sync(told, model: Model, next_attempt: int, named: set[int], slots) -> None:
    told.begin_sync("p", next_attempt, named)
    for number in range(1, next_attempt):
        if number not in named:
            model.state[number] = "over"
            model.prefilled.discard(number)
        elif model.known(number) in ("unknown", "adrift"):
            told.book("p", number, next(slots))
            model.state[number] = "live"
            model.prefilled.discard(number)
    told.end_sync("p", next_attempt)
    model.below = max(model.below, next_attempt)


@given(FACTS)
def test_a_board_that_forgets_says_the_same_as_one_that_does_not(facts):
    told, model, slots = board("p"), Model(), iter(range(10_000))
    for what, attempt, mask in facts:
        play(told, model, what, attempt, mask, slots)
        assert told.faults() == []
        if not model.lost:
            assert [told.known("p", n) for n in range(1, 11)] == [model.known(n) for n in range(1, 11)]


@given(st.integers(1, 300), st.randoms(use_true_random=False), st.integers(1, 12))
def test_without_gaps_nothing_that_is_over_is_remembered(attempts, random, window):
    """Facts that overtake each other within a window: what must be remembered is bounded by it."""
    told = board("p")
    facts = [(attempt + 1.5 * random.random() * window, attempt, what)
             for attempt in range(1, attempts + 1) for what in ("book", "release")]
    for _, attempt, what in sorted(facts):
        if what == "release":
            told.release("p", attempt)
        elif told.known("p", attempt) == "unknown":
            told.book("p", attempt, attempt)
        assert told.remembered("p") <= 3 * window + 2
    assert told.dump() == [("p", 1, False, attempts + 1, [], [], [])]
    assert told.counts() == (1, 0)
