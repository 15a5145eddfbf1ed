"""``GET /v1/kvikk/cache`` and ``POST /v1/kvikk/cache/reset``: the KV cache, seen and emptied."""

from dataclasses import asdict

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvikk.server.keys import require_operator
from kvikk.server.replies import json_response
from kvikk.server.service import Service

router = APIRouter()


@router.get("/v1/kvikk/cache")
async def cache(request: Request) -> Response:
    """Blocks by state, in all and by group: live + cached + empty = total; and what tiers hold.

    What is used tells how much others send, so where there are several tenants it is told to the
    operator only (403).
    """
    require_operator(request, "the cache")
    service: Service = request.app.state.service
    stats = service.worker.stats()
    groups = [asdict(group) for group in stats.groups]
    names = ("total_blocks", "live_blocks", "cached_blocks", "empty_blocks")
    sums = {name: sum(group[name] for group in groups) for name in names}
    shown = {**sums, "block_size": stats.block_size, "groups": groups}
    if stats.tiering.tiers:
        shown["tiers"] = [asdict(tier) for tier in stats.tiering.tiers]
        shown["dropped_blocks"] = stats.tiering.dropped_blocks
        shown["emptying_tiers"] = stats.tiering.emptying
    return json_response(shown)


@router.post("/v1/kvikk/cache/reset")
async def reset(request: Request) -> Response:
    """Forget all that was computed: what was dropped, and what running requests still hold.

    Nothing computed before is hit after it. ``complete`` says whether every block is empty now; the
    ``held_blocks`` become empty when the ``held_by_requests`` requests end. It takes the cache from
    every tenant, so where there are several it is the operator's to ask for (403).
    """
    require_operator(request, "a reset")
    service: Service = request.app.state.service
    result = await service.reset_cache()
    return json_response(
        {
            "complete": result.complete,
            "dropped_blocks": result.dropped_blocks,
            "held_blocks": result.held_blocks,
            "held_by_requests": len(result.held_by),
        }
    )
