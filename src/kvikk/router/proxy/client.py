"""A client's connection: requests come in whole, one is answered at a time, in their order.

Nothing of a client's framing reaches a replica: a body is taken apart by the parser, counted, and
sent on with its length. What the parser does not take is refused, and the connection closed.
"""

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from kvikk.router.proxy.exchange import Exchange
from kvikk.router.proxy.messages import RefusalError, answer, error_json
from kvikk.router.proxy.request import ClientRequest, too_large
from kvikk.router.proxy.upstream import set_no_delay

if TYPE_CHECKING:
    from kvikk.router.proxy.gateway import Gateway

_MAX_HEAD_BYTES = 64 << 10
_MAX_PIPELINED = 16
# A refused client may still be sending; closing at once could take the refusal away from it.
_LINGER_S = 2.0


class ClientConnection(asyncio.Protocol):
    """One connection from a client. ``deadline_s`` is when whatever it waits for is too late."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._parser = httptools.HttpRequestParser(self)
        self._request = ClientRequest()
        self._head_bytes = 0
        self._in_head = True
        self._in_request = False
        self._refusal: RefusalError | None = None
        self._queue: deque[ClientRequest] = deque()
        self._is_closing = False
        self._is_paused = False
        self.is_write_paused = False
        self.exchange: Exchange | None = None
        self.deadline_s: float | None = None
        self.transport: asyncio.Transport
        self.peer = ""

    # The transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self.transport = cast(asyncio.Transport, transport)
        set_no_delay(transport)
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if isinstance(address, tuple) else ""
        self._gateway.joined(self)
        self.deadline_s = time.monotonic() + self._gateway.options.header_timeout_s

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._is_closing:
            return
        if not (self._in_request or self._head_bytes) and self.exchange is None:
            self.deadline_s = time.monotonic() + self._gateway.options.header_timeout_s
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Nothing is upgraded: the request stands as it is, and what follows cannot be read.
            self._request.keeps = False
            if self._queue:
                self._queue[-1].keeps = False
        except httptools.HttpParserError as error:
            self._refuse_connection(RefusalError(400, f"no proper HTTP/1.1: {error}"))
            return
        if self._in_head and self._head_bytes > _MAX_HEAD_BYTES:
            self._refuse_connection(RefusalError(431, "the head is too large"))
        elif self._refusal is not None and self.exchange is None and not self._queue:
            self._refuse_connection(self._refusal)
        elif len(self._queue) > _MAX_PIPELINED:
            self._refuse_connection(RefusalError(400, "too many requests were sent at once"))

    def eof_received(self) -> None:
        """A client that sends no more has gone: it gets no answer either."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, or we have closed."""
        self._is_closing = True
        self._gateway.left(self)
        if self.exchange is not None:
            self.exchange.client_gone()

    def pause_writing(self) -> None:
        """The client does not keep up."""
        self.is_write_paused = True
        if self.exchange is not None:
            self.exchange.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.is_write_paused = False
        if self.exchange is not None:
            self.exchange.resume()

    # The parser's calls.

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_request, self._in_head = True, True
        self._request = ClientRequest()

    def on_url(self, url: bytes) -> None:
        """A piece of its target."""
        self._request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if self._in_head:  # trailers are dropped
            lower = name.lower()
            self._request.headers.append((lower, name, value))
            self._request.by_name[lower] = value

    def on_headers_complete(self) -> None:
        """Its head is whole: refuse it before its body comes, if it has to be."""
        request, gateway = self._request, self._gateway
        self._in_head, self._head_bytes = False, 0
        request.method = self._parser.get_method()
        self.deadline_s = time.monotonic() + gateway.options.body_timeout_s
        try:
            request.check_head(self._parser.get_http_version(), gateway.options.max_body_bytes)
            gateway.check_caller(request)
        except RefusalError as refusal:
            self._refusal = refusal
            return
        expects = request.by_name.get(b"expect", b"").lower() == b"100-continue"
        if expects and self.exchange is None and not self._queue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        request = self._request
        request.size_bytes += len(body)
        if request.size_bytes > self._gateway.options.max_body_bytes:
            self._refusal = self._refusal or too_large(self._gateway.options.max_body_bytes)
            request.pieces.clear()
        elif self._refusal is None:
            request.pieces.append(body)

    def on_message_complete(self) -> None:
        """It is whole."""
        request = self._request
        self._in_request, self._in_head, self._head_bytes = False, True, 0
        if self._refusal is not None or self._is_closing:
            return
        request.body = request.pieces[0] if len(request.pieces) == 1 else b"".join(request.pieces)
        request.pieces.clear()
        request.keeps = self._parser.should_keep_alive()
        request.arrived_s = time.monotonic()
        if self.exchange is None and not self._queue:
            self._begin(request)
        else:
            self._queue.append(request)
            self._pause()

    # What exchanges do.

    def write(self, data: bytes) -> None:
        """Send bytes of an answer."""
        self.transport.write(data)

    def answer(self, request: ClientRequest, data: bytes) -> None:
        """Send a whole answer of our own."""
        self.transport.write(data)
        self._next(request.keeps and not self._gateway.is_draining)

    def refuse(self, request: ClientRequest, refusal: RefusalError) -> None:
        """Answer with an error; the connection can go on."""
        keeps = request.keeps and not self._gateway.is_draining
        self.transport.write(_refusal_bytes(request, refusal, not keeps))
        self._next(keeps)

    def exchange_ended(self, keeps: bool) -> None:
        """The answer is whole, or cannot be made whole: then ``keeps`` is False."""
        self.exchange = None
        self._next(keeps and not self._gateway.is_draining)

    def check(self, now_s: float) -> None:
        """Look at the time."""
        if self.exchange is not None:
            self.exchange.check(now_s)
        elif self.deadline_s is not None and now_s > self.deadline_s:
            if self._is_closing or not (self._in_request or self._head_bytes):
                self.transport.close()  # idle, or lingering
            else:
                self._refuse_connection(RefusalError(408, "the request did not come in time"))

    def close_if_idle(self) -> None:
        """Close unless a request is in progress."""
        if self.exchange is None and not self._queue and not self._in_request:
            self.transport.close()

    def _begin(self, request: ClientRequest) -> None:
        self.deadline_s = None
        self._gateway.handle(self, request)

    def _next(self, keeps: bool) -> None:
        """Go on with the request that waits, or wait for one."""
        if self.transport.is_closing():
            return
        if not keeps:
            self._is_closing = True
            self.transport.close()
        elif self._queue:
            request = self._queue.popleft()
            if not self._queue:
                self._resume()
            self._begin(request)
        elif self._refusal is not None:
            self._refuse_connection(self._refusal)
        else:
            self.deadline_s = time.monotonic() + self._gateway.options.keep_alive_s

    def _refuse_connection(self, refusal: RefusalError) -> None:
        """Say why, and be done with this client."""
        self._is_closing = True
        self._queue.clear()
        if self.exchange is not None:
            # The answer in progress cannot be followed by another; it is cut short.
            self.exchange.client_gone()
            self.exchange = None
            self.transport.close()
            return
        self.transport.write(_refusal_bytes(self._request, refusal, True))
        self._gateway.refused(self._request, refusal)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.deadline_s = time.monotonic() + _LINGER_S

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()


def _refusal_bytes(request: ClientRequest, refusal: RefusalError, closes: bool) -> bytes:
    body = error_json(refusal.status, str(refusal), refusal.code, request.path)
    headers = [*refusal.headers]
    if request.id:
        headers.append((b"x-request-id", request.id.encode()))
    return answer(
        refusal.status, body, headers=headers, is_head=request.method == b"HEAD", closes=closes
    )
