"""What an operator meets on day one: a bad key, a full queue, a slow client, a rotated log, a
restart under load. Each is as the page on the server says.
"""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from kvikk.server.options import ServerOptions
from tests.ports import free_port
from tests.server.live import PATIENCE_S, LiveServer, start
from tests.server.tiny import tiny_engine, write_tiny_model

KEYS = ("first-key", "second-key", "third-key")
LONG = {"model": "tiny", "prompt": "bada", "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ServerOptions:
    folder = tmp_path_factory.mktemp("day-one")
    engine = tiny_engine(write_tiny_model(folder), max_running=2, max_queue=4, backend="reference")
    return ServerOptions(
        engine,
        port=0,
        api_keys=KEYS,
        operator_key="the-operators",
        access_log=folder / "access.jsonl",
    )


@pytest.fixture(scope="module")
def server(options: ServerOptions) -> Iterator[LiveServer]:
    with start(options) as live:
        yield live


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def complete(server: LiveServer, key: str, max_tokens: int = 2, **fields: object) -> httpx.Response:
    body = LONG | {"max_tokens": max_tokens} | fields
    return server.post("/v1/completions", body, headers=bearer(key))


def lines(path: Path) -> list[dict]:
    """What the log has of completions; metrics are asked for in between."""
    whole, _, _ = path.read_text().rpartition("\n")
    told = [json.loads(line) for line in whole.splitlines()]
    return [line for line in told if line["path"] == "/v1/completions"]


@contextmanager
def streams(
    server: LiveServer, key: str, count: int, *, receive_buffer_bytes: int | None = None
) -> Iterator[list[socket.socket]]:
    """So many answers that are asked for and not read, until the block ends."""
    body = json.dumps(LONG | {"max_tokens": 12_000, "stream": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    host, _, port = server.url.removeprefix("http://").partition(":")
    sockets = []
    try:
        for _ in range(count):
            one = socket.socket()
            if receive_buffer_bytes is not None:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            one.connect((host, int(port)))
            one.sendall(head.encode() + body)
            sockets.append(one)
        yield sockets
    finally:
        for one in sockets:
            one.close()


def running(server: LiveServer) -> float:
    headers = bearer("the-operators")
    names = ("running", "waiting")
    return sum(server.metric(f"vllm:num_requests_{name}", headers) for name in names)


def test_a_bad_key_is_told_so_and_shows_in_the_log_without_it(
    server: LiveServer, options: ServerOptions
) -> None:
    response = complete(server, "fourth-key")
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"
    good = complete(server, KEYS[0])
    assert good.status_code == 200
    ids = [response.headers["x-request-id"], good.headers["x-request-id"]]
    server.wait_for(lambda: [line["id"] for line in lines(options.access_log)][-2:] == ids)
    bad_line, good_line = lines(options.access_log)[-2:]
    assert (bad_line["status"], bad_line["tenant"]) == (401, None)
    assert (good_line["status"], good_line["path"]) == (200, "/v1/completions")
    assert good_line["completion_tokens"] == 2
    assert good_line["complete"]
    assert good_line["bytes"] == len(good.content)
    assert not any(key in options.access_log.read_text() for key in (*KEYS, "fourth-key"))


def test_a_tenant_that_fills_its_share_is_told_when_to_come_back_and_others_are_served(
    server: LiveServer,
) -> None:
    with streams(server, KEYS[0], 3):
        server.wait_for(lambda: running(server) == 3)
        refused = complete(server, KEYS[0])
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert "this key has 3 requests" in refused.json()["error"]["message"]
        with streams(server, KEYS[1], 3):
            server.wait_for(lambda: running(server) == 6)
            full = complete(server, KEYS[2])
            assert full.status_code == 429
            assert "6 requests are running or waiting" in full.json()["error"]["message"]
    server.wait_for(lambda: running(server) == 0)
    assert complete(server, KEYS[2]).status_code == 200


def test_a_client_that_does_not_read_holds_up_nobody_and_leaves_nothing_behind(
    server: LiveServer, options: ServerOptions
) -> None:
    with streams(server, KEYS[0], 1):
        server.wait_for(lambda: running(server) == 1)
        assert all(complete(server, KEYS[1]).status_code == 200 for _ in range(3))
    server.wait_for(lambda: running(server) == 0)
    server.wait_for(lambda: not lines(options.access_log)[-1]["complete"])

    def cache() -> dict:
        return server.http.get("/v1/kvikk/cache", headers=bearer("the-operators")).json()

    server.wait_for(lambda: cache()["live_blocks"] == 0)


def test_a_client_that_takes_nothing_for_too_long_is_cut_off(
    options: ServerOptions, tmp_path: Path
) -> None:
    options = replace(options, access_log=tmp_path / "access.jsonl", send_timeout_s=0.5)
    with start(options) as hasty, streams(hasty, KEYS[0], 2, receive_buffer_bytes=4096):
        hasty.wait_for(lambda: len(lines(options.access_log)) == 2)
        assert not any(line["complete"] for line in lines(options.access_log))
        hasty.wait_for(lambda: running(hasty) == 0)
        assert complete(hasty, KEYS[1]).status_code == 200


def test_a_log_that_was_moved_away_is_opened_anew(
    server: LiveServer, options: ServerOptions
) -> None:
    old = options.access_log.with_suffix(".1")
    before = complete(server, KEYS[0]).headers["x-request-id"]
    server.wait_for(lambda: lines(options.access_log)[-1]["id"] == before)
    options.access_log.rename(old)
    server.process.send_signal(signal.SIGHUP)
    ids = []

    def ask() -> None:
        ids.append(complete(server, KEYS[0]).headers["x-request-id"])

    deadline = time.monotonic() + PATIENCE_S
    while not options.access_log.exists():
        assert time.monotonic() < deadline
        ask()
    ask()  # the first of those that surely stand in the new one
    server.wait_for(lambda: [line["id"] for line in lines(options.access_log)][-1:] == ids[-1:])
    known = [line["id"] for line in [*lines(old), *lines(options.access_log)]]
    assert known[-len(ids) - 1 :] == [before, *ids]


def test_tokens_and_texts_and_the_configuration(server: LiveServer) -> None:
    headers = bearer(KEYS[0])
    assert server.post("/tokenize", {"prompt": "bada"}).status_code == 401
    told = server.post("/tokenize", {"prompt": "bada gida", "return_token_strs": True},
                       headers=headers).json()  # fmt: skip
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert "".join(told["token_strs"]) == "bada gida"
    text = server.post("/detokenize", {"tokens": told["tokens"]}, headers=headers).json()
    assert text == {"prompt": "bada gida"}
    info = server.http.get("/tokenizer_info", headers=headers).json()
    assert "message.content" in info["chat_template"]
    assert info["vocab_size"] > max(told["tokens"])
    foreign = server.post("/detokenize", {"tokens": [1, info["vocab_size"]]}, headers=headers)
    assert foreign.status_code == 400
    assert foreign.json()["error"]["param"] == "tokens[1]"
    messages = [{"role": "user", "content": "bada"}]
    chat = server.post("/tokenize", {"messages": messages}, headers=headers).json()
    asked = {"model": "tiny", "messages": messages, "max_tokens": 1}
    answer = server.post("/v1/chat/completions", asked, headers=headers).json()
    assert chat["count"] == answer["usage"]["prompt_tokens"]
    assert server.http.get("/v1/kvikk/config", headers=headers).status_code == 403
    config = server.http.get("/v1/kvikk/config", headers=bearer("the-operators"))
    assert config.json()["options"]["engine"]["max_running"] == 2
    assert config.json()["options"]["num_api_keys"] == 3
    assert not any(key in config.text for key in (*KEYS, "the-operators"))


def test_a_restart_under_load_finishes_what_runs_and_serves_on_the_same_port(
    options: ServerOptions, tmp_path: Path
) -> None:
    options = replace(options, port=free_port(), access_log=tmp_path / "access.jsonl")
    answers: list[int] = []
    stopped = threading.Event()

    def ask(url: str) -> None:
        with httpx.Client(base_url=url, headers=bearer(KEYS[0]), timeout=PATIENCE_S) as http:
            ask_on(http)

    def ask_on(http: httpx.Client) -> None:
        while not stopped.is_set():
            try:
                answer = http.post("/v1/completions", json=LONG | {"max_tokens": 60})
            except httpx.TransportError:
                time.sleep(0.02)  # nobody listens between the two
                continue
            answers.append(answer.status_code)
            if answer.status_code == 200:
                assert answer.json()["usage"]["completion_tokens"] == 60
            else:
                assert int(answer.headers["retry-after"]) >= 1
                time.sleep(0.02)

    with ThreadPoolExecutor(3) as pool:
        try:
            with start(options) as first:
                asking = [pool.submit(ask, first.url) for _ in range(3)]
                first.wait_for(lambda: answers.count(200) >= 3)
                first.process.send_signal(signal.SIGTERM)
                assert first.process.wait(timeout=PATIENCE_S) == 0
            num_before = answers.count(200)
            with start(options) as second:
                second.wait_for(lambda: answers.count(200) >= num_before + 3)
                stopped.set()
                for one in asking:
                    one.result(timeout=PATIENCE_S)
        finally:
            stopped.set()
    assert set(answers) <= {200, 503}
