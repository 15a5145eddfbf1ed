"""Errors in Anthropic's shape."""

from collections.abc import Mapping
from typing import Any

from kvikk.wire.errors import ErrorBody

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


def error_json(
    error: ErrorBody, status: int = 500, request_id: str | None = None
) -> dict[str, Any]:
    """The whole body of an error with this HTTP ``status``, or the event that ends a stream."""
    fields = {"type": _TYPES.get(status, "invalid_request_error"), "message": error.message}
    return {"type": "error", "error": fields, "request_id": request_id}
