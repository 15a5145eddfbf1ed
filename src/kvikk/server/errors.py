"""Whatever goes wrong, as an answer in the OpenAI shape: a status, one line, no traceback."""

from collections.abc import Mapping

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from kvikk.errors import RequestError
from kvikk.wire.errors import ErrorBody, ErrorType
from kvikk.wire.events import encode_json

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

    def response(self) -> Response:
        """The whole HTTP answer."""
        return Response(
            encode_json(self.body.to_json()), self.status, self.headers, "application/json"
        )


def as_api_error(error: Exception) -> ApiError:
    """What a caller is told about ``error``."""
    match error:
        case ApiError():
            return error
        case RequestError():
            return ApiError(400, str(error), parameter=error.parameter)
        case HTTPException():
            return ApiError(error.status_code, error.detail, headers=error.headers)
        case ClientDisconnect():
            return ApiError(400, "the connection closed before the request was complete")
        case _:
            return ApiError(500, "the server failed on this request; its log says why")


def install_error_handlers(app: FastAPI) -> None:
    """Let every error of ``app``, routes that are not there included, leave in the OpenAI shape."""

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code in (404, 405):
            method, path = request.method, request.url.path[:200]
            problem = "no such route" if error.status_code == 404 else f"{method} is not allowed on"
            error = HTTPException(error.status_code, f"{problem} {path!r}", error.headers)
        return as_api_error(error).response()

    for kind in (ApiError, RequestError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, answer)
