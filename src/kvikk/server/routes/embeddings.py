"""``POST /v1/embeddings``."""

from dataclasses import replace

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvikk.server.bodies import read_body
from kvikk.server.embedding import EmbeddingAnswer, check_dimensions, check_length
from kvikk.server.openapi import takes
from kvikk.server.question import Prompt
from kvikk.server.service import Service
from kvikk.wire.embeddings import EmbeddingInput, EmbeddingRequest
from kvikk.wire.schemas import EMBEDDING

router = APIRouter()


@router.post("/v1/embeddings", openapi_extra=takes(EMBEDDING))
async def embeddings(request: Request) -> Response:
    """Texts, or token ids, as vectors of length 1: the model's last hidden states."""
    service: Service = request.app.state.service
    _, asked = await read_body(request, EmbeddingRequest.from_json)
    service.check_model(asked.model)
    check_dimensions(asked, service.loaded.decoder.hidden_size)
    prompts = [await _prompt(service, given) for given in asked.inputs]
    for prompt in prompts:
        check_length(prompt, service.max_context_tokens)
    return EmbeddingAnswer(service, request.state.caller, asked, prompts)


async def _prompt(service: Service, given: EmbeddingInput) -> Prompt:
    if isinstance(given.prompt, str):
        return replace(await service.prompts.of_text(given.prompt), parameter=given.path)
    return Prompt(given.prompt, given.path)
