"""What somebody would try who wants to break the router, or to use it against others."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.router.live import (
    LiveRouter,
    StubReplica,
    read_answer,
    router,
    running,
    stubs,
    wait_for,
)

POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nhost: x\r\n\r\n"


def seen(replicas: list[StubReplica]) -> list[tuple[str, str]]:
    """Line and body of every request that reached a replica."""
    return [(one["line"], one["body"]) for replica in replicas for one in replica.state()["seen"]]


def resident_mib(live: LiveRouter) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{live.process.pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


@pytest.mark.parametrize(
    ("headers", "sent"),
    [
        (b"content-length: 2\r\n\r\n", b"{}"),
        (b"transfer-encoding: chunked\r\n\r\n", b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"),
    ],
)
@pytest.mark.parametrize("pause", [False, True])
def test_who_asks_for_another_protocol_keeps_its_body_and_gets_nothing_past_it(
    live: LiveRouter, three_stubs: list[StubReplica], headers: bytes, sent: bytes, pause: bool
) -> None:
    """Java's client offers h2c with every first request; a tunnel would carry what follows."""
    asks = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
    with live.connect() as connection:
        connection.sendall(POST + asks + headers)
        if pause:
            time.sleep(0.1)
            connection.sendall(sent[:1])
            time.sleep(0.1)
            connection.sendall(sent[1:] + SMUGGLED)
        else:
            connection.sendall(sent + SMUGGLED)
        got = b""
        while piece := connection.recv(1 << 16):
            got += piece
    assert got.startswith(b"HTTP/1.1 200 ")
    assert got.count(b"HTTP/1.1 ") == 1
    assert b"\r\nconnection: close\r\n" in got
    assert seen(three_stubs) == [("POST /v1/completions HTTP/1.1", "{}")]
    headers_seen = [
        name for one in three_stubs for s in one.state()["seen"] for name, _ in s["headers"]
    ]
    assert not {"upgrade", "http2-settings", "connection"} & {name.lower() for name in headers_seen}


@pytest.mark.parametrize("end", [b"connection: close\r\n", b""], ids=["1.1, close", "1.0"])
def test_what_follows_the_last_request_is_ignored_and_takes_no_answer_away(
    live: LiveRouter, three_stubs: list[StubReplica], end: bytes
) -> None:
    first = POST if end else POST.replace(b"1.1", b"1.0")
    got = live.raw(first + end + b"content-length: 2\r\n\r\n{}" + SMUGGLED)
    assert got.startswith(b"HTTP/1.1 200 ")
    assert got.count(b"HTTP/1.1 ") == 1
    assert seen(three_stubs) == [("POST /v1/completions HTTP/1.1", "{}")]


def test_a_body_is_not_framed_by_headers_that_only_look_like_framing(
    live: LiveRouter, three_stubs: list[StubReplica]
) -> None:
    """The replica gets one length, of all that belongs to the body; trailers end here."""
    odd = b"connection: content-length, host\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b'2;a=b;c="d"\r\n{}\r\n000\r\nx-trailer: 1\r\nauthorization: late\r\n\r\n'
    got = live.raw(
        POST + odd + chunks + POST + b"connection: close\r\ncontent-length: 002\r\n\r\n{}"
    )
    assert got.count(b"HTTP/1.1 200 ") == 2
    assert seen(three_stubs) == 2 * [("POST /v1/completions HTTP/1.1", "{}")]
    for one in three_stubs:
        for request in one.state()["seen"]:
            names = [name.lower() for name, _ in request["headers"]]
            assert names.count("content-length") == names.count("host") == 1
            assert not {"transfer-encoding", "x-trailer", "authorization"} & set(names)


