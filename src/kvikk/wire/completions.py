"""Completions: the request, the whole answer, and the answer in chunks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvikk.wire.answer_format import Ending, Event
from kvikk.wire.choices import ChoiceFields
from kvikk.wire.deltas import AnswerDelta, TextDelta, WholeAnswer
from kvikk.wire.errors import ErrorBody
from kvikk.wire.events import DONE
from kvikk.wire.generation import GenerationFields
from kvikk.wire.logprobs import TokenLogprobs, completion_logprobs, prompt_logprobs
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
            body,
            limit_names=("max_tokens",),
            default_limit=DEFAULT_MAX_TOKENS,
            read_choices=ChoiceFields.of_completion,
        )
        return cls(generation, _prompt(body.get("prompt")))

    def to_json(self) -> dict[str, Any]:
        """The body."""
        prompt = self.prompt if isinstance(self.prompt, str) else list(self.prompt)
        choices = self.generation.choices.to_json(chat=False)
        return {**self.generation.to_json(), **choices, "prompt": prompt}


class CompletionAnswer:
    """Writes one answer down. ``created`` is in seconds since 1970.

    A stream's last event has no choice but the usage, where that was asked for.
    """

    done = DONE

    def __init__(
        self,
        request_id: str,
        created: int,
        model: str,
        *,
        include_usage: bool,
        index: int = 0,
        tells_tokens: bool = False,
    ) -> None:
        self._head = {
            "id": request_id,
            "object": "text_completion",
            "created": created,
            "model": model,
        }
        self._include_usage = include_usage
        self._index = index
        self._tells_tokens = tells_tokens
        self._num_characters = 0

    def whole(self, answer: WholeAnswer, ending: Ending, usage: Usage) -> dict[str, Any]:
        """The response's body."""
        choice = self._choice(answer.text or "", answer.logprobs, ending.reason)
        if answer.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(answer.prompt_logprobs)
        return self._head | {"choices": [choice], "usage": usage.to_json()}

    def begin(self, usage: Usage) -> Iterable[Event]:
        """Nothing: the first text is the first event."""
        return ()

    def delta(self, delta: AnswerDelta) -> Iterable[Event]:
        """More text. A plain text has no other pieces."""
        assert isinstance(delta, TextDelta)
        yield Event(self._head | {"choices": [self._choice(delta.text, delta.logprobs, None)]})

    def end(self, ending: Ending, usage: Usage | None) -> Iterable[Event]:
        """The event that says why it ends, and that with the usage."""
        yield Event(self._head | {"choices": [self._choice("", (), ending.reason)]})
        if self._include_usage and usage is not None:
            yield Event(self._head | {"choices": [], "usage": usage.to_json()})

    def failure(self, error: ErrorBody) -> Iterable[Event]:
        """The error as an event."""
        yield Event(error.to_json())

    def _choice(
        self, text: str, logprobs: Sequence[TokenLogprobs], finish_reason: str | None
    ) -> dict[str, Any]:
        told = None
        if self._tells_tokens:
            told = completion_logprobs(logprobs, self._num_characters)
            self._num_characters += sum(len(token) for token in told["tokens"])
        return {
            "index": self._index,
            "text": text,
            "logprobs": told,
            "finish_reason": finish_reason,
        }


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
