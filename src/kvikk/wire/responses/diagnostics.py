"""``prompt_cache_diagnostics``: why a prompt did not go on where a compared one ended."""

from collections.abc import Mapping
from typing import Any

from kvikk.wire.fingerprint import Comparison
from kvikk.wire.usage import Usage

# In the order in which the API names the first; those of the first kind alone are in a prompt.
_IN_PROMPT = ("tools", "compacted", "system", "messages")
_REASONS: Mapping[str, str] = {
    "model": "model_changed",
    "prompt_cache_key": "prompt_cache_key_changed",
    "tools": "tools_changed",
    "text_format": "text_format_changed",
    "reasoning_effort": "reasoning_effort_changed",
    "verbosity": "verbosity_changed",
    "compacted": "context_compacted",
    "system": "input_changed",
    "messages": "input_changed",
    "service_tier": "service_tier_changed",
}


def fingerprint_parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a body that are part of a provider's cache key."""
    text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
    return {
        "prompt_cache_key": body.get("prompt_cache_key"),
        "text_format": text.get("format") or {"type": "text"},
        "verbosity": text.get("verbosity") or "medium",
        "reasoning_effort": reasoning.get("effort"),
        "service_tier": body.get("service_tier") or "auto",
    }


def diagnostics_json(comparison: Comparison | None, usage: Usage) -> dict[str, Any]:
    """What is said of a response that used this; None: the compared one is not known.

    A parameter that changed is a reason only where nothing was read: it stopped nothing else. And
    where more was read than the two have in common, of a third one's, nothing was missed.
    """
    if comparison is None:
        return {"type": "comparison_response_not_found"}
    if usage.cached_tokens > comparison.common_tokens:
        return {"type": "cache_hit"}
    changed = comparison.changed
    if usage.cached_tokens:
        changed &= set(_IN_PROMPT)
    name = next((name for name in _REASONS if name in changed), None)
    if name is None:
        return {"type": "cache_hit" if usage.cached_tokens else "unavailable"}
    common = comparison.common_tokens if name in _IN_PROMPT else 0
    return {
        "type": "cache_miss",
        "reason": _REASONS[name],
        "cache_missed_tokens": usage.prompt_tokens - common,
        "comparison_reusable_tokens": comparison.common_tokens,
    }
