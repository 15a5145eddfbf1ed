"""``GET /health`` and ``GET /metrics``: for those who run the server."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from kvikk.server.keys import require_operator
from kvikk.server.replies import json_response
from kvikk.server.service import Service

router = APIRouter()


@router.get("/health")
@router.head("/health")
async def health(request: Request) -> Response:
    """200 while requests are accepted; 503 while draining, and when the engine has stopped."""
    service: Service = request.app.state.service
    if service.worker.accepting:
        return json_response({"status": "ok"})
    status = "draining" if service.worker.failure is None else "failed"
    return json_response({"status": status}, 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Everything that is counted and timed, for Prometheus; of all tenants, so for the operator."""
    if hasattr(request.state, "caller"):  # somebody is to be kept apart from somebody
        require_operator(request, "what is measured")
    service: Service = request.app.state.service
    return Response(service.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
