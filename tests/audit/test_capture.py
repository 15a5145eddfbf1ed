"""Requests as they are made: the vendors' own clients, our own server, and what was captured."""

import asyncio
import gzip
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from kvikk.audit.capture import Transport
from kvikk.audit.capture.calls import read_call
from kvikk.audit.findings import Finding
from kvikk.audit.run import audit_log
from kvikk.server.options import ServerOptions
from tests.audit.talk import text
from tests.server.live import LiveServer, start
from tests.server.tiny import tiny_engine, words, write_tiny_model

KEY = "sk-proj-0123456789abcdefghij"
PATIENCE_S = 60  # with what takes a moment, on a machine that has much else to do


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = write_tiny_model(tmp_path_factory.mktemp("model"))
    with start(ServerOptions(tiny_engine(folder), port=0, rules="openai:gpt-4.1")) as running:
        yield running


@dataclass
class Listening:
    """``kvikk audit --listen``, running."""

    url: str
    record: Path
    process: subprocess.Popen[str]

    def stop(self) -> tuple[str, str, int]:
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return out, err, self.process.returncode


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Callable[..., Listening]]:
    """Starts it in front of a server; it ends with the test at the latest."""
    with ExitStack() as running:

        def begin(upstream: str, *more: str) -> Listening:
            record = tmp_path / "log.jsonl"
            command = [sys.executable, "-m", "kvikk", "audit", "--listen", "--port", "0"]
            command += ["--upstream", upstream, "--record", str(record), *more]
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            running.callback(process.kill)
            found = re.search(r"listening on (http://[^,]+),", process.stderr.readline())
            assert found
            return Listening(found[1], record, process)

        yield begin


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_official_clients_pass_and_are_audited(
    server: LiveServer, listen: Callable[..., Listening]
) -> None:
    proxy = listen(server.url, "--fail-on", "volatile_value")
    rules = words("rules", 1500)
    said: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=KEY, max_retries=0) as client:
        for clock in ("10:41:07", "10:42:55"):
            system = {"role": "system", "content": f"It is {clock}. {rules}"}
            whole = client.chat.completions.create(
                model="tiny", messages=[system, *said], max_tokens=4
            )
        stream = client.chat.completions.create(
            model="tiny",
            messages=[system, *said, {"role": "user", "content": "more"}],
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        events = list(
            client.responses.create(
                model="tiny", input=words("q", 50), max_output_tokens=4, stream=True
            )
        )
    question = {"role": "user", "content": words("c", 60)}
    with (
        anthropic.Anthropic(base_url=proxy.url, api_key=KEY, max_retries=0) as claude,
        claude.messages.stream(model="tiny", max_tokens=4, messages=[question]) as streamed,
    ):
        final = streamed.get_final_message()
    out, err, status = proxy.stop()

    recorded = lines(proxy.record)
    assert [one["api"] for one in recorded] == [
        "chat_completions", "chat_completions", "chat_completions", "responses", "messages",
    ]  # fmt: skip
    answers = [one["response"] for one in recorded]
    assert answers[1] == json.loads(whole.model_dump_json(exclude_unset=True))
    streamed_text = "".join(
        chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices
    )
    assert answers[2]["choices"][0]["message"]["content"] == streamed_text
    assert answers[2]["usage"]["prompt_tokens"] == chunks[-1].usage.prompt_tokens
    assert answers[2]["usage"]["prompt_tokens_details"]["cached_tokens"] > 1000
    assert answers[3]["usage"]["input_tokens"] == events[-1].response.usage.input_tokens
    assert answers[4]["content"] == [{"type": "text", "text": final.content[0].text}]
    assert answers[4]["usage"]["output_tokens"] == final.usage.output_tokens
    assert len({one["account"] for one in recorded[:4]}) == 1 != len(recorded[0]["account"])
    for where in (proxy.record.read_text(), out, err):
        assert KEY not in where
        assert KEY[8:] not in where
    assert "volatile_value.timestamp" in err  # as it came
    assert "volatile_value.timestamp" in out
    assert "volatile_value: 1 found" in err
    assert status == 1
    assert proxy.record.stat().st_mode & 0o077 == 0
    # The log says the same afterwards.
    assert "volatile_value.timestamp" in audit_log([proxy.record]).totals.causes


class Provider(threading.Thread):
    """A server that says byte for byte what a test wants, and keeps what it was sent."""

    def __init__(self, *pieces: bytes) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._pieces = pieces
        self.go_on = threading.Event()
        self.stays = False
        self.is_left = threading.Event()
        self.received = b""
        self.start()

    def run(self) -> None:
        connection, _ = self._listener.accept()
        with connection, self._listener:
            while b"\r\n\r\n" not in self.received:
                self.received += connection.recv(65536)
            head, _, body = self.received.partition(b"\r\n\r\n")
            length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
            while len(body) < length:
                body += connection.recv(65536)
            self.received = head + b"\r\n\r\n" + body
            for piece in self._pieces:
                connection.sendall(piece)
                assert self.go_on.wait(PATIENCE_S)
            if self.stays and not connection.recv(1):
                self.is_left.set()


def test_bytes_are_the_same_both_ways_and_no_event_waits(listen: Callable[..., Listening]) -> None:
    first, last = b'data: {"usage":null, "x" :1}\n\n', b"data: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\nX-Own: a  b\r\nContent-Type: text/event-stream\r\n\r\n"
    provider = Provider(head + first, last)
    proxy = listen(provider.url)
    body = '{"messages" : [ {"role":"user","content":"\\u00e9é"} ],  "model":"m"}'.encode()
    headers = {"Authorization": f"Bearer {KEY}", "X-Mine": "1"}
    with httpx.stream(
        "POST",
        f"{proxy.url}/v1/chat/completions?a=b%20c",
        content=body,
        headers=headers,
        timeout=PATIENCE_S,
    ) as answer:
        assert answer.headers["x-own"] == "a  b"
        came, got = answer.iter_raw(), b""
        while len(got) < len(first):
            got += next(came)
        assert got == first  # the provider has not said more yet
        provider.go_on.set()
        assert b"".join(came) == last
    proxy.stop()
    sent_head, _, sent_body = provider.received.partition(b"\r\n\r\n")
    assert sent_body == body
    assert b"POST /v1/chat/completions?a=b%20c HTTP/1.1" in sent_head
    assert f"bearer {KEY}".encode() in sent_head.lower().replace(KEY.lower().encode(), KEY.encode())
    assert b"x-mine: 1" in sent_head.lower()


def test_a_client_that_leaves_stops_the_provider(listen: Callable[..., Listening]) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    provider = Provider(head + b"data: 1\n\n")
    provider.go_on.set()
    provider.stays = True
    proxy = listen(provider.url)
    body = {"model": "m", "messages": [], "stream": True}
    url = f"{proxy.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=PATIENCE_S) as answer:
        came = answer.iter_raw()  # kept: a generator that goes closes the answer
        assert next(came)
        assert not provider.is_left.is_set()
    assert provider.is_left.wait(PATIENCE_S)
    proxy.stop()
    assert [one["status"] for one in lines(proxy.record)] == [200]


def test_an_answer_that_is_cut_is_cut_for_the_client_too(listen: Callable[..., Listening]) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"
    provider = Provider(head + b'{"id":')
    provider.go_on.set()
    proxy = listen(provider.url)
    body = {"model": "m", "messages": []}
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
    provider.join()  # nobody listens there now
    refused = httpx.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
    assert refused.status_code == 502
    assert "cannot be reached" in refused.json()["error"]["message"]
    proxy.stop()


@pytest.mark.parametrize("is_async", [False, True])
def test_two_lines_capture_what_the_vendors_clients_send(
    server: LiveServer, tmp_path: Path, is_async: bool
) -> None:
    found: list[Finding] = []
    record = tmp_path / "log.jsonl"
    transport = Transport(record, on_finding=found.append)
    rules = words(f"rules {is_async}", 1500)
    bodies = [
        {
            "model": "tiny",
            "max_tokens": 4,
            "system": f"Request {clock}. {rules}",
            "messages": [{"role": "user", "content": "hello"}],
        }
        for clock in ("10:41:07", "10:42:55")
    ]
    if is_async:
        asyncio.run(_ask_asynchronously(server, transport, bodies))
    else:
        with openai.OpenAI(
            base_url=f"{server.url}/v1",
            api_key=KEY,
            http_client=openai.DefaultHttpxClient(transport=transport),
        ) as client:
            client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=4
            )
        with anthropic.Anthropic(
            base_url=server.url,
            api_key=KEY,
            http_client=anthropic.DefaultHttpxClient(transport=transport),
        ) as claude:
            claude.messages.create(**bodies[0])
            with claude.messages.stream(**bodies[1]) as stream:
                stream.until_done()
    recorded = lines(record)
    assert [one["api"] for one in recorded] == ["chat_completions", "messages", "messages"]
    assert all(one["response"]["usage"] for one in recorded)
    assert [one.cause for one in found if one.missed_tokens] == ["volatile_value.timestamp"]
    assert "volatile_value.timestamp" in transport.report()
    assert KEY not in record.read_text()


