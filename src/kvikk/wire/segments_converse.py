"""The pieces of an Amazon Bedrock ``Converse`` body: tools, system, messages.

A ``cachePoint`` is a block of its own; it is the marker on the piece in front of it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvikk.wire.segments import Marker, Section, Segment
from kvikk.wire.segments_json import dump, elements, mapping, message

_KINDS = {
    "toolUse": "tool_use",
    "toolResult": "tool_result",
    "reasoningContent": "thinking",
    "image": "image",
    "document": "file",
    "video": "file",
    "toolSpec": "tool_definition",
}


def converse_segments(body: dict[str, Any]) -> list[Segment]:
    """The prompt of a Converse body, in rendering order."""
    tools = mapping(body.get("toolConfig")).get("tools")
    found = list(_blocks(tools, "$.toolConfig.tools", "tools"))
    found += message(_blocks(body.get("system"), "$.system", "system"), "system", "system", None)
    for index, (item, path) in enumerate(elements(body.get("messages"), "$.messages")):
        role = str(mapping(item).get("role") or "")
        pieces = _blocks(mapping(item).get("content"), f"{path}.content", "messages")
        found += message(pieces, "messages", role, index)
    return found


def _blocks(content: object, path: str, section: Section) -> Iterator[Segment]:
    waiting: Segment | None = None
    for block, place in elements(content, path):
        members = mapping(block)
        point = members.get("cachePoint")
        if isinstance(point, dict):
            if waiting is not None:
                marker = Marker(f"{place}.cachePoint", str(point.get("ttl") or ""))
                yield replace(waiting, marker=marker)
                waiting = None
            continue
        if waiting is not None:
            yield waiting
        if isinstance(members.get("text"), str):
            waiting = Segment(f"{place}.text", section, "text", members["text"])
        else:
            kind = next((kind for name, kind in _KINDS.items() if name in members), "other")
            waiting = Segment(place, section, kind, dump(block))
    if waiting is not None:
        yield waiting
