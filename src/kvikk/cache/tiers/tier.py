"""The seam behind which blocks are kept outside the pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvikk.cache.ledger.records import Cause


def tier_key(group: int, key: bytes) -> bytes:
    """The name of one group's part of a block, in every tier: its block key and the group."""
    return key + bytes([group])


@dataclass(frozen=True, slots=True)
class TierUsage:
    """One tier at this moment, and its totals since the start.

    ``used_blocks`` and ``used_bytes`` are what this engine knows to be there; ``limit_bytes`` None
    is a limit that the tier keeps by itself. ``trouble`` says why it is not used now, if so.
    ``stored``, ``loaded``, ``evicted`` (for room) and ``unfit`` (damaged, or of another engine) are
    blocks, ``failures`` operations.
    """

    name: str
    place: str
    used_blocks: int
    used_bytes: int
    limit_bytes: int | None
    trouble: str | None
    stored: int
    loaded: int
    evicted: int
    unfit: int
    failures: int


class Tier(Protocol):
    """A place for blocks, by ``tier_key``. Safe to use from several threads.

    No method raises for what the place does (full, broken, slow, gone): what cannot be put is not
    there later, what cannot be got is a miss, and both are logged once and counted.
    """

    name: str
    place: str
    cause: Cause
    lasting: bool
    """Whether others find what is here: an engine after this one's end, or another engine now."""

    @property
    def readable(self) -> bool:
        """Whether the last attempt to read from it worked, so that its time says something."""
        ...

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> int:
        """Keep blocks; how many were new and are kept. Least recently used ones make room."""
        ...

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The blocks as they were put, None where one is missing or unfit."""
        ...

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """Which of them are here, as far as that is known without reading them."""
        ...

    def touch(self, keys: Sequence[bytes]) -> None:
        """These were used together, here or in the pool: a chain from its beginning.

        Its end is to go first, since nothing is worth anything without what comes before it.
        """
        ...

    def evict(self, keys: Sequence[bytes] | None = None) -> bool:
        """Forget these, or (None) all blocks of this engine's kind. False if that failed."""
        ...

    def usage(self) -> TierUsage:
        """Figures of this moment."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...
