"""Which cached block goes next: least recently used first, a tenant's share last.

A queue an owner, least recently used in front. All of a chain has one owner, so that within a queue
a chain goes from its end, whoever else is spared. An owner with no more blocks in the index than
its *reserve* keeps them, as long as anything else can go:

    1. the oldest of those beyond their reserve, whoever asks
    2. the asker's own
    3. the oldest of all: the last resort, for who could not run otherwise
"""

from array import array

COMMON = 0
"""The owner of what belongs to nobody in particular; its reserve is nothing."""


class EvictionQueue:
    """Doubly linked lists threaded through two arrays: a hit leaves from the middle in O(1), and a
    million blocks need no million objects.
    """

    def __init__(self, num_blocks: int) -> None:
        # Past the blocks stand the ends of each owner's list: newer is the oldest block.
        self._newer = array("i", [0]) * num_blocks
        self._older = array("i", [0]) * num_blocks
        self._left_at = array("q", [0]) * num_blocks
        self._owners = array("i", [COMMON]) * num_blocks
        self._num_blocks = num_blocks
        self._clock = 0
        self._cached: list[int] = []
        self._indexed: list[int] = []
        self._reserves: list[int] = []
        self.num_cached = 0
        self.add_owner(0)

    def add_owner(self, reserve_blocks: int) -> int:
        """One more owner, and what it keeps."""
        end = len(self._newer)
        self._newer.append(end)
        self._older.append(end)
        self._cached.append(0)
        self._indexed.append(0)
        self._reserves.append(reserve_blocks)
        return end - self._num_blocks

    def owner(self, block: int) -> int:
        """Whose an indexed block is."""
        return self._owners[block]

    def index(self, block: int, owner: int) -> None:
        """A live block is published and is from now on this owner's."""
        self._owners[block] = owner
        self._indexed[owner] += 1

    def forget(self, block: int) -> None:
        """A block that is not queued leaves the index."""
        self._indexed[self._owners[block]] -= 1

    def append(self, block: int) -> None:
        """Nobody uses this indexed block any more: make it the newest of its owner's."""
        owner = self._owners[block]
        end = self._num_blocks + owner
        newest = self._older[end]
        self._newer[newest] = block
        self._older[block] = newest
        self._newer[block] = end
        self._older[end] = block
        self._clock += 1
        self._left_at[block] = self._clock
        self._cached[owner] += 1
        self.num_cached += 1

    def remove(self, block: int) -> None:
        """Somebody uses it again, or it goes."""
        older, newer = self._older[block], self._newer[block]
        self._newer[older] = newer
        self._older[newer] = older
        self._cached[self._owners[block]] -= 1
        self.num_cached -= 1

    def reserved(self, asker: int) -> int:
        """How many cached blocks others keep from this owner."""
        return sum(
            min(self._cached[owner], max(0, reserve - self._num_live(owner)))
            for owner, reserve in enumerate(self._reserves)
            if reserve and owner != asker
        )

    def victim(self, asker: int) -> int:
        """The block that goes next for this owner; it stays queued. There must be one."""
        cached = [owner for owner, count in enumerate(self._cached) if count]
        if len(cached) > 1:
            beyond = [owner for owner in cached if self._indexed[owner] > self._reserves[owner]]
            cached = beyond or ([asker] if self._cached[asker] else cached)
        oldest = [self._newer[self._num_blocks + owner] for owner in cached]
        return min(oldest, key=self._left_at.__getitem__)

    def clear(self) -> None:
        """Nothing is indexed any more."""
        for owner in range(len(self._cached)):
            end = self._num_blocks + owner
            self._newer[end] = self._older[end] = end
            self._cached[owner] = self._indexed[owner] = 0
        self.num_cached = 0

    def blocks(self) -> list[int]:
        """All that are queued, an owner after the other, oldest first."""
        found = []
        for owner in range(len(self._cached)):
            block = self._newer[self._num_blocks + owner]
            while block < self._num_blocks:
                found.append(block)
                block = self._newer[block]
        return found

    def check(self, indexed: list[int]) -> None:
        """Recount against the blocks that the index has; AssertionError if it differs."""
        queued = self.blocks()
        assert len(queued) == self.num_cached == sum(self._cached)
        for owner in range(len(self._cached)):
            assert self._cached[owner] == sum(self._owners[block] == owner for block in queued)
            assert self._indexed[owner] == sum(self._owners[block] == owner for block in indexed)
        assert all(self._older[self._newer[block]] == block for block in queued)

    def _num_live(self, owner: int) -> int:
        return self._indexed[owner] - self._cached[owner]
