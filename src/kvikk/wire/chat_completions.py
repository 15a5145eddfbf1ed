"""Chat Completions: the request, the whole answer, and the answer in chunks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvikk.wire.answer_format import Ending, Event
from kvikk.wire.caching import CacheFields
from kvikk.wire.choices import ChoiceFields
from kvikk.wire.conversation import Message, Role, Text
from kvikk.wire.deltas import AnswerDelta, ReasoningDelta, TextDelta, ToolCallDelta, WholeAnswer
from kvikk.wire.errors import ErrorBody
from kvikk.wire.events import DONE
from kvikk.wire.generation import GenerationFields
from kvikk.wire.logprobs import TokenLogprobs, chat_logprobs, prompt_logprobs
from kvikk.wire.reading import JsonValue
from kvikk.wire.tools import ToolCall, ToolUse
from kvikk.wire.usage import Usage

# What the API calls a role, and what it is. "developer" is its newer word for the system.
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


@dataclass(frozen=True)
class ChatCompletionRequest:
    """The body of ``POST /v1/chat/completions``."""

    generation: GenerationFields
    messages: tuple[Message, ...]
    tools: ToolUse = field(default_factory=ToolUse)
    caching: CacheFields = field(default_factory=CacheFields)

    @classmethod
    def from_json(cls, body: JsonValue) -> "ChatCompletionRequest":
        """Read a body. Raises RequestError, naming the path, for what cannot be understood."""
        generation = GenerationFields.from_json(
            body,
            limit_names=("max_completion_tokens", "max_tokens"),
            default_limit=None,
            read_choices=ChoiceFields.of_chat,
        )
        messages = tuple(map(read_message, body.get("messages").items()))
        if not messages:
            body.get("messages").fail("is empty; at least one message is needed")
        return cls(generation, messages, ToolUse.from_json(body), CacheFields.from_json(body))

    def to_json(self) -> dict[str, Any]:
        """The body."""
        return {
            **self.generation.to_json(),
            **self.generation.choices.to_json(chat=True),
            **self.tools.to_json(),
            **self.caching.to_json(),
            "messages": list(map(_write_message, self.messages)),
        }


class ChatAnswer:
    """Writes one answer down. ``created`` is in seconds since 1970.

    A stream's last chunk has no choice but the usage, where that was asked for.
    """

    done = DONE

    def __init__(
        self, request_id: str, created: int, model: str, *, include_usage: bool, index: int = 0
    ) -> None:
        self._head = {"id": request_id, "created": created, "model": model}
        self._include_usage = include_usage
        self._index = index
        self._called = False

    def whole(self, answer: WholeAnswer, ending: Ending, usage: Usage) -> dict[str, Any]:
        """The response's body."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.reasoning is not None:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["tool_calls"] = [call.to_json() for call in answer.tool_calls]
        choice = {
            "index": self._index,
            "message": message,
            "logprobs": chat_logprobs(answer.logprobs) if answer.logprobs else None,
            "finish_reason": _finish_reason(ending, called=bool(answer.tool_calls)),
        }
        head = self._head | {"object": "chat.completion"}
        body = head | {"choices": [choice], "usage": usage.to_json()}
        if answer.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_logprobs(answer.prompt_logprobs)
        return body

    def begin(self, usage: Usage) -> Iterable[Event]:
        """The chunk that says who speaks."""
        yield self._chunk({"role": "assistant", "content": ""})

    def delta(self, delta: AnswerDelta) -> Iterable[Event]:
        """A chunk."""
        match delta:
            case TextDelta(text, logprobs):
                yield self._chunk({"content": text}, logprobs=logprobs)
            case ReasoningDelta(text):
                yield self._chunk({"reasoning_content": text})
            case ToolCallDelta():
                self._called = True
                yield self._chunk({"tool_calls": [_write_call_delta(delta)]})

    def end(self, ending: Ending, usage: Usage | None) -> Iterable[Event]:
        """The chunk that says why it ends, and that with the usage."""
        yield self._chunk({}, _finish_reason(ending, self._called))
        if self._include_usage and usage is not None:
            head = self._head | {"object": "chat.completion.chunk"}
            yield Event(head | {"choices": [], "usage": usage.to_json()})

    def failure(self, error: ErrorBody) -> Iterable[Event]:
        """The error as an event."""
        yield Event(error.to_json())

    def _chunk(
        self,
        delta: dict[str, Any],
        finish_reason: str | None = None,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> Event:
        choice: dict[str, Any] = {"index": self._index, "delta": delta}
        if logprobs:
            choice["logprobs"] = chat_logprobs(logprobs)
        choice["finish_reason"] = finish_reason
        return Event(self._head | {"object": "chat.completion.chunk", "choices": [choice]})


def _finish_reason(ending: Ending, called: bool) -> str:
    return "tool_calls" if called and ending.reason == "stop" else ending.reason


def _write_call_delta(delta: ToolCallDelta) -> dict[str, Any]:
    call: dict[str, Any] = {"index": delta.index, "function": {"arguments": delta.arguments}}
    if delta.id is not None:
        call |= {"id": delta.id, "type": "function"}
        call["function"] = {"name": delta.name, "arguments": delta.arguments}
    return call


def read_message(value: JsonValue) -> Message:
    """One message. Only an assistant's content may be null: it said nothing."""
    role = value.get("role")
    if role.string() not in _ROLES:
        role.fail(f"expected one of {', '.join(_ROLES)}")
    is_assistant = role.value == "assistant"
    call_id, speaker, calls = (value.get(n) for n in ("tool_call_id", "name", "tool_calls"))
    if value.get("function_call").value not in (None, {}):
        value.get("function_call").fail("is not supported; send tool_calls")
    if not is_assistant and calls.value not in (None, []):
        calls.fail("belongs to an assistant's message")
    reasoning = value.get("reasoning_content")
    return Message(
        _ROLES[role.string()],
        tuple(_read_content(value.get("content"), optional=is_assistant)),
        None if speaker.is_null else speaker.string(),
        None if reasoning.is_null or not is_assistant else reasoning.string(),
        () if calls.is_null else tuple(map(ToolCall.from_json, calls.items())),
        call_id.string() if role.value == "tool" else None,
    )


def _read_content(value: JsonValue, *, optional: bool) -> Iterable[Text]:
    """Text, or a list of text parts."""
    if value.is_null and optional:
        return
    if isinstance(value.value, str):
        yield Text(value.value, value.path)
        return
    if not isinstance(value.value, list):
        value.fail_type("a string or a list of text parts")
    for part in value.items():
        kind = part.get("type")
        if kind.string() != "text":
            kind.fail("only text parts are supported")
        yield Text(part.get("text").string(), part.get("text").path)


def _write_message(message: Message) -> dict[str, Any]:
    """The message as an object, with what it has."""
    written: dict[str, Any] = {"role": message.role}
    written["content"] = message.text if message.texts else None
    if message.name is not None:
        written["name"] = message.name
    if message.reasoning is not None:
        written["reasoning_content"] = message.reasoning
    if message.tool_calls:
        written["tool_calls"] = [call.to_json() for call in message.tool_calls]
    if message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    return written
