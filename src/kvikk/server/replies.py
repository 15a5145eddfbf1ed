"""Plain answers in JSON."""

from typing import Any

from starlette.responses import Response

from kvikk.wire.events import encode_json


def json_response(content: Any, status: int = 200) -> Response:
    """``content`` as a JSON body."""
    return Response(encode_json(content), status, media_type="application/json")
