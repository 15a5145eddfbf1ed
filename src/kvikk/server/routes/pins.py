"""``/v1/kvikk/pins``: prefixes that stay in the cache. They take from everybody's memory, so where
there are several tenants they are the operator's.
"""

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvikk.cache.keeping import PIN_SHARE, Pin
from kvikk.engine.engine import Engine
from kvikk.engine.sleeping import pin
from kvikk.errors import BusyError
from kvikk.server.bodies import read_body
from kvikk.server.errors import ApiError
from kvikk.server.keys import require_operator
from kvikk.server.openapi import takes
from kvikk.server.replies import json_response
from kvikk.server.service import Service
from kvikk.wire.reading import JsonValue
from kvikk.wire.schemas import PIN

router = APIRouter()


@dataclass(frozen=True)
class PinRequest:
    """Pin the first ``tokens`` (None: all) of the prompt of a request, or of a session's latest."""

    request: str
    tokens: int | None

    @classmethod
    def from_json(cls, body: JsonValue) -> "PinRequest":
        """Read a body. Raises RequestError, naming the field."""
        tokens = body.get("tokens")
        return cls(body.get("request").string(), None if tokens.is_null else tokens.integer(1))


@router.get("/v1/kvikk/pins")
async def pins(request: Request) -> Response:
    """All pins, oldest first, and the share of the cache that they may take together."""
    require_operator(request, "pins")
    service: Service = request.app.state.service
    found = await service.call(lambda engine: engine.cache.pins)
    return json_response({"pins": [_pin_json(one) for one in found], "most_share": PIN_SHARE})


@router.post("/v1/kvikk/pins", openapi_extra=takes(PIN))
async def add(request: Request) -> Response:
    """Keep a prompt's blocks, as far as they are in the cache: 409 if nothing of it is.

    400 if all pins together would take too much. A pin is given up, the oldest first, only where a
    request could not run beside it.
    """
    require_operator(request, "pins")
    service: Service = request.app.state.service
    _, asked = await read_body(request, PinRequest.from_json)

    def work(engine: Engine) -> Pin:
        found = (one for one in engine.sessions if asked.request in (one.name, *one.request_ids))
        session = next(found, None)
        if session is None:
            raise ApiError(404, f"no request {asked.request[:100]!r} is known any more")
        try:
            return pin(engine, session, asked.tokens)
        except BusyError as error:
            raise ApiError(409, str(error), code="not_cached") from None

    return json_response(_pin_json(await service.call(work)), 201)


@router.delete("/v1/kvikk/pins/{number}")
async def remove(request: Request, number: str) -> Response:
    """Let a pin's blocks go like any; 404 if there is no such pin."""
    require_operator(request, "pins")
    service: Service = request.app.state.service
    known = number.isascii() and number.isdecimal() and len(number) < 18
    if not known or not await service.call(lambda engine: engine.cache.unpin(int(number))):
        raise ApiError(404, f"there is no pin {number[:100]!r}")
    return json_response({"pin": int(number), "removed": True})


def _pin_json(one: Pin) -> dict[str, int]:
    return {"pin": one.number, "tokens": one.num_tokens, "blocks": one.num_blocks}
