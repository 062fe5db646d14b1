"""Whoever adds a field to a row of the core is reminded of the digest and of snapshots.

It is in there, or a reason says why not. What is written into a snapshot must be read from it, or it could not be
restored: that is for the tests of snapshots.
"""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from tree import ROOT

from kvcore.request import Overlap, Rank, Request, SelectionWeights

CORE = ROOT / "kvcore"
#: Row -> the header that lays it out, and what the writers call one.
STRUCTS = {
    "request_t": ("_requests", "row"),
    "waiting_t": ("_lanes", "waiting"),
    "booking_t": ("_load", "booking"),
    "load_t": ("_load", "load"),
    "class_t": ("_drr", "ring"),
    "worker_t": ("_workers", "worker"),
    "rank_t": ("_workers", "rank"),
    "predicted_t": ("_predicted", "block"),
}
VALUES = {Request: "request", Overlap: "overlap", SelectionWeights: "weights", Rank: "rank"}
LINK = "a link inside a table"
FOLLOWS = "follows from other fields"
GIVEN = "in the Request, which is written whole"

#: Row -> field that is not written -> why.
WISHES = (
    "lazy", "constrained", "special", "do_not_queue", "priority_jump", "expected", "strict_priority", "class_name")
DIGEST_LEAVES_OUT = {
    "request_t": {
        **dict.fromkeys(WISHES, "its Request's"),
        "serial": "names the path to caches of look-ups only",
        "older": LINK, "newer": LINK,
    },
    "waiting_t": {"raw": "the prompt of its request", "class_index": "that of its request", "lane": LINK},
    "booking_t": {
        "path": "its request's", "bound_from": "which weights stand where", "path_weight": "written block by block",
        "next": LINK, "prev": LINK, "fifo_prev": LINK,
    },
    "load_t": {
        "taints": "its worker's", "state": "follows from the marks", "dirty": "what caches have not seen yet",
        "front_tokens": FOLLOWS, "front_ns": FOLLOWS, "first": LINK, "fifo_last": LINK,
    },
    "class_t": {
        "quantum": "configuration", "limits": "configuration", "never_waits": "configuration",
        "dispatched": "statistics", "dispatched_cost": "statistics", "window_cost": FOLLOWS,
    },
    "worker_t": {"dp_start": "the dp_rank of its first rank", "ranks": LINK},
    "rank_t": {"pins": "the pinned requests count themselves", "next_free": LINK, "prev_free": LINK},
    "predicted_t": dict.fromkeys(
        ("hash", "name", "used_ns", "rank", "older", "newer", "rank_older", "rank_newer"), "their table keeps a sum"),
    Request: {
        "request_id": "comes first", "prompt_tokens": "in its row", "deadline_ns": "in its row",
        "block_hashes": "in its row", "sequence_hashes": "in its row", "track_prefill": "in its row",
    },
}


SNAPSHOT_LEAVES_OUT = {
    "request_t": {
        **dict.fromkeys(WISHES, "its Request's"),
        "serial": "names the path to caches of look-ups only", "older": LINK, "newer": LINK,
        **dict.fromkeys((
            "track_prefill", "prompt", "outside", "reserve", "deadline_ns", "path", "sequence", "path_length",
            "sequence_length"), GIVEN),
    },
    "waiting_t": {"raw": "the prompt of its request", "class_index": "that of its request", "lane": LINK},
    "booking_t": {
        **dict.fromkeys(("path", "length", "private_blocks", "reserve_blocks"), "its request's"),
        "bound_from": "which weights stand where: all are written block by block", "path_weight": "block by block",
        "next": LINK, "prev": LINK, "fifo_next": "in order of attempts", "fifo_prev": "in order of attempts",
    },
    "load_t": {
        **dict.fromkeys(("prefill", "weight", "requests", "held", "front_tokens", "front_ns"), "a sum of bookings"),
        "taints": "its worker's", "state": "follows from the marks", "dirty": "what caches have not seen yet",
        "first": LINK, "fifo_first": LINK, "fifo_last": LINK,
    },
    "class_t": {
        "quantum": "configuration", "limits": "configuration", "never_waits": "configuration",
        "charged": "of its dispatches only the window matters, which put_window writes",
        "times": "put_window", "costs": "put_window", "window_cost": FOLLOWS,
    },
    "rank_t": {"pins": "the pinned requests count themselves", "next_free": LINK, "prev_free": LINK},
    "predicted_t": {
        "name": FOLLOWS, "rank": "whose blocks they are", "older": LINK, "newer": LINK, "rank_older": LINK},
}


def fields_of(struct: str, text: str) -> list[str]:
    """The fields of a struct in a header."""
    body = re.search(rf"^cdef struct {struct}:\n((?:    .*\n|\n)+)", text, re.MULTILINE)
    assert body is not None
    return [
        re.sub(r"\W.*", "", name)
        for line in body[1].splitlines()
        if line.strip() and not line.strip().startswith("#")
        for name in re.sub(r"\s*#.*", "", line).split()[-1:]
    ]


def faults(text: str, known: dict[object, list[str]], left_out) -> list[str]:
    """Fields that are neither written nor left out, or both. known: row or value -> its fields."""
    found = []
    for row, names in known.items():
        name = STRUCTS[row][1] if row in STRUCTS else VALUES[row]
        written = set(re.findall(rf"\b{name}\.(\w+)", text))
        reasons = left_out.get(row, {})
        found += [f"{row}.{field} is not written" for field in names if field not in written | reasons.keys()]
        found += [f"{row}.{field} is written, and left out" for field in written & reasons.keys()]
        found += [f"{row}.{field} is no field" for field in reasons.keys() - set(names)]
    return found


@pytest.fixture(scope="module")
def known():
    structs = {
        struct: fields_of(struct, (CORE / f"{header}.pxd").read_text(encoding="utf-8"))
        for struct, (header, _) in STRUCTS.items()}
    return structs | {kind: [item.name for item in fields(kind)] for kind in VALUES}


def test_headers_are_read(known):
    assert known["class_t"][:3] == ["quantum", "deficit", "limits"]
    assert known["waiting_t"] == ["key", "raw", "cached", "cost", "class_index", "lane"]
    assert [len(known[struct]) > 4 for struct in STRUCTS] == [True] * len(STRUCTS)


def test_the_digest(known):
    assert faults((CORE / "_digest.pyx").read_text(encoding="utf-8"), known, DIGEST_LEAVES_OUT) == []


def test_snapshots(known):
    rows = {row: names for row, names in known.items() if row in STRUCTS}
    assert faults((CORE / "_snapshot.pyx").read_text(encoding="utf-8"), rows, SNAPSHOT_LEAVES_OUT) == []


def test_a_new_field_is_missed(known):
    text = (CORE / "_digest.pyx").read_text(encoding="utf-8")
    more = known | {"load_t": [*known["load_t"], "news"]}
    assert faults(text, more, DIGEST_LEAVES_OUT) == ["load_t.news is not written"]
    assert faults(text.replace("row.attempts", ""), known, DIGEST_LEAVES_OUT) == ["request_t.attempts is not written"]
