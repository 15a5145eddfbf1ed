"""``GET /v1/kvikk/requests``, ``…/requests/{id}`` and ``…/ledger``: where prompt tokens went."""

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvikk.engine.accounts import KEPT_MINUTES
from kvikk.engine.books import Books
from kvikk.errors import RequestError
from kvikk.server.errors import ApiError
from kvikk.server.ledgers import ledger_totals, request_ledger
from kvikk.server.openapi import query
from kvikk.server.replies import json_response
from kvikk.server.service import Service
from kvikk.wire.ledger import RequestLedger
from kvikk.wire.schemas import whole, words

router = APIRouter()

MAX_LISTED = 1000
_DEFAULT_LISTED = 50
_DEFAULT_WINDOW_S = 3600
_MAX_WINDOW_S = KEPT_MINUTES * 60
_GROUPINGS = ("tenant", "key", "route", "model")


@router.get("/v1/kvikk/requests", openapi_extra=query(limit=whole(1, MAX_LISTED)))
async def requests(request: Request) -> Response:
    """The last ``limit`` requests of this tenant (the operator: of all), newest first."""
    limit = _number(request, "limit", _DEFAULT_LISTED, MAX_LISTED)
    reader: str | None = request.state.caller.reader

    def read(books: Books) -> list[RequestLedger]:
        accounts = books.accounts.latest(limit, reader)
        return [request_ledger(books, account, reader) for account in accounts]

    service: Service = request.app.state.service
    found = await service.read_books(read)
    return json_response({"requests": [ledger.to_json() for ledger in found]})


@router.get("/v1/kvikk/requests/{request_id}")
async def one_request(request: Request, request_id: str) -> Response:
    """One request's ledger and its story; 404 if it is not known any more, or another tenant's.

    Beside it, where the server goes by a provider's rules, what that one would have billed.
    """
    reader: str | None = request.state.caller.reader

    def read(books: Books) -> RequestLedger | None:
        account = books.accounts.find(request_id, reader)
        return None if account is None else request_ledger(books, account, reader, with_story=True)

    service: Service = request.app.state.service
    found = await service.read_books(read)
    if found is None:
        raise ApiError(
            404,
            f"no request {request_id[:100]!r}; the last ones are kept from their admission on",
            code="request_not_found",
        )
    return json_response(found.to_json() | service.tabs.told(request_id))


@router.get(
    "/v1/kvikk/ledger",
    openapi_extra=query(window=whole(1, _MAX_WINDOW_S), by=words(*_GROUPINGS)),
)
async def ledger(request: Request) -> Response:
    """Tokens by cause of the last ``window`` seconds, with the rates that follow.

    ``by`` groups them as well: by tenant, key, route or model.
    """
    window_s = _number(request, "window", _DEFAULT_WINDOW_S, _MAX_WINDOW_S)
    by = request.query_params.get("by")
    if by is not None and by not in _GROUPINGS:
        raise RequestError(f"by: expected one of {', '.join(_GROUPINGS)}, not {by[:100]!r}", "by")
    reader: str | None = request.state.caller.reader
    service: Service = request.app.state.service
    read = partial(ledger_totals, window_s=window_s, by=by, tenant=reader)
    return json_response(await service.read_books(read))


def _number(request: Request, name: str, default: int, most: int) -> int:
    """A whole number from 1 to ``most`` of the query. Raises RequestError for anything else."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= most):
        raise RequestError(f"{name}: expected a number from 1 to {most}, not {text[:100]!r}", name)
    return int(text)
