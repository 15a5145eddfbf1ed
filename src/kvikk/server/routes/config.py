"""``GET /v1/kvikk/config``: what the server was started with."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

import kvikk
from kvikk.server.keys import require_operator
from kvikk.server.options import ServerOptions
from kvikk.server.replies import json_response
from kvikk.server.service import Service

router = APIRouter()


@router.get("/v1/kvikk/config")
async def config(request: Request) -> Response:
    """Version, model and options, without keys and passwords; the operator's to see (403)."""
    require_operator(request, "the configuration")
    service: Service = request.app.state.service
    return json_response(
        {
            "version": kvikk.__version__,
            "model": service.model.id,
            "max_context_tokens": service.max_context_tokens,
            "options": _shown(service.options),
        }
    )


def _shown(options: ServerOptions) -> dict[str, Any]:
    fields = asdict(options)
    engine = fields["engine"]
    keys = {"num_api_keys": len(options.api_keys), "operator_key": bool(options.operator_key)}
    del fields["api_keys"]
    for holder, name in ((engine, "redis_tier"), (fields, "otlp_traces_endpoint")):
        if holder.get(name) is not None:
            holder[name] = holder[name].rpartition("@")[2]  # a password may be in front
    return {name: _plain(value) for name, value in (fields | keys).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | None) else str(value)
