"""``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``: adapters come and go while it serves.

They open folders of the server's machine, so they take the operator's key, and a server that was
started without one has no such routes.
"""

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvikk.errors import ModelError
from kvikk.server.bodies import read_body
from kvikk.server.errors import ApiError
from kvikk.server.keys import require_operator
from kvikk.server.openapi import takes
from kvikk.server.replies import json_response
from kvikk.server.service import Service
from kvikk.wire.adapters import LoadAdapterRequest, UnloadAdapterRequest
from kvikk.wire.schemas import LOAD_ADAPTER, UNLOAD_ADAPTER

router = APIRouter()


@router.post("/v1/load_lora_adapter", openapi_extra=takes(LOAD_ADAPTER))
async def load(request: Request) -> Response:
    """Read an adapter as PEFT writes it and let requests name it.

    400 if it cannot be run or was made for another model, or if the name is taken.
    """
    service = _operated(request)
    _, asked = await read_body(request, LoadAdapterRequest.from_json)
    if asked.name == service.model.id:
        raise ApiError(400, f"{asked.name[:200]!r} is the model itself", parameter="lora_name")
    try:
        adapter = await asyncio.to_thread(service.loaded.read_adapter, asked.path)
        await service.call(lambda engine: engine.adapters.load(asked.name, adapter))
    except ModelError as error:
        raise ApiError(400, str(error), parameter="lora_path") from None
    return json_response(service.models.find(asked.name).to_json())


@router.post("/v1/unload_lora_adapter", openapi_extra=takes(UNLOAD_ADAPTER))
async def unload(request: Request) -> Response:
    """Let no new request name an adapter; ``running`` answers finish with it. 404 if there is none.

    Its memory is given back with the last of them.
    """
    service = _operated(request)
    _, asked = await read_body(request, UnloadAdapterRequest.from_json)
    if not service.models.adapter_of(service.models.find(asked.name).id):
        raise ApiError(400, f"{asked.name[:200]!r} is the model itself", parameter="lora_name")
    running = await service.call(lambda engine: engine.adapters.unload(asked.name))
    return json_response({"id": asked.name, "unloaded": True, "running": running})


def _operated(request: Request) -> Service:
    service: Service = request.app.state.service
    if service.options.operator_key is None:
        raise ApiError(
            403,
            "adapters come and go by the operator's key alone; start the server with "
            "--operator-key, or with --adapter",
            code="forbidden",
        )
    require_operator(request, "the list of adapters")
    return service
