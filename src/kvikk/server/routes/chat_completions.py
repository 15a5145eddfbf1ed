"""``POST /v1/chat/completions``."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvikk.server.answers import answer
from kvikk.server.bodies import read_body
from kvikk.server.service import Service
from kvikk.wire.chat_completions import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    FinishReason,
)
from kvikk.wire.usage import Usage

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """Continue a conversation."""
    service: Service = request.app.state.service
    limit = service.options.max_body_bytes
    chat = await read_body(request, limit, ChatCompletionRequest.from_json)
    service.check_model(chat.generation.model)
    prompt = await service.tokenize_chat(chat.messages)
    return answer(request, prompt, chat.generation, id_prefix="chatcmpl", make_form=_ChatFormat)


class _ChatFormat:
    def __init__(self, request_id: str, created: int, model: str) -> None:
        self._head = (request_id, created, model)
        self._role: str | None = "assistant"  # said once, in the first chunk

    def whole(self, text: str, finish_reason: FinishReason, usage: Usage) -> dict[str, Any]:
        return ChatCompletion(*self._head, text, finish_reason, usage).to_json()

    def piece(self, text: str, finish_reason: FinishReason | None) -> dict[str, Any]:
        role, self._role = self._role, None
        return ChatCompletionChunk(*self._head, text, role, finish_reason).to_json()

    def usage(self, usage: Usage) -> dict[str, Any]:
        return ChatCompletionChunk(*self._head, usage=usage).to_json()
