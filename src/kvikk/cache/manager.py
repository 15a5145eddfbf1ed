"""The block manager: which block holds which tokens of which sequence, and what can be reused.

It knows nothing of text, tensors or schedules. The engine asks what a prompt can reuse (``match``),
opens a sequence on that (``allocate``), makes room as it grows (``append``), says what has been
computed (``commit``) and closes it (``free``).

Each group of layers has its own pool, index and block table a sequence; a hit is the longest prefix
that every group can serve. A block is published, and so can be hit, once it is full and computed.
A sequence's positions, for block_size 4:

    position      0  1  2  3 | 4  5  6  7 | 8  9 10 11 | 12 13 14 15
    published    [----------------------)                             whole blocks whose key is out
    computed     [-----------------------------)                      up to the last commit
    room         [-----------------------------------------------)    up to the last append
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from kvikk.cache.blocks import BlockCopy, Usage
from kvikk.cache.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvikk.cache.pool import BlockPool
from kvikk.cache.prefix import longest_prefix, reach_blocks
from kvikk.cache.records import FreeResult, GroupSpec, Match, OutOfBlocks, ResetResult
from kvikk.shapes.blocks import most_blocks

NOT_HELD = -1
"""A block table's entry below the window: given back, never read or written again."""


@dataclass(slots=True)
class _Sequence:
    """One live sequence. ``tables`` and ``first_held`` have an entry a group."""

    tables: list["array[int]"]
    first_held: list[int]  # entries of the table below this are NOT_HELD
    num_tokens: int  # positions with room
    num_computed: int  # positions committed
    num_published: int  # leading blocks whose keys are out
    last_key: bytes | None  # the key of the last of those
    promised: tuple[bytes, ...]  # the prompt's keys that this sequence was opened to compute
    publishes: bool  # False since a reset, or without prefix caching


