"""An answer as the Responses API has it: whole, or as the events that build it up."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvikk.wire.answer_format import Ending, Event
from kvikk.wire.deltas import AnswerDelta, ReasoningDelta, TextDelta, ToolCallDelta, WholeAnswer
from kvikk.wire.errors import ErrorBody
from kvikk.wire.responses.output import OutputItem, open_item
from kvikk.wire.usage import Usage

Diagnose = Callable[[Usage], dict[str, Any] | None]


class ResponsesAnswer:
    """Writes one answer down.

    ``created`` is in seconds since 1970, ``echo`` what is repeated of the request. ``diagnose``
    says of the final usage why the prompt missed, where that was asked. ``keep`` is given the
    response when it is complete.
    """

    done = b""

    def __init__(
        self,
        request_id: str,
        created: int,
        model: str,
        *,
        echo: Mapping[str, Any],
        diagnose: Diagnose,
        keep: Callable[[dict[str, Any]], None],
    ) -> None:
        self._response: dict[str, Any] = {
            "id": request_id,
            "object": "response",
            "created_at": created,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [],
            "usage": None,
            **echo,
        }
        self._diagnose = diagnose
        self._keep = keep
        self._done_items: list[dict[str, Any]] = []
        self._open: OutputItem | None = None
        self._sequence_number = 0

    def whole(self, answer: WholeAnswer, ending: Ending, usage: Usage) -> dict[str, Any]:
        """The response's body: what a stream of the same answer ends with."""
        for delta in _pieces(answer):
            list(self.delta(delta))
        list(self._close(ending))
        return self._complete(ending, usage)

    def begin(self, usage: Usage) -> Iterable[Event]:
        """The response before anything is said."""
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", response=self._response)

    def delta(self, delta: AnswerDelta) -> Iterable[Event]:
        """More of the item that is open, or the end of that and the beginning of another."""
        if self._open is None or not self._open.goes_on_with(delta):
            yield from self._close(Ending("stop"))
            self._open = open_item(delta, self._response["id"], len(self._done_items))
            yield from self._number(self._open.added())
        yield from self._number(self._open.more(delta))

    def end(self, ending: Ending, usage: Usage | None) -> Iterable[Event]:
        """The end of the last item, and the response as it is in the end."""
        assert usage is not None, "a request has one answer"
        yield from self._close(ending)
        response = self._complete(ending, usage)
        yield self._event(f"response.{response['status']}", response=response)

    def failure(self, error: ErrorBody) -> Iterable[Event]:
        """The response, failed."""
        failed = {"code": "server_error", "message": error.message}
        response = self._response | {
            "status": "failed",
            "error": failed,
            "output": self._done_items,
        }
        yield self._event("response.failed", response=response)

    def _complete(self, ending: Ending, usage: Usage) -> dict[str, Any]:
        cut = ending.reason == "length"
        response = self._response | {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._done_items,
            "usage": usage_json(usage),
            "prompt_cache_diagnostics": self._diagnose(usage),
        }
        self._keep(response)
        return response

    def _close(self, ending: Ending) -> Iterable[Event]:
        if self._open is not None:
            status = "incomplete" if ending.reason == "length" else "completed"
            yield from self._number(self._open.done(status))
            self._done_items.append(self._open.json(status))
            self._open = None

    def _number(self, events: Iterable[dict[str, Any]]) -> Iterable[Event]:
        for event in events:
            yield self._event(event.pop("type"), **event)

    def _event(self, kind: str, **fields: Any) -> Event:
        number = self._sequence_number
        self._sequence_number += 1
        return Event({"type": kind, "sequence_number": number, **fields}, kind)


def usage_json(usage: Usage) -> dict[str, Any]:
    """The ``usage`` object."""
    written, long = usage.cache_write_tokens, usage.long_write_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": written,
            "cache_write_tokens_details": {
                "ttl_30m_tokens": written - long,
                "ttl_12h_tokens": long,
            },
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _pieces(answer: WholeAnswer) -> Iterable[AnswerDelta]:
    if answer.reasoning is not None:
        yield ReasoningDelta(answer.reasoning)
    if answer.text:
        yield TextDelta(answer.text)
    for index, call in enumerate(answer.tool_calls):
        yield ToolCallDelta(index, call.arguments, call.id, call.name)
