"""A conversation as no API has it and all are read into: messages of texts, calls and results."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from kvikk.wire.tools import ToolCall

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of what a message says, and its place in the body ("messages[1].content[0].text")."""

    text: str
    path: str = field(default="", compare=False)


@dataclass(frozen=True)
class Message:
    """One message.

    ``texts`` are its pieces, in order; the model reads them on lines of their own. An assistant's
    has what it thought and the calls it made as well; a tool's answers the call ``tool_call_id``.
    """

    role: Role
    texts: tuple[Text, ...] = ()
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """All it says."""
        return "\n".join(piece.text for piece in self.texts)

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates expect it; what it does not have is left out."""
        message: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.name is not None:
            message["name"] = self.name
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [_call_for_template(call) for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


def _call_for_template(call: ToolCall) -> dict[str, Any]:
    """Templates write arguments down as JSON themselves, so they get them read where possible."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = call.arguments
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def texts(*pieces: str) -> tuple[Text, ...]:
    """Pieces of text that stand in no body."""
    return tuple(map(Text, pieces))


def named_texts(messages: Iterable[Message]) -> Iterable[tuple[str, str, str]]:
    """What a person calls each piece's message, the piece's place in the body, and its text."""
    for index, message in enumerate(messages):
        is_system = message.role == "system"
        name = "the system message" if is_system else f"message {index + 1} ({message.role})"
        for piece in message.texts:
            yield name, piece.path, piece.text
