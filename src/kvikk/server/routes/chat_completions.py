"""``POST /v1/chat/completions``."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvikk.server.answers import answer
from kvikk.server.bodies import read_body
from kvikk.server.openapi import takes
from kvikk.server.question import Question
from kvikk.server.service import Service
from kvikk.wire.chat_completions import ChatAnswer, ChatCompletionRequest
from kvikk.wire.schemas import CHAT_COMPLETION

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=takes(CHAT_COMPLETION))
async def chat_completions(request: Request) -> Response:
    """Continue a conversation."""
    service: Service = request.app.state.service
    body, asked = await read_body(request, ChatCompletionRequest.from_json)
    fields = asked.generation
    service.check_model(fields.model)
    prompt = await service.prompts.of_chat(asked.messages, asked.tools)
    question = Question("chat_completions", body, prompt, fields)

    def make_format(request_id: str, created: int, model: str, index: int) -> ChatAnswer:
        return ChatAnswer(
            request_id, created, model, include_usage=fields.include_usage, index=index
        )

    return await answer(request, question, make_format)
