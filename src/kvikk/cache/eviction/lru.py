"""Least recently used first, and of one request's blocks the deepest first: the engine's own order.

A parent is used whenever its child is and goes back behind it, so that no chain is ever cut in its
middle. ``BlockPool`` does the same with physical blocks and references; a test proves them equal.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import islice

from kvikk.cache.eviction.base import Key


class Lru:
    """``Residents`` that evict what was used longest ago."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._order: OrderedDict[Key, None] = OrderedDict()  # the next to go in front

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: Key, /) -> bool:
        return key in self._order

    def use(self, keys: Sequence[Key], now_s: float = 0.0) -> list[Key]:
        """See ``Residents.use``."""
        own = keys[: self.capacity]
        order = self._order
        order.update(dict.fromkeys(reversed(own)))
        deque(map(order.move_to_end, reversed(own)), maxlen=0)
        return [*keys[self.capacity :], *self._shrink()]

    def oldest(self, count: int) -> Iterator[Key]:
        """The keys that would be evicted next."""
        return islice(self._order, max(count, 0))

    def resize(self, capacity: int) -> list[Key]:
        """Hold at most ``capacity`` blocks from now on. Returns the keys that were evicted."""
        self.capacity = capacity
        return self._shrink()

    def _shrink(self) -> list[Key]:
        excess = len(self._order) - self.capacity
        return [self._order.popitem(last=False)[0] for _ in range(excess)]