async def _ask_asynchronously(
    server: LiveServer, transport: Transport, bodies: list[dict[str, Any]]
) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1",
        api_key=KEY,
        http_client=openai.DefaultAsyncHttpxClient(transport=transport),
    ) as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
        assert [chunk async for chunk in stream]
    async with anthropic.AsyncAnthropic(
        base_url=server.url,
        api_key=KEY,
        http_client=anthropic.DefaultAsyncHttpxClient(transport=transport),
    ) as claude:
        await claude.messages.create(**bodies[0])
        async with claude.messages.stream(**bodies[1]) as stream:
            await stream.until_done()


def test_paths_and_hosts_say_which_api_and_whose() -> None:
    body = json.dumps({"contents": [{"parts": [{"text": text("a", 3)}]}]}).encode()
    path = "/v1beta/models/gemini-2.5-flash:streamGenerateContent"
    call = read_call("POST", "generativelanguage.googleapis.com", path, {}, body)
    assert call is not None
    assert (call.api, call.provider, call.body["model"]) == (
        "generate_content", "gemini", "gemini-2.5-flash",
    )  # fmt: skip
    chat = gzip.compress(b'{"messages": []}')
    azure = "/openai/deployments/gpt-4.1/chat/completions"
    packed = {"content-encoding": "gzip", "api-key": KEY}
    call = read_call("POST", "x.openai.azure.com", azure, packed, chat)
    assert call is not None
    assert (call.api, call.provider, call.body["model"]) == ("chat_completions", "azure", "gpt-4.1")
    assert call.account
    assert KEY not in call.account
    model = "/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse"
    call = read_call("POST", "bedrock-runtime.us-east-1.amazonaws.com", model, {}, body)
    assert call is not None
    assert call.body["model"].endswith("-v1:0")
    assert read_call("POST", "h", "/v1/messages/count_tokens", {}, body) is None
    assert read_call("POST", "h", "/v1/messages", {}, b"{") is None
    assert read_call("GET", "h", "/v1/responses", {}, b"") is None
