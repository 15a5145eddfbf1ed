"""A conversation in the terminal, with a model of our own and with somebody's server."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

SCRIPT = "What is the capital of France?\nAnd of Norway?\n/reset\nHello!\n/quit\n"


def reused(stderr: str) -> list[tuple[int, int]]:
    pattern = r"reused ([\d,]+) of ([\d,]+) prompt tokens"
    return [
        (int(cached.replace(",", "")), int(total.replace(",", "")))
        for cached, total in re.findall(pattern, stderr)
    ]


def test_each_turn_says_what_it_reused() -> None:
    command = [sys.executable, "-m", "kvikk", "chat", "--max-tokens", "24", "--kv-memory", "64MiB"]
    done = subprocess.run(command, capture_output=True, text=True, input=SCRIPT, check=True)
    assert len(done.stdout) > 50
    first, second, anew = reused(done.stderr)
    assert first[0] == 0
    # The second prompt continues the first one and its answer: all but the last blocks are there.
    assert second[0] >= first[1] // 32 * 32 > 0
    # After /reset the system message alone is left in common, less than a block of 32.
    assert anew[0] == 0


GREETING = {"choices": [{"delta": {"content": "Hello"}}]}
FAILURES = [
    (b"400 Bad Request", json.dumps({"error": {"message": "messages[0]: [/b] [red]no"}}).encode()),
    (b"200 OK", f"data: {json.dumps(GREETING)}\n\ndata: nonsense\n\n".encode()),
    (b"200 OK\r\nContent-Length: 999", f"data: {json.dumps(GREETING)}\n\n".encode()),
    (b"not HTTP", b""),
    (b"200 OK", f"data: {json.dumps(GREETING)}\n\ndata: [DONE]\n\n".encode()),
]


@pytest.fixture
def moody_server() -> Iterator[str]:
    """A server that fails in all ways, one after the other, before it answers."""
    answers = iter(FAILURES)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, body = next(answers)
            self.wfile.write(b"HTTP/1.1 " + status + b"\r\n\r\n" + body)

        def log_message(self, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_a_turn_that_fails_is_one_line_and_the_conversation_goes_on(moody_server: str) -> None:
    command = [sys.executable, "-m", "kvikk", "chat", moody_server, "--model", "m"]
    script = "Hi\n" * len(FAILURES)
    done = subprocess.run(command, capture_output=True, text=True, input=script, check=True)
    _, refused, nonsense, cut, broken = done.stderr.splitlines()
    assert refused.endswith("answered 400: messages[0]: [/b] [red]no")
    assert "not valid JSON" in nonsense
    assert "cannot be reached" in cut
    assert "cannot be reached" in broken
    assert done.stdout.count("Hello") == 3
