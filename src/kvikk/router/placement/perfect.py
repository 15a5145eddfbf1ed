"""Perfect placement, as far as it can be known without the future: an oracle for the fleet's books.

A session stays on the replica where it began. Where it begins is the question: beside what it
shares, to hold that once, or where most room is, to hold more sessions. Neither is right for all
traffic, so both are tried all along, and the better one counts.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Literal

from kvikk.cache.eviction.base import leading_blocks
from kvikk.cache.eviction.lru import Lru

_MOST_SESSIONS = 1 << 16


class Placed:
    """Caches of the replicas' sizes under one rule. Costs a few dictionary steps a block."""

    def __init__(self, begins: Literal["beside", "apart"]) -> None:
        self.tokens = 0
        self._begins = begins
        self._caches: dict[str, Lru] = {}
        self._last_use: dict[str, dict[Hashable, int]] = {}
        self._homes: OrderedDict[bytes, str] = OrderedDict()
        self._turn = 0

    def fleet(self, capacity_blocks: dict[str, int]) -> None:
        """These replicas there are, with so much memory each."""
        for name in self._caches.keys() - capacity_blocks.keys():
            del self._caches[name], self._last_use[name]
        for name, blocks in capacity_blocks.items():
            if name in self._caches:
                for key in self._caches[name].resize(max(1, blocks)):
                    self._last_use[name].pop(key, None)
            else:
                self._caches[name] = Lru(max(1, blocks))
                self._last_use[name] = {}

    def use(self, session: bytes, keys: Sequence[bytes]) -> int:
        """A prompt of these blocks; returns how many it found."""
        if not self._caches:
            return 0
        self._turn += 1
        home = self._homes.pop(session, None) if session else None
        if home not in self._caches:
            home = min(self._caches, key=lambda name: self._cost(name, keys))
        assert home is not None
        if session:
            self._homes[session] = home
            if len(self._homes) > _MOST_SESSIONS:
                self._homes.popitem(last=False)
        cache, last_use = self._caches[home], self._last_use[home]
        found = leading_blocks(cache, keys)
        last_use.update(dict.fromkeys(keys, self._turn))
        for key in cache.use(keys):
            last_use.pop(key, None)
        return found

    def _cost(self, name: str, keys: Sequence[bytes]) -> tuple[int, int]:
        """When the last block was used that these would drive out; then by the rule."""
        cache = self._caches[name]
        new = len(keys) - leading_blocks(cache, keys)
        last = -1
        for key in cache.oldest(len(cache) + new - cache.capacity):
            last = self._last_use[name].get(key, -1)
        return last, new if self._begins == "beside" else len(cache)
