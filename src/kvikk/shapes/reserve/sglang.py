"""SGLang: one pool of token slots for full layers, one for windows, one of recurrent states.

The window pool has a fixed share of the full pool's tokens (``--swa-full-tokens-ratio``), whatever
the window; so each token that a conversation may come to takes that share of the window layers too.
A running request has one recurrent state.

Source: SGLang 0.5.23, ``srt/mem_cache/memory_pool.py``, ``srt/model_executor``.
"""

from dataclasses import dataclass
from math import floor

from kvikk.shapes.cost import Part
from kvikk.shapes.reserve.records import Layers, Reserved, rounded_up


@dataclass(frozen=True)
class SglangSettings:
    """What one starts SGLang with: ``--page-size`` and ``--swa-full-tokens-ratio``."""

    page_size: int = 1
    window_share: float = 0.8


def split_parts(layers: Layers) -> tuple[list[Part], list[Part], list[Part]]:
    """Parts by the pool they live in: full, windows, and what a request keeps whatever its length.

    Where no layer is full, the windows live in the full pool.
    """
    parts = [part for layer in layers for part in layer]
    fixed = [part for part in parts if part.fixed_entries is not None]
    windows = [part for part in parts if part.window_tokens is not None]
    full = [part for part in parts if part.window_tokens is None and part.fixed_entries is None]
    return (full, windows, fixed) if full else (windows, [], fixed)


def reserve(layers: Layers, context_tokens: int, settings: SglangSettings) -> Reserved:
    """What SGLang must have on a rank for one conversation of ``context_tokens``."""
    full, windows, fixed = split_parts(layers)
    tokens = rounded_up(context_tokens, settings.page_size)
    rules = [f"pages of {settings.page_size} tokens"]
    total = sum(part.bytes_per_entry * tokens // part.tokens_per_entry for part in full)
    total += sum(part.fixed_bytes for part in fixed)
    if windows:
        share = floor(tokens * settings.window_share)
        total += sum(part.bytes_per_entry * share for part in windows)
        rules.append(f"window layers get {settings.window_share:g} of the full layers' tokens")
    if fixed:
        rules.append("one state a running request")
    return Reserved("sglang", total, tuple(rules))
