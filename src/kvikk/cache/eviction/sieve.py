"""SIEVE: a queue by first use, and a hand that spares once what was used again.

After Zhang, Yang, Yue, Vigfusson and Rashmi, "SIEVE is Simpler than LRU" (NSDI 2024). It knows
nothing of chains: a block may go before those behind it.
"""

from collections.abc import Sequence

from kvikk.cache.eviction.base import Key

_END: Key = object()
"""Behind the newest and in front of the oldest."""


class Sieve:
    """``Residents`` that evict the first from the hand on that was not used again."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._newer: dict[Key, Key] = {_END: _END}
        self._older: dict[Key, Key] = {_END: _END}
        self._used_again: set[Key] = set()
        self._hand: Key = _END  # the newest block that it has spared

    def __len__(self) -> int:
        return len(self._newer) - 1

    def __contains__(self, key: Key, /) -> bool:
        return key in self._newer

    def use(self, keys: Sequence[Key], now_s: float = 0.0) -> list[Key]:
        """See ``Residents.use``."""
        own = keys[: self.capacity]
        for key in reversed(own):
            if key in self._newer:
                self._used_again.add(key)
            else:
                newest = self._older[_END]
                self._newer[newest] = self._older[_END] = key
                self._older[key], self._newer[key] = newest, _END
        kept = set(own)
        evicted = [self._evict(kept) for _ in range(len(self) - self.capacity)]
        return [*keys[self.capacity :], *evicted]

    def _evict(self, kept: set[Key]) -> Key:
        key = self._newer[self._hand]
        while key is _END or key in kept or key in self._used_again:
            if key not in kept:
                self._used_again.discard(key)
            key = self._newer[key]
        newer, self._hand = self._newer.pop(key), self._older.pop(key)
        self._newer[self._hand], self._older[newer] = newer, self._hand
        return key
