"""A prompt as bytes, where nobody makes tokens of it: its pieces, in the order they are rendered.

Every piece stands with its role and kind, so that no text can pass for another message.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kvikk.wire.segments import Segment
from kvikk.wire.segments_any import Api, segments
from kvikk.wire.segments_chat import chat_segments

_RESULTS = ("tool", "function")  # roles whose messages are a piece as a whole


class Content(NamedTuple):
    """The bytes; ``beginning_bytes`` of them lead up to the end of the user's first message.

    That stays the same as a conversation grows; 0 if there is none.
    """

    data: bytes
    beginning_bytes: int


def read_content(api: Api | None, body: Mapping[str, Any]) -> Content:
    """The content of a body for ``api``; None is a completion, whose prompt is one text."""
    if api is None:
        prompt = body.get("prompt")
        return Content(_bytes(prompt) if isinstance(prompt, str) else b"", 0)
    writer = _Writer()
    if api == "chat_completions":
        _write_chat(writer, body)
    else:
        writer.add_all(segments(api, dict(body)))
    return writer.content()


def _write_chat(writer: "_Writer", body: Mapping[str, Any]) -> None:
    """A message that is a role and a text, as most are, needs no walker."""
    tools = {name: body[name] for name in ("tools", "functions") if name in body}
    if tools:
        writer.add_all(chat_segments(tools))
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and len(message) == 2:
            role, text = message.get("role"), message.get("content")
            if isinstance(role, str) and isinstance(text, str) and role not in _RESULTS:
                if text:
                    writer.add(role, "text", text)
                    writer.end_message(role)
                continue
        writer.add_all(chat_segments({"messages": [message]}))


class _Writer:
    """Puts pieces together."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._beginning_parts = 0

    def add(self, role: str, kind: str, text: str) -> None:
        self._parts += (role, "\0", kind, "\0", text, "\0")

    def end_message(self, role: str) -> None:
        if role == "user" and not self._beginning_parts:
            self._beginning_parts = len(self._parts)

    def add_all(self, pieces: Iterable[Segment]) -> None:
        for piece in pieces:
            self.add(piece.role, piece.kind, piece.text)
            if piece.ends_message:
                self.end_message(piece.role)

    def content(self) -> Content:
        parts, beginning = self._parts, self._beginning_parts
        text = "".join(parts)
        data = _bytes(text)
        if len(data) == len(text):
            return Content(data, sum(map(len, parts[:beginning])))
        return Content(data, len(_bytes("".join(parts[:beginning]))))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
