"""A connection to a replica: a request goes out, its answer is handed on as it comes.

The answer's head is parsed and rewritten; its body is checked for where it ends and then passed on
in the very bytes that came, chunk framing included.
"""

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Protocol, cast

import httptools

from kvikk.router.proxy.messages import Header

if TYPE_CHECKING:
    from kvikk.router.proxy.pool import Pool

_MAX_HEAD_BYTES = 64 << 10


class Response:
    """The head of an answer."""

    __slots__ = ("content_length", "headers", "is_chunked", "is_encoded", "is_stream", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[Header] = []
        self.is_chunked = False
        self.is_stream = False
        self.is_encoded = False
        self.content_length: int | None = None

    @property
    def has_length(self) -> bool:
        """Whether the body's end shows in the body or in the head."""
        return self.is_chunked or self.content_length is not None or self.status in (204, 304)


class Receiver(Protocol):
    """Who an answer is for. Every request sent ends in ``on_data`` with ``is_last`` or ``on_lost``.

    ``pieces`` are the body's bytes without framing.
    """

    def on_response(self, response: Response) -> None:
        """The head is there; ``on_data`` follows at once, perhaps with nothing yet."""
        ...

    def on_data(self, data: bytes, pieces: list[bytes], is_last: bool) -> None:
        """Bytes of the body as they came."""
        ...

    def on_lost(self, why: str) -> None:
        """There will be no (more) answer."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """One connection, used for one request at a time."""

    __slots__ = (
        "_begun",
        "_complete",
        "_head",
        "_is_paused",
        "_keeps",
        "_parser",
        "_pieces",
        "_pool",
        "_receiver",
        "_response",
        "at_boundary",
        "requests",
        "transport",
    )

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._receiver: Receiver | None = None
        self._response = Response()
        self._head: bytes | None = b""
        self._pieces: list[bytes] = []
        self._complete = False
        self._keeps = True
        self._begun = 0
        self._is_paused = False
        self.at_boundary = True
        """Whether the bytes so far end with a whole chunk, so that another may follow."""
        self.requests = 0
        self.transport: asyncio.Transport

    # What the owner does.

    def send(self, receiver: Receiver, head: bytes, body: bytes) -> None:
        """Send a request; its answer goes to ``receiver``."""
        assert self._receiver is None, "the connection is in use"
        self._receiver = receiver
        self.requests += 1
        self._head = b""
        self._complete = False
        self._begun = 0
        self.transport.write(head)
        if body:
            self.transport.write(body)

    def abandon(self) -> None:
        """Nobody wants the answer any more: the replica is to stop working on it."""
        self._receiver = None
        self._pool.closed(self)
        self.transport.abort()

    def pause(self) -> None:
        """Take no more bytes from the replica for now."""
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Take bytes again."""
        if self._is_paused:
            self._is_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    # What comes.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The replica has accepted."""
        self.transport = cast(asyncio.Transport, transport)
        set_no_delay(transport)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        receiver = self._receiver
        if receiver is None:  # bytes that nobody asked for
            self._pool.closed(self)
            self.transport.abort()
            return
        try:
            if self._head is not None:
                rest = self._read_head(data)
                if rest is None:
                    return
                data = rest
            if data:
                self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("it does not speak HTTP/1.1 properly")
            return
        if self._begun > 1:
            self._fail("it sent more than was asked for")
            return
        pieces, complete = self._pieces, self._complete
        self._pieces = []
        if complete:
            self._receiver = None
            self._give_back()
        receiver.on_data(data, pieces, complete)

    def connection_lost(self, exc: Exception | None) -> None:
        """The replica has gone, or we have closed."""
        self._pool.closed(self)
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        if self._head is None and not self._response.has_length and exc is None:
            receiver.on_data(b"", [], True)
        else:
            receiver.on_lost("the replica closed the connection")

    # The parser's calls.

    def on_message_begin(self) -> None:
        """An answer begins."""
        self._begun += 1
        self._response = Response()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        response, lower = self._response, name.lower()
        response.headers.append((lower, name, value))
        if lower == b"transfer-encoding":
            response.is_chunked = True
        elif lower == b"content-length":
            response.content_length = int(value)
        elif lower == b"content-type":
            response.is_stream = value[:17].lower() == b"text/event-stream"
        elif lower == b"content-encoding":
            response.is_encoded = value.lower() != b"identity"

    def on_headers_complete(self) -> None:
        """Its head is whole."""
        self._response.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """A piece of its body, without framing."""
        self._pieces.append(body)

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self.at_boundary = False

    def on_chunk_complete(self) -> None:
        """A chunk has ended."""
        self.at_boundary = True

    def on_message_complete(self) -> None:
        """It is whole."""
        self._complete = True
        self._keeps = self._parser.should_keep_alive()

    def _read_head(self, data: bytes) -> bytes | None:
        """Feed a whole head and return what follows it; None if it is not whole yet."""
        assert self._head is not None
        data = self._head + data
        while True:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                self._head = data
                if len(data) > _MAX_HEAD_BYTES:
                    raise httptools.HttpParserError("the head is too large")
                return None
            self._parser.feed_data(data[:end])
            data = data[end:]
            if self._response.status >= 200:
                break
            self._complete, self._begun = False, 0  # an interim answer; the real one follows
        self._head = None
        assert self._receiver is not None
        self.at_boundary = True
        self._receiver.on_response(self._response)
        return data

    def _fail(self, why: str) -> None:
        receiver = self._receiver
        self.abandon()
        assert receiver is not None
        receiver.on_lost(why)

    def _give_back(self) -> None:
        """The answer is whole: the connection can be used again, if both want that."""
        if self._keeps and not self.transport.is_closing():
            self.resume()
            self._pool.freed(self)
        else:
            self._pool.closed(self)
            self.transport.close()


def set_no_delay(transport: asyncio.BaseTransport) -> None:
    """Small pieces go at once; an event must not wait for the acknowledgement of another."""
    connection: Any = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
