"""JSON as bytes, alone and as server-sent events."""

import json
from typing import Any

DONE = b"data: [DONE]\n\n"

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode_json(value: Any) -> bytes:
    """Compact JSON in UTF-8. A lone surrogate in a string stays the escape that JSON has for it."""
    return _ENCODER.encode(value).encode("utf-8", "backslashreplace")


def encode_event(value: Any) -> bytes:
    """One server-sent event that carries ``value``, on one line: JSON has no line breaks."""
    return b"data: %b\n\n" % encode_json(value)
