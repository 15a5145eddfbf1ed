"""What one step computes, while it is being put together."""

from dataclasses import dataclass, field

from kvikk.cache.blocks import BlockCopy
from kvikk.engine.sequence import Sequence


@dataclass
class Step:
    """The next tokens of these sequences, after these copies of blocks.

    ``budget`` is how many tokens more it may hold, ``rows`` how many rows of logits beside the one
    that every sequence has.
    """

    budget: int
    rows: int
    chunks: dict[Sequence, int] = field(default_factory=dict)
    copies: list[BlockCopy] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    short_of_blocks: bool = False
