"""First in, first out, and of one request's blocks the deepest first: a hit changes nothing."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from kvikk.cache.eviction.base import Key


class Fifo:
    """``Residents`` that evict what was computed longest ago."""

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
        refused = list(keys[self.capacity :])
        excess = len(order) - self.capacity
        if excess <= 0:
            return refused
        kept = set(own)
        evicted = list(islice((key for key in order if key not in kept), excess))
        for key in evicted:
            del order[key]
        return refused + evicted
