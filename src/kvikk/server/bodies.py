"""Reading a request's body, never more of it than the limit."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from starlette.requests import Request

from kvikk.server.errors import ApiError
from kvikk.server.threads import run_beside_loop_if
from kvikk.wire.reading import JsonValue, parse_json

# A client that is still sending does not listen: an answer before the end of its body would reach
# it as a broken connection. So much more is read, and dropped, to tell it what is wrong.
_DROPPED_BYTES = 64 << 20
_LONG_BYTES = 1 << 16

Record = TypeVar("Record")


async def read_body(
    request: Request, reader: Callable[[JsonValue], Record]
) -> tuple[Mapping[str, Any], Record]:
    """The body, an object in JSON: as it was sent, and as ``reader`` reads it.

    Raises ApiError if it is longer than the server's limit (413) or no JSON by its content type
    (400), and RequestError if it is not JSON or not what ``reader`` expects.
    """
    content_type = request.headers.get("content-type", "application/json")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(
            400,
            f"content type {content_type[:100]!r} is not supported; "
            "send JSON with the header 'Content-Type: application/json'",
        )
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise ApiError(
            400, f"content encoding {encoding[:100]!r} is not supported; send plain JSON"
        )
    content = await _read(request, request.app.state.service.options.max_body_bytes)

    def read() -> tuple[Mapping[str, Any], Record]:
        body = parse_json(content)
        return body.members(), reader(body)

    return await run_beside_loop_if(len(content) > _LONG_BYTES, read)


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
