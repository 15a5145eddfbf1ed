"""Requests that could be read in two ways, that never end, or that lead elsewhere, are refused."""

import json
import time

import pytest

from tests.router.live import PATIENCE_S, LiveRouter, router

POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    "data",
    [
        POST + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
        POST + b"content-length: 4\r\ncontent-length: 5\r\n\r\nabcd",
        POST + b"content-length: 4\r\ncontent-length: 4\r\n\r\nabcd",
        POST + b"content-length: +4\r\n\r\nabcd",
        POST + b"content-length: 4, 4\r\n\r\nabcd",
        POST + b"content-length : 4\r\n\r\nabcd",
        POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nhost: b\r\ncontent-length: 0\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: a\r\nx: a\r\n b\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: a\rx: y\r\n\r\n",
        b"GET /v1/models HTTP/1.1\nhost: a\n\n",
        b"GET /v1/models HTTP/1.1\r\nx: a\0b\r\n\r\n",
        b"GET /v1/models\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET http://elsewhere/v1/models HTTP/1.1\r\nhost: elsewhere\r\n\r\n",
        b"CONNECT elsewhere:443 HTTP/1.1\r\nhost: elsewhere\r\n\r\n",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused_and_the_connection_closed(
    live: LiveRouter, three_stubs, data: bytes
):
    got = live.raw(data + b"GET /v1/files HTTP/1.1\r\nhost: smuggled\r\n\r\n")
    assert got.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 505 "))
    assert got.count(b"HTTP/1.1 ") == 1
    assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert not [request for one in three_stubs for request in one.state()["seen"]]


@pytest.mark.parametrize(
    "path",
    [
        "/stub/set",
        "/metrics/../stub/set",
        "/v1/../stub/set",
        "/v1/%2e%2e/stub/set",
        "/v1//stub",
        "/v1/kvikk/cache/reset",
        "/v1/%6bvikk/cache/reset",
        "/v1/load_lora_adapter",
        "/sleep",
        "/v1\\kvikk",
    ],
)
def test_what_only_operators_of_replicas_may_do_is_not_passed_on(live, three_stubs, path: str):
    got = live.raw(
        b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
        % path.encode()
    )
    assert got.split(b" ")[1] in (b"400", b"404", b"405"), got
    assert not [request for one in three_stubs for request in one.state()["seen"]]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "not valid JSON"),
        (b"[1]", "expected a JSON object"),
        (b'{"model": 3}', "model: expected a string"),
        (b'{"model": "\xff"}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_a_body_without_sense_is_one_clear_line(live: LiveRouter, body: bytes, problem: str):
    response = live.http.post("/v1/completions", content=body)
    assert response.status_code == 400
    assert problem in response.json()["error"]["message"]


def test_an_unknown_model_is_told_which_there_are(live: LiveRouter):
    response = live.post(body={"model": "gpt-9"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert "'stub'" in response.json()["error"]["message"]
    response = live.post(body={"model": "gpt-9"}, path="/v1/messages")
    assert response.json()["error"]["type"] == "not_found_error"


@pytest.fixture(scope="module")
def strict(three_stubs):
    with router(three_stubs, "--max-body", "1000") as live:
        yield live


@pytest.fixture(scope="module")
def hasty(three_stubs):
    with router(three_stubs, "--header-timeout", "1", "--body-timeout", "1.5") as live:
        yield live


def test_a_body_over_the_limit_is_refused_before_it_is_read(strict: LiveRouter):
    head = POST + b"content-length: 1001\r\nexpect: 100-continue\r\n\r\n"
    got = strict.raw(head)
    assert got.startswith(b"HTTP/1.1 413 ")
    assert b"1,000 bytes" in got
    chunk = b"3e8\r\n" + b"x" * 1000 + b"\r\n"
    got = strict.raw(POST + b"transfer-encoding: chunked\r\n\r\n" + chunk + chunk)
    assert got.startswith(b"HTTP/1.1 413 ")
    assert got.count(b"HTTP/1.1 ") == 1


def test_a_head_over_the_limit_is_refused(strict: LiveRouter):
    got = strict.raw(b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 100_000)
    assert got.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "data", [b"GET /heal", POST, POST + b"content-length: 900\r\n\r\n{", b"\r\n"]
)
def test_a_request_that_comes_too_slowly_is_given_up(hasty: LiveRouter, data: bytes):
    """A byte now and then does not buy time."""
    with hasty.connect() as connection:
        connection.sendall(data)
        started_s = time.monotonic()
        connection.settimeout(0.05)
        got = b""
        while time.monotonic() - started_s < PATIENCE_S:
            try:
                piece = connection.recv(1000)
            except TimeoutError:
                try:
                    connection.sendall(b"\r\n" if data == b"\r\n" else b"a")
                except OSError:
                    break
                continue
            except ConnectionError:
                break
            if not piece:
                break
            got += piece
        assert got.startswith(b"HTTP/1.1 408 ")
