"""A replica's answer, read: its head, where its body ends, and what is in it without framing.

The parser reads whatever comes. Two things come so often that it need not: a head that is to the
byte the last one's on the same connection, and chunks that are whole. As long as everything is one
of these, the parser is left behind, and where something else comes it is first told what it missed.
"""

import re

import httptools

from kvikk.router.proxy.messages import HOP_BY_HOP, Header, connection_named, status_line

_MAX_HEAD_BYTES = 64 << 10
_NO_PARSER = httptools.HttpResponseParser(object())
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,7})\r\n")


class Response:
    """The head of an answer."""

    __slots__ = (
        "_passed_on",
        "content_length",
        "has_id",
        "headers",
        "is_chunked",
        "is_encoded",
        "is_stream",
        "status",
    )

    def __init__(self) -> None:
        self._passed_on = b""
        self.status = 0
        self.headers: list[Header] = []
        self.has_id = False
        self.is_chunked = False
        self.is_stream = False
        self.is_encoded = False
        self.content_length: int | None = None

    @property
    def passed_on(self) -> bytes:
        """What of it every client gets: all headers but those between two parties."""
        if not self._passed_on:
            hop = HOP_BY_HOP
            if any(lower == b"connection" for lower, _, _ in self.headers):
                hop = connection_named(self.headers)
            lines = [
                b"%b: %b\r\n" % (name, value) for low, name, value in self.headers if low not in hop
            ]
            self._passed_on = b"".join((status_line(self.status), *lines))
        return self._passed_on

    @property
    def has_length(self) -> bool:
        """Whether the body's end shows in the body or in the head."""
        return self.is_chunked or self.content_length is not None or self.status in (204, 304)


class ResponseReader:
    """Reads the answers of one connection, one after the other; ``begin`` comes before each.

    ``response`` is the head that was read last. ``is_complete`` says whether its answer is whole,
    ``keeps`` whether another may follow on the connection, and ``at_boundary`` whether what came so
    far ends with a whole chunk. What is no HTTP raises ``httptools.HttpParserError``.
    """

    __slots__ = (
        "_behind",
        "_chunks_alone",
        "_head",
        "_in_trailers",
        "_known",
        "_parser",
        "_pieces",
        "at_boundary",
        "begun",
        "is_complete",
        "keeps",
        "response",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._head = b""
        self._known: tuple[bytes, Response, bool] | None = None
        self._behind = b""  # a head that the parser has not seen
        self._chunks_alone = False
        self._in_trailers = False
        self._pieces: list[bytes] = []
        self.response = Response()
        self.is_complete = False
        self.keeps = True
        self.at_boundary = True
        self.begun = 0
        """How many answers have begun since one was expected."""

    @property
    def awaits_chunk(self) -> bool:
        """Whether what comes next begins a chunk, and nothing but chunks is framed."""
        return self._chunks_alone and self.at_boundary

    def close(self) -> None:
        """Nothing more is read; the parser, which knows this reader, goes."""
        self._parser = _NO_PARSER

    def begin(self) -> None:
        """A request has been sent."""
        self._head = b""
        self.is_complete = False
        self.begun = 0

    def read_head(self, data: bytes) -> bytes | None:
        """Take bytes of the head; returns what follows it, None if it is not whole yet."""
        if self._known is not None and not self._head and data.startswith(self._known[0]):
            head, self.response, self._chunks_alone = self._known
            self._head = self._behind = head
            self.begun, self.at_boundary = 1, True
            return data[len(head) :]
        data = self._head + data
        while True:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                self._head = data
                if len(data) > _MAX_HEAD_BYTES:
                    raise httptools.HttpParserError("the head is too large")
                return None
            self._head = data[:end]
            self._parser.feed_data(self._head)
            data = data[end:]
            if self.response.status >= 200:
                break
            self.is_complete, self.begun = False, 0  # an interim answer; the real one follows
        self.at_boundary = True
        return data

    def read_body(self, data: bytes) -> list[bytes]:
        """Take bytes of the body; returns them without framing."""
        pieces: list[bytes] = []
        if self._behind and len(data) == self.response.content_length:
            self._end_without_parser()
            pieces.append(data)
            return pieces
        if self.awaits_chunk:
            place, end = 0, len(data)
            while (found := _CHUNK.match(data, place)) is not None:
                start = found.end()
                stop = start + int(found[1], 16)
                if data[stop : stop + 2] != b"\r\n":
                    break
                if start == stop:
                    if not self._behind or stop + 2 < end:
                        break
                    self._end_without_parser()
                else:
                    pieces.append(data[start:stop])
                place = stop + 2
                if place == end:
                    return pieces
            if place:
                data = data[place:]
        self._parse(data, pieces)
        return pieces

    def _parse(self, data: bytes, pieces: list[bytes]) -> None:
        if self._behind:
            head, self._behind = self._behind, b""
            self.begun = 0
            self._parser.feed_data(head)
        self._pieces = pieces
        self._parser.feed_data(data)

    def _end_without_parser(self) -> None:
        self._behind = b""
        self.is_complete = self.keeps = True

    # The parser's calls.

    def on_message_begin(self) -> None:
        """An answer begins."""
        self.begun += 1
        self.response = Response()
        self._in_trailers = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if self._in_trailers:  # they pass with the body
            return
        response, lower = self.response, name.lower()
        response.headers.append((lower, name, value))
        if lower == b"transfer-encoding":
            response.is_chunked = True
        elif lower == b"content-length":
            response.content_length = int(value)
        elif lower == b"content-type":
            response.is_stream = value[:17].lower() == b"text/event-stream"
        elif lower == b"content-encoding":
            response.is_encoded = value.lower() != b"identity"
        elif lower == b"x-request-id":
            response.has_id = True

    def on_headers_complete(self) -> None:
        """Its head is whole."""
        response = self.response
        response.status = self._parser.get_status_code()
        codings = [value for lower, _, value in response.headers if lower == b"transfer-encoding"]
        self._chunks_alone = codings == [b"chunked"]
        self._in_trailers = True

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
        self.is_complete = True
        self.keeps = self._parser.should_keep_alive()
        response = self.response
        has_body = self._chunks_alone or bool(response.content_length)
        if self.keeps and response.status == 200 and has_body and self.begun == 1:
            self._known = self._head, response, self._chunks_alone
