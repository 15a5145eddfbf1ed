"""Pieces of HTTP/1.1 that both sides need: what is hop-by-hop, error answers, error events."""

from collections.abc import Sequence
from http import HTTPStatus

import orjson

from kvikk.wire.errors import ErrorBody, ErrorType

Header = tuple[bytes, bytes, bytes]
"""A header: its name in lower case, its name as it came, its value."""

# RFC 9110, 7.6.1, and what the field has used for the same; Host and Expect are between two parties
# as well. What Connection names is added at each message.
HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)

_TYPES: dict[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    502: "server_error",
    503: "server_error",
    504: "server_error",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


class RefusalError(Exception):
    """A request that is answered here, with an error.

    ``code`` is a word that programs may test; ``headers`` go along.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers


def error_json(status: int, message: str, code: str | None, path: str) -> bytes:
    """The error as an object, in the shape that callers of ``path`` expect."""
    if path.startswith("/v1/messages"):
        kind = _ANTHROPIC_TYPES.get(status, "api_error")
        return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})
    kind_of_error = _TYPES.get(status, "invalid_request_error")
    return orjson.dumps(ErrorBody(message, kind_of_error, None, code).to_json())


def error_event(status: int, message: str, code: str | None, path: str) -> bytes:
    """The error as the last server-sent event of a stream that cannot go on."""
    name = b"event: error\n" if path.startswith(("/v1/messages", "/v1/responses")) else b""
    return name + b"data: " + error_json(status, message, code, path) + b"\n\n"


def status_line(status: int) -> bytes:
    """The first line of an answer, with its line end."""
    return b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b"Unknown"))


def connection_named(headers: Sequence[Header]) -> frozenset[bytes]:
    """Names of headers that are hop-by-hop in this message: the fixed ones, and Connection's."""
    named: frozenset[bytes] = HOP_BY_HOP
    for lower, _, value in headers:
        if lower == b"connection":
            named |= {name.strip() for name in value.lower().split(b",")}
    return named


def answer(
    status: int,
    body: bytes,
    media_type: bytes = b"application/json",
    headers: Sequence[tuple[bytes, bytes]] = (),
    *,
    is_head: bool = False,
    closes: bool = False,
) -> bytes:
    """A whole answer of our own."""
    lines = [
        status_line(status),
        b"content-type: %b\r\ncontent-length: %d\r\n" % (media_type, len(body)),
        *(b"%b: %b\r\n" % header for header in headers),
        b"connection: close\r\n\r\n" if closes else b"\r\n",
    ]
    return b"".join(lines) + (b"" if is_head else body)
