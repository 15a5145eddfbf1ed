"""An answer as the Messages API has it: whole, or as named events of content blocks."""

import json
from collections.abc import Iterable
from typing import Any

from kvikk.wire.answer_format import Ending, Event
from kvikk.wire.deltas import AnswerDelta, ReasoningDelta, TextDelta, ToolCallDelta, WholeAnswer
from kvikk.wire.errors import ErrorBody
from kvikk.wire.messages.errors import error_json
from kvikk.wire.usage import Usage


class MessagesAnswer:
    """Writes one answer down. ``diagnostics``, where asked for, says why its prompt missed."""

    done = b""

    def __init__(self, request_id: str, model: str, diagnostics: dict[str, Any] | None) -> None:
        self._message: dict[str, Any] = {
            "id": request_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "diagnostics": diagnostics,
        }
        self._blocks = 0
        self._open: tuple[type[AnswerDelta], int] | None = None  # the kind, and which call
        self._called = False

    def whole(self, answer: WholeAnswer, ending: Ending, usage: Usage) -> dict[str, Any]:
        """The response's body."""
        content: list[dict[str, Any]] = []
        if answer.reasoning is not None:
            content.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
        if answer.text:
            content.append({"type": "text", "text": answer.text})
        content += [
            _tool_use(call.id, call.name, read_arguments(call.arguments))
            for call in answer.tool_calls
        ]
        return {
            **self._message,
            "content": content,
            **_stop(ending, called=bool(answer.tool_calls)),
            "usage": usage_json(usage),
        }

    def begin(self, usage: Usage) -> Iterable[Event]:
        """The message so far: its prompt's usage and nothing said."""
        message = {**self._message, "usage": usage_json(usage) | {"output_tokens": 0}}
        yield _event({"type": "message_start", "message": message})
        yield _event({"type": "ping"})

    def delta(self, delta: AnswerDelta) -> Iterable[Event]:
        """More of the block that is open, or the end of that and the beginning of another."""
        kind = (type(delta), delta.index if isinstance(delta, ToolCallDelta) else 0)
        if self._open != kind:
            yield from self._close()
            self._open = kind
            yield self._block("content_block_start", content_block=_empty_block(delta))
        match delta:
            case TextDelta(text):
                piece = {"type": "text_delta", "text": text}
            case ReasoningDelta(text):
                piece = {"type": "thinking_delta", "thinking": text}
            case ToolCallDelta():
                self._called = True
                piece = {"type": "input_json_delta", "partial_json": delta.arguments}
        yield self._block("content_block_delta", delta=piece)

    def end(self, ending: Ending, usage: Usage | None) -> Iterable[Event]:
        """Why it ends, and what it used in all."""
        assert usage is not None, "a request has one answer"
        yield from self._close()
        yield _event(
            {
                "type": "message_delta",
                "delta": _stop(ending, self._called),
                "usage": usage_json(usage),
            }
        )
        yield _event({"type": "message_stop"})

    def failure(self, error: ErrorBody) -> Iterable[Event]:
        """The error as an event."""
        yield _event(error_json(error, request_id=self._message["id"]))

    def _close(self) -> Iterable[Event]:
        if self._open is not None:
            yield self._block("content_block_stop")
            self._open = None
            self._blocks += 1

    def _block(self, kind: str, **fields: Any) -> Event:
        return _event({"type": kind, "index": self._blocks, **fields})


def usage_json(usage: Usage) -> dict[str, Any]:
    """The ``usage`` object; of it ``input_tokens`` are those that went past the cache."""
    return {
        "input_tokens": usage.plain_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write_tokens - usage.long_write_tokens,
            "ephemeral_1h_input_tokens": usage.long_write_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "service_tier": "standard",
    }


def read_arguments(arguments: str) -> dict[str, Any]:
    """A call's arguments as the object that they are; empty where the model wrote none."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _stop(ending: Ending, called: bool) -> dict[str, Any]:
    if ending.reason == "length":
        reason = "max_tokens"
    elif ending.stop_string is not None:
        reason = "stop_sequence"
    else:
        reason = "tool_use" if called else "end_turn"
    return {"stop_reason": reason, "stop_sequence": ending.stop_string}


def _empty_block(delta: AnswerDelta) -> dict[str, Any]:
    match delta:
        case TextDelta():
            return {"type": "text", "text": ""}
        case ReasoningDelta():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case ToolCallDelta():
            return _tool_use(delta.id, delta.name, {})


def _tool_use(call_id: str | None, name: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _event(data: dict[str, Any]) -> Event:
    return Event(data, data["type"])
