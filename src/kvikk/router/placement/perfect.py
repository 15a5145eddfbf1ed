"""Perfect placement, as far as it can be known without the future: an oracle for the fleet's books.

A session stays on the replica where it began. Where it begins is the question: beside what it
shares, to hold that once, or where most room is, to hold more sessions. Neither is right for all
traffic, so both are tried all along, and the better one counts.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

from kvikk.router.holdings.chains import Chains

_MOST_SESSIONS = 1 << 16


class Placed:
    """Caches of the replicas' sizes under one rule. Costs a few steps a replica and prompt."""

    def __init__(self, begins: Literal["beside", "apart"]) -> None:
        self.tokens = 0
        self._begins = begins
        self._caches: dict[str, Chains] = {}
        self._homes: OrderedDict[bytes, str] = OrderedDict()
        self._turn = 0

    def fleet(self, capacity_blocks: dict[str, int]) -> None:
        """These replicas there are, with so much memory each."""
        for name in self._caches.keys() - capacity_blocks.keys():
            del self._caches[name]
        for name, blocks in capacity_blocks.items():
            if name in self._caches:
                self._caches[name].resize(max(1, blocks))
            else:
                self._caches[name] = Chains(max(1, blocks))

    def use(self, session: bytes, keys: Sequence[bytes]) -> int:
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
        return self._caches[home].use(keys, self._turn)[0]

    def _begin(self, keys: Sequence[bytes]) -> str:
        """The replica for a new session.

        That which has the least recently used last block of all that it would drive out; then by
        the rule.
        """
        is_beside, blocks = self._begins == "beside", len(keys)
        best, least = "", (self._turn, 0)
        for name, cache in self._caches.items():
            held = len(cache)
            excess = held + blocks - cache.capacity
            if is_beside or excess > 0:
                new = blocks - cache.leading(keys)
                excess += new - blocks
                cost = (cache.last_use(excess - 1), new if is_beside else held)
            else:
                cost = (-1, held)
            if cost < least:
                best, least = name, cost
        return best
