"""JSON as bytes, alone and as server-sent events."""

import json
from typing import Any

DONE = b"data: [DONE]\n\n"

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
# Not line ends to JSON or to event streams, but to many a client that reads text by lines.
_LINE_ENDS = {character: f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


def encode_json(value: Any) -> bytes:
    """Compact JSON in UTF-8, on one line by anybody's count.

    A lone surrogate in a string stays the escape that JSON has for it.
    """
    text = _ENCODER.encode(value)
    for character, escape in _LINE_ENDS.items():
        text = text.replace(character, escape)
    return text.encode("utf-8", "backslashreplace")


def encode_event(value: Any, name: str | None = None) -> bytes:
    """One server-sent event that carries ``value``, with its ``name`` where it has one."""
    data = b"data: %b\n\n" % encode_json(value)
    return data if name is None else b"event: %b\n%b" % (name.encode(), data)
