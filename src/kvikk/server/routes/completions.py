"""``POST /v1/completions``."""

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
    echo = None
    if fields.choices.echo:
        echo = given if isinstance(given, str) else service.tokenizer.decode(given, special=True)
    question = Question("completions", body, prompt, fields, echo)
    tells_tokens = fields.choices.logprobs is not None

    def make_format(request_id: str, created: int, model: str, index: int) -> CompletionAnswer:
        return CompletionAnswer(
            request_id,
            created,
            model,
            include_usage=fields.include_usage,
            index=index,
            tells_tokens=tells_tokens,
        )

    return await answer(request, question, make_format)
