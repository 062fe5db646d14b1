"""Which field report is guarded by which test: the rows of groups 2.1, 2.2, 2.5 and 2.7, by their numbers.

A row is tested by functions named `test_E<number>_...` in this folder, or it stands in ELSEWHERE (tested, but not under
its number) or in LATER (with what it needs that is not there yet). meta/test_field_rows.py holds every row to exactly
one of the three.
"""

from __future__ import annotations

#: Group -> row -> what went wrong there, in a few words.
ROWS: dict[str, dict[int, str]] = {
    "2.1": {
        1: "a cancelled request is booked later", 2: "a cancelled request counts until it is the head",
        4: "a failed delivery keeps its capacity", 5: "a step after the reservation fails and load is left",
        7: "time-outs leak the counter", 8: "a malformed request leaks a slot",
        10: "a stalled upstream and a client that is gone leak", 11: "an exception while closing skips the release",
        13: "a cancellation is released twice", 14: "ended twice, on another worker, or by a dirty object",
        16: "one failed release and the load stays", 17: "requests hang while workers come and go",
    },
    "2.2": {
        19: "what is deleted is deducted twice and wraps", 20: "prefill load is held through the decode",
        22: "late cleanup frees the next attempt", 23: "a prefix is counted once per look",
        25: "an unset rank becomes rank 0", 26: "what one limit refuses uses up another",
        28: "an unregistered worker is the best target", 29: "cached blocks outlive a change of identity",
    },
    "2.5": {
        68: "no way to prefer a fast no", 70: "documented defaults are not applied",
        71: "one outcome, several status codes", 73: "a shed request looks like a cancelled one",
        74: "back-pressure opens the breaker", 76: "clients come back all at once",
        77: "all cooling down: failure instead of a known wait", 79: "a shutdown leaves requests unanswered",
        80: "a configured band is collected when idle", 82: "overloaded between pick and send",
        83: "a misspelt threshold does nothing",
    },
    "2.7": {
        97: "a retry loses its affinity", 98: "a session header is stripped", 100: "a departed router's load stays",
        101: "peers hear of things out of order", 103: "requests go to deleted endpoints",
        104: "one odd worker hides all", 106: "tenants as labels without bound", 107: "gauges keep dead servers",
        109: "nobody can say why that worker", 110: "time to first token from the last chunk",
        112: "a replay without local state and sessions", 113: "a replay that shuffles, drifts or panics",
        115: "a plain refusal gives no guidance", 116: "memory grows as models come and go",
        118: "a question changes the router", 119: "sub-agents get shares of their own",
        121: "queueing is seen only when it refuses", 122: "limits that invert priority",
        124: "a scalar cannot explain one stuck request", 125: "several routers, each with its own counts",
        127: "waiting for capacity that is there",
    },
}

#: Row -> where it is tested.
ELSEWHERE: dict[int, tuple[str, ...]] = {
    112: ("tests/replay/test_simulate.py",),
    113: ("tests/unit/test_traces.py", "tests/unit/test_traces_bad.py", "tests/property/test_traces_order.py"),
    122: ("tests/unit/test_policy_lint.py",),
    # Work conservation: a checker of every recorded run, and runs with and without a second look at everybody. Who is
    # not told of room finds it by a hint: test_review_12 and test_review_06.
    127: ("tests/checkers_load.py", "tests/property/test_metamorphic.py", "tests/property/test_room_by_itself.py",
          "tests/regressions/test_review_items.py"),
}

#: Row -> what its test needs.
LATER: dict[int, str] = {
    10: "a driver that watches its client while the worker is silent",
    11: "a driver whose transport fails to close",
    71: "the gateway: a table from outcomes to status codes",
    74: "the gateway: what counts as a failure of a worker",
    76: "the gateway: jitter on retry_after_ns, and a retry budget",
    98: "the gateway: headers kept and echoed",
    106: "metrics: series per tenant with a bound",
    109: "explain(id)",
    110: "the gateway: time of the first chunk",
    115: "the gateway, end to end",
    119: "shares below a class",
    124: "queue_dump(limit)",
}
