"""How a sequence comes to its first blocks: by a hit, from a tier below, or from another sequence.

Blocks that are wanted new are taken here, whoever must be evicted for them.
"""

from array import array
from collections.abc import Sequence

from kvikk.cache.events import BlockRemoved
from kvikk.cache.keeping import CacheKeeping
from kvikk.cache.records import Match, OutOfBlocks
from kvikk.cache.state import NOT_HELD, CachedSequence


class CacheOpening(CacheKeeping):
    """Opens sequences; every method does all that it says or raises and changes nothing."""

    def allocate(
        self,
        sequence_id: int,
        match: Match,
        num_tokens: int,
        *,
        tenant: str = "",
        last_resort: bool = True,
    ) -> None:
        """Open a sequence on a match: share the hit's blocks, make room for ``num_tokens`` more.

        What is kept for other tenants is taken as a ``last_resort`` only. The prompt's remaining
        full blocks are pending from now on. Raises OutOfBlocks, and
        ValueError for a sequence that is open already, ``num_tokens`` < 1 or a stale match.
        """
        if sequence_id in self._sequences:
            raise ValueError(f"sequence {sequence_id} is open already")
        if num_tokens < 1:
            raise ValueError("a sequence opens with at least one position to compute")
        hit = match.num_tokens // self.block_size
        fresh = self._num_blocks(num_tokens)
        first_held = self._first_needed(hit)
        try:
            shared = [
                [pool.index[key] for key in match.keys[first:hit]]
                for pool, first in zip(self._pools, first_held, strict=True)
            ]
        except KeyError:
            raise ValueError("the match is stale: blocks of it were evicted since") from None
        owner = self._owner(tenant)
        for group, (pool, blocks) in enumerate(zip(self._pools, shared, strict=True)):
            # A hit that is cached counts as free now and will not any more.
            available = pool.num_available(owner, last_resort) - sum(
                pool.references[block] == 0 for block in blocks
            )
            if fresh > available:
                raise OutOfBlocks(group, fresh, available)

        for pool, blocks in zip(self._pools, shared, strict=True):
            pool.acquire(blocks)
        if self._ranking is not None:
            self._ranking.use(match.keys, self._clock())
        new = self._take(sequence_id, [fresh] * len(self._pools), owner)
        self._sequences[sequence_id] = CachedSequence(
            tables=[
                array("i", [NOT_HELD] * first + blocks + taken)
                for first, blocks, taken in zip(first_held, shared, new, strict=True)
            ],
            first_held=first_held,
            num_tokens=match.num_tokens + num_tokens,
            num_computed=match.num_tokens,
            num_published=hit,
            last_key=match.keys[hit - 1] if hit else None,
            promised=match.keys[hit:],
            publishes=self.prefix_caching,
            owner=owner,
        )
        for key in match.keys[hit:]:
            self._pending.setdefault(key, []).append(sequence_id)
        self._send()

    def missing(self, keys: Sequence[bytes], num_blocks: int) -> set[tuple[int, bytes]]:
        """By group and key, what a hit of ``num_blocks`` needs and no pool has."""
        return {
            (group, key)
            for group, (pool, first) in enumerate(
                zip(self._pools, self._first_needed(num_blocks), strict=True)
            )
            for key in keys[first:num_blocks]
            if key not in pool.index
        }

    def restore(
        self,
        sequence_id: int,
        keys: Sequence[bytes],
        num_blocks: int,
        *,
        tenant: str = "",
        last_resort: bool = True,
    ) -> dict[tuple[int, bytes], int]:
        """Open a sequence on its first ``num_blocks`` blocks, of which pools lack some.

        Returns the blocks to fill with what is ``missing``, by group and key. Once they are filled,
        ``commit`` publishes them; until then they are pending, as if they were being computed.
        Raises OutOfBlocks, and ValueError for a sequence that is open already.
        """
        if sequence_id in self._sequences:
            raise ValueError(f"sequence {sequence_id} is open already")
        first_held = self._first_needed(num_blocks)
        held: list[dict[int, int]] = []  # a group: block by place in the table
        for pool, first in zip(self._pools, first_held, strict=True):
            places = range(first, num_blocks)
            held.append({at: pool.index[keys[at]] for at in places if keys[at] in pool.index})
        fresh = [
            num_blocks - first - len(there) for first, there in zip(first_held, held, strict=True)
        ]
        owner = self._owner(tenant)
        for group, (pool, there) in enumerate(zip(self._pools, held, strict=True)):
            available = pool.num_available(owner, last_resort) - sum(
                pool.references[block] == 0 for block in there.values()
            )
            if fresh[group] > available:
                raise OutOfBlocks(group, fresh[group], available)

        for pool, there in zip(self._pools, held, strict=True):
            pool.acquire(there.values())
        tables: list[array[int]] = []
        to_fill: dict[tuple[int, bytes], int] = {}
        for group, blocks in enumerate(self._take(sequence_id, fresh, owner)):
            new = iter(blocks)
            table = array("i", [NOT_HELD]) * first_held[group]
            for place in range(first_held[group], num_blocks):
                if place not in held[group]:
                    to_fill[group, keys[place]] = held[group][place] = next(new)
                table.append(held[group][place])
            tables.append(table)
        promised = tuple(dict.fromkeys(key for _, key in to_fill))
        self._sequences[sequence_id] = CachedSequence(
            tables=tables,
            first_held=first_held,
            num_tokens=num_blocks * self.block_size,
            num_computed=0,
            num_published=0,
            last_key=None,
            promised=promised,
            publishes=self.prefix_caching,
            owner=owner,
        )
        for key in promised:
            self._pending.setdefault(key, []).append(sequence_id)
        self._send()
        return to_fill

    def fork(self, parent_id: int, child_id: int) -> None:
        """Open a sequence that shares all of the parent's blocks, the unfinished last one included.

        Only between steps: ValueError while the parent has room that is not computed.
        """
        parent = self._sequences[parent_id]
        if child_id in self._sequences:
            raise ValueError(f"sequence {child_id} is open already")
        if parent.num_computed != parent.num_tokens:
            raise ValueError(f"sequence {parent_id} is being computed: fork it between steps")
        for pool, table, first in zip(self._pools, parent.tables, parent.first_held, strict=True):
            pool.acquire(table[first:])
        self._sequences[child_id] = CachedSequence(
            tables=[table[:] for table in parent.tables],
            first_held=parent.first_held[:],
            num_tokens=parent.num_tokens,
            num_computed=parent.num_computed,
            num_published=parent.num_published,
            last_key=parent.last_key,
            promised=(),
            publishes=parent.publishes,
            owner=parent.owner,
        )

    def _take(self, sequence_id: int, counts: Sequence[int], owner: int) -> list[list[int]]:
        """``counts`` blocks of each group, evicting what must go.

        A hit is a prefix of every group: what leaves a group that keeps all tokens can be hit in no
        other and leaves those too. Such groups come first, so that the others fill those blocks
        before they evict any of their own.
        """
        taken: list[list[int]] = [[] for _ in self._pools]
        removed: list[list[bytes]] = [[] for _ in self._pools]
        useless: list[list[bytes]] = [[] for _ in self._pools]
        for group in sorted(range(len(taken)), key=lambda group: self._reach[group] is not None):
            taken[group], evicted = self._pools[group].take(counts[group], owner)
            for key, block in evicted:
                self._evict(group, key, block, removed)
                if self._reach[group] is None:
                    for other, pool in enumerate(self._pools):
                        dropped = None if other == group else pool.drop(key)
                        if dropped is not None:
                            self._evict(other, key, dropped, useless)
        for group, (for_room, with_it) in enumerate(zip(removed, useless, strict=True)):
            if for_room:
                self._unsent.append(BlockRemoved(tuple(for_room), group, sequence_id))
            if with_it:
                self._unsent.append(BlockRemoved(tuple(with_it), group, sequence_id, "useless"))
        return taken
