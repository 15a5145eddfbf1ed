"""What of a body is no text and yet part of what a cache compares: named by class and path.

Sampling, limits, streaming and labels change nothing that a cache keeps, so they are not here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvikk.audit.difference import first_difference, key_orders
from kvikk.wire.segments_any import Api
from kvikk.wire.segments_json import mapping

_OPENAI = {
    "$.reasoning_effort": "params.effort",
    "$.reasoning.effort": "params.effort",
    "$.verbosity": "params.verbosity",
    "$.text.verbosity": "params.verbosity",
    "$.response_format": "params.response_schema",
    "$.text.format": "params.response_schema",
    "$.tool_choice": "params.tool_choice",
    "$.function_call": "params.tool_choice",
    "$.thinking": "params.thinking",
    "$.enable_thinking": "params.thinking",
    "$.chat_template_kwargs": "params.thinking",
    "$.output_config.effort": "params.effort",
    "$.reasoning.enabled": "params.thinking",
    "$.reasoning.max_tokens": "params.thinking",
    "$.parallel_tool_calls": "params.other",
    "$.context_management": "params.other",
    "$.service_tier": "params.other",
    "$.web_search_options": "params.other",
    "$.truncation": "params.other",
    "$.modalities": "params.other",
}
_PATHS: dict[Api, dict[str, str]] = {
    "chat_completions": _OPENAI,
    "responses": _OPENAI,
    "messages": {
        "$.output_config.effort": "params.effort",
        "$.thinking": "params.thinking",
        "$.tool_choice": "params.tool_choice",
        "$.output_config.format": "params.response_schema",
        "$.output_format": "params.response_schema",
        "$.speed": "params.other",
        "$.context_management": "params.other",
        "$.mcp_servers": "params.other",
        "$.container": "params.other",
        "$.inference_geo": "params.other",
    },
    "generate_content": {
        "$.generationConfig.responseSchema": "params.response_schema",
        "$.generationConfig.responseJsonSchema": "params.response_schema",
        "$.generationConfig.responseMimeType": "params.response_schema",
        "$.generationConfig.thinkingConfig": "params.thinking",
        "$.generationConfig.mediaResolution": "params.other",
        "$.generation_config.response_schema": "params.response_schema",
        "$.generation_config.thinking_config": "params.thinking",
        "$.toolConfig": "params.tool_choice",
        "$.tool_config": "params.tool_choice",
    },
    "converse": {
        "$.additionalModelRequestFields.thinking": "params.thinking",
        "$.additionalModelRequestFields.reasoning_config": "params.thinking",
        "$.additionalModelRequestFields.output_config.effort": "params.effort",
        "$.additionalModelRequestFields": "params.other",
        "$.toolConfig.toolChoice": "params.tool_choice",
        "$.guardrailConfig": "params.other",
        "$.performanceConfig": "params.other",
        "$.serviceTier": "params.other",
    },
}


@dataclass(frozen=True, slots=True)
class ParameterChange:
    """A parameter that two requests have differently: the class, the place, both values."""

    cause: str
    path: str
    name: str
    before: object
    after: object


def parameters(api: Api, body: Mapping[str, Any]) -> dict[str, object]:
    """The parameters of ``body`` that a cache may compare, by path; absent ones are left out."""
    found = {}
    for path in _PATHS[api]:
        value = _at(body, path)
        if value is not None:
            found[path] = value
    return found


def changes(
    api: Api, before: Mapping[str, object], after: Mapping[str, object]
) -> Iterator[ParameterChange]:
    """Where two requests' parameters differ, each place once, in the order of the table."""
    told: list[str] = []
    for path, cause in _PATHS[api].items():
        ours, theirs = after.get(path), before.get(path)
        if any(inner.startswith(path) for inner in told):
            continue
        if ours == theirs:
            if key_orders(ours) == key_orders(theirs):
                continue
            cause = "serialization.key_order"  # it is rendered as it was sent
        place = first_difference(theirs, ours, path)
        told.append(path)
        yield ParameterChange(cause, place, path, theirs, ours)


def parameter_path(api: Api, place: str) -> str:
    """The parameter that a place in a body is of; the place itself if it is of none."""
    inside = [path for path in _PATHS[api] if f"{place}.".startswith(f"{path}.")]
    return max(inside, key=len, default=place)


def _at(body: Mapping[str, Any], path: str) -> object:
    value: object = body
    for name in path.split(".")[1:]:
        value = mapping(value).get(name)
    return value
