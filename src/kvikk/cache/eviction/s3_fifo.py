"""S3-FIFO: a small queue to pass before the main one, and names of those that did not.

After Yang, Zhang, Qiu, Yue and Rashmi, "FIFO Queues are All You Need for Cache Eviction" (SOSP
2023). It knows nothing of chains: a block may go before those behind it.
"""

from collections import OrderedDict
from collections.abc import Sequence

from kvikk.cache.eviction.base import Key

_SMALL_SHARE = 0.1
_MOST_USES = 3


class S3Fifo:
    """``Residents`` of two queues, the next to go in front, each key with how often it was hit."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._small: OrderedDict[Key, int] = OrderedDict()
        self._main: OrderedDict[Key, int] = OrderedDict()
        self._ghosts: OrderedDict[Key, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def __contains__(self, key: Key, /) -> bool:
        return key in self._small or key in self._main

    def use(self, keys: Sequence[Key], now_s: float = 0.0) -> list[Key]:
        """See ``Residents.use``."""
        own = keys[: self.capacity]
        for key in reversed(own):
            for queue in (self._small, self._main):
                if key in queue:
                    queue[key] = min(queue[key] + 1, _MOST_USES)
                    break
            else:
                queue = self._small
                if key in self._ghosts:
                    del self._ghosts[key]
                    queue = self._main
                queue[key] = 0
        kept = set(own)
        evicted = [self._evict(kept) for _ in range(len(self) - self.capacity)]
        return [*keys[self.capacity :], *evicted]

    def _evict(self, kept: set[Key]) -> Key:
        victim: Key | None = None
        if len(self._small) > _SMALL_SHARE * self.capacity:
            victim = self._from_small(kept)
        if victim is None:
            victim = self._from_main(kept)
        return self._from_small(kept) if victim is None else victim

    def _from_small(self, kept: set[Key]) -> Key | None:
        for _ in range(len(self._small)):
            key, uses = self._small.popitem(last=False)
            if key in kept:
                self._small[key] = uses
            elif uses > 1:
                self._main[key] = 0
            else:
                self._ghosts[key] = None
                if len(self._ghosts) > self.capacity:
                    self._ghosts.popitem(last=False)
                return key
        return None

    def _from_main(self, kept: set[Key]) -> Key | None:
        for _ in range((_MOST_USES + 1) * len(self._main)):
            key, uses = self._main.popitem(last=False)
            if key not in kept and not uses:
                return key
            self._main[key] = uses if key in kept else uses - 1
        return None
