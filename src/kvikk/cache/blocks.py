"""Physical blocks, as numbers: no tensor passes through this room."""

from dataclasses import dataclass
from enum import IntEnum


@dataclass(frozen=True)
class BlockCopy:
    """Copy one physical block of a group before the next step runs (copy-on-write).

    Several copies are made in the order they were asked for: a later one may reuse an earlier one's
    source or target.
    """

    group: int
    source: int
    target: int


class BlockState(IntEnum):
    """What a block is doing; ``SHARED`` is live with more than one user."""

    EMPTY = 0
    CACHED = 1
    LIVE = 2
    SHARED = 3


@dataclass(frozen=True)
class Usage:
    """Where a pool's blocks are: ``live + cached + empty = total``, always.

    ``live``: some sequence reads or writes it. ``cached``: no sequence does, but the prefix index
    knows it; free memory that still knows something. ``empty``: neither.
    """

    total_blocks: int
    live_blocks: int
    cached_blocks: int
    empty_blocks: int

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.total_blocks + other.total_blocks,
            self.live_blocks + other.live_blocks,
            self.cached_blocks + other.cached_blocks,
            self.empty_blocks + other.empty_blocks,
        )
