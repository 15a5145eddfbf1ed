"""Whatever goes wrong, as an answer in the API's own shape: a status, one line, no traceback."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from kvikk.errors import RequestError, UnknownModelError
from kvikk.wire.errors import ErrorBody, ErrorType
from kvikk.wire.events import encode_json
from kvikk.wire.messages.errors import error_json

_TYPES: Mapping[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        parameter: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(message, _TYPES.get(status, "invalid_request_error"), parameter, code)
        self.headers = headers or {}

    def to_json(self, scope: Scope) -> dict[str, Any]:
        """The body, in the shape that whoever sent the request of ``scope`` expects."""
        if speaks_anthropic(scope):
            return error_json(self.body, self.status, scope.get("state", {}).get("request_id"))
        return self.body.to_json()

    def response(self, scope: Scope) -> Response:
        """The whole HTTP answer to the request of ``scope``."""
        body = encode_json(self.to_json(scope))
        return Response(body, self.status, self.headers, "application/json")


def speaks_anthropic(scope: Scope) -> bool:
    """Whether a request is one of Anthropic's API; of routes that both have, the header tells."""
    path: str = scope["path"]
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return True
    return path.startswith("/v1/models") and "anthropic-version" in Headers(scope=scope)


def as_api_error(error: Exception) -> ApiError:
    """What a caller is told about ``error``."""
    match error:
        case ApiError():
            return error
        case UnknownModelError():
            return ApiError(404, str(error), parameter=error.parameter, code="model_not_found")
        case RequestError():
            return ApiError(400, str(error), parameter=error.parameter)
        case HTTPException():
            return ApiError(error.status_code, error.detail, headers=error.headers)
        case RecursionError():
            return ApiError(400, "the body is nested too deeply")
        case ClientDisconnect():
            return ApiError(400, "the connection closed before the request was complete")
        case _:
            return ApiError(500, "the server failed on this request; its log says why")


def install_error_handlers(app: FastAPI) -> None:
    """Let every error of ``app``, routes that are not there included, leave in an API's shape."""

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code in (404, 405):
            method, path = request.method, request.url.path[:200]
            problem = "no such route" if error.status_code == 404 else f"{method} is not allowed on"
            error = HTTPException(error.status_code, f"{problem} {path!r}", error.headers)
        return as_api_error(error).response(request.scope)

    expected = (ApiError, RequestError, HTTPException, ClientDisconnect, RecursionError)
    for kind in (*expected, Exception):
        app.add_exception_handler(kind, answer)
