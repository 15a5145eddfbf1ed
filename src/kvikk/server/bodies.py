"""Reading a request's body, never more of it than the limit."""

from starlette.requests import Request

from kvikk.server.errors import ApiError
from kvikk.wire.reading import JsonValue, parse_json

# A client that is still sending does not listen: an answer before the end of its body would reach
# it as a broken connection. So much more is read, and dropped, to tell it what is wrong.
_DROPPED_BYTES = 64 << 20


async def read_json(request: Request, max_bytes: int) -> JsonValue:
    """The body as JSON. Raises ApiError (413) if it is too long, RequestError if it is not JSON."""
    content_type = request.headers.get("content-type", "application/json")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(
            400,
            f"content type {content_type[:100]!r} is not supported; "
            "send JSON with the header 'Content-Type: application/json'",
        )
    return parse_json(await _read(request, max_bytes))


async def _read(request: Request, max_bytes: int) -> bytes:
    too_long = ApiError(
        413, f"the body is longer than the limit of {max_bytes} bytes", code="request_too_large"
    )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes and "expect" in request.headers:
        raise too_long  # it waits to be asked for the body
    parts: list[bytes] = []
    num_bytes = 0
    async for part in request.stream():
        num_bytes += len(part)
        if num_bytes > max_bytes + _DROPPED_BYTES:
            break
        if num_bytes > max_bytes:
            parts.clear()
        else:
            parts.append(part)
    if num_bytes > max_bytes:
        raise too_long
    return b"".join(parts)
