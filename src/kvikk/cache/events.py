"""What the prefix index tells the world, as it changes: routers keep a mirror of it from these.

Each change of the index is told exactly once and in order, after the operation that made it: a
mirror that has heard everything equals the index. Every group speaks for itself, since each keeps
and evicts its own blocks: a key is announced once a group and removed once a group.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class BlockStored:
    """These keys are now in the group's index: one chain, parent before child.

    ``parent_key`` is None in front of a sequence's first block. No tokens pass through this room;
    the listener knows those of ``sequence_id``, and the blocks' are its positions ``start_token``
    to ``start_token + len(keys) * block_size``.
    """

    keys: tuple[bytes, ...]
    parent_key: bytes | None
    block_size: int
    group: int
    window_tokens: int | None
    sequence_id: int
    start_token: int


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """These keys left the group's index, deepest first: to make room for ``sequence_id``; since a
    group that keeps all tokens has just lost them, which makes them useless here; or (-1) because
    their conversation went to sleep.
    """

    keys: tuple[bytes, ...]
    group: int
    sequence_id: int
    reason: Literal["room", "useless", "sleep"] = "room"


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Every group's index is empty."""


Event = BlockStored | BlockRemoved | AllBlocksCleared
