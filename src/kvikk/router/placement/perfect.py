"""Perfect placement, as far as it can be known without the future: an oracle for the fleet's books.

A session stays on the replica where it began. Where it begins is the question: beside what it
shares, to hold that once, or where most room is, to hold more sessions. Neither is right for all
traffic, so both are tried all along, and the better one counts.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Literal

from kvikk.router.holdings.keys import Keys
from kvikk.router.holdings.tree import PrefixTree, TreeCache

_MOST_SESSIONS = 1 << 16


class Placed:
    """Caches of the replicas' sizes under one rule. Costs a few steps a replica and prompt.

    They are the ``tree``'s, at ``places`` that nobody else has there.
    """

    def __init__(
        self, begins: Literal["beside", "apart"], tree: PrefixTree, places: Iterator[int]
    ) -> None:
        self.tokens = 0
        self._begins = begins
        self._tree = tree
        self._places = places
        self._free: list[int] = []
        self._caches: dict[str, TreeCache] = {}
        self._homes: OrderedDict[bytes, str] = OrderedDict()
        self._turn = 0

    def fleet(self, capacity_blocks: dict[str, int]) -> None:
        """These replicas there are, with so much memory each."""
        for name in self._caches.keys() - capacity_blocks.keys():
            gone = self._caches.pop(name)
            gone.resize(0)
            self._free.append(gone.place)
        for name, blocks in capacity_blocks.items():
            if name in self._caches:
                self._caches[name].resize(max(1, blocks))
            else:
                place = self._free.pop() if self._free else next(self._places)
                self._caches[name] = TreeCache(self._tree, place, max(1, blocks))

    def use(self, session: bytes, keys: Keys) -> int:
        """A prompt of these blocks; returns how many it found."""
        if not self._caches:
            return 0
        self._turn += 1
        home = self._homes.pop(session, None) if session else None
        if home not in self._caches:
            home = self._begin(keys)
        assert home is not None
        if session:
            self._homes[session] = home
            if len(self._homes) > _MOST_SESSIONS:
                self._homes.popitem(last=False)
        return self._caches[home].use(keys, self._turn)

    def _begin(self, keys: Keys) -> str:
        """The replica for a new session.

        That which has the least recently used last block of all that it would drive out; then by
        the rule.
        """
        is_beside, path = self._begins == "beside", self._tree.walk(keys)
        best, least = "", (self._turn, 0)
        for name, cache in self._caches.items():
            held, new = cache.num_blocks, keys.count - cache.leading(path)
            excess = held + new - cache.capacity
            last_use = cache.last_use(excess - 1) if excess > 0 else -1
            cost = (last_use, new if is_beside else held)
            if cost < least:
                best, least = name, cost
        return best