class CacheManager:
    """Block tables, prefix index and eviction over one pool a group.

    Every method either does all it says or raises and changes nothing. Misuse (an unknown sequence,
    a stale match) is a KeyError or ValueError; only OutOfBlocks is part of normal life.
    ``on_event`` is called after the change it tells of. One thread owns a manager.
    """

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        block_size: int,
        *,
        prefix_caching: bool = True,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        if block_size < 1:
            raise ValueError(f"a block holds at least one token, not {block_size}")
        self.groups = tuple(groups)
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._on_event = on_event
        self._pools = [BlockPool(group.num_blocks) for group in groups]
        self._reach = [reach_blocks(group.window_tokens, block_size) for group in groups]
        self._sequences: dict[int, _Sequence] = {}
        # Keys that live sequences were opened to compute, and which ones, the first to say so in
        # front: never a hit, but worth a wait.
        self._pending: dict[bytes, list[int]] = {}
        self._unsent: list[Event] = []

    def match(self, keys: Sequence[bytes], num_tokens: int) -> Match:
        """What a prompt of ``num_tokens`` tokens, whose full blocks have these keys, can reuse.

        A key names its whole prefix, as those of ``KeyChain`` and of most traces do. At least one
        token is always left to run. Changes nothing.
        """
        if not self.prefix_caching:
            return Match(0, 0, None, ())
        max_blocks = min(len(keys), max(0, num_tokens - 1) // self.block_size)
        groups = [(pool.index, reach) for pool, reach in zip(self._pools, self._reach, strict=True)]
        hit = longest_prefix(keys, max_blocks, groups)
        pending, pending_on = 0, None
        rest = keys[hit:max_blocks]
        owners = {key: self._pending[key][0] for key in rest if key in self._pending}
        if owners:
            pending_on = next(iter(owners.values()))
            promised = {key for key, owner in owners.items() if owner == pending_on}
            pending = longest_prefix(keys, max_blocks, groups, promised) - hit
        return Match(
            num_tokens=hit * self.block_size,
            pending_tokens=pending * self.block_size,
            pending_on=pending_on if pending else None,
            keys=tuple(keys[: num_tokens // self.block_size]),
        )

    def computing(self, key: bytes, besides: int) -> int | None:
        """A live sequence other than ``besides`` that was opened to compute this key."""
        owners = self._pending.get(key, ())
        return next((owner for owner in owners if owner != besides), None)

    def allocate(self, sequence_id: int, match: Match, num_tokens: int) -> None:
        """Open a sequence on a match: share the hit's blocks, make room for ``num_tokens`` more.

        The prompt's remaining full blocks are pending from now on. Raises OutOfBlocks, and
        ValueError for a sequence that is open already, ``num_tokens`` < 1 or a stale match.
        """
        if sequence_id in self._sequences:
            raise ValueError(f"sequence {sequence_id} is open already")
        if num_tokens < 1:
            raise ValueError("a sequence opens with at least one position to compute")
        hit = match.num_tokens // self.block_size
        fresh = self._num_blocks(num_tokens)
        first_held = [0 if reach is None else max(0, hit - reach) for reach in self._reach]
        try:
            shared = [
                [pool.index[key] for key in match.keys[first:hit]]
                for pool, first in zip(self._pools, first_held, strict=True)
            ]
        except KeyError:
            raise ValueError("the match is stale: blocks of it were evicted since") from None
        for group, (pool, blocks) in enumerate(zip(self._pools, shared, strict=True)):
            # A hit that is cached counts as free now and will not any more.
            idle = sum(pool.references[block] == 0 for block in blocks)
            if fresh > pool.num_available - idle:
                raise OutOfBlocks(group, fresh, pool.num_available - idle)

        for pool, blocks in zip(self._pools, shared, strict=True):
            pool.acquire(blocks)
        new = self._take(sequence_id, [fresh] * len(self._pools))
        self._sequences[sequence_id] = _Sequence(
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
        )
        for key in match.keys[hit:]:
            self._pending.setdefault(key, []).append(sequence_id)
        self._send()

    def append(self, sequence_id: int, num_tokens: int) -> tuple[BlockCopy, ...]:
        """Make room for ``num_tokens`` more positions. Raises OutOfBlocks.

        Returns the copies to make before the step that writes them: a block shared since a fork is
        copied by whoever writes to it first. Copies of several calls are made in the calls' order.
        """
        sequence = self._sequences[sequence_id]
        if num_tokens < 1:
            return ()
        fresh = self._num_blocks(sequence.num_tokens + num_tokens) - self._num_blocks(
            sequence.num_tokens
        )
        unfinished = sequence.num_tokens % self.block_size > 0
        needed = []
        for group, (pool, table) in enumerate(zip(self._pools, sequence.tables, strict=True)):
            copied = unfinished and pool.references[table[-1]] > 1
            needed.append(fresh + copied)
            if needed[-1] > pool.num_available:
                raise OutOfBlocks(group, needed[-1], pool.num_available)

        copies = []
        new = self._take(sequence_id, needed)
        for group, (table, blocks) in enumerate(zip(sequence.tables, new, strict=True)):
            if len(blocks) > fresh:
                source, target = table[-1], blocks.pop(0)
                copies.append(BlockCopy(group, source, target))
                self._pools[group].release([source])
                table[-1] = target
            table.extend(blocks)
        sequence.num_tokens += num_tokens
        self._send()
        return tuple(copies)

    def commit(self, sequence_id: int, num_tokens: int, keys: Sequence[bytes]) -> None:
        """All positions below ``num_tokens`` are computed: publish full blocks, give back old ones.

        ``keys`` are the sequence's from its first block on; blocks beyond them stay unpublished
        until a later call brings their keys. Where another sequence has published the same block
        meanwhile, the table turns to that one (the bits are equal) and the own copy becomes empty.
        ValueError for a number of tokens outside computed … room, or keys of another chain.
        """
        sequence = self._sequences[sequence_id]
        if not sequence.num_computed <= num_tokens <= sequence.num_tokens:
            raise ValueError(
                f"sequence {sequence_id} can commit {sequence.num_computed} to "
                f"{sequence.num_tokens} tokens, not {num_tokens}"
            )
        published = sequence.num_published
        if published and len(keys) >= published and keys[published - 1] != sequence.last_key:
            raise ValueError(f"the keys do not continue what sequence {sequence_id} has published")
        sequence.num_computed = num_tokens
        full = min(len(keys), num_tokens // self.block_size)
        if sequence.publishes and full > published:
            self._publish(sequence_id, keys, full)
        for group, spec in enumerate(self.groups):
            if spec.window_tokens is not None:
                # The next token attends to the window - 1 positions before it.
                reachable = max(0, num_tokens - spec.window_tokens + 1) // self.block_size
                self._give_back(sequence, group, reachable)
        self._send()

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
        self._sequences[child_id] = _Sequence(
            tables=[table[:] for table in parent.tables],
            first_held=parent.first_held[:],
            num_tokens=parent.num_tokens,
            num_computed=parent.num_computed,
            num_published=parent.num_published,
            last_key=parent.last_key,
            promised=(),
            publishes=parent.publishes,
        )

    def free(self, sequence_id: int) -> FreeResult:
        """Close a sequence at any point of its life: finished, aborted or preempted.

        Its blocks go back deepest first, so that a chain is evicted from its end.
        """
        before = self.usage()
        sequence = self._sequences.pop(sequence_id)
        for key in sequence.promised:
            owners = self._pending.get(key, [])
            if sequence_id in owners:
                owners.remove(sequence_id)
                if not owners:
                    del self._pending[key]
        for pool, table, first in zip(
            self._pools, sequence.tables, sequence.first_held, strict=True
        ):
            pool.release(reversed(table[first:]))
        after = self.usage()
        return FreeResult(
            after.cached_blocks - before.cached_blocks, after.empty_blocks - before.empty_blocks
        )

    def reset(self) -> ResetResult:
        """Drop the prefix index: nothing computed so far is ever hit again.

        Live sequences keep their blocks and go on, but publish no more, since all they compute
        stands on blocks that are no longer known.
        """
        dropped = sum(pool.clear() for pool in self._pools)
        self._pending.clear()
        for sequence in self._sequences.values():
            sequence.publishes = False
        self._unsent.append(AllBlocksCleared())
        self._send()
        return ResetResult(dropped, self.usage().live_blocks, tuple(self._sequences))

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

    def usage_by_group(self) -> tuple[Usage, ...]:
        """Live, cached and empty blocks of each group."""
        return tuple(pool.usage() for pool in self._pools)

    def usage(self) -> Usage:
        """Live, cached and empty blocks of all groups together."""
        return sum(self.usage_by_group(), Usage(0, 0, 0, 0))

    def states_by_group(self) -> tuple[bytes, ...]:
        """The ``BlockState`` of every block of each group, a byte each."""
        return tuple(pool.states() for pool in self._pools)

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

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _take(self, sequence_id: int, counts: Sequence[int]) -> list[list[int]]:
        """``counts`` blocks of each group, evicting what must go.

        A hit is a prefix of every group: what leaves a group that keeps all tokens can be hit in no
        other and leaves those too. Such groups come first, so that the others fill those blocks
        before they evict any of their own.
        """
        taken: list[list[int]] = [[] for _ in self._pools]
        removed: list[list[bytes]] = [[] for _ in self._pools]
        for group in sorted(range(len(taken)), key=lambda group: self._reach[group] is not None):
            taken[group], evicted = self._pools[group].take(counts[group])
            removed[group] += evicted
            if self._reach[group] is None:
                for other, pool in enumerate(self._pools):
                    if other != group:
                        removed[other] += [key for key in evicted if pool.drop(key)]
        self._unsent += [
            BlockRemoved(tuple(keys), group, sequence_id)
            for group, keys in enumerate(removed)
            if keys
        ]
        return taken

    def _publish(self, sequence_id: int, keys: Sequence[bytes], stop: int) -> None:
        """Put the sequence's next blocks, up to ``stop``, into the index of every group."""
        sequence = self._sequences[sequence_id]
        start = sequence.num_published
        for key in islice(keys, start, stop):
            self._pending.pop(key, None)
        for group, (pool, table) in enumerate(zip(self._pools, sequence.tables, strict=True)):
            runs: list[list[int]] = []  # of adjacent blocks that are new to the index
            for block in range(max(start, sequence.first_held[group]), stop):
                own, indexed = table[block], pool.index.get(keys[block])
                if indexed is None:
                    pool.publish(own, keys[block], keys[block - 1] if block else None)
                    if not runs or runs[-1][-1] != block - 1:
                        runs.append([])
                    runs[-1].append(block)
                elif indexed != own:
                    pool.acquire([indexed])
                    pool.release([own])
                    table[block] = indexed
            self._unsent += [
                BlockStored(
                    keys=tuple(keys[run[0] : run[-1] + 1]),
                    parent_key=keys[run[0] - 1] if run[0] else None,
                    block_size=self.block_size,
                    group=group,
                    window_tokens=self.groups[group].window_tokens,
                    sequence_id=sequence_id,
                    start_token=run[0] * self.block_size,
                )
                for run in runs
            ]
        sequence.num_published = stop
        sequence.last_key = keys[stop - 1]

    def _give_back(self, sequence: _Sequence, group: int, first_held: int) -> None:
        table, first = sequence.tables[group], sequence.first_held[group]
        if first_held > first:
            self._pools[group].release(reversed(table[first:first_held]))
            table[first:first_held] = array("i", [NOT_HELD]) * (first_held - first)
            sequence.first_held[group] = first_held

    def _send(self) -> None:
        """Tell what changed. Last in every operation, so that a listener meets a whole manager."""
        unsent, self._unsent = self._unsent, []
        if self._on_event is not None:
            for event in unsent:
                self._on_event(event)
