"""What a replica holds by the router's own memory: what it was sent, as an LRU cache would keep it.

It learns when a request is decided, not when it is answered: a burst of siblings goes together.
"""

from collections import Counter
from collections.abc import Sequence

from kvikk.router.holdings.index import PrefixIndex
from kvikk.router.holdings.keys import Keys
from kvikk.router.holdings.tree import PrefixTree, TreeCache

# What is believed too much costs a replica's time, what is believed too little only a detour: the
# way down is faster than the way up.
_SHRINK, _GROW = 0.9, 1.02


class Learned:
    """The blocks of one replica: at most ``most_blocks``, fewer if it turns out to hold less.

    ``tree`` has those of all replicas, this one's at the place ``slot``.
    """

    def __init__(self, slot: int, tree: PrefixTree, most_blocks: int) -> None:
        self._most_blocks = most_blocks
        self._cache = TreeCache(tree, slot, most_blocks)

    def __len__(self) -> int:
        return self._cache.num_blocks

    @property
    def capacity_blocks(self) -> int:
        """How much it is believed to hold."""
        return self._cache.capacity

    def use(self, keys: Keys) -> None:
        """It was sent a prompt of these blocks."""
        self._cache.use(keys)

    def bound(self, most_blocks: int) -> None:
        """It has said how much it holds."""
        if most_blocks != self._most_blocks:
            self._most_blocks = most_blocks
            self._cache.resize(most_blocks)

    def correct(self, predicted_blocks: int, reported_blocks: int) -> None:
        """It reused other than was believed: what was used longest ago is gone, or is not."""
        if reported_blocks < predicted_blocks:
            self._cache.resize(
                max(1, int(min(self._cache.num_blocks, self.capacity_blocks) * _SHRINK))
            )
        elif reported_blocks > predicted_blocks:
            self._cache.resize(min(self._most_blocks, int(self.capacity_blocks * _GROW) + 1))

    def clear(self) -> None:
        """It holds nothing any more."""
        capacity = self.capacity_blocks
        self._cache.resize(0)
        self._cache.resize(capacity)


class Promised:
    """What a replica that tells what it holds is computing now, and will tell of soon."""

    def __init__(self, slot: int, index: PrefixIndex) -> None:
        self._slot = slot
        self._index = index
        self._counts: Counter[bytes] = Counter()

    def promise(self, keys: Sequence[bytes]) -> None:
        """It was sent a prompt of these blocks."""
        self._counts.update(keys)
        self._index.add(self._slot, keys)

    def settle(self, keys: Sequence[bytes]) -> None:
        """That prompt has been answered or has failed."""
        counts = self._counts
        counts.subtract(keys)
        done = [key for key in keys if counts[key] <= 0]
        for key in done:
            del counts[key]
        self._index.remove(self._slot, done)

    def clear(self) -> None:
        """Nothing it was sent will come of it."""
        self._index.remove(self._slot, self._counts)
        self._counts.clear()
