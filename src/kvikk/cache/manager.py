"""The block manager: which block holds which tokens of which sequence, and what can be reused.

It knows nothing of text, tensors or schedules. The engine asks what a prompt can reuse (``match``),
opens a sequence on that (``allocate``), makes room as it grows (``append``), says what has been
computed (``commit``) and closes it (``free``). The questions are ``state``'s, sequences are opened
in ``opening``, and ``keeping`` is about what stays or goes on purpose.

Each group of layers has its own pool, index and block table a sequence; a hit is the longest prefix
that every group can serve. A block is published, and so can be hit, once it is full and computed.
A sequence's positions, for block_size 4:

    position      0  1  2  3 | 4  5  6  7 | 8  9 10 11 | 12 13 14 15
    published    [----------------------)                             whole blocks whose key is out
    computed     [-----------------------------)                      up to the last commit
    room         [-----------------------------------------------)    up to the last append
"""

import time
from array import array
from collections.abc import Callable, Sequence
from itertools import islice

from kvikk.cache.blocks import BlockCopy
from kvikk.cache.events import AllBlocksCleared, BlockStored, Event
from kvikk.cache.eviction import RANKINGS
from kvikk.cache.keeping import Hook
from kvikk.cache.opening import CacheOpening
from kvikk.cache.prefix import longest_prefix
from kvikk.cache.records import FreeResult, GroupSpec, Match, OutOfBlocks, ResetResult
from kvikk.cache.state import NOT_HELD, CachedSequence


class CacheManager(CacheOpening):
    """Block tables, prefix index and eviction over one pool a group.

    Every method either does all it says or raises and changes nothing. Misuse (an unknown sequence,
    a stale match) is a KeyError or ValueError; only OutOfBlocks is part of normal life.
    ``on_event`` is called after the change it tells of. ``on_publish`` and ``on_evict`` are called,
    with group, key and block, while a block enters the index or leaves it for another use; what it
    holds stays until the next ``allocate``, ``append`` or ``restore``, or until the step after it
    writes. ``eviction`` is one of ``LIVE_POLICIES``; what needs the time asks ``clock``, in
    seconds. One thread owns a manager.
    """

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        block_size: int,
        *,
        prefix_caching: bool = True,
        on_event: Callable[[Event], None] | None = None,
        on_publish: Hook | None = None,
        on_evict: Hook | None = None,
        tenant_share: float = 0.0,
        eviction: str = "lru",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        make = RANKINGS.get(eviction)
        ranking = None if make is None else make(min(group.num_blocks for group in groups))
        super().__init__(groups, block_size, prefix_caching, tenant_share, ranking, clock)
        self._on_event = on_event
        self._on_publish = on_publish
        self._on_evict = on_evict

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

    def append(
        self, sequence_id: int, num_tokens: int, *, last_resort: bool = True
    ) -> tuple[BlockCopy, ...]:
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
            available = pool.num_available(sequence.owner, last_resort)
            if needed[-1] > available:
                raise OutOfBlocks(group, needed[-1], available)

        copies = []
        new = self._take(sequence_id, needed, sequence.owner)
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

    def free(self, sequence_id: int) -> FreeResult:
        """Close a sequence at any point of its life: finished, aborted or preempted.

        Its blocks go back deepest first, so that a chain is evicted from its end.
        """
        before = self.usage()
        self.renounce(sequence_id)
        sequence = self._sequences.pop(sequence_id)
        for pool, table, first in zip(
            self._pools, sequence.tables, sequence.first_held, strict=True
        ):
            pool.release(reversed(table[first:]))
        after = self.usage()
        return FreeResult(
            after.cached_blocks - before.cached_blocks, after.empty_blocks - before.empty_blocks
        )

    def renounce(self, sequence_id: int) -> None:
        """Nobody is to wait for this sequence's blocks any more."""
        for key in self._sequences[sequence_id].promised:
            owners = self._pending.get(key, [])
            if sequence_id in owners:
                owners.remove(sequence_id)
                if not owners:
                    del self._pending[key]

    def reset(self) -> ResetResult:
        """Drop the prefix index: nothing computed so far is ever hit again.

        Live sequences keep their blocks and go on, but publish no more, since all they compute
        stands on blocks that are no longer known.
        """
        for pin in self.pins:
            self.unpin(pin.number)
        dropped = sum(pool.clear() for pool in self._pools)
        self._pending.clear()
        for sequence in self._sequences.values():
            sequence.publishes = False
        self._unsent.append(AllBlocksCleared())
        self._send()
        return ResetResult(dropped, self.usage().live_blocks, tuple(self._sequences))

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
                    parent = keys[block - 1] if block else None
                    pool.publish(own, keys[block], parent, sequence.owner)
                    if self._on_publish is not None:
                        self._on_publish(group, keys[block], own)
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

    def _give_back(self, sequence: CachedSequence, group: int, first_held: int) -> None:
        table, first = sequence.tables[group], sequence.first_held[group]
        if first_held > first:
            self._pools[group].release(reversed(table[first:first_held]))
            table[first:first_held] = array("i", [NOT_HELD]) * (first_held - first)
            sequence.first_held[group] = first_held
