"""``GET /v1/kvikk/bill``: tokens and money, by day, tenant, key and model."""

from datetime import date

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvikk.errors import RequestError
from kvikk.server.billing.report import GROUPINGS, Wanted, read_groupings
from kvikk.server.keys import Caller
from kvikk.server.replies import json_response
from kvikk.server.service import Service

router = APIRouter()


@router.get("/v1/kvikk/bill")
async def bill(request: Request) -> Response:
    """The bill of this tenant (the operator: of all), of all days that are kept.

    ``by`` groups it, by one or several of day, tenant, key, model. ``from`` and ``to`` are days;
    ``tenant``, ``key`` and ``model`` want those alone.
    """
    service: Service = request.app.state.service
    caller: Caller = request.state.caller
    query = request.query_params
    by = read_groupings(query.get("by"))
    if by is None:
        raise RequestError(
            f"by: expected a list of {', '.join(GROUPINGS)}, not {query.get('by', '')[:100]!r}",
            "by",
        )
    wanted = Wanted(
        caller.reader,
        by,
        _day(request, "from"),
        _day(request, "to"),
        query.get("tenant"),
        query.get("key"),
        query.get("model"),
    )
    return json_response(await service.read_bill(wanted))


def _day(request: Request, name: str) -> str | None:
    """A day of the query. Raises RequestError for anything else."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise RequestError(
            f"{name}: expected a day such as 2026-11-30, not {text[:100]!r}", name
        ) from None
