"""A body of whichever API, and which one it is where nobody says."""

from collections.abc import Callable
from typing import Any, Literal, get_args

from kvikk.wire.segments import Segment
from kvikk.wire.segments_chat import chat_segments
from kvikk.wire.segments_converse import converse_segments
from kvikk.wire.segments_gemini import gemini_segments
from kvikk.wire.segments_json import elements, mapping
from kvikk.wire.segments_messages import messages_segments
from kvikk.wire.segments_responses import responses_segments

Api = Literal["chat_completions", "responses", "messages", "generate_content", "converse"]
APIS: tuple[Api, ...] = get_args(Api)

_WALKERS: dict[Api, Callable[[dict[str, Any]], list[Segment]]] = {
    "chat_completions": chat_segments,
    "responses": responses_segments,
    "messages": messages_segments,
    "generate_content": gemini_segments,
    "converse": converse_segments,
}
_ANTHROPIC_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking", "document")
_CONVERSE_BLOCKS = ("toolUse", "toolResult", "cachePoint", "reasoningContent")


def segments(api: Api, body: dict[str, Any]) -> list[Segment]:
    """The prompt of ``body`` in rendering order. Never refuses."""
    return _WALKERS[api](body)


def guess_api(body: dict[str, Any]) -> Api | None:
    """Which API a body is for, by what only that one has; None for no body of a request."""
    if "contents" in body:
        return "generate_content"
    if "input" in body or "instructions" in body:
        return "responses"
    if not isinstance(body.get("messages"), list):
        return None
    blocks = [
        block
        for item, _ in elements(body["messages"], "")
        for block, _ in elements(mapping(item).get("content"), "")
    ]
    blocks += [block for block, _ in elements(body.get("system"), "")]
    if "toolConfig" in body or "inferenceConfig" in body:
        return "converse"
    if any(name in mapping(block) for block in blocks for name in _CONVERSE_BLOCKS):
        return "converse"
    if blocks and all("text" in mapping(block) and len(block) == 1 for block in blocks):
        return "converse"
    if "system" in body or "anthropic_version" in body or _anthropic_tools(body):
        return "messages"
    if any(mapping(block).get("type") in _ANTHROPIC_BLOCKS for block in blocks):
        return "messages"
    roles = [str(mapping(item).get("role")) for item, _ in elements(body["messages"], "")]
    claude = str(body.get("model") or "").rpartition("/")[2].startswith("claude")
    if claude and "max_tokens" in body and not {"system", "developer", "tool"} & set(roles):
        return "messages"
    return "chat_completions"


def _anthropic_tools(body: dict[str, Any]) -> bool:
    return any("input_schema" in mapping(tool) for tool, _ in elements(body.get("tools"), ""))
