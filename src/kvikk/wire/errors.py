"""Errors in the OpenAI shape."""

from dataclasses import dataclass
from typing import Any, Literal

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "rate_limit_error",
    "server_error",
]


@dataclass(frozen=True)
class ErrorBody:
    """An error: ``param`` is the path of the field at fault, ``code`` a word programs may test."""

    message: str
    type: ErrorType
    param: str | None = None
    code: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The whole body."""
        fields = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return {"error": fields}
