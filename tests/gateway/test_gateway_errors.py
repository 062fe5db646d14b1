"""What clients are told: every reason has its row, every row keeps the doctrine, nobody is told to come early."""

from __future__ import annotations

import json
from enum import Enum

import pytest
from kvcore.drivers.gateway.errors import TABLE, Errors, Wait, reason_of, row_of
from kvcore.drivers.gateway.refusals import Refused, Trouble
from kvcore.drivers.gateway.retry_after import SECOND_NS, WINDOW, Jitter, Pace
from kvcore.drivers.http.values import (
    BadResponse,
    ClientGone,
    ConnectFailed,
    ConnectionLost,
    HttpError,
    TimedOut,
    TooLarge,
)
from kvcore.drivers.protocol import Closed, Evicted, Rejected, Withdrawn

from kvcore.actions import Dispatch, Evict, EvictReason, Park, Reject, RejectReason
from kvcore.events import TimerFired

REASONS: list[Enum] = [*RejectReason, *EvictReason, *Trouble]

#: The whole table once more, as the issue and llm-d's doctrine have it: 429 contended, 503 none, 504 too late.
STATUSES = {
    400: [RejectReason.PINNED_WORKER_NOT_ALLOWED, RejectReason.TOO_LARGE, Trouble.MALFORMED],
    403: [Trouble.FORBIDDEN],
    404: [Trouble.UNKNOWN_PATH, Trouble.UNKNOWN_MODEL, Trouble.NOT_FOUND],
    405: [Trouble.WRONG_METHOD],
    408: [Trouble.SLOW_CLIENT],
    409: [Trouble.CONFLICT],
    413: [Trouble.BODY_TOO_LARGE],
    429: [
        RejectReason.QUEUE_FULL_REQUESTS, RejectReason.QUEUE_FULL_RAW_TOKENS, RejectReason.QUEUE_FULL_CACHED_TOKENS,
        RejectReason.WOULD_QUEUE, RejectReason.PINNED_WORKER_OVERLOADED, RejectReason.ALL_ELIGIBLE_OVERLOADED,
        RejectReason.ADMISSION_REFUSED, Trouble.GATEWAY_FULL, Trouble.UPSTREAM_BUSY,
    ],
    431: [Trouble.HEADERS_TOO_LARGE],
    499: [Trouble.CLIENT_GONE],
    500: [RejectReason.DUPLICATE_ID, Trouble.INTERNAL],
    502: [Trouble.UPSTREAM_GARBAGE, Trouble.UPSTREAM_CUT],
    503: [
        RejectReason.PINNED_WORKER_UNAVAILABLE, RejectReason.NO_WORKERS, RejectReason.NO_ELIGIBLE_WORKER,
        RejectReason.SHUTTING_DOWN, RejectReason.RETRIES_EXHAUSTED, EvictReason.WORKER_REMOVED,
        EvictReason.DRAIN_DEADLINE, Trouble.DRAINING, Trouble.WITHDRAWN, Trouble.UPSTREAM_UNREACHABLE,
    ],
    504: [RejectReason.DEADLINE_EXPIRED, EvictReason.BOOKING_EXPIRED, Trouble.UPSTREAM_TIMEOUT],
}


def named(reason: Enum) -> str:
    """A reason by kind and name: members of two kinds are equal where their numbers are."""
    return f"{type(reason).__name__}.{reason.name}"


def errors(estimate_ns: int | None = None, **keywords: int) -> Errors:
    """Answers where every wait is estimated as this."""
    return Errors(Jitter(1), dict.fromkeys(Wait, lambda: estimate_ns), **keywords)


def rejected(reason: RejectReason, retry_after_ns: int | None = None, **fields: int) -> Rejected:
    return Rejected(Reject("r", reason, retry_after_ns=retry_after_ns, **fields))


def test_every_reason_has_a_status_and_no_other_has():
    rows = [reason for kind in TABLE.values() for reason in kind]
    assert sorted(map(named, rows)) == sorted(map(named, REASONS))
    told = {named(reason): status for status, reasons in STATUSES.items() for reason in reasons}
    assert {named(reason): errors().answer(reason).status for reason in REASONS} == told


def test_no_two_reasons_are_told_by_the_same_code_but_the_two_ends_of_the_gateway():
    codes = [row_of(reason).code for reason in REASONS]
    assert sorted(code for code in set(codes) if codes.count(code) > 1) == ["shutting_down"]


@pytest.mark.parametrize("reason", REASONS, ids=named)
def test_every_answer_is_openai_shaped_and_says_the_reason_twice(reason):
    answer = errors(3 * SECOND_NS).answer(reason)
    headers = dict(answer.headers)
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    assert headers[b"x-kvcore-reason"].decode() == error["code"]
    assert headers[b"content-type"] == b"application/json"
    assert json.loads(errors().event(reason).removeprefix(b"data: ")) == {"error": error}


@pytest.mark.parametrize("reason", REASONS, ids=named)
def test_who_may_come_again_is_told_when_and_who_may_not_is_told_so(reason):
    headers = dict(errors(3 * SECOND_NS).answer(reason).headers)
    status, wait = row_of(reason).status, row_of(reason).wait
    if wait is Wait.NEVER:
        assert headers[b"x-should-retry"] == b"false"
        assert b"retry-after" not in headers
    elif wait is Wait.UNSAID:
        assert not {b"x-should-retry", b"retry-after"} & set(headers)
    else:
        assert b"x-should-retry" not in headers
        assert 3 <= int(headers[b"retry-after"]) <= 6
        assert 3000 <= int(headers[b"retry-after-ms"]) <= 6000
    if status in (429, 503) and named(reason) not in ("RejectReason.ADMISSION_REFUSED", "Trouble.WITHDRAWN"):
        assert b"retry-after" in headers


