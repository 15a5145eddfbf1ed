"""kvikk's own engine: blocks of one pool a group, as ``engine/memory.py`` plans them.

A conversation holds ceil(tokens / block) blocks of a group that sees everything; of a group with a
window never more than a span of the window - 1 and a step's tokens touches.
"""

from dataclasses import dataclass

from kvikk.shapes.blocks import held_blocks, most_blocks
from kvikk.shapes.reserve.records import Layers, Reserved


@dataclass(frozen=True)
class KvikkSettings:
    """What one starts kvikk with: ``--block-size``, and the tokens of a step."""

    block_size: int = 32
    step_tokens: int = 256


def reserve(layers: Layers, context_tokens: int, settings: KvikkSettings) -> Reserved:
    """The most that one conversation of ``context_tokens`` ever holds."""
    total = 0
    rules = [f"blocks of {settings.block_size} tokens"]
    for part in (part for layer in layers for part in layer):
        if part.fixed_entries is not None:
            total += part.fixed_bytes
            continue
        blocks = most_blocks(
            context_tokens, part.window_tokens, settings.block_size, settings.step_tokens
        )
        block_bytes = part.bytes_per_entry * settings.block_size // part.tokens_per_entry
        total += blocks * block_bytes
        if part.window_tokens is not None:
            rules.append(
                f"a window of {part.window_tokens:,} holds at most {blocks} blocks: "
                f"what a step of {settings.step_tokens} tokens computes and looks back to"
            )
    return Reserved("kvikk", total, tuple(dict.fromkeys(rules)))


def held_bytes(layers: Layers, num_tokens: int, block_size: int) -> int:
    """What a conversation holds in whole blocks between two steps, with ``num_tokens`` computed."""
    return sum(
        part.fixed_bytes
        if part.fixed_entries is not None
        else held_blocks(num_tokens, part.window_tokens, block_size)
        * (part.bytes_per_entry * block_size // part.tokens_per_entry)
        for layer in layers
        for part in layer
    )
