"""Gateways in front of a real server that pass everything on and change what usage tells."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx


@contextmanager
def relay(url: str, change: Callable[[dict[str, Any]], Any]) -> Iterator[str]:
    """The URL of a gateway to ``url`` whose answers have ``change`` of their usage."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(httpx.get(url + self.path, timeout=60).json())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {"content-type": "application/json"}
            answer = httpx.post(url + self.path, content=body, headers=headers, timeout=60).json()
            self._answer(answer | {"usage": change(answer["usage"])})

        def _answer(self, value: object) -> None:
            content = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def without_cache_counters(usage: dict[str, Any]) -> dict[str, Any]:
    """As of an API that tells nothing of its cache."""
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}


def without_zeros(usage: dict[str, Any]) -> dict[str, Any]:
    """As of an API that leaves out what is zero."""
    details = usage["prompt_tokens_details"]
    return usage | {"prompt_tokens_details": {k: v for k, v in details.items() if v} or None}
