"""A replica that costs next to nothing: it answers what it was told at once, or as a stream.

    python benchmarks/router_stub.py PORT

A body with ``"stream": true`` gets as many events as its ``max_tokens``, ``x-interval-ms`` apart;
any other gets a short answer. It does not look at prompts.
"""

import asyncio
import re
import sys
from typing import cast

import uvloop

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_INTERVAL = re.compile(rb"x-interval-ms: *(\d+)", re.IGNORECASE)
_TOKENS = re.compile(rb'"max_(?:completion_)?tokens": ?(\d+)')
_STREAM = re.compile(rb'"stream": ?true')

_ANSWER = (
    b'{"id":"cmpl-1","object":"chat.completion","created":1,"model":"stub","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"All is well."},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":300,"completion_tokens":4,"total_tokens":304}}'
)
_EVENT = (
    b'data: {"id":"cmpl-1","object":"chat.completion.chunk","created":1,"model":"stub",'
    b'"choices":[{"index":0,"delta":{"content":" well"},"finish_reason":null}]}\n\n'
)
_CHUNK = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
_LAST = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"stub","object":"model","created":1,"owned_by":"x"}]}'


def _json(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


_WHOLE = _json(_ANSWER)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


class Replica(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._buffer = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has connected."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer once the request is whole."""
        self._buffer = self._buffer + data if self._buffer else data
        head_end = self._buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = self._buffer[:head_end]
        length = _LENGTH.search(head)
        if len(self._buffer) < head_end + 4 + (int(length[1]) if length else 0):
            return
        body, self._buffer = self._buffer[head_end + 4 :], b""
        if not head.startswith(b"POST"):
            self.transport.write(_json(_MODELS))
        elif _STREAM.search(body):
            interval = _INTERVAL.search(head)
            tokens = _TOKENS.search(body)
            self.transport.write(_STREAM_HEAD)
            self._go_on(
                int(tokens[1]) if tokens else 1, int(interval[1]) / 1000 if interval else 0.02
            )
        else:
            self.transport.write(_WHOLE)

    def _go_on(self, left: int, interval_s: float) -> None:
        if self.transport.is_closing():
            return
        if left == 0:
            self.transport.write(_LAST)
            return
        self.transport.write(_CHUNK)
        asyncio.get_running_loop().call_later(interval_s, self._go_on, left - 1, interval_s)


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Replica, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
