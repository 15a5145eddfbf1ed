"""Residents in the order of a ``Ranking``, every chain from its end.

Only leaves, blocks that no other in the cache comes behind, may go, and only leaves are queued: of
a chain of a thousand blocks one. The engine's ``EvictionQueue`` does the same with physical blocks,
references and owners; a test proves them equal.
"""

import heapq
from collections.abc import Sequence

from kvikk.cache.eviction.base import Key, Ranking, leading_blocks

_Entry = tuple[int, int, Key]


class Ranked:
    """``Residents`` under any ranking."""

    def __init__(self, capacity: int, ranking: Ranking) -> None:
        self.capacity = capacity
        self._ranking = ranking
        self._turn = 0
        self._uses: dict[Key, tuple[int, int, float]] = {}  # turn, kind and time of the last use
        self._parents: dict[Key, Key] = {}
        self._num_children: dict[Key, int] = {}
        self._leaves: list[list[_Entry]] = [[] for _ in range(ranking.num_kinds)]
        self._num_queued = 0

    def __len__(self) -> int:
        return len(self._uses)

    def __contains__(self, key: Key, /) -> bool:
        return key in self._uses

    def use(self, keys: Sequence[Key], now_s: float = 0.0) -> list[Key]:
        """See ``Residents.use``."""
        return self.place(keys, self._ranking.use(keys, now_s), now_s)

    def place(self, keys: Sequence[Key], kinds: Sequence[int], now_s: float) -> list[Key]:
        """``use`` where the ranking has been told already, and these are the kinds."""
        if not keys:
            return []
        self._turn += 1
        own = keys[: self.capacity]
        hit = leading_blocks(self, own)
        for parent, key in zip(own[max(0, hit - 1) :], own[max(1, hit) :], strict=False):
            if key not in self._uses:
                self._parents[key] = parent
                self._num_children[parent] = self._num_children.get(parent, 0) + 1
        records = [(self._turn, kind, now_s) for kind in range(len(self._leaves))]
        self._uses.update(zip(own, map(records.__getitem__, kinds), strict=False))
        if not self._num_children.get(own[-1]):
            self._queue(own[-1])
        worths: dict[int, float] = {}  # of entries, asked for once
        evicted = [self._evict(worths) for _ in range(len(self._uses) - self.capacity)]
        return [*keys[self.capacity :], *evicted]

    def _queue(self, leaf: Key) -> None:
        turn, kind, _ = self._uses[leaf]
        self._num_queued += 1
        leaves = self._leaves[kind]
        heapq.heappush(leaves, (turn, self._num_queued, leaf))
        if len(leaves) > 2 * len(self._uses) + 64:
            leaves[:] = filter(self._is_leaf, leaves)
            heapq.heapify(leaves)

    def _is_leaf(self, entry: _Entry) -> bool:
        """Whether an entry still says what is so."""
        turn, _, key = entry
        use = self._uses.get(key)
        return use is not None and use[0] == turn and not self._num_children.get(key)

    def _evict(self, worths: dict[int, float]) -> Key:
        worst: tuple[float, int] | None = None
        victims: list[_Entry] = []
        for kind, leaves in enumerate(self._leaves):
            while leaves and not self._is_leaf(leaves[0]):
                heapq.heappop(leaves)
            if leaves and leaves[0][0] != self._turn:
                turn, number, key = leaves[0]
                worth = worths.get(number)
                if worth is None:
                    worth = worths[number] = self._ranking.worth(kind, self._uses[key][2])
                if worst is None or (worth, turn) < worst:
                    worst, victims = (worth, turn), leaves
        _, _, victim = heapq.heappop(victims)
        del self._uses[victim]
        self._num_children.pop(victim, None)
        parent = self._parents.pop(victim, None)
        if parent is not None:
            self._num_children[parent] -= 1
            if not self._num_children[parent]:
                self._queue(parent)
        return victim
