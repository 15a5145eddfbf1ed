"""The pieces of an Anthropic Messages body, as rendered: tools, system, messages.

A string is equal to one text block. ``cache_control`` is a marker and no part of the text; the
one at the top of a body is a marker on the last piece.
"""

from collections.abc import Iterator
from typing import Any

from kvikk.wire.segments import Segment
from kvikk.wire.segments_json import (
    cache_control,
    dump,
    elements,
    mapping,
    mark_last,
    message,
    without,
)

_KINDS = {
    "text": "text",
    "tool_use": "tool_use",
    "server_tool_use": "tool_use",
    "mcp_tool_use": "tool_use",
    "tool_result": "tool_result",
    "mcp_tool_result": "tool_result",
    "web_search_tool_result": "tool_result",
    "thinking": "thinking",
    "redacted_thinking": "thinking",
    "image": "image",
    "document": "file",
}


def messages_segments(body: dict[str, Any]) -> list[Segment]:
    """The prompt of a Messages body, in rendering order."""
    found = [
        Segment(
            path=path,
            section="tools",
            kind="tool_definition",
            text=dump(without(mapping(tool), "cache_control")),
            marker=cache_control(tool, path),
        )
        for tool, path in elements(body.get("tools"), "$.tools")
    ]
    found += message(blocks(body.get("system"), "$.system"), "system", "system", None)
    for index, (item, path) in enumerate(elements(body.get("messages"), "$.messages")):
        role = str(mapping(item).get("role") or "")
        pieces = blocks(mapping(item).get("content"), f"{path}.content")
        found += message(pieces, "messages", role, index)
    top = cache_control(body, "$")
    if top is not None:
        mark_last(found, top)
    return found


def blocks(content: object, path: str) -> Iterator[Segment]:
    """The pieces of one content: a string, or a list of blocks."""
    if isinstance(content, str):
        yield Segment(path, "messages", "text", content)
        return
    for block, place in elements(content, path):
        if isinstance(block, str):
            yield Segment(place, "messages", "text", block)
            continue
        kind = _KINDS.get(str(mapping(block).get("type") or ""), "other")
        marker = cache_control(block, place)
        text = mapping(block).get("text")
        # Citations of a document, or any further member, make a text block more than its text.
        if kind == "text" and isinstance(text, str) and not _says_more(block):
            yield Segment(f"{place}.text", "messages", "text", text, marker=marker)
        else:
            shown = dump(without(mapping(block), "cache_control"))
            yield Segment(place, "messages", kind, shown, marker=marker)


def _says_more(block: dict[str, Any]) -> bool:
    return any(
        value for name, value in block.items() if name not in ("type", "text", "cache_control")
    )
