"""Physical blocks, as numbers: no tensor passes through this room."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockCopy:
    """Copy one physical block of a group before the next step runs (copy-on-write)."""

    group: int
    source: int
    target: int