def test_retry_after_is_never_early_and_at_least_a_second():
    for estimate_ns in (None, 0, 1, SECOND_NS, 1_500_000_001, 90 * SECOND_NS):
        headers = dict(errors(estimate_ns).answer(Trouble.GATEWAY_FULL).headers)
        least_ns = max(SECOND_NS, estimate_ns or 0)
        assert least_ns <= int(headers[b"retry-after-ms"]) * 10**6 <= 2 * least_ns + 10**6
        assert int(headers[b"retry-after"]) * 1000 >= int(headers[b"retry-after-ms"])


def test_the_schedulers_own_estimate_comes_first():
    full = rejected(RejectReason.QUEUE_FULL_REQUESTS, 7 * SECOND_NS, current=12, limit=12)
    told = errors(50 * SECOND_NS).answer(full)
    assert 7 <= int(dict(told.headers)[b"retry-after"]) <= 14
    assert "(12 of 12)" in json.loads(told.body)["error"]["message"]


def test_a_thousand_clients_turned_away_together_come_back_spread():
    book = errors(10 * SECOND_NS)
    waits = [int(dict(book.answer(Trouble.GATEWAY_FULL).headers)[b"retry-after-ms"]) for _ in range(1000)]
    per_second = [sum(second <= wait / 1000 < second + 1 for wait in waits) for second in range(10, 20)]
    assert sum(per_second) >= 999
    assert min(per_second) > 60
    assert max(per_second) < 150


def test_jitter_is_that_of_its_seed():
    def waits(seed):
        jitter = Jitter(seed)
        return [jitter.spread_ns(SECOND_NS) for _ in range(5)]

    assert waits(3) == waits(3)
    assert waits(3) != waits(4)


def test_529_replaces_429_for_overload_only():
    told = errors(overload_status=529)
    assert told.answer(Trouble.GATEWAY_FULL).status == 529
    assert told.answer(RejectReason.WOULD_QUEUE).status == 529
    assert told.answer(RejectReason.ADMISSION_REFUSED).status == 429
    assert told.answer(RejectReason.NO_WORKERS).status == 503


@pytest.mark.parametrize(("error", "reason"), [
    (rejected(RejectReason.NO_WORKERS), RejectReason.NO_WORKERS),
    (Evicted(Evict("r", 1, 2, EvictReason.BOOKING_EXPIRED)), EvictReason.BOOKING_EXPIRED),
    (Withdrawn("r"), Trouble.WITHDRAWN),
    (Closed("closed"), Trouble.DRAINING),
    (Refused(Trouble.UNKNOWN_MODEL), Trouble.UNKNOWN_MODEL),
    (TooLarge(8), Trouble.BODY_TOO_LARGE),
    (HttpError(431, "headers"), Trouble.HEADERS_TOO_LARGE),
    (HttpError(408, "slow"), Trouble.SLOW_CLIENT),
    (HttpError(400, "bad"), Trouble.MALFORMED),
    (ClientGone(), Trouble.CLIENT_GONE),
    (ConnectFailed("refused"), Trouble.UPSTREAM_UNREACHABLE),
    (ConnectionLost("cut", begun=True), Trouble.UPSTREAM_CUT),
    (BadResponse("what", begun=False), Trouble.UPSTREAM_GARBAGE),
    (TimedOut("late"), Trouble.UPSTREAM_TIMEOUT),
    (KeyError("anything"), Trouble.INTERNAL),
], ids=lambda item: type(item).__name__ if isinstance(item, Exception) else item.name)
def test_exceptions_stand_for_reasons(error, reason):
    assert reason_of(error) is reason


def test_nothing_of_an_unknown_exception_gets_out():
    told = errors().answer(RuntimeError("sk-secret http://10.1.2.3:8101"))
    assert b"secret" not in told.body
    assert b"10.1.2.3" not in told.body
    assert told.status == 500


def test_what_a_worker_said_of_its_address_does_not_get_out():
    assert b"10.1.2.3" not in errors().answer(ConnectFailed("10.1.2.3:8101 refuses")).body


def test_a_malformed_field_is_named():
    told = errors().answer(Refused(Trouble.MALFORMED, "n: must be at least 1", param="n"))
    assert json.loads(told.body)["error"] == {
        "message": "n: must be at least 1", "type": "invalid_request_error", "param": "n", "code": "invalid_request"}


def dispatched(pace: Pace, *times_ns: int) -> None:
    for now_ns in times_ns:
        pace.tap([TimerFired(now_ns)], [Dispatch("r", 1, 1, 0, 0, 0, 0, 1, 0, 0)], None)


def test_pace_is_that_of_the_last_dispatches():
    pace = Pace()
    dispatched(pace, *[number * SECOND_NS for number in range(1, 2 * WINDOW + 1)])
    assert pace.next_ns(2 * WINDOW * SECOND_NS) == pytest.approx(SECOND_NS, rel=0.04)
    assert pace.next_ns(2 * WINDOW * SECOND_NS, ahead=9) == pytest.approx(10 * SECOND_NS, rel=0.04)


def test_a_fleet_that_has_stopped_does_not_look_fast():
    pace = Pace()
    dispatched(pace, 0, 10**6, 2 * 10**6)
    assert pace.next_ns(60 * SECOND_NS) >= 20 * SECOND_NS


def test_pace_needs_two_dispatches_and_passes_its_steps_on():
    heard = []
    pace = Pace(lambda events, actions, core: heard.append((events, actions, core)))
    assert pace.next_ns(5) is None
    step = [TimerFired(1)], [Park("r", 0)], object()
    pace.tap(*step)
    dispatched(pace, 2)
    assert pace.next_ns(5) is None
    assert heard[0] == step
    assert len(heard) == 2
