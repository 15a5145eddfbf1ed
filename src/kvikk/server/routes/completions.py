"""``POST /v1/completions``."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvikk.server.answers import answer
from kvikk.server.bodies import read_body
from kvikk.server.service import Prompt, Service
from kvikk.wire.chat_completions import FinishReason
from kvikk.wire.completions import Completion, CompletionRequest
from kvikk.wire.usage import Usage

router = APIRouter()


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    """Continue a text, or token ids."""
    service: Service = request.app.state.service
    limit = service.options.max_body_bytes
    completion = await read_body(request, limit, CompletionRequest.from_json)
    fields, given = completion.generation, completion.prompt
    service.check_model(fields.model)
    if isinstance(given, str):
        prompt = await service.tokenize_text(given)
    else:
        prompt = Prompt(given, "prompt")
    return answer(request, prompt, fields, id_prefix="cmpl", make_form=_CompletionFormat)


class _CompletionFormat:
    def __init__(self, request_id: str, created: int, model: str) -> None:
        self._head = (request_id, created, model)

    def whole(self, text: str, finish_reason: FinishReason, usage: Usage) -> dict[str, Any]:
        return Completion(*self._head, text, finish_reason, usage).to_json()

    def piece(self, text: str, finish_reason: FinishReason | None) -> dict[str, Any]:
        return Completion(*self._head, text, finish_reason, None).to_json()

    def usage(self, usage: Usage) -> dict[str, Any]:
        return Completion(*self._head, None, None, usage).to_json()
