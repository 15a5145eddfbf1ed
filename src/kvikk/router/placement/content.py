"""A prompt as text, where nobody makes tokens of it: its pieces, in the order they are rendered.

Every piece stands with its role and kind, so that no text can pass for another message.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kvikk.wire.segments import Segment
from kvikk.wire.segments_any import Api, segments
from kvikk.wire.segments_chat import chat_segments

_RESULTS = ("tool", "function")  # roles whose messages are a piece as a whole


class Content:
    """The text's parts; ``beginning`` of them lead up to the end of the user's first message.

    That stays the same as a conversation grows; 0 if there is none.
    """

    __slots__ = ("beginning", "parts")

    def __init__(self, parts: list[str], beginning: int) -> None:
        self.parts: Final = parts
        self.beginning: Final = beginning


def read_content(api: Api | None, body: Mapping[str, Any]) -> Content:
    """The content of a body for ``api``; None is a completion, whose prompt is one text."""
    if api is None:
        prompt = body.get("prompt")
        return Content([prompt] if isinstance(prompt, str) else [], 0)
    parts: list[str] = []
    if api == "chat_completions":
        beginning = _write_chat(parts, body)
    else:
        beginning = _write(parts, segments(api, dict(body)))
    return Content(parts, beginning)


def _write_chat(parts: list[str], body: Mapping[str, Any]) -> int:
    """Put a chat's pieces together; returns how many parts lead up to the first question's end.

    A message that is a role and a text, as most are, needs no walker.
    """
    if "tools" in body or "functions" in body:
        tools = {name: body[name] for name in ("tools", "functions") if name in body}
        _write(parts, chat_segments(tools))
    beginning = 0
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and len(message) == 2:
            role, text = message.get("role"), message.get("content")
            if isinstance(role, str) and isinstance(text, str) and role not in _RESULTS:
                if text:
                    parts += (role, "\0text\0", text, "\0")
                    if not beginning and role == "user":
                        beginning = len(parts)
                continue
        ends = _write(parts, chat_segments({"messages": [message]}))
        beginning = beginning or ends
    return beginning


def _write(parts: list[str], pieces: Iterable[Segment]) -> int:
    """The same for any pieces."""
    beginning = 0
    for piece in pieces:
        parts += (piece.role, f"\0{piece.kind}\0", piece.text, "\0")
        if piece.ends_message and piece.role == "user" and not beginning:
            beginning = len(parts)
    return beginning
