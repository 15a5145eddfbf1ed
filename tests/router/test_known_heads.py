"""A head that came before is read as it was then, and anything else is read anew."""

import re
import socket

import pytest

from kvikk.router.proxy.keys import Keys, TenantLimits
from kvikk.router.proxy.known_head import known_head
from kvikk.router.proxy.request import ClientRequest, RequestHead
from tests.router.live import LiveRouter, read_answer

BODY = b'{"model":"stub","messages":[{"role":"user","content":"%b"}]}'
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nX-A: 1\r\n"
    b"Content-Length: %d\r\nx-b: 2\r\n\r\n"
)


def request_of(**headers: bytes) -> ClientRequest:
    head = RequestHead()
    head.by_name = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    head.tenant = Keys([], TenantLimits(), None).tenant({})
    request = ClientRequest(head)
    request.size_bytes = int(head.by_name[b"content-length"])
    return request


def whole(body: bytes, head: bytes = HEAD) -> bytes:
    return head % len(body) + body


def test_only_the_length_and_the_body_may_differ() -> None:
    first = whole(b"12345")
    known = known_head(first, request_of(content_length=b"5"))
    assert known is not None
    for body in (b"12345", b"x", b"y" * 70_000):
        request = known.read(whole(body))
        assert request is not None
        assert (request.body, request.size_bytes) == (body, len(body))
        assert b"content-length: %d\r\n" % len(body) in request.upstream_head(b"h", b"", b"v")
    others = [
        whole(b""),  # no body: the parser knows when such a request is over
        whole(b"12345")[:-1],
        whole(b"12345") + b"G",
        whole(b"12345").replace(b"X-A: 1", b"X-A: 2"),
        whole(b"12345").replace(b"x-b: 2", b"x-b: 3"),
        whole(b"12345").replace(b": 5", b": +5"),
        whole(b"12345").replace(b": 5", b": 5, 5"),
        whole(b"12345").replace(b": 5", b": 5\r\nTransfer-Encoding: chunked"),
        whole(b"12345").replace(b": 5", b": 5\n"),
        whole(b"12345").replace(b": 5", b": 0x5"),
        whole(b"12345").replace(b": 5", b": "),
        b"",
        first[:20],
    ]
    assert [known.read(data) for data in others] == [None] * len(others)


@pytest.mark.parametrize(
    "headers",
    [
        {"expect": b"100-continue"},
        {"upgrade": b"h2c"},
        {"transfer_encoding": b"chunked"},
    ],
)
def test_what_is_read_in_another_way_is_not_remembered(headers: dict[str, bytes]) -> None:
    assert known_head(whole(b"12345"), request_of(content_length=b"5", **headers)) is None


def test_requests_on_one_connection_are_told_apart(live: LiveRouter, three_stubs) -> None:
    """Ids, lengths, bodies and routes are each request's own, also behind one that is alike."""
    bodies = [BODY % (b"x" * length) for length in (10, 10, 3000, 1, 50_000, 10)]
    with live.connect() as connection:
        answers = [ask(connection, whole(body)) for body in bodies]
        ids = [re.search(rb"x-request-id: (\S+)", answer)[1] for answer in answers]
        assert len(set(ids)) == len(bodies)
        models = ask(connection, b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b'"object":"list"' in models
        assert b" 200 " in ask(connection, whole(BODY % b"again"))
        assert b" 400 " in ask(connection, whole(b"no json"))
        assert b" 200 " in ask(connection, whole(BODY % b"and again"))
    seen = [one for stub in three_stubs for one in stub.state()["seen"]]
    assert sorted(one["body"].encode() for one in seen) == sorted(
        [*bodies, BODY % b"again", BODY % b"and again"]
    )
    for one in seen:
        headers = dict(one["headers"])
        assert headers["content-length"] == str(len(one["body"]))
        assert headers["X-A"] == "1"
        assert headers["x-b"] == "2"


def ask(connection: socket.socket, data: bytes) -> bytes:
    """Send at once, and read one answer."""
    connection.sendall(data)
    return read_answer(connection)
