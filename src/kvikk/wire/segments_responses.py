"""The pieces of an OpenAI Responses body, as rendered: tools, instructions, the items of its input.

Consecutive outputs of tools are a run, as in every API; each item is one message.
"""

from collections.abc import Iterator
from typing import Any

from kvikk.wire.segments import Section, Segment
from kvikk.wire.segments_chat import marker_of, parts, tool_definitions
from kvikk.wire.segments_json import dump, elements, mapping, mark_last, message, without

_INSTRUCTIONS = ("system", "developer")


def responses_segments(body: dict[str, Any]) -> list[Segment]:
    """The prompt of a Responses body, in rendering order."""
    found = tool_definitions(body.get("tools"), "$.tools")
    if isinstance(body.get("instructions"), str) and body["instructions"]:
        piece = Segment("$.instructions", "system", "text", body["instructions"])
        found += message([piece], "system", "system", None)
    if isinstance(body.get("prompt"), dict):  # a prompt kept by the provider, named by its id
        piece = Segment("$.prompt", "system", "other", dump(body["prompt"]))
        found += message([piece], "system", "system", None)
    if isinstance(body.get("input"), str):
        piece = Segment("$.input", "messages", "text", body["input"])
        return found + message([piece], "messages", "user", 0)
    leading = True
    for index, (item, path) in enumerate(elements(body.get("input"), "$.input")):
        role = str(mapping(item).get("role") or "")
        leading = leading and role in _INSTRUCTIONS
        section: Section = "system" if leading else "messages"
        found += message(_item_pieces(item, path), section, role, index)
        marker = marker_of(item, path)
        if marker is not None:
            mark_last(found, marker)
    return found


def _item_pieces(item: object, path: str) -> Iterator[Segment]:
    kind = str(mapping(item).get("type") or "message")
    if kind == "message":
        yield from parts(mapping(item).get("content"), f"{path}.content")
    elif kind == "reasoning":
        yield Segment(path, "messages", "thinking", dump(item), role="assistant")
    elif kind.endswith(("_call_output", "_approval_response")):
        shown = dump(without(mapping(item), "status"))
        yield Segment(path, "messages", "tool_result", shown, role="user")
    elif kind.endswith(("_call", "_approval_request")):
        shown = dump(without(mapping(item), "status"))
        yield Segment(path, "messages", "tool_use", shown, role="assistant")
    else:
        yield Segment(path, "messages", "other", dump(item))
