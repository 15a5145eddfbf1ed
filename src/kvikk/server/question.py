"""What is asked of the engine, whichever API it came by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvikk.text.answer_parts import AnswerStyle
from kvikk.text.places import Part
from kvikk.wire.generation import GenerationFields
from kvikk.wire.grammars import GrammarSpec

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
    """A prompt in tokens, the field of the body it came in, and where its parts are.

    ``style`` says what may be in the answer, ``shown_token_ids`` which control tokens belong to its
    text for that, and ``forced`` what it must keep to where a tool must be called.
    """

    token_ids: Sequence[int]
    parameter: str
    parts: tuple[Part, ...] = ()
    style: AnswerStyle = field(default_factory=AnswerStyle)
    shown_token_ids: frozenset[int] = frozenset()
    forced: GrammarSpec | None = None


@dataclass(frozen=True)
class Question:
    """One request on its way to the engine.

    ``body`` is what was sent, and where it went on from an earlier answer, what would have been
    sent had all of it been said at once. ``echo`` is what the answer's text begins with.
    """

    api: Api
    body: Mapping[str, Any]
    prompt: Prompt
    fields: GenerationFields
    echo: str | None = None
