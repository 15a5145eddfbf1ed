"""What a cache manager knows: pools, sequences with their tables, and every question about them.

Nothing here changes anything; the changes are those of ``keeping``, ``opening`` and ``manager``.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from kvikk.cache.blocks import Usage
from kvikk.cache.eviction.base import Ranking
from kvikk.cache.pool import BlockPool
from kvikk.cache.prefix import reach_blocks
from kvikk.cache.records import GroupSpec
from kvikk.shapes.blocks import most_blocks

NOT_HELD = -1
"""A block table's entry below the window: given back, never read or written again."""


@dataclass(slots=True)
class CachedSequence:
    """One live sequence. ``tables`` and ``first_held`` have an entry a group."""

    tables: list["array[int]"]
    first_held: list[int]  # entries of the table below this are NOT_HELD
    num_tokens: int  # positions with room
    num_computed: int  # positions committed
    num_published: int  # leading blocks whose keys are out
    last_key: bytes | None  # the key of the last of those
    promised: tuple[bytes, ...]  # the prompt's keys that this sequence was opened to compute
    publishes: bool  # False since a reset, or without prefix caching
    owner: int  # whose the blocks are that it publishes, in every pool


class CacheState:
    """One pool a group, the live sequences, and who has promised to compute what."""

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        block_size: int,
        prefix_caching: bool,
        ranking: Ranking | None,
        clock: Callable[[], float],
    ) -> None:
        if block_size < 1:
            raise ValueError(f"a block holds at least one token, not {block_size}")
        self.groups = tuple(groups)
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._ranking = ranking
        self._clock = clock
        self._pools = [
            BlockPool(group.num_blocks, ranking, chains=group.window_tokens is None)
            for group in groups
        ]
        self._reach = [reach_blocks(group.window_tokens, block_size) for group in groups]
        self._sequences: dict[int, CachedSequence] = {}
        # Keys that live sequences were opened to compute, and which ones, the first to say so in
        # front: never a hit, but worth a wait.
        self._pending: dict[bytes, list[int]] = {}

    @property
    def reaches(self) -> tuple[int | None, ...]:
        """How many blocks before a hit's end each group needs; None is all."""
        return tuple(self._reach)

    def held(self, keys: Sequence[bytes]) -> tuple[frozenset[bytes], ...]:
        """Which of these each group has in its index."""
        return tuple(frozenset(keys) & pool.index.keys() for pool in self._pools)

    def _first_needed(self, num_blocks: int) -> list[int]:
        """Of each group the first block that a hit of ``num_blocks`` needs."""
        return [0 if reach is None else max(0, num_blocks - reach) for reach in self._reach]

    def computing(self, key: bytes, besides: int) -> int | None:
        """A live sequence other than ``besides`` that was opened to compute this key."""
        owners = self._pending.get(key, ())
        return next((owner for owner in owners if owner != besides), None)

    def block_table(self, sequence_id: int, group: int) -> "array[int]":
        """The sequence's physical blocks in one group, NOT_HELD (-1) where given back.

        The manager's own int32 array, not a copy: copy it into a batch at once
        (``row[:len(table)] = table`` is one memcpy in numpy), and do not change or keep it.
        """
        return self._sequences[sequence_id].tables[group]

    def sole_blocks(self, sequence_id: int) -> tuple[int, ...]:
        """Blocks a group that only this sequence uses: what freeing it would make available now."""
        sequence = self._sequences[sequence_id]
        return tuple(
            sum(pool.references[block] == 1 for block in islice(table, first, None))
            for pool, table, first in zip(
                self._pools, sequence.tables, sequence.first_held, strict=True
            )
        )

    def can_ever_fit(self, num_tokens: int, max_chunk_tokens: int) -> bool:
        """Whether a sequence of that length fits with all pools to itself.

        It is computed in chunks of at most ``max_chunk_tokens``.
        """
        return all(
            most_blocks(num_tokens, spec.window_tokens, self.block_size, max_chunk_tokens)
            <= spec.num_blocks
            for spec in self.groups
        )

    def next_empty(self, group: int, count: int) -> list[int]:
        """The empty blocks of a group that are given out next, ``count`` at most, in order."""
        return self._pools[group].next_empty(count)

    def usage_by_group(self) -> tuple[Usage, ...]:
        """Live, cached and empty blocks of each group."""
        return tuple(pool.usage() for pool in self._pools)

    def usage(self) -> Usage:
        """Live, cached and empty blocks of all groups together."""
        return sum(self.usage_by_group(), Usage(0, 0, 0, 0))

    def states_by_group(self) -> tuple[bytes, ...]:
        """The ``BlockState`` of every block of each group, a byte each."""
        return tuple(pool.states() for pool in self._pools)

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def check(self) -> None:
        """Recount everything, O(blocks): AssertionError where an invariant does not hold."""
        for group, (pool, spec) in enumerate(zip(self._pools, self.groups, strict=True)):
            references: dict[int, int] = {}
            for sequence in self._sequences.values():
                table, first = sequence.tables[group], sequence.first_held[group]
                assert len(table) == self._num_blocks(sequence.num_tokens)
                assert all(block == NOT_HELD for block in table[:first])
                for block in table[first:]:
                    references[block] = references.get(block, 0) + 1
            pool.check(references, ancestors_stay=spec.window_tokens is None)
        for key, owners in self._pending.items():
            assert owners, "pending on nobody"
            for owner in owners:
                assert key in self._sequences[owner].promised
                assert self._sequences[owner].publishes, "pending on who publishes nothing"
