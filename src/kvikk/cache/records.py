"""What goes into the manager and what comes out of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """One group of layers: its pool's size, and its window where older tokens are not kept."""

    num_blocks: int
    window_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.num_blocks < 1:
            raise ValueError(f"a group needs at least one block, not {self.num_blocks}")
        if self.window_tokens is not None and self.window_tokens < 1:
            raise ValueError(f"a window holds at least one token, not {self.window_tokens}")


@dataclass(frozen=True, slots=True)
class Match:
    """What a prompt can reuse now, and what it could if it waited.

    The first ``num_tokens`` positions can be reused: a multiple of the block size, and less than
    the prompt. Once the live sequence ``pending_on`` has computed its prompt, ``pending_tokens``
    more could be; None and 0 where waiting would bring nothing. ``keys`` are those of the prompt's
    full blocks. Holds good until the manager changes.
    """

    num_tokens: int
    pending_tokens: int
    pending_on: int | None
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class FreeResult:
    """How many blocks a freed sequence was the last to use, all groups together."""

    cached_blocks: int
    empty_blocks: int


@dataclass(frozen=True, slots=True)
class ResetResult:
    """What a reset did. In any case, nothing computed before it can be hit after it.

    ``dropped_blocks`` were cached and are empty now. ``held_blocks`` are still used, unnamed, by
    the sequences ``held_by``, and become empty when those end.
    """

    dropped_blocks: int
    held_blocks: int
    held_by: tuple[int, ...]

    @property
    def complete(self) -> bool:
        """Whether every block is empty now."""
        return self.held_blocks == 0


class OutOfBlocks(Exception):  # noqa: N818 - a state of the pool to act on, not a fault
    """A group has too few free blocks. Nothing was changed; free a sequence and try again."""

    def __init__(self, group: int, needed_blocks: int, available_blocks: int) -> None:
        super().__init__(
            f"group {group} needs {needed_blocks} more blocks and has {available_blocks} free"
        )
        self.group = group
        self.needed_blocks = needed_blocks
        self.available_blocks = available_blocks
