"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: Anthropic's API."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvikk.server.answers import answer
from kvikk.server.bodies import read_body
from kvikk.server.kept import Kept
from kvikk.server.openapi import takes
from kvikk.server.question import Prompt, Question
from kvikk.server.replies import json_response
from kvikk.server.service import Service
from kvikk.wire.fingerprint import Fingerprint, compare
from kvikk.wire.messages.answer import MessagesAnswer
from kvikk.wire.messages.diagnostics import diagnostics_json, fingerprint_parameters
from kvikk.wire.messages.request import MessagesPrompt, MessagesRequest, read_count_request
from kvikk.wire.schemas import MESSAGE, MESSAGE_COUNT
from kvikk.wire.segments_messages import messages_segments

router = APIRouter()


@router.post("/v1/messages", openapi_extra=takes(MESSAGE))
async def messages(request: Request) -> Response:
    """Continue a conversation."""
    service: Service = request.app.state.service
    body, asked = await read_body(request, MessagesRequest.from_json)
    service.check_model(asked.generation.model)
    prompt = await _tokenize(service, asked.prompt)
    question = Question("messages", body, prompt, asked.generation)
    tenant = request.state.caller.tenant
    fingerprint = Fingerprint.of(
        asked.generation.model,
        messages_segments(dict(body)),
        fingerprint_parameters(body),
        prompt.token_ids,
    )
    diagnostics = None
    if asked.previous_message_id is not None:
        kept = service.kept.find(tenant, asked.previous_message_id)
        comparison = None if kept is None else compare(kept.fingerprint, fingerprint)
        diagnostics = diagnostics_json(comparison)

    def make_format(request_id: str, created: int, model: str, index: int) -> MessagesAnswer:
        service.kept.put(tenant, request_id, Kept(fingerprint))
        return MessagesAnswer(request_id, model, diagnostics)

    return await answer(request, question, make_format)


@router.post("/v1/messages/count_tokens", openapi_extra=takes(MESSAGE_COUNT))
async def count_tokens(request: Request) -> Response:
    """How many tokens a request's prompt has, without answering it."""
    service: Service = request.app.state.service
    _, (model, asked) = await read_body(request, read_count_request)
    service.check_model(model)
    prompt = await _tokenize(service, asked)
    return json_response({"input_tokens": len(prompt.token_ids)})


async def _tokenize(service: Service, asked: MessagesPrompt) -> Prompt:
    return await service.prompts.of_chat(asked.messages, asked.tools, continues=asked.continues)
