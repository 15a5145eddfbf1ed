"""A connection to a replica: a request goes out, its answer is handed on as it comes.

The answer's head is rewritten; its body is checked for where it ends and then passed on in the very
bytes that came, chunk framing included.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import httptools

from kvikk.router.proxy.response import Response, ResponseReader

if TYPE_CHECKING:
    from kvikk.router.proxy.passing import Passing
    from kvikk.router.proxy.pool import Pool

# Up to here a copy costs less than to hand over two pieces.
_COPIED_BYTES = 16 << 10


class Taker(Protocol):
    """Who takes an answer's body."""

    @property
    def relay(self) -> "Passing | None":
        """Who may pass on what comes next, if it is an event by itself."""
        ...

    def on_data(self, data: bytes, pieces: Sequence[bytes], is_last: bool) -> None:
        """Bytes as they came; ``pieces`` are what is in them, without framing."""
        ...


class Receiver(Protocol):
    """Who an answer is for.

    Every request sent ends in ``on_lost`` or in its taker's ``on_data`` with ``is_last``.
    """

    def on_response(self, response: Response) -> Taker:
        """The head is there. ``on_data`` of the taker follows at once, perhaps with nothing yet."""
        ...

    def on_lost(self, why: str) -> None:
        """There will be no (more) answer."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """One connection, used for one request at a time."""

    __slots__ = (
        "_is_paused",
        "_pool",
        "_reader",
        "_receiver",
        "_relay",
        "_taker",
        "requests",
        "transport",
    )

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._reader = ResponseReader()
        self._receiver: Receiver | None = None
        self._taker: Taker | None = None  # from its head to an answer's end
        self._relay: Passing | None = None
        self._is_paused = False
        self.requests = 0
        self.transport: asyncio.Transport

    @property
    def at_boundary(self) -> bool:
        """Whether the bytes so far end with a whole chunk, so that another may follow."""
        return self._reader.at_boundary

    # What the owner does.

    def send(self, receiver: Receiver, head: bytes, body: bytes) -> None:
        """Send a request; its answer goes to ``receiver``."""
        assert self._receiver is None, "the connection is in use"
        self._receiver = receiver
        self.requests += 1
        self._taker = self._relay = None
        self._reader.begin()
        if len(body) <= _COPIED_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def abandon(self) -> None:
        """Nobody wants the answer any more: the replica is to stop working on it."""
        self._receiver = self._relay = None
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
        relay = self._relay
        if relay is not None and relay.pass_event(data):
            return
        receiver = self._receiver
        if receiver is None:  # bytes that nobody asked for
            self._pool.closed(self)
            self.transport.abort()
            return
        reader, taker = self._reader, self._taker
        pieces: Sequence[bytes] = ()
        try:
            if taker is None:
                rest = reader.read_head(data)
                if rest is None:
                    return
                taker = self._taker = receiver.on_response(reader.response)
                data = rest
            if data:
                pieces = reader.read_body(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("it does not speak HTTP/1.1 properly")
            return
        if reader.begun > 1:
            self._fail("it sent more than was asked for")
            return
        if reader.is_complete:
            self._receiver = self._relay = self._taker = None
            self._give_back()
            taker.on_data(data, pieces, True)
        else:
            taker.on_data(data, pieces, False)
            self._relay = taker.relay if reader.awaits_chunk else None

    def connection_lost(self, exc: Exception | None) -> None:
        """The replica has gone, or we have closed."""
        self._pool.closed(self)
        self._reader.close()
        receiver, self._receiver, self._relay = self._receiver, None, None
        if receiver is None:
            return
        if self._taker is not None and not self._reader.response.has_length and exc is None:
            self._taker.on_data(b"", (), True)
        else:
            receiver.on_lost("the replica closed the connection")

    def _fail(self, why: str) -> None:
        receiver = self._receiver
        self.abandon()
        assert receiver is not None
        receiver.on_lost(why)

    def _give_back(self) -> None:
        """The answer is whole: the connection can be used again, if both want that."""
        if self._reader.keeps and not self.transport.is_closing():
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
