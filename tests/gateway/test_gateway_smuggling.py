"""Requests that two parties could understand in two ways: refused, or forwarded as the one that we have understood.

Every story ends with a gateway that serves the next client and has nothing booked (hostile.attack).
"""

from __future__ import annotations

import json

import pytest
from hostile import ANSWER, BODY, Attacker, attack, fields_of, ok, post

CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


def raw(head: bytes, body: bytes = b"") -> bytes:
    """A request with exactly these lines behind its request line."""
    return b"POST /v1/completions HTTP/1.1\r\n" + head + b"\r\n" + body


@pytest.mark.parametrize("data", [
    raw(b"host: g\r\ncontent-length: %d\r\ntransfer-encoding: chunked\r\n" % len(BODY), BODY),
    raw(b"host: g\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n", CHUNKED),
    raw(b"host: g\r\ncontent-length: 4\r\ncontent-length: %d\r\n" % len(BODY), BODY),
    raw(b"host: g\r\ncontent-length: 4, %d\r\n" % len(BODY), BODY),
    raw(b"host: g\r\ncontent-length: +%d\r\n" % len(BODY), BODY),
    raw(b"host: g\r\ncontent-length: -1\r\n", BODY),
    raw(b"host: g\r\ncontent-length: 0x10\r\n", BODY),
    raw(b"host: g\r\ncontent-length: 1_0\r\n", BODY),
    raw(b"host: g\r\ncontent-length: \xb2\r\n", BODY),
    raw(b"host: g\r\ncontent-length:\r\n", BODY),
    raw(b"host: g\r\ncontent-length: 99999999999999999999999999\r\n", BODY),
    raw(b"host: g\r\ntransfer-encoding: xchunked\r\n", CHUNKED),
    raw(b"host: g\r\ntransfer-encoding: identity\r\n", CHUNKED),
    raw(b"host: g\r\ntransfer-encoding: chunked, identity\r\n", CHUNKED),
    raw(b"host: g\r\ntransfer-encoding: gzip, chunked\r\n", CHUNKED),
    raw(b"host: g\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", CHUNKED),
    raw(b"host: g\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", CHUNKED),
    raw(b"host: g\r\ntransfer-encoding:\x0bchunked\r\n", CHUNKED),
    raw(b"host: g\r\ntransfer-encoding : chunked\r\n", CHUNKED),
    raw(b"host: g\r\nx: y\rtransfer-encoding: chunked\r\n", CHUNKED),
    raw(b"host: g\r\nx: y\x00\r\ncontent-length: 3\r\n", BODY),
    raw(b"host: g\r\n: y\r\ncontent-length: 3\r\n", BODY),
    raw(b"host: g\r\nx\x00y: y\r\ncontent-length: 3\r\n", BODY),
    raw(b"host: g\r\nno colon\r\ncontent-length: 3\r\n", BODY),
    raw(b"content-length: %d\r\n" % len(BODY), BODY),
    raw(b"host: g\r\nhost: h\r\ncontent-length: %d\r\n" % len(BODY), BODY),
    b"POST /v1/completions HTTP/1.0\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNKED,
    b"POST /v1/completions HTTP/2.0\r\nhost: g\r\ncontent-length: 45\r\n\r\n" + BODY,
    b"POST /v1/completions HTTP/1.1 x\r\nhost: g\r\ncontent-length: 45\r\n\r\n" + BODY,
    b"POST  /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 45\r\n\r\n" + BODY,
    b"POST\t/v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 45\r\n\r\n" + BODY,
    b"POST /v1/completions\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64 + b"\r\n\r\n",
], ids=lambda data: data.split(b"\r\n", 1)[1][:40].decode("latin-1").encode("unicode_escape").decode())
def test_what_can_be_read_in_two_ways_is_refused_and_reaches_nobody(data):
    async def story(attacker: Attacker) -> None:
        answer = await attacker.say(data)
        assert int(answer.split(b" ", 2)[1]) in (400, 413, 501, 505), answer
        assert answer.count(b"HTTP/1.1 ") == 1, "what stood behind was taken for another request"
        head, _, body = answer.partition(b"\r\n\r\n")
        assert fields_of(head)[b"connection"] == b"close"
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
        assert attacker.upstream.requests == []

    attack(story)


