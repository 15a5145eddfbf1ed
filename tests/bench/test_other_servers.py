"""Servers that know less of the API than ours: what they do not tell is said, never made up."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from kvikk.bench.serve import ServeOptions, ServeReport, measure
from kvikk.bench.tables import serve_heading, serve_notes, serve_tables
from kvikk.bench.workloads import Chat
from kvikk.cli.main import main
from kvikk.errors import ModelError, RequestError

ANSWER = ("one", " two", " three")
WORKLOAD = Chat(num_sessions=2, num_turns=3, system_tokens=20, message_tokens=5, output_tokens=8)


class Plain(BaseHTTPRequestHandler):
    """Streams three tokens, whatever is asked; refuses fields it does not know; tells no usage."""

    known = frozenset({"model", "messages", "max_tokens", "temperature", "stream"})
    fails_behind = 10**9  # messages
    models = ("plain-1",)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send(200, {"data": [{"id": name} for name in self.models]})
        elif self.path == "/version":
            self._send(200, {"version": "9.1"})
        else:
            self._send(404, {"detail": "no such thing"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if unknown := sorted(body.keys() - self.known):
            self._send(422, {"detail": f"unexpected {unknown[0]}"})
        elif not body.get("stream"):
            self._send(200, {"choices": [{"message": {"content": "".join(ANSWER)}}]})
        else:
            self.send_response(200)
            self.end_headers()
            for text in ANSWER:
                self._event({"choices": [{"delta": {"content": text}}]})
            if len(body["messages"]) > self.fails_behind:
                self._event({"error": {"message": "out of memory"}})
                return
            self._event({"choices": [{"delta": {}, "finish_reason": "stop"}]})

    def _event(self, value: Any) -> None:
        self.wfile.write(b"data: %b\n\n" % json.dumps(value).encode())

    def _send(self, status: int, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def serving(handler: type[Plain]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def measured(handler: type[Plain]) -> ServeReport:
    with serving(handler) as base_url:
        return measure(ServeOptions(base_url, "chat", concurrency=2, seed=1), WORKLOAD)


def test_a_server_that_tells_nothing_is_measured_and_its_silence_shown() -> None:
    report = measured(Plain)
    summary = report.summary
    assert dict(report.target.fields) == {}
    assert serve_heading(report).startswith("plain-1 at http://127.0.0.1:")
    assert "9.1" in serve_heading(report)
    assert (summary.completed, summary.completion_tokens) == (6, 6 * len(ANSWER))
    assert (summary.prompt_tokens, summary.cached_tokens) == (None, None)
    assert (summary.counted_by_events, summary.short_answers) == (True, 6)
    notes = "\n".join(serve_notes(report))
    for words in ("no ignore_eos", "6 answers were shorter", "events were counted", "for a token"):
        assert words in notes
    assert len(serve_tables(report)) == 3


def test_an_error_within_a_stream_is_a_failed_request() -> None:
    class Fails(Plain):
        fails_behind = 3

    summary = measured(Fails).summary
    assert summary.errors == {"error in the stream": 2}
    assert summary.error_messages == {"error in the stream": "out of memory"}
    assert (summary.completed, summary.not_sent) == (2, 2)


@pytest.mark.parametrize(("messages", "completed", "status"), [(10**9, 2, 0), (3, 1, 1), (1, 0, 1)])
def test_the_command_tells_a_script_that_requests_failed(
    messages: int,
    completed: int,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Fails(Plain):
        fails_behind = messages

    plot = tmp_path / "load.svg"
    with serving(Fails) as base_url:
        command = ("serve", "--base-url", base_url, "--sessions", "1", "--turns", "2")
        monkeypatch.setattr(sys, "argv", ["kvikk", "bench", *command, "--plot", str(plot)])
        with pytest.raises(SystemExit) as ended:
            main()
    told = capsys.readouterr()
    assert ended.value.code == status, told.err
    assert f"{completed} of {2 if completed else 1} completed" in told.out
    assert ("error in the stream: 1 request (out of memory)" in told.err) == (status == 1)
    assert plot.exists() == bool(completed)
    assert ("not written" in told.err) == (not completed)


def test_a_server_that_takes_one_wish_gets_that_one() -> None:
    class TakesIgnoreEos(Plain):
        known = Plain.known | {"ignore_eos"}

    assert measured(TakesIgnoreEos).target.ignores_eos


def test_a_server_that_refuses_everything_is_quoted() -> None:
    class Refuses(Plain):
        known = frozenset({"model"})

    with pytest.raises(RequestError, match="HTTP 422: unexpected max_tokens"):
        measured(Refuses)


def test_a_server_without_models_is_an_error() -> None:
    class Empty(Plain):
        models = ()

    with pytest.raises(ModelError, match="serves no model"):
        measured(Empty)
