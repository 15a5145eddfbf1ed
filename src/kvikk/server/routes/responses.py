"""``/v1/responses``: OpenAI's Responses, asked, counted, looked up and deleted."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvikk.server.answers import answer
from kvikk.server.bodies import read_body
from kvikk.server.errors import ApiError
from kvikk.server.kept import Kept
from kvikk.server.openapi import takes
from kvikk.server.question import Prompt, Question
from kvikk.server.replies import json_response
from kvikk.server.service import Service
from kvikk.wire.events import encode_json
from kvikk.wire.fingerprint import Fingerprint, compare
from kvikk.wire.reading import JsonValue
from kvikk.wire.responses.answer import ResponsesAnswer
from kvikk.wire.responses.diagnostics import diagnostics_json, fingerprint_parameters
from kvikk.wire.responses.request import (
    CountRequest,
    ResponsesPrompt,
    ResponsesRequest,
    input_items,
    join_input,
)
from kvikk.wire.schemas import RESPONSE, RESPONSE_COUNT
from kvikk.wire.segments_responses import responses_segments
from kvikk.wire.usage import Usage

router = APIRouter()


@router.post("/v1/responses", openapi_extra=takes(RESPONSE))
async def responses(request: Request) -> Response:
    """Answer, going on from an earlier response where one is named."""
    service: Service = request.app.state.service
    sent, asked = await read_body(request, ResponsesRequest.from_json)
    service.check_model(asked.generation.model)
    body, prompt = await _prompt(request, sent, asked.prompt, asked.previous_id)
    question = Question("responses", body, prompt, asked.generation)
    tenant = request.state.caller.tenant
    fingerprint = _fingerprint(question)
    compared_id = asked.caching.comparison_response_id
    compared = None if compared_id is None else service.kept.find(tenant, compared_id)
    comparison = None if compared is None else compare(compared.fingerprint, fingerprint)

    def diagnose(usage: Usage) -> dict[str, Any] | None:
        return None if compared_id is None else diagnostics_json(comparison, usage)

    def keep(response: dict[str, Any]) -> None:
        if asked.store:
            items = encode_json([*input_items(body), *response["output"]])
            kept = Kept(fingerprint, encode_json(response), items)
            service.kept.put(tenant, response["id"], kept)

    def make_format(request_id: str, created: int, model: str, index: int) -> ResponsesAnswer:
        return ResponsesAnswer(
            request_id, created, model, echo=asked.echo, diagnose=diagnose, keep=keep
        )

    return await answer(request, question, make_format)


@router.post("/v1/responses/input_tokens", openapi_extra=takes(RESPONSE_COUNT))
async def input_tokens(request: Request) -> Response:
    """How many tokens a request's prompt has, without answering it."""
    service: Service = request.app.state.service
    sent, asked = await read_body(request, CountRequest.from_json)
    if asked.model is not None:
        service.check_model(asked.model)
    _, prompt = await _prompt(request, sent, asked.prompt, asked.previous_id)
    count = len(prompt.token_ids)
    return json_response({"object": "response.input_tokens", "input_tokens": count})


@router.get("/v1/responses/{response_id}")
async def stored_response(request: Request, response_id: str) -> Response:
    """A response that was stored."""
    if request.query_params.get("stream", "false").lower() not in ("false", "0"):
        raise ApiError(400, "stream: a stored response comes whole", parameter="stream")
    return Response(_find(request, response_id).response, media_type="application/json")


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a response that was stored."""
    service: Service = request.app.state.service
    _find(request, response_id)
    service.kept.remove(request.state.caller.tenant, response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def _prompt(
    request: Request, body: Mapping[str, Any], asked: ResponsesPrompt, previous_id: str | None
) -> tuple[Mapping[str, Any], Prompt]:
    """The body as if all had been said at once, and its prompt."""
    if previous_id is not None:
        before = json.loads(_find(request, previous_id, "previous_response_id").items)
        body = join_input(before, body)
        asked = ResponsesPrompt.from_json(JsonValue(body))
    service: Service = request.app.state.service
    prompt = await service.prompts.of_chat(asked.messages, asked.tools, parameter="input")
    return body, prompt


def _find(request: Request, response_id: str, parameter: str | None = None) -> Kept:
    """What is kept of a stored response of this tenant's. Raises ApiError (404)."""
    service: Service = request.app.state.service
    kept = service.kept.find(request.state.caller.tenant, response_id)
    if kept is None or kept.response is None:
        raise ApiError(
            404 if parameter is None else 400,
            f"no response {response_id[:100]!r}; the last ones are kept, unless asked with "
            "store: false",
            parameter=parameter,
            code="response_not_found" if parameter is None else "previous_response_not_found",
        )
    return kept


def _fingerprint(question: Question) -> Fingerprint:
    body = dict(question.body)
    return Fingerprint.of(
        question.fields.model,
        responses_segments(body),
        fingerprint_parameters(body),
        question.prompt.token_ids,
    )
