"""HTTP for measuring: whole answers and event streams over asyncio, and nothing more.

The client shares the machine with the server it measures, so what it costs a token counts: one
wake-up a packet, one parse an event, no layers between. General clients take several times that.
Every request has a connection of its own, so that none is lost to one that had gone stale.
"""

import asyncio
import os
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from kvikk import __version__
from kvikk.errors import RequestError

_READ_BYTES = 1 << 16
_CONNECT_S = 10.0


class TransferError(Exception):
    """A request that brought no whole answer; ``kind`` is a word or two to count it under."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class Response:
    """Status, headers (names in lower case) and, unless it was handed on as it came, the body."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300


class HttpClient:
    """One server by its base URL. ``timeout_s`` is how long it may be silent.

    Raises RequestError if ``base_url`` is not an http or https URL.
    """

    def __init__(self, base_url: str, api_key: str | None = None, timeout_s: float = 600) -> None:
        self._url = _split(base_url)
        self._timeout_s = timeout_s
        self._ssl = ssl.create_default_context() if self._url.scheme == "https" else None
        host = self._url.netloc.rpartition("@")[2]
        self._headers = (
            f"Host: {host}\r\nUser-Agent: kvikk/{__version__}\r\nAccept: */*\r\n"
            "Connection: close\r\n"
        )
        if api_key is not None:
            if not api_key.isascii() or not api_key.isprintable():
                raise RequestError("the API key has characters that no header can hold", "api_key")
            self._headers += f"Authorization: Bearer {api_key}\r\n"

    async def fetch(self, method: str, path: str, body: bytes | None = None) -> Response:
        """The whole answer. ``path`` is joined to the base URL; one with a slash replaces its path.

        Raises TransferError.
        """
        parts: list[bytes] = []
        response = await self._exchange(method, path, body, lambda response: parts.append)
        response.body = b"".join(parts)
        return response

    async def stream(self, path: str, body: bytes, on_data: Callable[[bytes], None]) -> Response:
        """POST, and hand a successful answer's body on as it comes; otherwise keep it.

        Raises TransferError, also where the answer breaks off.
        """
        parts: list[bytes] = []
        response = await self._exchange(
            "POST", path, body, lambda response: on_data if response.is_success else parts.append
        )
        response.body = b"".join(parts)
        return response

    async def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None,
        sink: Callable[[Response], Callable[[bytes], object]],
    ) -> Response:
        """One request; ``sink`` is asked, once the headers are there, where the body shall go."""
        reader, writer = await self._connect()
        try:
            writer.write(self._head(method, path, body) + (body or b""))
            parser = ResponseParser(sink)
            while not parser.is_done:
                try:
                    async with asyncio.timeout(self._timeout_s):
                        data = await reader.read(_READ_BYTES)
                except TimeoutError:
                    raise TransferError("timeout", f"silent for {self._timeout_s:g} s") from None
                if not data:
                    parser.close()
                    break
                parser.feed(data)
        except OSError as error:
            raise TransferError("broken connection", error.strerror or str(error)) from None
        finally:
            writer.transport.abort()
        return parser.response

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._url.hostname, self._url.port
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await asyncio.open_connection(
                    host, port or (443 if self._ssl else 80), ssl=self._ssl
                )
        except TimeoutError:
            raise TransferError("no connection", f"no answer within {_CONNECT_S:g} s") from None
        except OSError as error:
            raise TransferError("no connection", _why_not_connected(error)) from None

    def _head(self, method: str, path: str, body: bytes | None) -> bytes:
        target = path if path.startswith("/") else f"{self._url.path.rstrip('/')}/{path}"
        head = f"{method} {target} HTTP/1.1\r\n{self._headers}"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"{head}\r\n".encode()


class ResponseParser:
    """Takes a response's bytes as they come; the body goes where ``sink`` says.

    A body ends by its length, by a last chunk, or with the connection.
    """

    def __init__(self, sink: Callable[[Response], Callable[[bytes], object]]) -> None:
        self.response = Response()
        self.is_done = False
        self._sink = sink
        self._give: Callable[[bytes], object] | None = None
        self._buffer = b""
        self._is_chunked = False
        self._left: int | None = None  # bytes of the body or chunk; None: until the connection ends

    def feed(self, data: bytes) -> None:
        """More bytes. Raises TransferError if they are no HTTP."""
        self._buffer += data
        if self._give is None and not self._read_head():
            return
        assert self._give is not None
        if self._is_chunked:
            self._read_chunks()
        elif self._buffer:
            self._give(self._buffer)
            if self._left is not None:
                self._left -= len(self._buffer)
            self._buffer = b""
        if not self._is_chunked and self._left is not None and self._left <= 0:
            self.is_done = True

    def close(self) -> None:
        """The connection has ended. Raises TransferError if that was too early."""
        if self._give is None or self._is_chunked or self._left is not None:
            raise TransferError("cut off", "the connection ended within the answer")
        self.is_done = True

    def _read_head(self) -> bool:
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return False
        lines = head.decode("latin-1").split("\r\n")
        try:
            protocol, status = lines[0].split(" ")[:2]
            self.response.status = int(status)
        except ValueError:
            protocol = ""
        if not protocol.startswith("HTTP/1."):
            raise TransferError("no HTTP", f"the answer begins with {lines[0][:40]!r}")
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.response.headers[name.strip().lower()] = value.strip()
        self._buffer = rest
        if 100 <= self.response.status < 200:  # an interim answer; the real one follows
            self.response.headers.clear()
            return self._read_head()
        headers = self.response.headers
        self._is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length", "")
        self._left = int(length) if length.isdigit() else None
        if self.response.status in (204, 304):
            self._left = 0
        self._give = self._sink(self.response)
        return True

    def _read_chunks(self) -> None:
        assert self._give is not None
        start, buffer = 0, self._buffer
        while (line_end := buffer.find(b"\r\n", start)) >= 0:
            try:
                size = int(buffer[start:line_end].partition(b";")[0], 16)
            except ValueError:
                raise TransferError("no HTTP", "a chunk's size is no number") from None
            chunk = line_end + 2
            if size == 0:
                self.is_done = True
                break
            if len(buffer) < chunk + size + 2:
                break
            self._give(buffer[chunk : chunk + size])
            start = chunk + size + 2
        self._buffer = buffer[start:]


class EventReader:
    """Server-sent events from a stream of bytes: the data of each, whole."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that these bytes complete."""
        lines = (self._buffer + data).split(b"\n")
        self._buffer = lines.pop()
        # OpenAI-style servers put an event's data on one line.
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def _why_not_connected(error: OSError) -> str:
    """In the system's words: asyncio's own show each address as a tuple."""
    found = re.search(r"\[Errno (\d+)\] Connect call failed", str(error))
    text = os.strerror(int(found[1])) if found else error.strerror or str(error)
    return text[:1].lower() + text[1:]


def _split(base_url: str) -> SplitResult:
    try:
        url = urlsplit(base_url)
        is_usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or not base_url.isascii() or any(c.isspace() for c in base_url):
        raise RequestError(
            f"{base_url!r} is no base URL; expected one like http://127.0.0.1:8000/v1", "base_url"
        )
    return url
