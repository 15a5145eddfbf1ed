"""Chat Completions: the request, the whole answer, and the answer in chunks."""

from dataclasses import dataclass
from typing import Any, Literal

from kvikk.wire.generation import GenerationFields
from kvikk.wire.reading import JsonValue
from kvikk.wire.usage import Usage

FinishReason = Literal["stop", "length"]
ROLES = ("system", "developer", "user", "assistant")


@dataclass(frozen=True)
class ChatMessage:
    """One message. Only an assistant's content may be None: it said nothing."""

    role: str
    content: str | None
    name: str | None = None

    @classmethod
    def from_json(cls, value: JsonValue) -> "ChatMessage":
        """Read one message. Raises RequestError, naming the path, for what cannot be understood."""
        role = value.get("role")
        if role.string() not in ROLES:
            role.fail(f"expected one of {', '.join(ROLES)}")
        for name in ("tool_calls", "function_call"):
            if value.get(name).value not in (None, [], {}):
                value.get(name).fail("is not supported; leave it out")
        speaker = value.get("name")
        return cls(
            role.string(),
            _content(value.get("content"), optional=role.value == "assistant"),
            None if speaker.is_null else speaker.string(),
        )

    def to_json(self) -> dict[str, Any]:
        """The message as an object; a name only if there is one."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        return message if self.name is None else message | {"name": self.name}


@dataclass(frozen=True)
class ChatCompletionRequest:
    """The body of ``POST /v1/chat/completions``."""

    generation: GenerationFields
    messages: tuple[ChatMessage, ...]

    @classmethod
    def from_json(cls, body: JsonValue) -> "ChatCompletionRequest":
        """Read a body. Raises RequestError, naming the path, for what cannot be understood."""
        generation = GenerationFields.from_json(
            body, limit_names=("max_completion_tokens", "max_tokens"), default_limit=None
        )
        messages = tuple(ChatMessage.from_json(item) for item in body.get("messages").items())
        if not messages:
            body.get("messages").fail("is empty; at least one message is needed")
        return cls(generation, messages)

    def to_json(self) -> dict[str, Any]:
        """The body."""
        messages = [message.to_json() for message in self.messages]
        return {**self.generation.to_json(), "messages": messages}


@dataclass(frozen=True)
class ChatCompletion:
    """A whole answer. ``created`` is in seconds since 1970."""

    id: str
    created: int
    model: str
    content: str
    finish_reason: FinishReason
    usage: Usage

    def to_json(self) -> dict[str, Any]:
        """The response's body."""
        message = {"role": "assistant", "content": self.content, "refusal": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": self.finish_reason,
        }
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [choice],
            "usage": self.usage.to_json(),
        }


@dataclass(frozen=True)
class ChatCompletionChunk:
    """A piece of a streamed answer.

    The first has a ``role``, the last of the text a ``finish_reason``. The very last, where usage
    was asked for, has ``usage`` and no choice.
    """

    id: str
    created: int
    model: str
    content: str = ""
    role: str | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None

    def to_json(self) -> dict[str, Any]:
        """One event's data."""
        delta: dict[str, Any] = {}
        if self.role is not None:
            delta["role"] = self.role
        if self.content or self.role is not None:
            delta["content"] = self.content
        choice = {"index": 0, "delta": delta, "finish_reason": self.finish_reason}
        chunk: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": [choice] if self.usage is None else [],
        }
        return chunk if self.usage is None else chunk | {"usage": self.usage.to_json()}


def _content(value: JsonValue, *, optional: bool) -> str | None:
    """Text, or a list of text parts, which are put on lines of their own."""
    if value.is_null and optional:
        return None
    if isinstance(value.value, list):
        return "\n".join(_text_part(part) for part in value.items())
    if not isinstance(value.value, str):
        value.fail_type("a string or a list of text parts")
    return value.value


def _text_part(part: JsonValue) -> str:
    kind = part.get("type")
    if kind.string() != "text":
        kind.fail("only text parts are supported")
    return part.get("text").string()
