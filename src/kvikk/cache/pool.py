"""One group's physical blocks: who uses each, what the unused ones still know, which goes next.

    empty    a stack: blocks that know nothing; taken first
    cached   in the index, no user; taken when empty runs out, in the queue's order
    live     one or more references

                take                     publish                  release
    empty ────────────────► live ───────────────────► live, named ───────► cached
      ▲                      │                            ▲                  │ │
      └────── release ───────┘                            └──── acquire ─────┘ │
      └────────────────────────────── take, drop ◄─────────────────────────────┘

The order of the queue, and who is spared, is ``queue``'s affair.
"""

from array import array
from collections import Counter
from collections.abc import Iterable

import numpy as np

from kvikk.cache.blocks import BlockState, Usage
from kvikk.cache.eviction.base import Ranking
from kvikk.cache.queue import COMMON, EvictionQueue


class BlockPool:
    """Reference counts, free queue and prefix index of ``num_blocks`` physical blocks.

    Blocks are 0 … num_blocks - 1. All operations on one block are O(1), but for eviction and
    release, which take a logarithm of the cached chains. ``ranking`` None is least recently used.
    With ``chains``, a block goes before those in front of it.
    """

    def __init__(
        self, num_blocks: int, ranking: Ranking | None = None, *, chains: bool = True
    ) -> None:
        self.num_blocks = num_blocks
        self.references = array("i", bytes(4 * num_blocks))
        # Dicts of bytes and ints, and arrays: the garbage collector looks into none of them, so a
        # large pool does not slow down every collection.
        self.index: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}  # the index's inverse
        self._parent_keys: dict[int, bytes | None] = {}
        self._empty = array("i", range(num_blocks - 1, -1, -1))  # the lowest number on top
        self._queue = EvictionQueue(num_blocks, ranking, chains=chains)

    def add_owner(self, reserve_blocks: int) -> int:
        """One more owner, whose indexed blocks stay while they are no more than its reserve."""
        return self._queue.add_owner(reserve_blocks)

    def num_available(self, owner: int = COMMON, last_resort: bool = True) -> int:
        """How many blocks ``take`` can give: empty, and cached but for what others keep.

        That too, as a ``last_resort``.
        """
        kept = 0 if last_resort else self._queue.reserved(owner)
        return len(self._empty) + self._queue.num_cached - kept

    def next_empty(self, count: int) -> list[int]:
        """The first ``count`` of the blocks that ``take`` will give, as far as they are empty."""
        return self._empty[: -count - 1 : -1].tolist()

    def usage(self) -> Usage:
        """Live, cached and empty blocks."""
        empty = len(self._empty)
        cached = self._queue.num_cached
        return Usage(self.num_blocks, self.num_blocks - cached - empty, cached, empty)

    def states(self) -> bytes:
        """The ``BlockState`` of every block, a byte each; 0.3 ms for a hundred thousand."""
        references = np.asarray(self.references)
        states = np.full(self.num_blocks, BlockState.CACHED, np.uint8)
        states[np.asarray(self._empty)] = BlockState.EMPTY
        states[references == 1] = BlockState.LIVE
        states[references > 1] = BlockState.SHARED
        return states.tobytes()

    def take(self, count: int, owner: int = COMMON) -> tuple[list[int], list[tuple[bytes, int]]]:
        """Give ``count`` blocks one reference each; return them, and what was evicted for them.

        At most ``num_available`` may be asked for.
        """
        assert count <= self.num_available()
        from_empty = min(count, len(self._empty))
        blocks = [self._empty.pop() for _ in range(from_empty)]
        evicted = [
            (self._forget(block), block) for block in self._queue.evict(owner, count - from_empty)
        ]
        blocks += [block for _, block in evicted]
        for block in blocks:
            self.references[block] = 1
        return blocks, evicted

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block; all are live or cached."""
        for block in blocks:
            if self.references[block] == 0:
                self._queue.remove(block)
            self.references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop a reference to each block; what comes first here is evicted first later."""
        for block in blocks:
            self.references[block] -= 1
            if self.references[block] == 0:
                key = self._keys.get(block)
                if key is not None:
                    self._queue.append(block, key)
                else:
                    self._empty.append(block)

    def publish(
        self, block: int, key: bytes, parent_key: bytes | None, owner: int = COMMON
    ) -> None:
        """Put a live, full, computed block into the index, as its parent's owner's if it has one.

        So all of a chain is one owner's, and goes from its end.
        """
        assert block not in self._keys
        assert key not in self.index
        self.index[key] = block
        self._keys[block] = key
        self._parent_keys[block] = parent_key
        parent = None if parent_key is None else self.index.get(parent_key)
        owner = owner if parent is None else self._queue.owner(parent)
        self._queue.index(block, parent, owner)

    def parent_key(self, block: int) -> bytes | None:
        """The key in front of an indexed block's."""
        return self._parent_keys[block]

    def num_children(self) -> Counter[bytes | None]:
        """How many indexed blocks come right behind each key; O(blocks)."""
        return Counter(self._parent_keys.values())

    def drop(self, key: bytes) -> int | None:
        """Make this key's block, which has no user, empty. None if there is none."""
        block = self.index.get(key)
        if block is None:
            return None
        assert self.references[block] == 0
        self._queue.remove(block)
        self._queue.forget(block)
        self._forget(block)
        self._empty.append(block)
        return block

    def clear(self) -> int:
        """Forget every key; live blocks stay live. Returns how many cached blocks became empty."""
        num_dropped = self._queue.num_cached
        self._empty.extend(block for block in self._keys if self.references[block] == 0)
        self.index.clear()
        self._keys.clear()
        self._parent_keys.clear()
        self._queue.clear()
        return num_dropped

    def _forget(self, block: int) -> bytes:
        key = self._keys.pop(block)
        del self._parent_keys[block]
        del self.index[key]
        return key

    def check(self, expected_references: dict[int, int], ancestors_stay: bool) -> None:
        """Recount everything against the references that tables hold; AssertionError if it differs.

        ``ancestors_stay``: the group keeps all tokens, so an indexed block's parent is indexed too.
        """
        for block, count in enumerate(self.references):
            assert count == expected_references.get(block, 0), f"block {block}: {count} references"
        queue = self._queue.blocks()
        self._queue.check(list(self._keys))
        blocks = [*queue, *self._empty, *expected_references]
        assert sorted(blocks) == list(range(self.num_blocks)), "live + cached + empty = all"
        assert {key: block for block, key in self._keys.items()} == self.index
        assert len(self._keys) == len(self.index) == len(self._parent_keys)
        for parent_key in self._parent_keys.values():
            if ancestors_stay and parent_key is not None:
                assert parent_key in self.index, "a cached block lost its ancestor"
        assert all(block in self._keys for block in queue)
        states = self.states()
        assert all(states[block] == BlockState.CACHED for block in queue)
        assert all(states[block] == BlockState.EMPTY for block in self._empty)
        for block, count in expected_references.items():
            assert states[block] == (BlockState.LIVE if count == 1 else BlockState.SHARED)
        assert not any(block in self._keys for block in self._empty)
