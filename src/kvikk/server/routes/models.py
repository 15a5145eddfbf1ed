"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvikk.server.replies import json_response
from kvikk.server.service import Service

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """All models, of which there is one."""
    service: Service = request.app.state.service
    return json_response({"object": "list", "data": [service.model.to_json()]})


@router.get("/v1/models/{model_id:path}")
async def model(request: Request) -> Response:
    """One model; a hub's ids have a slash inside."""
    service: Service = request.app.state.service
    service.check_model(request.path_params["model_id"])
    return json_response(service.model.to_json())
