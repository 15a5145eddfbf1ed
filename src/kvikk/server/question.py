"""What is asked of the engine, whichever API it came by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kvikk.text.places import Part
from kvikk.wire.generation import GenerationFields

Api = Literal["completions", "chat_completions", "responses", "messages"]

# How the ids of an API's answers begin.
ID_PREFIXES: Mapping[Api, str] = {
    "completions": "cmpl-",
    "chat_completions": "chatcmpl-",
    "responses": "resp_",
    "messages": "msg_",
}


@dataclass(frozen=True)
class Prompt:
    """A prompt in tokens, the field of the body it came in, and where its parts are."""

    token_ids: Sequence[int]
    parameter: str
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Question:
    """One request on its way to the engine.

    ``body`` is what was sent, and where it went on from an earlier answer, what would have been
    sent had all of it been said at once.
    """

    api: Api
    body: Mapping[str, Any]
    prompt: Prompt
    fields: GenerationFields
