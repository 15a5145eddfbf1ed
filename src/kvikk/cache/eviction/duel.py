"""Hit density where it wins, least recently used where it does not: two shadows decide.

Both policies run in miniature on a sample of the names, each with its share of the memory, after
Waldspurger, Saemundsson, Ahmad and Park, "Cache Modeling and Optimization using Miniature
Simulations" (ATC 2017). A sample of a chain is a chain. The cache follows whichever has had more
hits lately, so that it loses little where nothing can be learned from the past.
"""

from collections.abc import Sequence

from kvikk.cache.eviction.base import Key, leading_blocks
from kvikk.cache.eviction.hit_density import HitDensity
from kvikk.cache.eviction.lru import Lru
from kvikk.cache.eviction.ranked import Ranked

# A smaller sample decides too late, and too often wrongly.
_SHADOW_BLOCKS = 8192
_KEPT_A_REQUEST = 0.5 ** (1 / 1000)


class Duel:
    """A ``Ranking`` for a cache of ``capacity`` blocks."""

    num_kinds = HitDensity.num_kinds

    def __init__(self, capacity: int) -> None:
        self._sampling = max(1, capacity // _SHADOW_BLOCKS)
        self._density = HitDensity(capacity)
        self._learned = Ranked(max(1, capacity // self._sampling), self._density)
        self._lru = Lru(max(1, capacity // self._sampling))
        self._lead = 0.0

    def use(self, keys: Sequence[Key], now_s: float) -> list[int]:
        """See ``Ranking.use``."""
        kinds = self._density.use(keys, now_s)
        sample, of_sample = keys, kinds
        if self._sampling > 1:
            places = [at for at, key in enumerate(keys) if hash(key) % self._sampling == 0]
            sample, of_sample = [keys[at] for at in places], [kinds[at] for at in places]
        self._lead *= _KEPT_A_REQUEST
        self._lead += leading_blocks(self._learned, sample) - leading_blocks(self._lru, sample)
        self._learned.place(sample, of_sample, now_s)
        self._lru.use(sample)
        return kinds

    def meet(self, key: Key) -> tuple[int, float]:
        """See ``Ranking.meet``."""
        return self._density.meet(key)

    def worth(self, kind: int, used_s: float) -> float:
        """See ``Ranking.worth``. All alike, and so by last use alone, while that has the lead."""
        return self._density.worth(kind, used_s) if self._lead >= 0 else 0.0
