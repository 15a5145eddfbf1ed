"""The pieces an answer comes in, whatever the API: text, reasoning, and calls of tools.

Each API has its own events for them. Joined in order they are the whole answer.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kvikk.wire.logprobs import TokenLogprobs
from kvikk.wire.tools import ToolCall


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of what is said, and of the tokens, where they are told of; one may lag behind."""

    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what was thought first, where a model marks that off."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of the answer's ``index``-th call. The first of a call has its ``id`` and ``name``."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


AnswerDelta = TextDelta | ReasoningDelta | ToolCallDelta


@dataclass(frozen=True)
class WholeAnswer:
    """All of an answer: None where there is no text, or no reasoning.

    ``logprobs`` are the tokens', where they are told of; ``prompt_logprobs`` the prompt's.
    """

    text: str | None
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None


def join(deltas: Iterable[AnswerDelta]) -> WholeAnswer:
    """The whole that pieces make. A call's first piece comes before its others."""
    text, reasoning = "", ""
    calls: dict[int, ToolCall] = {}
    logprobs: list[TokenLogprobs] = []
    for delta in deltas:
        match delta:
            case TextDelta():
                text += delta.text
                logprobs += delta.logprobs
            case ReasoningDelta():
                reasoning += delta.text
            case ToolCallDelta(index, arguments, str(call_id), str(name)):
                calls[index] = ToolCall(call_id, name, arguments)
            case ToolCallDelta(index, arguments):
                begun = calls[index]
                calls[index] = ToolCall(begun.id, begun.name, begun.arguments + arguments)
    return WholeAnswer(
        text or (None if calls else ""),
        reasoning or None,
        tuple(calls[index] for index in sorted(calls)),
        tuple(logprobs),
    )
