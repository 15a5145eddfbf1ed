"""Which cached block goes next: by a ranking, a tenant's share last, every chain from its end.

Blocks are queued by owner and by the ranking's kind, least recently used in front; without a
ranking all are of one kind. Only *leaves* are queued, cached blocks that no indexed block comes
behind: of a chain of a thousand blocks one, and its parent when that one goes. All of a chain has
one owner, whoever else is spared. An owner with no more blocks in the index than its *reserve*
keeps them, as long as anything else can go:

    1. the worst of those beyond their reserve, whoever asks
    2. the asker's own
    3. the worst of all: the last resort, for who could not run otherwise
"""

import heapq
from array import array

from kvikk.cache.eviction.base import Ranking

COMMON = 0
"""The owner of what belongs to nobody in particular; its reserve is nothing."""

_NO_BLOCK = -1
_BLOCK_BITS = 32
_BLOCK = (1 << _BLOCK_BITS) - 1
_MOST_STALE = 64


class EvictionQueue:
    """Heaps of plain numbers beside a few arrays: a million blocks need no million objects.

    A block is queued when it becomes a cached leaf and not looked for when it is used again: its
    entry is stale then, and dropped when it comes to the front or when most of a heap is stale.
    With ``chains`` False (a window group) every block is a leaf.
    """

    def __init__(
        self, num_blocks: int, ranking: Ranking | None = None, *, chains: bool = True
    ) -> None:
        self._num_blocks = num_blocks
        self._ranking = ranking
        self._chains = chains
        self._num_kinds = 1 if ranking is None else ranking.num_kinds
        # When a cached block was left by its last user, by a count that grows; 0: not cached.
        self._left_at = array("q", [0]) * num_blocks
        self._kinds = array("b", [0]) * num_blocks
        self._used_s = array("d", [0.0]) * num_blocks
        self._parents = array("i", [_NO_BLOCK]) * num_blocks
        self._num_children = array("i", [0]) * num_blocks
        self._owners = array("i", [COMMON]) * num_blocks
        self._clock = 0
        # An entry is left_at and block in one number. A heap a kind, all of an owner's in a row.
        self._leaves: list[list[int]] = []
        self._cached: list[int] = []
        self._indexed: list[int] = []
        self._reserves: list[int] = []
        self.num_cached = 0
        self.add_owner(0)

    def add_owner(self, reserve_blocks: int) -> int:
        """One more owner, and what it keeps."""
        self._leaves += [[] for _ in range(self._num_kinds)]
        self._cached.append(0)
        self._indexed.append(0)
        self._reserves.append(reserve_blocks)
        return len(self._reserves) - 1

    def owner(self, block: int) -> int:
        """Whose an indexed block is."""
        return self._owners[block]

    def index(self, block: int, parent: int | None, owner: int) -> None:
        """A live block is published behind an indexed parent or none; it is now this owner's."""
        self._owners[block] = owner
        self._indexed[owner] += 1
        if self._chains and parent is not None:
            self._parents[block] = parent
            self._num_children[parent] += 1

    def forget(self, block: int) -> None:
        """A block that is not queued leaves the index."""
        self._indexed[self._owners[block]] -= 1
        parent = self._parents[block]
        if parent != _NO_BLOCK:
            self._parents[block] = _NO_BLOCK
            self._num_children[parent] -= 1
            if not self._num_children[parent] and self._left_at[parent]:
                self._queue(parent)

    def append(self, block: int, key: bytes) -> None:
        """Nobody uses this indexed block any more: it is cached from now on."""
        self._clock += 1
        self._left_at[block] = self._clock
        self._cached[self._owners[block]] += 1
        self.num_cached += 1
        if self._ranking is not None:
            self._kinds[block], self._used_s[block] = self._ranking.meet(key)
        if not self._num_children[block]:
            self._queue(block)

    def remove(self, block: int) -> None:
        """Somebody uses it again, or it goes."""
        self._left_at[block] = 0
        self._cached[self._owners[block]] -= 1
        self.num_cached -= 1

    def reserved(self, asker: int) -> int:
        """How many cached blocks others keep from this owner."""
        return sum(
            min(self._cached[owner], max(0, reserve - self._num_live(owner)))
            for owner, reserve in enumerate(self._reserves)
            if reserve and owner != asker
        )

    def evict(self, asker: int, count: int) -> list[int]:
        """The ``count`` blocks that go next for this owner: neither cached nor indexed any more.

        There must be so many.
        """
        worths: dict[int, float] = {}  # of entries, asked for once: time stands still meanwhile
        blocks = []
        for _ in range(count):
            block = self._worst(self._askable(asker), worths) & _BLOCK
            self.remove(block)
            self.forget(block)
            blocks.append(block)
        return blocks

    def clear(self) -> None:
        """Nothing is indexed any more."""
        self._left_at = array("q", [0]) * self._num_blocks
        self._parents = array("i", [_NO_BLOCK]) * self._num_blocks
        self._num_children = array("i", [0]) * self._num_blocks
        for leaves in self._leaves:
            leaves.clear()
        self._cached = [0] * len(self._cached)
        self._indexed = [0] * len(self._indexed)
        self.num_cached = 0

    def blocks(self) -> list[int]:
        """All that are cached, least recently used first; O(blocks)."""
        cached = [block for block, left_at in enumerate(self._left_at) if left_at]
        return sorted(cached, key=self._left_at.__getitem__)

    def check(self, indexed: list[int]) -> None:
        """Recount against the blocks that the index has; AssertionError if it differs."""
        cached = self.blocks()
        assert len(cached) == self.num_cached == sum(self._cached)
        for owner in range(len(self._cached)):
            assert self._cached[owner] == sum(self._owners[block] == owner for block in cached)
            assert self._indexed[owner] == sum(self._owners[block] == owner for block in indexed)
        children = [0] * self._num_blocks
        for block in indexed:
            if self._parents[block] != _NO_BLOCK:
                children[self._parents[block]] += 1
        assert children == self._num_children.tolist()
        queued = [
            entry & _BLOCK for leaves in self._leaves for entry in leaves if self._is_leaf(entry)
        ]
        assert sorted(queued) == sorted(block for block in cached if not children[block])

    def _queue(self, block: int) -> None:
        leaves = self._leaves[self._owners[block] * self._num_kinds + self._kinds[block]]
        heapq.heappush(leaves, self._left_at[block] << _BLOCK_BITS | block)
        if len(leaves) > 2 * self.num_cached + _MOST_STALE:
            leaves[:] = filter(self._is_leaf, leaves)
            heapq.heapify(leaves)

    def _is_leaf(self, entry: int) -> bool:
        """Whether an entry still says what is so."""
        block = entry & _BLOCK
        return self._left_at[block] == entry >> _BLOCK_BITS and not self._num_children[block]

    def _askable(self, asker: int) -> list[int]:
        """The owners of which one must give a block to this one."""
        if len(self._cached) == 1:
            return [COMMON]
        cached = [owner for owner, count in enumerate(self._cached) if count]
        if len(cached) == 1:
            return cached
        beyond = [owner for owner in cached if self._indexed[owner] > self._reserves[owner]]
        return beyond or ([asker] if self._cached[asker] else cached)

    def _worst(self, owners: list[int], worths: dict[int, float]) -> int:
        """Of these owners' entries that of least worth, of equals the oldest."""
        worst: tuple[float, int] | None = None
        for owner in owners:
            heap = owner * self._num_kinds
            for leaves in self._leaves[heap : heap + self._num_kinds]:
                while leaves and not self._is_leaf(leaves[0]):
                    heapq.heappop(leaves)
                if leaves:
                    entry = leaves[0]
                    worth = worths.get(entry)
                    if worth is None:
                        worth = worths[entry] = self._worth(entry & _BLOCK)
                    if worst is None or (worth, entry) < worst:
                        worst = worth, entry
        assert worst is not None, "nothing is cached"
        return worst[1]

    def _worth(self, block: int) -> float:
        if self._ranking is None:
            return 0.0
        return self._ranking.worth(self._kinds[block], self._used_s[block])

    def _num_live(self, owner: int) -> int:
        return self._indexed[owner] - self._cached[owner]