def test_a_request_of_1_1_names_a_host(live: LiveRouter) -> None:
    got = live.raw(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 400 ")


def test_whoever_asks_first_behind_another_request_is_told_to_go_on_in_its_turn(
    live: LiveRouter,
) -> None:
    with live.connect() as connection:
        connection.sendall(POST + b"content-length: 2\r\n\r\n{}")
        connection.sendall(POST + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        got = b""
        while not (b"HTTP/1.1 100 " in got and got.endswith(b"\r\n\r\n")):
            got += connection.recv(1 << 16)
        assert got.startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"{}")
        assert read_answer(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "around",
    [b"0\r\nx: " + b"a" * 500_000, b"0\r\n" + 100_000 * b"x: y\r\n", b"2;" + b"a" * 500_000],
    ids=["a trailer", "trailers", "a chunk extension"],
)
def test_what_is_dropped_from_around_a_body_has_an_end(live: LiveRouter, around: bytes) -> None:
    got = live.raw(POST + b"transfer-encoding: chunked\r\n\r\n" + around)
    assert got.startswith(b"HTTP/1.1 400 ")
    assert b"more around the body than in it" in got


def test_a_body_in_tiny_chunks_takes_no_more_memory_than_its_bytes(live: LiveRouter) -> None:
    before = resident_mib(live)
    with live.connect() as connection:
        connection.sendall(POST + b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(20):
            connection.sendall(b"2\r\nab\r\n" * 100_000)
        wait_for(lambda: live.metric("kvikk_router_held_body_bytes") == 20 * 200_000)
        assert resident_mib(live) - before < 20  # an object for each would be 110
    wait_for(lambda: live.metric("kvikk_router_held_body_bytes") == 0)


def test_many_requests_at_once_to_whoever_reads_no_answers_are_refused(live: LiveRouter) -> None:
    """Else each would be answered into memory."""
    got = live.raw(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 3000)
    assert 0 < got.count(b"HTTP/1.1 200 ") < 50
    assert b"too many requests were sent at once" in got


def test_more_connections_than_there_may_be_are_told_so(three_stubs: list[StubReplica]) -> None:
    with router(three_stubs, "--max-connections", "4") as live, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(live.connect())
        wait_for(lambda: live.metric("kvikk_router_client_connections") == 4)
        got = live.raw(b"")
        assert got.startswith(b"HTTP/1.1 503 ")
        assert b"4 connections are open already" in got
        assert live.post().status_code == 200
        stack.close()
        wait_for(lambda: live.metric("kvikk_router_client_connections") == 1)
        assert live.raw(b"GET /healthz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.fixture(scope="module")
def narrow(three_stubs: list[StubReplica]) -> Iterator[LiveRouter]:
    """A router that holds 1 MB of bodies."""
    with router(three_stubs, "--max-buffered", "1000000") as live:
        yield live


def held(live: LiveRouter) -> float:
    return live.metric("kvikk_router_held_body_bytes")


def test_bodies_of_all_clients_together_have_a_bound(narrow: LiveRouter) -> None:
    """Many clients each send most of a body and stop."""
    part = POST + b"content-length: 500000\r\n\r\n" + b"x" * 300_000
    open_ones = [narrow.connect() for _ in range(3)]
    try:
        for number, connection in enumerate(open_ones, 1):
            connection.sendall(part)
            wait_for(lambda number=number: held(narrow) == number * 300_000)
        got = narrow.raw(part)
        assert got.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in got
        assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == "overloaded"
        # What it had taken of the refused one is free again, and small requests go on.
        assert held(narrow) == 900_000
        assert narrow.post().status_code == 200
        open_ones.pop().close()
        wait_for(lambda: held(narrow) == 600_000)
        assert narrow.raw(POST + b"content-length: 4\r\nconnection: close\r\n\r\n{} \n").startswith(
            b"HTTP/1.1 200 "
        )
    finally:
        for connection in open_ones:
            connection.close()
    wait_for(lambda: held(narrow) == 0)


def test_a_body_is_held_until_the_first_byte_of_the_answer_and_no_longer(
    narrow: LiveRouter, three_stubs: list[StubReplica]
) -> None:
    """From then on it is sent to nobody again."""
    for one in three_stubs:
        one.forget()
    stub = {"chunks": 4, "held_after": 1}
    body = {"pad": "x" * 100_000}
    with narrow.http.stream(
        "POST", "/v1/completions", json={"model": "stub", "stub": stub, **body}
    ) as response:
        assert held(narrow) == 0
        for one in three_stubs:
            one.release()
        assert "[DONE]" in "".join(response.iter_text())
    for stub in ({"status": 500}, {"hang_up": True}, {"chunks": 3, "cut_after": 1}):
        narrow.post(stub, body=body)
        assert held(narrow) == 0


def test_a_client_that_stops_reading_is_let_go_and_no_replica_blamed(
    three_stubs: list[StubReplica],
) -> None:
    body = json.dumps({"model": "stub", "stub": {"chunks": 2000, "pad": 30_000}}).encode()
    request = POST + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    # Time enough for the replica to fill what lies between it and a client that does not read.
    with router(three_stubs[:1], "--idle-timeout", "2") as live:

        def cut_off() -> float:
            return live.metric("kvikk_router_responses_total", 'status="504"')

        with ExitStack() as stack:
            for _ in range(6):
                stack.enter_context(live.connect()).sendall(request)
            wait_for(lambda: cut_off() == 6)
            assert live.is_idle()
        assert live.replicas()[three_stubs[0].id]["breaker"] == "closed"
        assert live.metric("kvikk_router_replica_errors_total") == 0
        wait_for(lambda: live.metric("kvikk_router_client_connections") == 1)
        wait_for(lambda: running(three_stubs) == 0)


def vias(replica: StubReplica) -> list[list[str]]:
    """Which routers each request has passed."""
    return [
        [value for name, value in request["headers"] if name.lower() == "via"]
        for request in replica.state()["seen"]
    ]


def test_a_router_that_is_its_own_replica_or_its_replica_s_passes_itself_over() -> None:
    one, other = free_port(), free_port()
    circle = [f"--replica=http://127.0.0.1:{port}" for port in (one, other)]
    with (
        stubs(1) as replicas,
        router(replicas, f"--port={one}", *circle, wait=False) as first,
        router((), f"--port={other}", "--replica", first.url, wait=False) as second,
    ):
        first.wait_until_well(3)
        second.wait_until_well(1)
        assert {first.post().status_code for _ in range(12)} == {200}
        assert {second.post().status_code for _ in range(4)} == {200}
        # Wherever it stands among those that a request has passed.
        (own,) = {passed[-1] for passed in vias(replicas[0])}
        response = first.post(headers=[("via", own), ("via", "1.1 other")])
        assert response.status_code == 508
        assert response.json()["error"]["code"] == "loop"


def test_a_router_before_another_is_no_circle(live: LiveRouter, three_stubs: list) -> None:
    with router((), "--replica", live.url, wait=False) as front:
        front.wait_until_well(1)
        assert front.post().status_code == 200
    (passed,) = [passed for one in three_stubs for passed in vias(one)]
    assert len(set(passed)) == 2
