"""``/tokenize``, ``/detokenize`` and ``/tokenizer_info``, in vLLM's form: tokens of texts."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvikk.errors import RequestError
from kvikk.server.bodies import read_body
from kvikk.server.openapi import takes
from kvikk.server.replies import json_response
from kvikk.server.service import Service
from kvikk.wire.schemas import DETOKENIZE, TOKENIZE
from kvikk.wire.tokens import DetokenizeRequest, TokenizeRequest, tokenized

router = APIRouter()


@router.post("/tokenize", openapi_extra=takes(TOKENIZE))
async def tokenize(request: Request) -> Response:
    """The tokens of the prompt that a text, or a conversation, makes."""
    service: Service = request.app.state.service
    _, asked = await read_body(request, TokenizeRequest.from_json)
    if asked.model is not None:
        service.check_model(asked.model)
    if asked.text is None:
        prompt = await service.prompts.of_chat(asked.messages, asked.tools)
    else:
        prompt = await service.prompts.of_text(asked.text, plain=not asked.add_special_tokens)
    token_ids = list(prompt.token_ids)
    strings = None
    if asked.with_strings:
        strings = [service.tokenizer.decode([one], special=True) for one in token_ids]
    return json_response(tokenized(token_ids, service.max_context_tokens, strings))


@router.post("/detokenize", openapi_extra=takes(DETOKENIZE))
async def detokenize(request: Request) -> Response:
    """The text that tokens are. 400 for ids that the vocabulary does not have."""
    service: Service = request.app.state.service
    _, asked = await read_body(request, DetokenizeRequest.from_json)
    if asked.model is not None:
        service.check_model(asked.model)
    size = service.tokenizer.vocabulary_size
    for number, token_id in enumerate(asked.token_ids):
        if token_id >= size:
            place = f"tokens[{number}]"
            raise RequestError(
                f"{place}: the vocabulary has no {token_id}, only 0 to {size - 1}", place
            )
    return json_response({"prompt": service.tokenizer.decode(asked.token_ids, special=True)})


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> Response:
    """The names of the tokens that begin and end a text, and the chat template."""
    service: Service = request.app.state.service
    tokenizer = service.tokenizer

    def name(token_id: int | None) -> str | None:
        return None if token_id is None else tokenizer.decode([token_id], special=True)

    return json_response(
        {
            "tokenizer_class": type(tokenizer).__name__,
            "bos_token": name(tokenizer.bos_token_id),
            "eos_token": name(tokenizer.eos_token_id),
            "pad_token": None,
            "vocab_size": tokenizer.vocabulary_size,
            "chat_template": service.prompts.template_source,
        }
    )