@pytest.mark.parametrize("chunks", [
    b"0x2d\r\n" + BODY + b"\r\n0\r\n\r\n",
    b"+2d\r\n" + BODY + b"\r\n0\r\n\r\n",
    b"-2d\r\n" + BODY + b"\r\n0\r\n\r\n",
    b"2_d\r\n" + BODY + b"\r\n0\r\n\r\n",
    b"\r\n" + BODY + b"\r\n0\r\n\r\n",
    b"2d\n" + BODY + b"\n0\n\n",
    b"2d\r\n" + BODY + b"XX0\r\n\r\n",
    b"5\r\n" + BODY + b"\r\n0\r\n\r\n",
    b"ffffffffffffffffffffff\r\n" + BODY,
    b"zz\r\n" + BODY + b"\r\n0\r\n\r\n",
], ids=lambda chunks: chunks[:12].decode("latin-1").encode("unicode_escape").decode())
def test_chunks_that_are_none_are_refused_and_reach_nobody(chunks):
    async def story(attacker: Attacker) -> None:
        answer = await attacker.say(raw(b"host: g\r\ntransfer-encoding: chunked\r\n", chunks))
        if answer:  # else the connection was closed, which says it too
            assert 400 <= int(answer.split(b" ", 2)[1]) < 500, answer
            assert answer.count(b"HTTP/1.1 ") == 1
        assert attacker.upstream.requests == []

    attack(story)


def test_a_folded_line_is_a_part_of_the_field_before_it_and_frames_nothing():
    """As h11 reads it: the field has a longer value. It is not handed on as a line of its own."""
    async def story(attacker: Attacker) -> None:
        head = b"x-first: 1\r\n transfer-encoding: chunked\r\n"
        assert await attacker.status(post(head=head)) == 200
        fields = attacker.upstream.fields()
        assert fields[b"x-first"] == b"1 transfer-encoding: chunked"
        assert b"transfer-encoding" not in fields

    attack(story)


def test_a_chunked_request_is_forwarded_with_a_length_and_without_its_trailers():
    async def story(attacker: Attacker) -> None:
        chunks = b"5;ext=1\r\n%s\r\n%x\r\n%s\r\n0\r\nx-trailer: evil\r\nauthorization: evil\r\n\r\n" % (
            BODY[:5], len(BODY) - 5, BODY[5:])
        data = raw(b"host: g\r\ntransfer-encoding: chunked\r\nconnection: close\r\n", chunks)
        assert await attacker.status(data) == 200
        (head, body), = attacker.upstream.requests
        fields = fields_of(head)
        assert body == BODY
        assert fields[b"content-length"] == b"%d" % len(BODY)
        assert not {b"transfer-encoding", b"x-trailer", b"authorization", b"trailer"} & set(fields)

    attack(story)


def test_requests_one_behind_the_other_are_answered_in_their_order():
    async def story(attacker: Attacker) -> None:
        second = BODY.replace(b"[1,2,3]", b"[4]")
        answer = await attacker.say(
            post(head=b"x-request-id: first\r\n", close=False) + post(body=second, head=b"x-request-id: second\r\n"))
        first, _, rest = answer.partition(ANSWER)
        assert b"x-request-id: first" in first.lower()
        assert b"x-request-id: second" in rest.lower()
        assert [body for _, body in attacker.upstream.requests] == [BODY, second]

    attack(story)


def test_a_body_that_looks_like_a_request_is_a_body():
    async def story(attacker: Attacker) -> None:
        inner = post(body=BODY)
        answer = await attacker.say(post(body=inner))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert attacker.upstream.requests == []

    attack(story)


