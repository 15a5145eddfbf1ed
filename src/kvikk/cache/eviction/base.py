"""One replica's cached blocks as names only, and what tells which of them goes next.

``Residents`` is the seam of ``kvikk replay``, and of the router's guess at what a replica holds
that does not tell. A request is one call, so that a policy can work through thousands of keys at C
speed. ``Ranking`` is the seam between a policy and where blocks really lie: the same object orders
names in ``Ranked`` and physical blocks in the engine's pool.
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

    def use(self, keys: Sequence[Key], now_s: float = 0.0) -> Iterable[Key]:
        """A request with these prompt blocks, root first, runs from start to end at that time.

        Those in the cache are used, the others computed. A request's own blocks are not evicted
        for each other: of more than ``capacity`` only the first are taken in. Returns the keys that
        were evicted or not taken in; all others of ``keys`` are there now. Times never go back.
        """
        ...


class Ranking(Protocol):
    """Sorts blocks into a few kinds, and says what one of a kind is worth after so long unused.

    Of a kind the least recently used goes first, so that only one block a kind need be looked at:
    the victim is that which is worth least, of equals the one unused longest.
    """

    num_kinds: int

    def use(self, keys: Sequence[Key], now_s: float) -> Sequence[int]:
        """A request with these prompt blocks, root first, arrives. Returns the kind of each."""
        ...

    def meet(self, key: Key) -> tuple[int, float]:
        """The kind of a block and when it was used last; one never met is met now."""
        ...

    def worth(self, kind: int, used_s: float) -> float:
        """What it is worth to keep a block of this kind, used last at that time, by now."""
        ...


def leading_blocks(residents: Residents, keys: Iterable[Key]) -> int:
    """How many of a prompt's first blocks are there without a gap: the hit."""
    return len(list(takewhile(residents.__contains__, keys)))
