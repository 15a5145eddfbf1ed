"""The pieces of a Gemini ``generateContent`` body: tools, system instruction, contents.

The API takes ``camelCase`` and ``snake_case`` names; both are read.
"""

from collections.abc import Iterator
from typing import Any

from kvikk.wire.segments import Segment
from kvikk.wire.segments_json import dump, elements, mapping, message

_KINDS = {
    "functionCall": "tool_use",
    "function_call": "tool_use",
    "functionResponse": "tool_result",
    "function_response": "tool_result",
    "inlineData": "image",
    "inline_data": "image",
    "fileData": "file",
    "file_data": "file",
}


def gemini_segments(body: dict[str, Any]) -> list[Segment]:
    """The prompt of a ``generateContent`` body, in rendering order."""
    found = []
    for name in ("cachedContent", "cached_content"):
        if isinstance(body.get(name), str):
            piece = Segment(f"$.{name}", "tools", "other", body[name])
            found.append(piece)
    for tool, path in elements(body.get("tools"), "$.tools"):
        found += _tool(tool, path)
    for name in ("systemInstruction", "system_instruction"):
        if name in body:
            found += message(_parts(body[name], f"$.{name}"), "system", "system", None)
    for index, (item, path) in enumerate(elements(body.get("contents"), "$.contents")):
        role = str(mapping(item).get("role") or "user")
        role = "assistant" if role == "model" else role
        found += message(_parts(item, path), "messages", role, index)
    if isinstance(body.get("contents"), str):
        piece = Segment("$.contents", "messages", "text", body["contents"])
        found += message([piece], "messages", "user", 0)
    return found


def _tool(tool: object, path: str) -> Iterator[Segment]:
    for name in ("functionDeclarations", "function_declarations"):
        for declared, place in elements(mapping(tool).get(name), f"{path}.{name}"):
            yield Segment(place, "tools", "tool_definition", dump(declared))
    others = {
        name: value
        for name, value in mapping(tool).items()
        if name not in ("functionDeclarations", "function_declarations")
    }
    if others:
        yield Segment(path, "tools", "tool_definition", dump(others))


def _parts(content: object, path: str) -> Iterator[Segment]:
    if isinstance(content, str):
        yield Segment(path, "messages", "text", content)
        return
    for part, place in elements(mapping(content).get("parts"), f"{path}.parts"):
        members = mapping(part)
        text = members.get("text")
        if isinstance(text, str):
            kind = "thinking" if members.get("thought") else "text"
            yield Segment(f"{place}.text", "messages", kind, text)
            continue
        kind = next((kind for name, kind in _KINDS.items() if name in members), "other")
        yield Segment(place, "messages", kind, dump(part))