@pytest.mark.parametrize("method", [b"GET", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT", b"post", b"PoSt", b"X" * 200])
def test_a_body_under_another_method_is_never_the_next_request(method):
    async def story(attacker: Attacker) -> None:
        inner = post(body=BODY)
        data = b"%s /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n\r\n%s" % (method, len(inner), inner)
        answer = await attacker.say(data)
        assert answer.split(b" ", 2)[1] in (b"405", b"400", b"501"), answer
        assert attacker.upstream.requests == []

    attack(story)


@pytest.mark.parametrize("target", [
    "/admin/workers", "/admin/reload", "/v1/../admin/workers", "/v1/completions/../../admin/workers", "//admin/workers",
    "/%61dmin/workers", "/v1/%2e%2e/admin/workers", "/v1/completions/", "/v1//completions", "/v1/completions;a=b",
    "/v1/completions%00", "/v1/Completions", "/v1/completions%20", "/v1\\completions", "/v1/chat%2fcompletions", "/.",
    "/v1/./completions", "/tokenize", "/v1/embeddings", "/metrics/../v1/completions",
])
def test_paths_are_what_they_are_and_nothing_else_is_forwarded(target):
    async def story(attacker: Attacker) -> None:
        for method in (b"POST", b"GET"):
            data = post(target).replace(b"POST", method, 1)
            assert await attacker.status(data) == 404
        assert attacker.upstream.requests == []

    attack(story)


@pytest.mark.parametrize("target", [
    "http://evil.example/v1/completions", "evil.example:80", "*", "v1/completions", "?x", "/v1/completions#x",
    "/v1/compl\xe9tions", "/v1/com\x01pletions",
])
def test_targets_that_are_no_path_are_refused(target):
    async def story(attacker: Attacker) -> None:
        assert await attacker.status(post(target)) == 400
        assert attacker.upstream.requests == []

    attack(story)


def test_a_query_is_forwarded_as_it_is_and_names_no_other_path():
    async def story(attacker: Attacker) -> None:
        assert await attacker.status(post("/v1/completions?a=/../admin&b=%0d%0ax-evil:1")) == 200
        assert attacker.upstream.requests[0][0].startswith(
            b"POST /v1/completions?a=/../admin&b=%0d%0ax-evil:1 HTTP/1.1\r\n")
        assert b"x-evil" not in attacker.upstream.fields()

    attack(story)


def test_fields_of_the_hop_are_not_handed_on_in_either_direction():
    async def story(attacker: Attacker) -> None:
        attacker.upstream.answer = ok(extra=(
            b"connection: keep-alive, x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nproxy-authenticate: x\r\n"
            b"upgrade: h2c\r\nx-kvcore-worker-id: 99\r\nx-kvcore-policy-class: forged\r\nx-request-id: forged\r\n"
            b"x-should-retry: true\r\nretry-after: 1\r\nx-own: kept\r\nset-cookie: a=b\r\n"))
        answer = await attacker.say(post(close=False, head=(
            b"connection: close, x-mine\r\nx-mine: 1\r\nkeep-alive: 5\r\nproxy-authorization: secret\r\n"
            b"te: trailers\r\ntrailer: x\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
            b"proxy-connection: keep-alive\r\n"
            b"expect: 100-continue\r\nauthorization: Bearer sk-1\r\nx-other: kept\r\nx-data-parallel-rank: 7\r\n")))
        fields = attacker.upstream.fields()
        assert not {
            b"x-mine", b"keep-alive", b"proxy-authorization", b"te", b"trailer", b"upgrade", b"http2-settings",
            b"proxy-connection", b"expect", b"x-data-parallel-rank"} & set(fields)
        assert (fields[b"authorization"], fields[b"x-other"]) == (b"Bearer sk-1", b"kept")
        assert fields.get(b"connection") in (None, b"keep-alive")
        final = answer[answer.index(b"HTTP/1.1 200"):]
        told = fields_of(final.partition(b"\r\n\r\n")[0])
        assert not {b"x-hop", b"keep-alive", b"proxy-authenticate", b"upgrade"} & set(told)
        assert (told[b"x-own"], told[b"set-cookie"]) == (b"kept", b"a=b")
        assert (told[b"x-kvcore-worker-id"], told[b"x-kvcore-policy-class"]) == (b"0", b"default")
        assert told[b"x-request-id"] != b"forged"
        assert not {b"x-should-retry", b"retry-after"} & set(told)
        for name in (b"x-request-id", b"x-kvcore-worker-id", b"content-length", b"connection"):
            assert final.partition(b"\r\n\r\n")[0].lower().count(b"\r\n" + name + b":") <= 1

    attack(story)


def test_what_is_echoed_cannot_make_a_field_of_its_own():
    async def story(attacker: Attacker) -> None:
        answer = await attacker.say(post(head=(
            b"x-request-id: a b\tc;\xff\"<script>\r\nx-kvcore-policy-class: p\xc3\xa9%0d%0ax-evil: 1\r\n")))
        told = fields_of(answer.partition(b"\r\n\r\n")[0])
        assert told[b"x-request-id"] == b"a_b_c______script_" or b" " not in told[b"x-request-id"]
        assert b"x-evil" not in told
        answer.partition(b"\r\n\r\n")[0].decode("ascii")

    attack(story)
