"""What all routes share: the engine's worker, the model's text side, keys and figures."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

from kvikk.backends.base import SamplingParameters
from kvikk.cache.records import ResetResult
from kvikk.engine.engine import Engine
from kvikk.engine.loading import LoadedEngine
from kvikk.engine.requests import Generation, Output, Request
from kvikk.engine.worker import EngineWorker
from kvikk.errors import BusyError
from kvikk.server.errors import ApiError
from kvikk.server.mailbox import Mailbox, Postman
from kvikk.server.metrics import Metrics
from kvikk.server.options import ServerOptions
from kvikk.server.threads import run_beside_loop_if
from kvikk.text.chat import require_chat_template
from kvikk.wire.chat_completions import ChatMessage
from kvikk.wire.generation import GenerationFields
from kvikk.wire.models import ModelCard

# Longer texts are tokenised beside the event loop, which would otherwise stand still for them.
_LONG_TEXT_CHARACTERS = 8192


class Service:
    """One served model."""

    def __init__(self, loaded: LoadedEngine, options: ServerOptions) -> None:
        self.options = options
        self.worker = EngineWorker(loaded.engine)
        self.max_context_tokens = loaded.engine.max_context_tokens
        self.model = ModelCard(_model_id(loaded.model), int(time.time()), self.max_context_tokens)
        self.metrics = Metrics(self.model.id, self.worker.stats)
        self._tokenizer = loaded.tokenizer
        self._chat_template = loaded.chat_template

    @cached_property
    def _postman(self) -> Postman:
        return Postman(asyncio.get_running_loop())

    def check_model(self, model: str) -> None:
        """Raise ApiError (404) unless ``model`` is the one that is served."""
        if model != self.model.id:
            raise ApiError(
                404,
                f"no model {model[:200]!r} here; this server has {self.model.id!r}",
                parameter="model",
                code="model_not_found",
            )

    async def tokenize_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """The prompt that the model's template makes of a conversation."""
        template = require_chat_template(self._chat_template, self.model.id)
        plain = [_template_message(message) for message in messages]
        length = sum(len(text) for message in plain for text in message.values())

        def tokenize() -> list[int]:
            return self._tokenizer.encode(template.render(plain), add_bos=False)

        return await run_beside_loop_if(length > _LONG_TEXT_CHARACTERS, tokenize)

    async def tokenize_text(self, text: str) -> list[int]:
        """The prompt that a plain text is."""
        tokenize = partial(self._tokenizer.encode, text)
        return await run_beside_loop_if(len(text) > _LONG_TEXT_CHARACTERS, tokenize)

    def submit(
        self,
        token_ids: Sequence[int],
        fields: GenerationFields,
        *,
        id_prefix: str,
        prompt_parameter: str,
        tenant_salt: bytes,
    ) -> tuple[str, Mailbox]:
        """Hand a prompt to the engine: the request's id, and where its outputs arrive.

        Raises ApiError or RequestError if it cannot be served, now or ever; ``prompt_parameter`` is
        the field the prompt came in.
        """
        if len(token_ids) >= self.max_context_tokens:
            raise ApiError(
                400,
                f"the prompt has {len(token_ids)} tokens; with one for the answer this server's "
                f"limit is {self.max_context_tokens}",
                parameter=prompt_parameter,
                code="context_length_exceeded",
            )
        request = Request(
            f"{id_prefix}-{secrets.token_hex(12)}",
            token_ids,
            Generation(
                max_tokens=fields.max_tokens,
                sampling=SamplingParameters(fields.temperature, fields.top_k, fields.top_p),
                seed=fields.seed,
                stop=fields.stop,
                stop_token_ids=fields.stop_token_ids,
                ignore_eos=fields.ignore_eos,
            ),
            _salt(tenant_salt, fields.cache_salt),
        )
        mailbox = Mailbox()
        postman, observe = self._postman, self.metrics.observer()

        def listen(output: Output) -> None:
            observe(output)
            postman.post(mailbox, output)

        try:
            self.worker.submit(request, listen)
        except BusyError as error:
            raise self._busy(error) from None
        return request.id, mailbox

    async def reset_cache(self) -> ResetResult:
        """Forget all that was computed. Raises ApiError if the engine has stopped."""
        try:
            return await asyncio.wrap_future(self.worker.call(Engine.reset_cache))
        except BusyError as error:
            raise self._busy(error) from None

    def _busy(self, error: BusyError) -> ApiError:
        """Too many requests for now (429), or no more of them at all (503)."""
        status = 429 if self.worker.accepting else 503
        headers = {"Retry-After": str(error.retry_after_s)}
        return ApiError(status, str(error), headers=headers)


def _model_id(model: str) -> str:
    """What clients call the model: an alias or hub id as it is, a file or folder by its name."""
    path = Path(model).expanduser()
    if not path.exists():
        return model
    return path.resolve().stem if path.is_file() else path.resolve().name


def _template_message(message: ChatMessage) -> dict[str, str]:
    # "developer" is the API's newer word for what every template calls the system.
    role = "system" if message.role == "developer" else message.role
    plain = {"role": role, "content": message.content or ""}
    return plain if message.name is None else plain | {"name": message.name}


def _salt(tenant_salt: bytes, cache_salt: str) -> bytes:
    if not tenant_salt and not cache_salt:
        return b""
    # Lone surrogates, which JSON can hold, are kept apart: salts that differ never meet.
    salt = cache_salt.encode("utf-8", "surrogatepass")
    return hashlib.sha256(tenant_salt + b"\0" + salt).digest()
