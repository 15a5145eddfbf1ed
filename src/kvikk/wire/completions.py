"""Completions: the request, the whole answer, and the answer in chunks."""

from dataclasses import dataclass
from typing import Any

from kvikk.wire.chat_completions import FinishReason
from kvikk.wire.generation import GenerationFields
from kvikk.wire.reading import JsonValue
from kvikk.wire.usage import Usage

DEFAULT_MAX_TOKENS = 16  # the API's own
MAX_TOKEN_ID = 2**31 - 1


@dataclass(frozen=True)
class CompletionRequest:
    """The body of ``POST /v1/completions``: a prompt as text or as token ids."""

    generation: GenerationFields
    prompt: str | tuple[int, ...]

    @classmethod
    def from_json(cls, body: JsonValue) -> "CompletionRequest":
        """Read a body. Raises RequestError, naming the path, for what cannot be understood."""
        generation = GenerationFields.from_json(
            body, limit_names=("max_tokens",), default_limit=DEFAULT_MAX_TOKENS
        )
        return cls(generation, _prompt(body.get("prompt")))

    def to_json(self) -> dict[str, Any]:
        """The body."""
        prompt = self.prompt if isinstance(self.prompt, str) else list(self.prompt)
        return {**self.generation.to_json(), "prompt": prompt}


@dataclass(frozen=True)
class Completion:
    """A whole answer, or a piece of a streamed one; they have one shape.

    A piece has no ``usage``, except for the very last where usage was asked for, which has no
    choice: its ``text`` is None. ``created`` is in seconds since 1970.
    """

    id: str
    created: int
    model: str
    text: str | None
    finish_reason: FinishReason | None
    usage: Usage | None

    def to_json(self) -> dict[str, Any]:
        """The response's body, or one event's data."""
        choice = {
            "index": 0,
            "text": self.text,
            "logprobs": None,
            "finish_reason": self.finish_reason,
        }
        completion: dict[str, Any] = {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [] if self.text is None else [choice],
        }
        return completion if self.usage is None else completion | {"usage": self.usage.to_json()}


def _prompt(value: JsonValue) -> str | tuple[int, ...]:
    """Text or token ids; clients also send a list of one prompt."""
    if isinstance(value.value, str):
        return value.value
    if value.is_null:
        value.fail_type("a string or a list of token ids")
    elements = value.elements()
    if elements and isinstance(elements[0], str | list):
        if len(elements) > 1:
            value.fail(f"one prompt a request, not {len(elements)}")
        (value,) = value.items()
        if isinstance(value.value, str):
            return value.value
    elements = value.elements()
    if all(type(element) is int and 0 <= element <= MAX_TOKEN_ID for element in elements):
        return tuple(elements)
    # Item by item, to name the one at fault.
    return tuple(item.integer(0, MAX_TOKEN_ID) for item in value.items())
