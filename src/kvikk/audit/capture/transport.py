"""A transport for programs that speak to a provider with httpx, as the vendors' clients do.

    from kvikk.audit.capture import Transport
    client = openai.OpenAI(http_client=openai.DefaultHttpxClient(transport=Transport()))

The clients' httpx may be of either generation; this knows which by the request that it is given.
"""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvikk.audit.capture.calls import read_call
from kvikk.audit.capture.printer import Printer
from kvikk.audit.capture.recorder import Recorder, Taking
from kvikk.audit.findings import Finding
from kvikk.audit.report import report


class Transport:
    """Passes requests on unchanged and writes them to ``record``, audits them, or both.

    Each finding goes to ``on_finding``; with neither given, findings are printed to standard error.
    ``inner`` does the sending, by default the library's own transport. It is for blocking and for
    asynchronous clients; one object may serve several. Raises RequestError if ``record`` cannot be
    written.
    """

    def __init__(
        self,
        record: Path | str | None = None,
        *,
        on_finding: Callable[[Finding], None] | None = None,
        inner: Any = None,
    ) -> None:
        if record is None and on_finding is None:
            on_finding = Printer()
        self._recorder = Recorder(None if record is None else Path(record), on_finding)
        self._blocking = self._asynchronous = inner

    def report(self) -> str:
        """What has been found so far, in words."""
        return "\n".join(report(self._recorder.audited("this program")))

    def handle_request(self, request: Any) -> Any:
        """Send one request and hand its answer on as it comes."""
        library = _library(request)
        if self._blocking is None:
            self._blocking = library.HTTPTransport()
        taking = self._begin(request, request.read())
        try:
            response = self._blocking.handle_request(request)
        except BaseException:
            self._end(taking)
            raise
        if taking is not None:
            taking.begin_answer(response.status_code, response.headers.get("content-encoding", ""))
            response.stream = _blocking_stream(library, response.stream, self._recorder, taking)
        return response

    async def handle_async_request(self, request: Any) -> Any:
        """Send one request and hand its answer on as it comes."""
        library = _library(request)
        if self._asynchronous is None:
            self._asynchronous = library.AsyncHTTPTransport()
        taking = self._begin(request, await request.aread())
        try:
            response = await self._asynchronous.handle_async_request(request)
        except BaseException:
            self._end(taking)
            raise
        if taking is not None:
            taking.begin_answer(response.status_code, response.headers.get("content-encoding", ""))
            response.stream = _asynchronous_stream(library, response.stream, self._recorder, taking)
        return response

    def close(self) -> None:
        """The client is closed: wait for what it sent to be written and audited."""
        if self._blocking is not None:
            self._blocking.close()
        self._recorder.settle()

    async def aclose(self) -> None:
        """The client is closed."""
        if self._asynchronous is not None:
            await self._asynchronous.aclose()
        self._recorder.settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self.aclose()

    def _begin(self, request: Any, content: bytes) -> Taking | None:
        url = request.url
        call = read_call(request.method, url.host, url.path, request.headers, content)
        return None if call is None else self._recorder.begin(call)

    def _end(self, taking: Taking | None) -> None:
        if taking is not None:
            self._recorder.end(taking)


def _library(request: Any) -> Any:
    """The module that a request is of: httpx, or the one that came after it."""
    return sys.modules[type(request).__module__.partition(".")[0]]


def _blocking_stream(library: Any, inner: Any, recorder: Recorder, taking: Taking) -> Any:
    class Stream(library.SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            for data in inner:
                taking.feed(data)
                yield data

        def close(self) -> None:
            recorder.end(taking)
            inner.close()

    return Stream()


def _asynchronous_stream(library: Any, inner: Any, recorder: Recorder, taking: Taking) -> Any:
    class Stream(library.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for data in inner:
                taking.feed(data)
                yield data

        async def aclose(self) -> None:
            recorder.end(taking)
            await inner.aclose()

    return Stream()
