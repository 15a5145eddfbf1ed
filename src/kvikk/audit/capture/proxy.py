"""A pass-through proxy in front of any provider: bodies go unchanged both ways, as they come.

Whoever leaves stops the other side. Keys are passed on, and neither kept nor shown.
"""

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import h11
import httpx

from kvikk.audit.capture.calls import read_call
from kvikk.audit.capture.recorder import Recorder, Taking
from kvikk.errors import RequestError

_MOST_BODY_BYTES = 256 << 20
_READ_BYTES = 1 << 16
# A model may think for long before its first byte.
_TIMEOUT = httpx.Timeout(None, connect=10)
# RFC 9110, 7.6.1: these are between two parties, as Host is. Bodies get a framing of their own.
_BETWEEN_TWO = frozenset(
    (
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    target: str
    headers: Headers
    content: bytes

    @property
    def by_name(self) -> dict[str, str]:
        """Headers by their names in lower case."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}


def parse_upstream(url: str) -> str:
    """A provider's URL without the slash at its end. Raises RequestError for anything else."""
    parts = urlsplit(url)
    proper = parts.scheme in ("http", "https") and parts.hostname and parts.username is None
    if not proper or parts.query or parts.fragment:
        # What stands before an @ may be a secret.
        raise RequestError(
            f"--upstream {url.rpartition('@')[2]!r}: expected a URL such as "
            "https://api.openai.com, without a user or a query"
        )
    return url.rstrip("/")


class CapturingProxy:
    """Serves ``listener`` until its task is cancelled. Without ``upstream`` each request goes to
    the vendor whose API it speaks.
    """

    def __init__(self, recorder: Recorder, upstream: str | None) -> None:
        self._recorder = recorder
        self._upstream = upstream
        self._connections: set[asyncio.Task[None]] = set()
        self._client: httpx.AsyncClient

    async def serve(self, listener: socket.socket) -> None:
        """Serve until cancelled; answers in progress are cut short then."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        async with httpx.AsyncClient(timeout=_TIMEOUT, limits=limits) as self._client:
            server = await asyncio.start_server(self._connected, sock=listener)
            try:
                await server.serve_forever()
            finally:
                for task in self._connections:
                    task.cancel()
                await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await _Connection(self, reader, writer).run()
        except (ConnectionError, h11.ProtocolError, httpx.HTTPError, asyncio.CancelledError):
            writer.transport.abort()  # the client sees that its answer is not whole
        finally:
            self._connections.discard(task)
            writer.close()

    async def pass_on(self, request: _Request, connection: "_Connection") -> None:
        """Send one request to the provider and its answer to the client."""
        origin = self._upstream or _vendor(request)
        url = httpx.URL(f"{origin}{request.target}")
        call = read_call(request.method, url.host, url.path, request.by_name, request.content)
        taking = None if call is None else self._recorder.begin(call)
        headers = [pair for pair in request.headers if pair[0] not in _BETWEEN_TWO]
        sent = httpx.Request(request.method, url, headers=headers, content=request.content or None)
        try:
            try:
                response = await self._client.send(sent, stream=True)
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
                await connection.refuse(502, f"{origin} cannot be reached: {reason}")
                return
            try:
                await _answer(response, connection, taking, request.method == "HEAD")
            finally:
                await response.aclose()
        finally:
            if taking is not None:
                self._recorder.end(taking)


async def _answer(
    response: httpx.Response, connection: "_Connection", taking: Taking | None, is_head: bool
) -> None:
    if taking is not None:
        taking.begin_answer(response.status_code, response.headers.get("content-encoding", ""))
    headers = [
        (name, value)
        for name, value in response.headers.raw
        if name.lower() not in _BETWEEN_TWO or name.lower() == b"content-length"
    ]
    if "content-length" not in response.headers and not is_head:
        headers.append((b"Transfer-Encoding", b"chunked"))
    await connection.begin(response.status_code, headers)
    async for data in response.aiter_raw():
        if taking is not None:
            taking.feed(data)
        await connection.send(h11.Data(data))
    await connection.send(h11.EndOfMessage())


class _Connection:
    """One client's connection: requests one after the other, each read to its end first."""

    def __init__(
        self, proxy: CapturingProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 17)

    async def run(self) -> None:
        """Until the client leaves, or cannot be understood."""
        while (request := await self._next()) is not None:
            passing = asyncio.create_task(self._proxy.pass_on(request, self))
            leaving = asyncio.create_task(self._left())
            try:
                await asyncio.wait({passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
                gone = not passing.done()
            finally:
                for task in (passing, leaving):
                    task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await leaving
                if not passing.done():
                    await asyncio.wait({passing})
            if gone:
                return
            passing.result()
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    async def begin(self, status: int, headers: Headers) -> None:
        """Send an answer's head."""
        await self.send(h11.Response(status_code=status, headers=headers))

    async def send(self, event: Any) -> None:
        """Send a part of an answer at once, and wait if the client does not keep up."""
        data = self._http.send(event)
        if data:
            self._writer.write(data)
            await self._writer.drain()

    async def refuse(self, status: int, message: str) -> None:
        """An answer of our own."""
        shown = httpx.Response(status, json={"error": {"message": message, "type": "proxy_error"}})
        length = b"%d" % len(shown.content)
        await self.begin(
            status, [(b"Content-Type", b"application/json"), (b"Content-Length", length)]
        )
        await self.send(h11.Data(shown.content))
        await self.send(h11.EndOfMessage())

    async def _next(self) -> _Request | None:
        """The next request, whole; None if there is none."""
        head: h11.Request | None = None
        content = bytearray()
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    await self.refuse(error.error_status_hint, f"no proper HTTP/1.1: {error}")
                return None
            match event:
                case h11.Request():
                    head = event
                case h11.Data():
                    content += event.data
                    if len(content) > _MOST_BODY_BYTES:
                        await self.refuse(413, "the request is larger than 256 MiB")
                        return None
                case h11.EndOfMessage():
                    assert head is not None
                    headers = [(bytes(name), bytes(value)) for name, value in head.headers]
                    return _Request(
                        head.method.decode(), head.target.decode(), headers, bytes(content)
                    )
                case h11.ConnectionClosed() | h11.PAUSED:
                    return None
                case _:
                    if self._http.they_are_waiting_for_100_continue:
                        self._writer.write(
                            self._http.send(h11.InformationalResponse(status_code=100, headers=[]))
                        )
                    self._http.receive_data(await self._reader.read(_READ_BYTES))

    async def _left(self) -> None:
        """Returns when the client has gone; what it sends meanwhile waits for its turn."""
        while data := await self._reader.read(_READ_BYTES):
            self._http.receive_data(data)


def _vendor(request: _Request) -> str:
    """Whose API a request speaks, by its path and by how it says who it is."""
    path, headers = request.target.partition("?")[0], request.by_name
    if "anthropic-version" in headers or path.startswith("/v1/messages"):
        return "https://api.anthropic.com"
    if "x-goog-api-key" in headers or path.startswith(("/v1beta/", "/upload/")):
        return "https://generativelanguage.googleapis.com"
    return "https://api.openai.com"
