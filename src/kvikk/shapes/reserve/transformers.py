"""transformers: tensors as long as they need to be, or as long as they may ever get.

The dynamic cache of a window keeps window - 1 tokens between steps: the next token brings its own.
The static cache is made for the longest conversation, and min(window, longest) for a window. A
convolution's inputs are kept for its whole kernel, the present token's too; an indexer's keys are
kept in the cache's own type.

Source: transformers 5.24, ``cache_utils.py``.
"""

from dataclasses import dataclass

from kvikk.shapes.cost import Part
from kvikk.shapes.reserve.records import Layers, Reserved


@dataclass(frozen=True)
class TransformersSettings:
    """Whether the cache is static (``StaticCache``) or grows (``DynamicCache``).

    Convolutions look back ``convolution_tokens``.
    """

    static: bool = False
    convolution_tokens: int = 3


def held_tokens(part: Part, context_tokens: int, settings: TransformersSettings) -> int:
    """Tokens, or other entries, of one part that are held at ``context_tokens``."""
    if part.window_tokens is None or part.fixed_entries is not None:
        return part.entries_at(context_tokens)
    window = part.window_tokens if settings.static else part.window_tokens - 1
    return min(window, context_tokens)


def reserve(layers: Layers, context_tokens: int, settings: TransformersSettings) -> Reserved:
    """What one conversation of ``context_tokens`` holds.

    ``layers`` are those of a shape ``with_plain_indexers``.
    """
    parts = [part for layer in layers for part in layer]
    kinds = {part.kind for part in parts}
    before = settings.convolution_tokens
    total = 0
    for part in parts:
        held = held_tokens(part, context_tokens, settings) * part.bytes_per_entry
        total += held * (before + 1) // before if part.kind == "convolution" else held
    rules = ["every token, no rounding"]
    if any(part.window_tokens for part in parts):
        kept = "the window" if settings.static else "one token less than the window"
        rules.append(f"a sliding layer keeps {kept}")
    if "convolution" in kinds:
        rules.append(f"a convolution keeps {before + 1} tokens, not {before}")
    if "indexer" in kinds:
        rules.append("an indexer's keys in the type of the cache")
    return Reserved("transformers", total, tuple(rules))
