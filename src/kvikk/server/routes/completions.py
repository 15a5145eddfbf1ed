"""``POST /v1/completions``."""

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvikk.server.answers import answer
from kvikk.server.bodies import read_body
from kvikk.server.openapi import takes
from kvikk.server.question import Prompt, Question
from kvikk.server.service import Service
from kvikk.wire.completions import CompletionAnswer, CompletionRequest
from kvikk.wire.schemas import COMPLETION

router = APIRouter()


@router.post("/v1/completions", openapi_extra=takes(COMPLETION))
async def completions(request: Request) -> Response:
    """Continue a text, or token ids."""
    service: Service = request.app.state.service
    body, asked = await read_body(request, CompletionRequest.from_json)
    fields, given = asked.generation, asked.prompt
    service.check_model(fields.model)
    if isinstance(given, str):
        prompt = await service.prompts.of_text(given)
    else:
        prompt = Prompt(given, "prompt")
    question = Question("completions", body, prompt, fields)
    return answer(request, question, partial(CompletionAnswer, include_usage=fields.include_usage))
