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
from kvikk.router.proxy.known_head import KnownHead, known_head
from kvikk.router.proxy.messages import RefusalError, answer, error_json
from kvikk.router.proxy.request import ClientRequest, RequestHead, too_large
from kvikk.router.proxy.upstream import set_no_delay

if TYPE_CHECKING:
    from kvikk.router.proxy.gateway import Gateway

_MAX_HEAD_BYTES = 64 << 10
_MAX_PIPELINED = 16
# What chunks may have around them, in all and for each byte of theirs: extensions and trailers are
# read and dropped, and have no other end.
_MAX_FRAMING_BYTES, _MAX_FRAMING_SHARE = 64 << 10, 16
# A refused client may still be sending; closing at once could take the refusal away from it.
_LINGER_S = 2.0
# Nobody has so long to take the end of an answer.
_FLUSH_S = 60.0
_TOO_MANY = "too many requests were sent at once"
_NO_PARSER = httptools.HttpRequestParser(object())


class ClientConnection(asyncio.Protocol):
    """One connection from a client. ``deadline_s`` is when whatever it waits for is too late."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._parser = httptools.HttpRequestParser(self)
        self._request = ClientRequest(RequestHead())
        self._head_bytes = 0
        self._in_head = True
        self._in_request = False
        self._awaits_continue = False
        self._ignores_rest = False
        self._raw_bytes = 0
        self._known: KnownHead | None = None
        self._ready: KnownHead | None = None  # the same, while nothing but a new request may come
        self._fresh = b""  # what is being parsed, if a request begins with it
        self._answered_at_once = 0
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
        self.deadline_s = time.monotonic() + self._gateway.options.header_timeout_s
        try:
            self._gateway.joined(self)
        except RefusalError as refusal:
            self._refuse_connection(refusal)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        ready, self._ready = self._ready, None
        if ready is not None and not self.is_write_paused:
            request = ready.read(data)
            if request is not None and self._gateway.admits(request):
                self._answered_at_once = 0
                self._request = request
                self._begin(request)
                return
        if self._is_closing or self._ignores_rest:
            return
        self._answered_at_once = 0
        is_new = not (self._in_request or self._head_bytes)
        if is_new and self.exchange is None:
            self.deadline_s = time.monotonic() + self._gateway.options.header_timeout_s
        if self._in_head:
            self._head_bytes += len(data)
        else:
            self._raw_bytes += len(data)
        self._fresh = data if is_new else b""
        refusal = self._feed(data)
        self._fresh = b""
        if refusal is not None:
            self._refuse_connection(refusal)
            return
        most = _MAX_FRAMING_BYTES + _MAX_FRAMING_SHARE * self._request.size_bytes
        if self._in_request and not self._in_head and self._raw_bytes > most:
            self._refuse_connection(RefusalError(400, "there is more around the body than in it"))
        elif self._in_head and self._head_bytes > _MAX_HEAD_BYTES:
            self._refuse_connection(RefusalError(431, "the head is too large"))
        elif self._refusal is not None and self.exchange is None and not self._queue:
            self._refuse_connection(self._refusal)
        elif len(self._queue) > _MAX_PIPELINED:
            self._refuse_connection(RefusalError(400, _TOO_MANY))

    def eof_received(self) -> None:
        """A client that sends no more has gone: it gets no answer either."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, or we have closed."""
        self._is_closing = True
        self._parser = _NO_PARSER  # the other knows this connection: no circle stays behind
        self._gateway.left(self)
        for request in (self._request, *self._queue):
            self._gateway.bodies.give_back(request)
        self._queue.clear()
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
        elif self._queue:
            self._begin_queued()

    # The parser's calls.

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_request, self._in_head = True, True
        self._request = ClientRequest(RequestHead())

    def on_url(self, url: bytes) -> None:
        """A piece of its target."""
        self._request.head.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if self._in_head:  # trailers are dropped
            lower = name.lower()
            head = self._request.head
            head.headers.append((lower, name, value))
            head.by_name[lower] = value

    def on_headers_complete(self) -> None:
        """Its head is whole: refuse it before its body comes, if it has to be."""
        request, gateway = self._request, self._gateway
        head = request.head
        self._in_head, self._head_bytes, self._raw_bytes = False, 0, 0
        head.method = self._parser.get_method()
        self.deadline_s = time.monotonic() + gateway.options.body_timeout_s
        try:
            version = self._parser.get_http_version()
            head.check_head(version, gateway.options.max_body_bytes, gateway.via)
            request.id = head.id
            gateway.check_caller(request)
        except RefusalError as refusal:
            self._refusal = refusal
            return
        if b"expect" in head.by_name:
            self._awaits_continue = head.by_name[b"expect"].lower() == b"100-continue"
            if self.exchange is None and not self._queue:
                self._continue()

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        if self._refusal is not None:
            return
        request, gateway = self._request, self._gateway
        request.size_bytes += len(body)
        try:
            if request.size_bytes > gateway.options.max_body_bytes:
                raise too_large(gateway.options.max_body_bytes)
            gateway.bodies.take(request, len(body))
        except RefusalError as refusal:
            self._refusal = refusal
            gateway.bodies.give_back(request)
            return
        if not request.body:
            request.body = body
        elif request.pieces is None:
            request.pieces = bytearray(request.body + body)
        else:
            request.pieces += body

    def on_message_complete(self) -> None:
        """It is whole."""
        request = self._request
        if request.head.has_body and not request.size_bytes and self._parser.should_upgrade():
            return  # its body is still to come, see _feed
        self._in_request, self._in_head, self._head_bytes = False, True, 0
        self._awaits_continue = False
        if self._refusal is not None or self._is_closing:
            return
        if request.pieces is not None:
            request.body, request.pieces = bytes(request.pieces), None
        request.keeps = request.keeps and self._parser.should_keep_alive()
        self._ignores_rest = not request.keeps
        request.arrived_s = time.monotonic()
        if self._fresh:
            self._known, self._fresh = known_head(self._fresh, request), b""
        if self.exchange is None and not self._queue and not self.is_write_paused:
            self._begin(request)
        else:
            self._queue.append(request)
            self._pause()

    # What exchanges do.

    def answer(self, request: ClientRequest, data: bytes) -> None:
        """Send a whole answer of our own."""
        self.transport.write(data)
        self._answered_at_once += 1
        if self._answered_at_once > _MAX_PIPELINED:
            self._refusal = RefusalError(400, _TOO_MANY)
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
            if self._is_closing:
                self.transport.abort()  # it was told, and takes nothing
            elif not (self._in_request or self._head_bytes):
                self.transport.close()  # idle
            else:
                self._refuse_connection(RefusalError(408, "the request did not come in time"))

    def close_if_idle(self) -> None:
        """Close unless a request is in progress."""
        if self.exchange is None and not self._queue and not self._in_request:
            self.transport.close()

    def cut_off(self) -> None:
        """The router ends: say so where an answer is in progress, and close."""
        if self.exchange is not None:
            self.exchange.cut_off()
        self.transport.close()

    def _feed(self, data: bytes) -> RefusalError | None:
        """Parse; returns what is wrong with it. Where an upgrade was asked for, go on without.

        The parser takes a body behind such a head for another protocol, and would lose it. A client
        that offers HTTP/2 in this way (Java's does by itself) sends one all the same.
        """
        try:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                request = self._request
                request.keeps = False
                if self._refusal is None and self._in_request:
                    length = request.head.by_name.get(b"content-length")
                    framing = b"transfer-encoding: chunked"
                    if length is not None:
                        framing = b"content-length: " + length
                    head = b"POST / HTTP/1.1\r\nconnection: close\r\n%b\r\n\r\n" % framing
                    self._parser = httptools.HttpRequestParser(_BodyOnly(self))
                    self._parser.feed_data(head + data[upgrade.args[0] :])
                self._ignores_rest = not self._in_request
        except httptools.HttpParserError as error:
            if not self._ignores_rest:  # else it follows a request that was said to be the last
                return RefusalError(400, f"no proper HTTP/1.1: {error}")
        return None

    def _continue(self) -> None:
        """Tell a client that asked first to send its body."""
        if self._awaits_continue:
            self._awaits_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _begin_queued(self) -> None:
        request = self._queue.popleft()
        if not self._queue:
            self._resume()
        self._begin(request)

    def _begin(self, request: ClientRequest) -> None:
        self.deadline_s = None
        self._gateway.handle(self, request)

    def _next(self, keeps: bool) -> None:
        """Go on with the request that waits, or wait for one."""
        if self.transport.is_closing():
            return
        if not keeps:
            self._is_closing = True
            self.deadline_s = time.monotonic() + _FLUSH_S
            self.transport.close()
        elif self._queue:
            if not self.is_write_paused:
                self._begin_queued()
        elif self._refusal is not None:
            self._refuse_connection(self._refusal)
        else:
            self._continue()
            if not (self._in_request or self._head_bytes):
                self._ready = self._known
            self.deadline_s = time.monotonic() + self._gateway.options.keep_alive_s

    def _refuse_connection(self, refusal: RefusalError) -> None:
        """Say why, and be done with this client."""
        if self._is_closing:
            return
        self._is_closing = True
        for request in (self._request, *self._queue):
            self._gateway.bodies.give_back(request)
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


class _BodyOnly:
    """What the parser calls for a body whose head it has read before."""

    def __init__(self, client: ClientConnection) -> None:
        self.on_body = client.on_body
        self.on_message_complete = client.on_message_complete


def _refusal_bytes(request: ClientRequest, refusal: RefusalError, closes: bool) -> bytes:
    body = error_json(refusal.status, str(refusal), refusal.code, request.head.path)
    headers = [*refusal.headers]
    if request.id:
        headers.append((b"x-request-id", request.id.encode()))
    return answer(
        refusal.status, body, headers=headers, is_head=request.head.method == b"HEAD", closes=closes
    )
