"""What of a body is no text and yet part of what a provider's cache compares, by the rules' names.

Sampling, limits, streaming and labels change nothing that a cache keeps, so they are not here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kvikk.wire.segments import Segment
from kvikk.wire.segments_json import dump, elements, mapping

# Each name, and where the APIs have it; a body has it in one of these places at most.
_PLACES = {
    "text_format": ("response_format", "text.format"),
    "reasoning_effort": ("reasoning_effort", "reasoning.effort"),
    "verbosity": ("verbosity", "text.verbosity"),
    "parallel_tool_calls": ("parallel_tool_calls",),
    "context_management": ("context_management",),
    "service_tier": ("service_tier",),
    "response_schema": (
        "generationConfig.responseSchema",
        "generationConfig.responseJsonSchema",
        "response_format",
        "text.format",
    ),
    "tool_choice": ("tool_choice", "toolConfig.toolChoice"),
    "thinking": ("thinking",),
    "effort": ("output_config.effort",),
    "speed": ("speed",),
}


def key_parameters(body: Mapping[str, Any], segments: Sequence[Segment]) -> dict[str, str]:
    """The parameters of ``body``, whose prompt are ``segments``, as JSON; absent ones left out."""
    found = {}
    for name, places in _PLACES.items():
        values = (value for place in places if (value := _at(body, place)) is not None)
        value = next(values, None)
        if value is not None:
            found[name] = dump(value)
    if any(segment.kind == "image" for segment in segments):
        found["images"] = "true"
    kinds = [str(mapping(tool).get("type")) for tool, _ in elements(body.get("tools"), "")]
    if any(kind.startswith("web_search") for kind in kinds):
        found["web_search"] = "true"
    if any('"citations"' in segment.text for segment in segments if segment.kind == "file"):
        found["citations"] = "true"
    return found


def _at(body: Mapping[str, Any], place: str) -> object:
    value: object = body
    for name in place.split("."):
        value = mapping(value).get(name)
    return value
