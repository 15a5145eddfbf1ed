"""The pieces of an OpenAI Chat Completions body, and of the many bodies made after it.

Tools are rendered first. Leading system and developer messages are the section ``system``. Markers
are Anthropic's ``cache_control``, which gateways take on parts, or ``prompt_cache_breakpoint``.
"""

from collections.abc import Iterator
from typing import Any

from kvikk.wire.segments import Marker, Section, Segment
from kvikk.wire.segments_json import (
    cache_control,
    dump,
    elements,
    mapping,
    mark_last,
    message,
    without,
)

_MARKERS = ("cache_control", "prompt_cache_breakpoint")
_INSTRUCTIONS = ("system", "developer")
_KINDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "text",
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "file": "file",
    "input_file": "file",
    "input_audio": "file",
    "thinking": "thinking",
}


def chat_segments(body: dict[str, Any]) -> list[Segment]:
    """The prompt of a Chat Completions body, in rendering order."""
    found = tool_definitions(body.get("tools"), "$.tools")
    found += tool_definitions(body.get("functions"), "$.functions")
    leading = True
    for index, (item, path) in enumerate(elements(body.get("messages"), "$.messages")):
        role = str(mapping(item).get("role") or "")
        leading = leading and role in _INSTRUCTIONS
        section: Section = "system" if leading else "messages"
        pieces = list(_message_pieces(mapping(item), role, path))
        found += message(pieces, section, role, index)
        marker = marker_of(item, path)
        if marker is not None and pieces:
            mark_last(found, marker)
    top = cache_control(body, "$")
    if top is not None:
        mark_last(found, top)
    return found


def tool_definitions(tools: object, path: str) -> list[Segment]:
    """A list of tools or functions as pieces."""
    return [
        Segment(
            path=place,
            section="tools",
            kind="tool_definition",
            text=dump(without(mapping(tool), *_MARKERS)),
            marker=marker_of(tool, place) or marker_of(mapping(tool).get("function"), place),
        )
        for tool, place in elements(tools, path)
    ]


def marker_of(block: object, path: str) -> Marker | None:
    """The marker on a message, a part or a tool, in either vendor's words."""
    marker = cache_control(block, path)
    if marker is None and mapping(block).get("prompt_cache_breakpoint"):
        control = mapping(mapping(block)["prompt_cache_breakpoint"])
        marker = Marker(f"{path}.prompt_cache_breakpoint", str(control.get("ttl") or ""))
    return marker


def parts(content: object, path: str) -> Iterator[Segment]:
    """The pieces of one content: a string, or a list of parts."""
    if isinstance(content, str):
        if content:
            yield Segment(path, "messages", "text", content)
        return
    for part, place in elements(content, path):
        if isinstance(part, str):
            yield Segment(place, "messages", "text", part)
            continue
        kind = _KINDS.get(str(mapping(part).get("type") or ""), "other")
        marker = marker_of(part, place)
        text = mapping(part).get("text", mapping(part).get("refusal"))
        if kind == "text" and isinstance(text, str):
            yield Segment(f"{place}.text", "messages", "text", text, marker=marker)
        else:
            yield Segment(
                place, "messages", kind, dump(without(mapping(part), *_MARKERS)), marker=marker
            )


def _message_pieces(item: dict[str, Any], role: str, path: str) -> Iterator[Segment]:
    thinking = item.get("reasoning_content", item.get("reasoning"))
    if isinstance(thinking, str) and thinking:
        name = "reasoning_content" if "reasoning_content" in item else "reasoning"
        yield Segment(f"{path}.{name}", "messages", "thinking", thinking)
    for block, place in elements(item.get("thinking_blocks"), f"{path}.thinking_blocks"):
        yield Segment(place, "messages", "thinking", dump(block))
    if role in ("tool", "function"):
        shown = dump(without(item, "role", *_MARKERS))
        yield Segment(path, "messages", "tool_result", shown, marker=_marker_inside(item, path))
        return
    if item.get("name"):
        yield Segment(f"{path}.name", "messages", "other", dump(item["name"]))
    yield from parts(item.get("content"), f"{path}.content")
    for call, place in elements(item.get("tool_calls"), f"{path}.tool_calls"):
        yield Segment(place, "messages", "tool_use", dump(call))
    if isinstance(item.get("function_call"), dict):
        yield Segment(f"{path}.function_call", "messages", "tool_use", dump(item["function_call"]))


def _marker_inside(item: dict[str, Any], path: str) -> Marker | None:
    """The last marker on a part of a tool's result."""
    found = None
    for part, place in elements(item.get("content"), f"{path}.content"):
        found = marker_of(part, place) or found
    return found
