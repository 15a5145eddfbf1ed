"""Prompts as vectors, on their way to the client: one request of the engine for each input.

A few at a time are with the engine, so that a long list leaves room for others. When the client
goes, those are aborted and the rest is never begun.
"""

import asyncio
import secrets
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvikk.engine.requests import Generation, Origin, Output, Request
from kvikk.errors import RequestError
from kvikk.server.answers import failure
from kvikk.server.billing.tabs import Tab
from kvikk.server.errors import ApiError
from kvikk.server.keys import Caller
from kvikk.server.mailbox import Mailbox
from kvikk.server.question import Prompt
from kvikk.server.service import Service, request_salt
from kvikk.server.tracing.record import RequestTrace
from kvikk.wire.embeddings import EmbeddingRequest, embeddings_json
from kvikk.wire.events import encode_json
from kvikk.wire.ledger import RequestLedger

_AT_ONCE = 16
_ROUTE = "/v1/embeddings"


class EmbeddingAnswer(Response):
    """The response to one request for ``prompts`` as vectors, in their order.

    A request of the engine is called after the response, and with several by its number as well:
    ``embd-…-0``, ``embd-…-1``.
    """

    def __init__(
        self, service: Service, caller: Caller, asked: EmbeddingRequest, prompts: Sequence[Prompt]
    ) -> None:
        self.background = None
        self._service = service
        self._caller = caller
        self._asked = asked
        self._prompts = prompts
        self._id = f"embd-{secrets.token_hex(12)}"
        self._running: set[str] = set()
        self._mailboxes: list[Mailbox] = []
        self._request_ids: list[str] = []  # of the engine
        self._counts = {"prompt_tokens": 0, "cached_tokens": 0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all vectors when they are there; stop the work if the client goes."""
        scope["state"]["request_id"] = self._id
        work = asyncio.create_task(self._embed())
        watcher = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((work, watcher), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await self._send(send, work.result())
        finally:
            watcher.cancel()
            work.cancel()
            scope["state"]["counts"] = self._counts
            scope["state"]["request_ids"] = self._request_ids
            trace: RequestTrace | None = scope["state"].get("trace")
            if trace is not None:
                trace.note_vectors(self._id, self._asked.model, self._counts, self._ledgers)
            for request_id in self._running:
                self._service.worker.abort(request_id)

    async def _send(self, send: Send, vectors: list[NDArray[np.float32]]) -> None:
        body = embeddings_json(
            self._id,
            int(time.time()),
            self._asked.model,
            vectors,
            is_base64=self._asked.is_base64,
            **self._counts,
        )
        ledgers = self._ledgers
        if self._asked.include_ledger:
            body["kvikk"] = {"ledgers": [ledger.to_json() for ledger in ledgers]}
        content = encode_json(body)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
            (b"x-request-id", self._id.encode()),
        ]
        if len(ledgers) == 1:
            headers.append((b"x-kvikk-ledger", ledgers[0].header.encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    @property
    def _ledgers(self) -> list[RequestLedger]:
        """Of those prompts that were admitted so far."""
        return [one.ledger for one in self._mailboxes if one.ledger is not None]

    async def _embed(self) -> list[NDArray[np.float32]]:
        """All vectors. Raises ApiError or RequestError if one cannot be had."""
        vectors: list[NDArray[np.float32]] = []
        while len(vectors) < len(self._prompts):
            # However busy others keep the engine, what is under way makes room for the next.
            sent: list[tuple[str, Mailbox, Tab]] = []
            for number in range(len(vectors), min(len(vectors) + _AT_ONCE, len(self._prompts))):
                try:
                    sent.append(self._submit(number))
                except ApiError as error:
                    if error.status != 429 or not sent:
                        raise
                    break
            for request_id, mailbox, tab in sent:
                output = await _last(mailbox)
                self._running.remove(request_id)
                if output.embedding is None:
                    raise failure(output)
                vectors.append(_unit(output.embedding))
                usage = tab.usage(output.usage)
                self._counts["prompt_tokens"] += usage.prompt_tokens
                self._counts["cached_tokens"] += usage.cached_tokens
        return vectors

    def _submit(self, number: int) -> tuple[str, Mailbox, Tab]:
        """Hand one prompt to the engine."""
        service, caller, asked = self._service, self._caller, self._asked
        prompt = self._prompts[number]
        request = Request(
            self._id if len(self._prompts) == 1 else f"{self._id}-{number}",
            prompt.token_ids,
            Generation(max_tokens=1),
            request_salt(caller.salt, asked.cache_salt),
            Origin(caller.tenant, caller.key, _ROUTE, asked.model),
            prompt.parts,
            asked.priority,
            adapter=service.models.adapter_of(asked.model),
            pooling=asked.pooling,
        )
        tab = service.tabs.open(None)
        try:
            mailbox = service.hand_in(request, caller, tab)
        except RequestError as error:
            raise RequestError(f"{prompt.parameter}: {error}", prompt.parameter) from None
        self._mailboxes.append(mailbox)
        self._request_ids.append(request.id)
        self._running.add(request.id)
        return request.id, mailbox, tab


async def _last(mailbox: Mailbox) -> Output:
    """The last output of a request, which has only one."""
    outputs: list[Output] = []
    while not (outputs and outputs[-1].ends_request):
        outputs = await mailbox.take()
    return outputs[-1]


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """The vector at length 1."""
    length = float(np.linalg.norm(vector.astype(np.float64)))
    scaled: NDArray[np.float32] = (vector / (length or 1.0)).astype(np.float32)
    return scaled


def check_dimensions(asked: EmbeddingRequest, hidden_size: int) -> None:
    """Refuse vectors of another length: none of these models was trained to be cut short."""
    if asked.dimensions not in (None, hidden_size):
        raise RequestError(
            f"dimensions: this model's vectors have {hidden_size} numbers, and it was not trained "
            f"to have them cut to {asked.dimensions}; leave it out",
            "dimensions",
        )


def check_length(prompt: Prompt, max_context_tokens: int) -> None:
    """Refuse a prompt that does not fit, as an API says that. Raises ApiError."""
    if len(prompt.token_ids) > max_context_tokens:
        raise ApiError(
            400,
            f"{prompt.parameter}: has {len(prompt.token_ids)} tokens; this server's limit is "
            f"{max_context_tokens}",
            parameter=prompt.parameter,
            code="context_length_exceeded",
        )
