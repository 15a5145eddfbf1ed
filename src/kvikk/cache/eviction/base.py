"""One replica's cached blocks as names only: what is there, and what a request does to that.

The seam of ``kvikk replay``, and of the router's guess at what a replica holds that does not tell.
A request is one call, so that a policy can work through thousands of keys at C speed.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import takewhile
from typing import Protocol

Key = Hashable
"""A block key, or a trace's number for one: it names the block and all that comes before it."""


class Residents(Protocol):
    """The keys that a cache of ``capacity`` blocks holds, under one eviction policy."""

    capacity: int

    def __len__(self) -> int: ...

    def __contains__(self, key: Key, /) -> bool: ...

    def use(self, keys: Sequence[Key]) -> Iterable[Key]:
        """A request with these prompt blocks, root first, runs from start to end.

        Those in the cache are used, the others computed. A request's own blocks are not evicted
        for each other: of more than ``capacity`` only the first are taken in. Returns the keys that
        were evicted or not taken in; all others of ``keys`` are there now.
        """
        ...


def leading_blocks(residents: Residents, keys: Iterable[Key]) -> int:
    """How many of a prompt's first blocks are there without a gap: the hit."""
    return len(list(takewhile(residents.__contains__, keys)))
