"""One request's answer on its way to the client: whole, or as server-sent events.

While the answer is made, the connection is watched. When the client goes, the request is aborted,
whichever of the two it had asked for, and everything it held is free before the engine's next step.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from kvikk.engine.requests import Output
from kvikk.server.billing.tabs import Tab
from kvikk.server.choices import Choice, Choices, PromptTokens
from kvikk.server.errors import ApiError, as_api_error
from kvikk.server.keys import Caller
from kvikk.server.mailbox import Mailbox
from kvikk.server.question import Question
from kvikk.server.service import Service
from kvikk.server.tracing.record import RequestTrace
from kvikk.wire.answer_format import AnswerFormat, Ending, Event, merge
from kvikk.wire.events import encode_event, encode_json
from kvikk.wire.generation import GenerationFields
from kvikk.wire.usage import Usage

logger = logging.getLogger(__name__)


# Makes the format of the request's n-th answer, from the request's id, the time in seconds since
# 1970, the model and n.
FormatMaker = Callable[[str, int, str, int], AnswerFormat]


async def answer(request: Request, question: Question, make_format: FormatMaker) -> Response:
    """Hand a question to the engine; the response that will bring its answers.

    Every API's requests come together here. Raises ApiError or RequestError if it cannot be served.
    """
    service: Service = request.app.state.service
    caller: Caller = request.state.caller
    grammar = await service.compile(question)
    tab = service.open_tab(question, caller)
    request_id, mailbox = service.submit(
        question, caller, tab, route=request.url.path, grammar=grammar
    )
    now_s, prompt, wanted = int(time.time()), PromptTokens(), question.fields.choices
    choices = [
        Choice(
            make_format(request_id, now_s, question.fields.model, min(number, wanted.count - 1)),
            question,
            service.tokenizer,
            prompt,
        )
        for number in range(wanted.num_made)
    ]
    answers = Choices(choices, wanted.count)
    return Answer(service, request_id, mailbox, answers, question.fields, tab)


class Answer(Response):
    """The response to one submitted request.

    Nothing is sent before the first output: with it the prompt's ledger is known, which a header
    tells, and whether the request failed before it.
    """

    def __init__(
        self,
        service: Service,
        request_id: str,
        mailbox: Mailbox,
        choices: Choices,
        fields: GenerationFields,
        tab: Tab,
    ) -> None:
        self.background = None
        self._service = service
        self._request_id = request_id
        self._mailbox = mailbox
        self._choices = choices
        self._fields = fields
        self._tab = tab
        self._counts: dict[str, int] = {}  # for the access log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer as it is made; abort the request if the client goes or the task ends."""
        scope["state"]["request_id"] = self._request_id
        watcher = asyncio.create_task(self._watch(receive))
        finished = False
        try:
            send_it = self._send_events if self._fields.stream else self._send_whole
            finished = await send_it(scope, send)
        finally:
            watcher.cancel()
            scope["state"]["counts"] = self._counts | self._tab.counts
            self._note(scope["state"].get("trace"))
            if not finished:
                self._service.worker.abort(self._request_id)

    def _note(self, trace: RequestTrace | None) -> None:
        """Say what became of the request, where it is traced."""
        if trace is not None:
            trace.note_request(self._request_id, self._fields)
            trace.note_answer(
                self._mailbox.latest,
                self._mailbox.ledger,
                completion_tokens=self._choices.num_tokens,
                finish_reasons=self._choices.finish_reasons,
            )

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._mailbox.disconnect()

    async def _send_whole(self, scope: Scope, send: Send) -> bool:
        """Send one body when all of it is there; False if the client went before."""
        while True:
            for output in await self._mailbox.take():
                self._choices[output.choice].read(output)
                if output.finish_reason in ("abort", "error"):
                    await self._send_failure(scope, send, output)
                    return output.ends_request
                if output.ends_request:
                    body = encode_json(self._with_ledger(self._whole(output)))
                    await self._send_body(send, 200, body)
                    return True
            if self._mailbox.disconnected:
                return False

    def _whole(self, last: Output) -> dict[str, Any]:
        usage = self._usage(last)
        bodies = [
            choice.form.whole(choice.whole(), choice.ending or Ending("stop"), usage)
            for choice in self._choices.best()
        ]
        return merge(bodies, usage)

    def _usage(self, output: Output) -> Usage:
        """All answers', so far."""
        counted = replace(output.usage, completion_tokens=self._choices.num_tokens)
        self._counts = asdict(counted)
        thought = self._choices.num_reasoning_tokens
        return replace(self._tab.usage(counted), reasoning_tokens=thought)

    async def _send_failure(self, scope: Scope, send: Send, output: Output) -> bool:
        error = failure(output)
        await self._send_body(send, error.status, encode_json(error.to_json(scope)))
        return True

    async def _send_body(self, send: Send, status: int, body: bytes) -> None:
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *self._own_headers(),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _own_headers(self) -> Iterator[tuple[bytes, bytes]]:
        for name in (b"x-request-id", b"request-id"):  # OpenAI's and Anthropic's
            yield name, self._request_id.encode()
        if self._mailbox.ledger is not None:
            yield b"x-kvikk-ledger", self._mailbox.ledger.header.encode()
        if self._tab.header is not None:
            yield b"x-kvikk-provider", self._tab.header.encode()

    async def _send_events(self, scope: Scope, send: Send) -> bool:
        """Send an event for each output; False if the client went before the last."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # a proxy in between shall not wait for more
        ]
        started = False
        while True:
            outputs = _up_to_failure(await self._mailbox.take())
            if self._mailbox.disconnected:
                return any(output.ends_request for output in outputs)
            if not started and outputs[0].finish_reason in ("abort", "error"):
                return await self._send_failure(scope, send, outputs[0])
            if not started:
                headers += self._own_headers()
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                started = True
            # A slow reader may have several waiting; they go out in one write.
            events = b"".join(map(self._events, outputs))
            last = outputs[-1].ends_request or outputs[-1].finish_reason in ("abort", "error")
            if events or last:
                await send(_body(events, more=not last))
            if last:
                return outputs[-1].ends_request

    def _events(self, output: Output) -> bytes:
        """The bytes for one output; none while half a character or a stop string is held back."""
        choice, reason = self._choices[output.choice], output.finish_reason
        form = choice.form
        if reason in ("abort", "error"):
            # The status is long out: the error is an event, and nothing follows it.
            return b"".join(map(_encode, form.failure(failure(output).body)))
        events = [] if choice.has_begun else list(form.begin(self._tab.usage(output.usage)))
        events += [event for delta in choice.read(output) for event in form.delta(delta)]
        if choice.ending is None:
            return b"".join(map(_encode, events))
        events += form.end(choice.ending, self._usage(output) if output.ends_request else None)
        if not output.ends_request:
            return b"".join(map(_encode, events))
        events[-1] = Event(self._with_ledger(events[-1].data), events[-1].name)
        return b"".join(map(_encode, events)) + form.done

    def _with_ledger(self, body: dict[str, Any]) -> dict[str, Any]:
        """The last that is sent, with the prompt's ledger where it was asked for."""
        ledger = self._mailbox.ledger
        if not self._fields.include_ledger or ledger is None:
            return body
        return body | {"kvikk": {"ledger": ledger.to_json(), **self._tab.told()}}


def _up_to_failure(outputs: list[Output]) -> list[Output]:
    """Of a step's outputs those that are told: a failure of one answer is the request's."""
    for number, output in enumerate(outputs, 1):
        if output.finish_reason in ("abort", "error"):
            return outputs[:number]
    return outputs


def _encode(event: Event) -> bytes:
    return encode_event(event.data, event.name)


def _body(content: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


def failure(output: Output) -> ApiError:
    """What a caller is told of an output that is an end by failure."""
    if output.finish_reason == "abort":
        return ApiError(503, "the server is shutting down; the answer was cut short")
    if output.refusal is not None:
        return as_api_error(output.refusal)
    logger.error("request %s failed: %s", output.request_id, output.error)
    return ApiError(500, "the engine failed on this request; the server's log says why")
