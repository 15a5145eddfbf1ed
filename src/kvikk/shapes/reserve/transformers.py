"""transformers: tensors as long as they need to be, or as long as they may ever get.

The dynamic cache of a window keeps window - 1 tokens between steps: the next token brings its own.
The static cache is made for the longest conversation, and min(window, longest) for a window.

Source: transformers 5.24, ``cache_utils.py``.
"""

from dataclasses import dataclass

from kvikk.shapes.cost import Part
from kvikk.shapes.reserve.records import Layers, Reserved


@dataclass(frozen=True)
class TransformersSettings:
    """Whether the cache is static (``StaticCache``) or grows (``DynamicCache``)."""

    static: bool = False


def held_tokens(part: Part, context_tokens: int, settings: TransformersSettings) -> int:
    """Tokens, or other entries, of one part that are held at ``context_tokens``."""
    if part.window_tokens is None or part.fixed_entries is not None:
        return part.entries_at(context_tokens)
    window = part.window_tokens if settings.static else part.window_tokens - 1
    return min(window, context_tokens)


def reserve(layers: Layers, context_tokens: int, settings: TransformersSettings) -> Reserved:
    """What one conversation of ``context_tokens`` holds."""
    parts = [part for layer in layers for part in layer]
    total = sum(
        held_tokens(part, context_tokens, settings) * part.bytes_per_entry for part in parts
    )
    if not any(part.window_tokens for part in parts):
        return Reserved("transformers", total, ("every token, no rounding",))
    kept = "the window" if settings.static else "one token less than the window"
    return Reserved("transformers", total, (f"a sliding layer keeps {kept}",))
