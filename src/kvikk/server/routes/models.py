"""``GET /v1/models`` and ``GET /v1/models/{id}``, as the client that asks expects it."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvikk.server.errors import speaks_anthropic
from kvikk.server.replies import json_response
from kvikk.server.service import Service
from kvikk.wire.messages.models import model_json, model_list_json

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The model, and its adapters."""
    service: Service = request.app.state.service
    if speaks_anthropic(request.scope):
        return json_response(model_list_json(service.models.cards()))
    cards = [card.to_json() for card in service.models.cards()]
    return json_response({"object": "list", "data": cards})


@router.get("/v1/models/{model_id:path}")
async def model(request: Request, model_id: str) -> Response:
    """One model; a hub's ids have a slash inside."""
    service: Service = request.app.state.service
    card = service.models.find(model_id)
    if speaks_anthropic(request.scope):
        return json_response(model_json(card))
    return json_response(card.to_json())
