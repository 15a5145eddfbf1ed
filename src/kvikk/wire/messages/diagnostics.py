"""``diagnostics``: why a prompt does not go on where that of an earlier message ended.

As in the API it is told from what both requests say, whether or not the cache hit.
"""

from collections.abc import Mapping
from typing import Any

from kvikk.wire.fingerprint import Comparison

_TYPES: Mapping[str, str] = {
    "model": "model_changed",
    "tools": "tools_changed",
    "system": "system_changed",
    "compacted": "messages_changed",
    "messages": "messages_changed",
}
# What is in a prompt beside its model, tools, system and messages.
_PARAMETERS = ("thinking", "tool_choice", "output_config")


def fingerprint_parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a body that are part of a provider's cache key."""
    return {name: body.get(name) for name in _PARAMETERS}


def diagnostics_json(comparison: Comparison | None) -> dict[str, Any] | None:
    """What is said in the message; None (not known) for an earlier message that is not known."""
    if comparison is None:
        return {"cache_miss_reason": {"type": "previous_message_not_found"}}
    if not comparison.changed:
        return None
    kind = next((_TYPES[name] for name in _TYPES if name in comparison.changed), None)
    if kind is None:
        return {"cache_miss_reason": {"type": "unavailable"}}
    missed = comparison.earlier_tokens - comparison.common_tokens
    return {"cache_miss_reason": {"type": kind, "cache_missed_input_tokens": missed}}
