"""``/v1/kvikk/sessions``: conversations, put to sleep and woken."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvikk.engine.engine import Engine
from kvikk.server import sleeping
from kvikk.server.keys import Caller
from kvikk.server.replies import json_response
from kvikk.server.service import Service

router = APIRouter()


@router.get("/v1/kvikk/sessions")
async def sessions(request: Request) -> Response:
    """This tenant's conversations, the latest last: what can be put to sleep."""
    caller: Caller = request.state.caller

    def read(engine: Engine) -> list[dict[str, object]]:
        now_s = engine.sessions.clock()
        return [
            {
                "session": one.name,
                "requests": len(one.request_ids),
                "tokens": len(one.tokens),
                "idle_s": round(one.idle_s(now_s), 3),
                "asleep": one.asleep,
            }
            for one in engine.sessions
            if one.tenant == caller.tenant
        ]

    service: Service = request.app.state.service
    return json_response({"sessions": await service.call(read)})


@router.post("/v1/kvikk/sessions/{session}/sleep")
async def sleep(request: Request, session: str) -> Response:
    """Put a conversation's blocks into the tiers and free them; 404 if it is not known.

    What a running request, a pin or another conversation needs stays: ``kept_blocks``.
    """
    service: Service = request.app.state.service
    result = await sleeping.sleep(service, session, request.state.caller.tenant)
    return json_response(
        {
            "session": session,
            "complete": result.complete,
            "freed_blocks": result.freed_blocks,
            "kept_blocks": result.kept_blocks,
        }
    )


@router.post("/v1/kvikk/sessions/{session}/wake")
async def wake(request: Request, session: str) -> Response:
    """Bring a conversation's blocks back before its next turn; 404 if it is not known.

    What no tier has any more is computed.
    """
    service: Service = request.app.state.service
    woken = await sleeping.wake(service, session, request.state.caller.tenant)
    return json_response(
        {
            "session": session,
            "tokens": woken.usage.prompt_tokens,
            "reused_tokens": woken.usage.cached_tokens,
            "seconds": round(woken.seconds, 4),
        }
    )
