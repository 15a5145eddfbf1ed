"""What goes in comes out: bytes, headers, statuses, streams as they come."""

import asyncio
import json
import time

import pytest

from tests.router.live import (
    LiveRouter,
    StubReplica,
    events,
    read_answer,
    running,
    until,
    wait_for,
)


def seen(replicas: list[StubReplica]) -> list[dict]:
    return [request for one in replicas for request in one.state()["seen"]]


def test_a_body_reaches_the_replica_byte_for_byte(live: LiveRouter, three_stubs):
    # Spaces, an escape that need not be one, a number's form, key order, a key twice: all survive.
    body = b'{ "model" :"stub", "b":1.50,"a": "\\u00e6\xc3\xa6", "n":1e2, "n" : 2 }\n'
    response = live.http.post(
        "/v1/chat/completions?x=%20y", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 200
    (request,) = seen(three_stubs)
    assert request["body"].encode("latin-1") == body
    assert request["line"] == "POST /v1/chat/completions?x=%20y HTTP/1.1"


def test_a_request_means_the_same_wherever_it_is_cut(live: LiveRouter, three_stubs):
    """Into two packets at any place, with a length or in chunks."""
    body = b'{"model":"stub"}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    length = head + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    chunks = head + b"transfer-encoding: chunked\r\n\r\n8;x=y\r\n%b\r\n8\r\n%b\r\n0\r\n\r\n" % (
        body[:8],
        body[8:],
    )

    async def send(data: bytes, cut: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        writer.write(data[:cut])
        await asyncio.sleep(0.1)
        writer.write(data[cut:])
        answer = await reader.read()
        writer.close()
        return answer

    async def run() -> list[bytes]:
        cuts = [(data, cut) for data in (length, chunks) for cut in range(1, len(data))]
        return await asyncio.gather(*(send(*one) for one in cuts))

    answers = asyncio.run(run())
    assert {answer.split(b" ")[1] for answer in answers} == {b"200"}
    assert [one["body"].encode() for one in seen(three_stubs)] == [body] * len(answers)


def test_a_chunked_body_reaches_the_replica_whole_and_with_a_length(live: LiveRouter, three_stubs):
    def pieces():
        yield b'{"model":'
        yield b'"stub"}'

    assert live.http.post("/v1/completions", content=pieces()).status_code == 200
    (request,) = seen(three_stubs)
    names = [name.lower() for name, _ in request["headers"]]
    assert request["body"] == '{"model":"stub"}'
    assert "content-length" in names
    assert "transfer-encoding" not in names


def test_all_headers_pass_but_those_between_two_parties(live: LiveRouter, three_stubs):
    answer = [["X-Custom", "a"], ["x-custom", "b"], ["Set-Cookie", "c=d"], ["Keep-Alive", "x"]]
    response = live.post(
        {"headers": [*answer, ["Connection", "x-secret"], ["X-Secret", "gone"]], "status": 418},
        headers={
            "X-Mine": "kept",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "tracestate": "vendor=value",
            "Authorization": "Bearer passed-on",
            "Connection": "keep-alive, x-hop",
            "X-Hop": "gone",
            "TE": "trailers",
            "Proxy-Authorization": "gone",
        },
    )
    assert response.status_code == 418
    assert response.headers.get_list("x-custom") == ["a", "b"]
    assert response.headers["set-cookie"] == "c=d"
    assert "x-secret" not in response.headers
    assert "keep-alive" not in response.headers
    sent = dict(seen(three_stubs)[0]["headers"])
    assert sent["X-Mine"] == "kept"
    assert sent["traceparent"] == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert sent["tracestate"] == "vendor=value"
    assert sent["Authorization"] == "Bearer passed-on"
    assert not {"X-Hop", "TE", "Proxy-Authorization", "Connection"} & set(sent)
    assert sent["host"] in [one.id for one in three_stubs]


def test_a_response_says_which_replica_and_why(live: LiveRouter, three_stubs):
    response = live.post()
    names = {one.id: one.name for one in three_stubs}
    chosen = response.headers["x-kvikk-replica"]
    assert names[chosen] == response.json()["from"]
    assert response.headers["x-kvikk-route"].startswith(f"replica={chosen}; reason=")


def test_a_request_id_is_kept_or_given(live: LiveRouter, three_stubs):
    assert live.post(headers={"x-request-id": "mine-7"}).headers["x-request-id"] == "mine-7"
    given = live.post().headers["x-request-id"]
    assert given != live.post().headers["x-request-id"]
    sent = [dict(one["headers"]) for one in seen(three_stubs)]
    ids = [one.get("x-request-id") or one.get("X-Request-Id") for one in sent]
    assert {"mine-7", given} <= set(ids)


def test_events_pass_one_by_one_as_they_come(live: LiveRouter, three_stubs):
    with live.http.stream(
        "POST",
        "/v1/chat/completions",
        json={"model": "stub", "stub": {"chunks": 3, "held_each": True}},
    ) as response:
        pieces, text = response.iter_text(), ""
        for number in (1, 2, 3):
            # The stub says no more until this one is here: nothing may hold it back.
            while text.count("\n\n") < number:
                text += next(pieces)
            assert [one["index"] for one in events(text)] == [*range(number)]
            for one in three_stubs:
                one.release(number)
        assert events(text + "".join(pieces))[3:] == ["[DONE]"]


def test_an_event_that_comes_in_pieces_arrives_whole(live: LiveRouter):
    head = (
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    whole = head + 'b\r\ndata: "a"\n\n\r\n0\r\n\r\n'
    response = live.post({"raw": list(whole), "interval_s": 0.001})
    assert response.text == 'data: "a"\n\n'


def test_an_answer_without_a_length_ends_with_the_connection(live: LiveRouter):
    response = live.post(
        {"raw": ["HTTP/1.1 200 OK\r\nx-a: b\r\n\r\n", "one", "two"], "interval_s": 0.05}
    )
    assert response.text == "onetwo"
    assert response.headers["connection"] == "close"


def test_interim_answers_are_not_taken_for_the_answer(live: LiveRouter):
    raw = [
        "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ]
    assert live.post({"raw": raw}).text == "ok"
    assert live.post({"raw": ["".join(raw)]}).text == "ok"


def test_a_client_of_http_1_0_gets_no_chunks(live: LiveRouter):
    body = json.dumps({"model": "stub", "stub": {"chunks": 2}}).encode()
    got = live.raw(
        b"POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    head, _, text = got.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert len(events(text.decode())) == 3
    assert text.startswith(b"data: ")


def test_requests_sent_at_once_are_answered_in_their_order(live: LiveRouter):
    def request(delay_s: float, name: str) -> bytes:
        body = json.dumps({"model": "stub", "stub": {"delay_s": delay_s, "body": name}}).encode()
        return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (
            len(body),
            body,
        )

    last = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    got = live.raw(request(0.2, "first") + request(0, "second") + last)
    assert got.count(b"HTTP/1.1 200") == 3
    assert got.index(b"first") < got.index(b"second") < got.index(b'"usable"')


def test_a_client_that_asks_first_is_told_to_go_on(live: LiveRouter):
    with live.connect() as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
            b"content-length: 16\r\nconnection: close\r\n\r\n"
        )
        told = b"HTTP/1.1 100 Continue\r\n\r\n"
        got = b""
        while len(got) < len(told):
            got += connection.recv(1000)
        assert got == told
        connection.sendall(b'{"model":"stub"}')
        assert read_answer(connection).startswith(b"HTTP/1.1 200")


def test_a_slow_client_holds_the_replica_back_and_not_the_memory(live: LiveRouter, three_stubs):
    """64 MiB for a client that does not read: the stub can send what buffers hold, no more."""
    body = json.dumps({"model": "stub", "stub": {"chunks": 1000, "pad": 65536}}).encode()
    with live.connect() as connection:
        before = resident_bytes(live.process.pid)
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        wait_for(lambda: running(three_stubs) == 1)
        time.sleep(0.5)
        assert running(three_stubs) == 1
        assert resident_bytes(live.process.pid) - before < 16 << 20
        got = 0
        while data := connection.recv(1 << 20):
            got += len(data)
    assert got > 65_536_000
    wait_for(live.is_idle)
    wait_for(lambda: sum(one.state()["finished"] for one in three_stubs) == 1)


def test_what_a_replica_sends_beyond_the_answer_reaches_nobody(live: LiveRouter):
    raw = ["HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\nevil"]
    response = live.post({"raw": raw})
    assert response.status_code == 502
    assert "evil" not in response.text


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/messages", "/v1/responses", "/tokenize"])
def test_every_api_path_counts_load_while_it_runs(live: LiveRouter, three_stubs, path: str):
    """One path forgot to, in another router, and a replica drowned (vllm-router 179)."""

    async def one() -> tuple[int, int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        body = json.dumps({"model": "stub", "stub": {"held": True}}).encode()
        writer.write(
            b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (path.encode(), len(body), body)
        )
        await until(lambda: running(three_stubs) == 1)
        loads = [one["running_requests"] for one in live.replicas().values()]
        for one in three_stubs:
            one.release()
        answer = await reader.read()
        writer.close()
        return sum(loads), int(answer.split(b" ")[1])

    assert asyncio.run(one()) == (1, 200)


def resident_bytes(process_id: int) -> int:
    with open(f"/proc/{process_id}/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * 4096
