"""The accountant: hears what happens to blocks, and says of each prompt token what became of it.

It stands beside the cache manager and changes nothing there. It hears every event, remembers what
left and why, and opens one ledger a request, at its first admission:

    manager ── stored, removed, cleared ──► accountant ──► ledgers
    engine ─── open (admitted), close ────►

What it remembers is bounded by ``memory_bytes``, in equal parts: keys that went, contents of
blocks, and tokens of sequences that ended. What is resident is bounded by the pool.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from kvikk.cache.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvikk.cache.keys import KeyChain
from kvikk.cache.ledger import contents as block_contents
from kvikk.cache.ledger.block_causes import BlockCause, as_alone, asked_of_windows, told_together
from kvikk.cache.ledger.contents import Contents, fingerprints, seed_of
from kvikk.cache.ledger.moved import RecentTokens, RunFinder
from kvikk.cache.ledger.recent import RecentTable, bytes_per_row
from kvikk.cache.ledger.records import (
    NO_ORIGINS,
    NOTHING,
    Cause,
    Detail,
    Ledger,
    Origins,
    Span,
    joined,
)
from kvikk.cache.ledger.residents import Residents, sortable
from kvikk.cache.ledger.roots import Root
from kvikk.cache.prefix import reach_blocks

DEFAULT_MEMORY_BYTES = 96 * 2**20

_BARE_ROOT = b"\0" * 32
_NOTHING, _RESET, _SLEEP = range(3)
_DROPPED_BY = ("", "reset", "sleep")
# A key that went: when, to make room for whom, the how many-th of its group, or what dropped it.
_GONE = np.dtype(
    [
        ("at_s", np.float64),
        ("sequence", np.int64),
        ("ordinal", np.int64),
        ("group", np.int32),
        ("dropped_by", np.int32),
    ]
)


@dataclass(slots=True)
class _Open:
    """A sequence that may still publish blocks."""

    tokens: Sequence[int]  # the engine's own list, which grows
    root: Root
    bare: KeyChain
    num_bare: int = 0

    def bare_keys(self, num_tokens: int) -> Sequence[bytes]:
        """Bare keys of the full blocks of the first ``num_tokens`` tokens or more."""
        if num_tokens > self.num_bare:
            self.bare.extend(self.tokens[self.num_bare : num_tokens])
            self.num_bare = num_tokens
        return self.bare.keys


class Accountant:
    """Ledgers for the sequences of one cache manager; owned by the same thread.

    ``windows`` are the groups', None where a group keeps all tokens. ``hear`` is the manager's
    ``on_event``. Every sequence is opened with ``open`` or ``follow`` before it publishes its first
    block, and closed with ``close``.
    """

    def __init__(
        self,
        block_size: int,
        windows: Sequence[int | None],
        *,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.block_size = block_size
        self._clock = clock
        share = memory_bytes // 3
        self._gone = RecentTable(share // bytes_per_row(_GONE), _GONE)
        self._contents = Contents(block_size, share // block_contents.BYTES_PER_BLOCK)
        self._ended = RecentTokens(share)
        self._reaches = [reach_blocks(window, block_size) for window in windows]
        self._residents = Residents(len(windows))
        self._open: dict[int, _Open] = {}
        self._removals = [0] * len(windows)  # for room

    def hear(self, event: Event) -> None:
        """Follow a change of the prefix index."""
        if isinstance(event, BlockStored):
            self._stored(event)
        elif isinstance(event, BlockRemoved):
            self._removed(event)
        elif isinstance(event, AllBlocksCleared):
            self._remember(self._residents.clear(), sequence=-1, group=0, dropped_by=_RESET)

    def open(
        self,
        sequence: int,
        tokens: Sequence[int],
        keys: Sequence[bytes],
        root: Root,
        *,
        num_prompt_tokens: int,
        hit_tokens: int,
        waited_for: int | None = None,
        computing: Callable[[bytes], int | None] = lambda key: None,
        origins: Origins = NO_ORIGINS,
    ) -> Ledger:
        """Account for a prompt at its admission.

        ``tokens`` is the sequence's growing list and ``keys`` those of its full blocks; the first
        ``hit_tokens`` are reused, some of them of a sequence that was ``waited_for``. ``computing``
        names the other sequence that is computing a key; ``origins`` what slower tiers had.
        """
        known = self.follow(sequence, tokens, root)
        reachable = (num_prompt_tokens - 1) // self.block_size * self.block_size
        prompt = np.array(tokens[:num_prompt_tokens], np.uint32)
        missed = _Missed(prompt, keys, hit_tokens, max(hit_tokens, reachable))
        partial = self._partial(missed, root)
        hits = self._hits(keys, hit_tokens, waited_for, origins)
        front = (*hits, *((partial,) if partial else ()))
        start = partial.stop if partial else hit_tokens
        tail = Span(missed.stop, num_prompt_tokens, Cause.TAIL)
        blocks = self._block_causes(missed, known, computing, origins)
        spans = self._spans(missed, start, blocks, known)
        all_spans = tuple(joined((*front, *spans, tail)))
        own_blocks = [as_alone(cause) for cause in blocks]
        if own_blocks == blocks:
            return Ledger(num_prompt_tokens, all_spans)
        own = self._spans(missed, start, own_blocks, known)
        return Ledger(num_prompt_tokens, all_spans, tuple(joined((*front, *own, tail))))

    def follow(self, sequence: int, tokens: Sequence[int], root: Root) -> "_Open":
        """Know a sequence by its growing list of tokens; with no ledger, where it needs none."""
        known = self._open[sequence] = _Open(tokens, root, KeyChain(_BARE_ROOT, self.block_size))
        return known

    def close(self, sequence: int) -> None:
        """The sequence has ended: it publishes no more."""
        known = self._open.pop(sequence, None)
        if known is not None:
            self._ended.add(sequence, known.tokens)

    # What is heard.

    def _stored(self, event: BlockStored) -> None:
        known = self._open[event.sequence_id]
        size, start = self.block_size, event.start_token
        stop = start + len(event.keys) * size
        blocks = np.array(known.tokens[start:stop], np.uint32).reshape(-1, size)
        bare_keys = known.bare_keys(stop)[start // size :]
        root = known.root
        parent = root.key if event.parent_key is None else event.parent_key
        unknown = []
        for index, key in enumerate(event.keys):
            tokens = sortable(blocks[index])
            if self._residents.store(
                key, event.group, parent, tokens, bare_keys[index], root, event.sequence_id
            ):
                unknown.append(index)
            parent = key
        self._contents.add(
            blocks[unknown],
            event.sequence_id,
            start + size * np.array(unknown, np.int64),
            seed_of(root.key),
        )

    def _removed(self, event: BlockRemoved) -> None:
        """Remember what was lost, for the group that lost it.

        A group that keeps all tokens always has the last word: without its block, nothing behind
        can be hit, whatever windows have.
        """
        decides = self._reaches[event.group] is None
        lost: list[bytes] = []
        places: list[int] = []
        for place, key in enumerate(event.keys):
            was_resident = self._residents.remove(key, event.group)
            if event.reason != "useless" and (was_resident or decides):
                lost.append(key)
                places.append(place)
        dropped_by = _SLEEP if event.reason == "sleep" else _NOTHING
        self._remember(lost, event.sequence_id, event.group, dropped_by, places)
        if event.reason == "room":
            self._removals[event.group] += len(event.keys)

    def _remember(
        self,
        keys: list[bytes],
        sequence: int,
        group: int,
        dropped_by: int,
        places: Sequence[int] = (),
    ) -> None:
        """``places`` are those among the group's removals, from now on; none where nobody asks."""
        if keys:
            rows = np.zeros(len(keys), _GONE)
            rows["at_s"], rows["sequence"], rows["group"] = self._clock(), sequence, group
            rows["ordinal"] = self._removals[group] + np.array(places or [0])
            rows["dropped_by"] = dropped_by
            self._gone.add(fingerprints(keys), rows)

    # What is said.

    def _hits(
        self, keys: Sequence[bytes], hit_tokens: int, waited_for: int | None, origins: Origins
    ) -> Iterator[Span]:
        size = self.block_size

        def source(block: int) -> tuple[Cause, int | None]:
            cause = origins.causes[block] if origins.causes else Cause.HIT_DEVICE
            owner = self._residents.sequence(keys[block]) if cause is Cause.HIT_DEVICE else None
            return cause, owner

        for (cause, owner), blocks in groupby(range(hit_tokens // size), source):
            numbers = list(blocks)
            detail = Detail(sequence=owner, waited=owner is not None and owner == waited_for)
            yield Span(numbers[0] * size, (numbers[-1] + 1) * size, cause, detail)

    def _partial(self, missed: "_Missed", root: Root) -> Span | None:
        if missed.stop == missed.start:
            return None
        block = missed.start // self.block_size
        parent = missed.keys[block - 1] if block else root.key
        tokens = missed.prompt[missed.start : missed.start + self.block_size]
        common, owner = self._residents.longest_common(parent, sortable(tokens))
        if not 0 < common < self.block_size:  # a whole block is not lost to the block's size
            return None
        return Span(missed.start, missed.start + common, Cause.PARTIAL, Detail(sequence=owner))

    def _block_causes(
        self,
        missed: "_Missed",
        known: _Open,
        computing: Callable[[bytes], int | None],
        origins: Origins,
    ) -> list[BlockCause | None]:
        """Of each missed block why it is not here, where its key says so."""
        first, end = missed.start // self.block_size, missed.stop // self.block_size
        keys = missed.keys[first:end]
        if not keys:
            return []
        was_here, gone = self._gone.find(fingerprints(keys))
        several_roots = self._residents.have_other_roots(known.root)
        bare_keys = known.bare_keys(missed.stop)[first:end] if several_roots else ()
        causes: list[BlockCause | None] = []
        for index, key in enumerate(keys):
            owner = computing(key)
            if owner is not None:
                causes.append(BlockCause(Cause.IN_FLIGHT, Detail(sequence=owner)))
            elif first + index in origins.passed_over:
                # A faster tier, or more memory here, would have served it.
                known_end = self._went(gone[index]).detail if was_here[index] else NOTHING
                detail = replace(known_end, part=None, tier=origins.passed_tier)
                causes.append(BlockCause(Cause.EVICTED, detail))
            elif key in self._residents:
                # Useless without one in front of it that a group lacks: lost for that one's reason.
                causes.append(causes[-1] if causes else None)
            elif was_here[index]:
                causes.append(self._went(gone[index]))
            elif several_roots:
                causes.append(self._under_other_roots(bare_keys[index], known.root))
            else:
                causes.append(None)
        return list(told_together(asked_of_windows(causes, self._reaches)))

    def _went(self, row: np.void) -> BlockCause:
        group = int(row["group"])
        # Rounded, so that blocks that went together are told of together.
        seconds_ago = round(self._clock() - float(row["at_s"]), 1)
        if row["dropped_by"]:
            part = _DROPPED_BY[row["dropped_by"]]
            return BlockCause(Cause.EXPIRED, Detail(seconds_ago=seconds_ago, part=part))
        detail = Detail(
            sequence=int(row["sequence"]),
            seconds_ago=seconds_ago,
            more_blocks=self._removals[group] - int(row["ordinal"]),
            group=group,
        )
        return BlockCause(Cause.EVICTED, detail)

    def _under_other_roots(self, bare_key: bytes, mine: Root) -> BlockCause | None:
        others = [root for root in self._residents.roots(bare_key) if root.key != mine.key]
        for other in others:
            if other.salt == mine.salt:
                return BlockCause(Cause.CHANGED, Detail(part=", ".join(mine.differs_in(other))))
        return BlockCause(Cause.ISOLATED, NOTHING) if others else None

    def _spans(
        self, missed: "_Missed", start: int, causes: list[BlockCause | None], known: _Open
    ) -> Iterator[Span]:
        """The missed blocks from position ``start`` on: known causes, and the rest moved or new."""
        size = self.block_size
        finder = self._finder(missed, known)
        position = start
        for cause, group in groupby(causes, lambda cause: cause):
            stop = position // size * size + size * sum(1 for _ in group)
            if cause is not None:
                yield Span(position, stop, cause.cause, cause.detail)
            else:
                yield from self._moved_or_new(position, stop, finder)
            position = stop

    def _finder(self, missed: "_Missed", known: _Open) -> RunFinder:
        # A run may begin in front of what was missed.
        first = max(0, missed.start - self.block_size + 1)
        seed = seed_of(known.root.key)
        return RunFinder(
            missed.prompt, self.block_size, self.tokens_of, self._contents, seed, first
        )

    def _moved_or_new(self, start: int, stop: int, finder: RunFinder) -> Iterator[Span]:
        position = start
        told: Detail | None = None  # of the run that ends at ``position``
        for run in finder.runs:
            # With the same prefix only whole blocks can have been here.
            end = run.stop // self.block_size * self.block_size if run.same_prefix else run.stop
            begin, end = max(run.start, position), min(end, stop)
            if begin >= end:
                continue
            yield Span(position, begin, Cause.NEW)
            if run.same_prefix:
                # So it was, and so long ago that its key is forgotten.
                yield Span(begin, end, Cause.EVICTED)
                told = None
            else:
                # What goes on in the same sequence is told of as one.
                if told is None or begin > position or told.sequence != run.sequence:
                    told = finder.detail(run)
                yield Span(begin, end, Cause.MOVED, told)
            position = end
        yield Span(position, stop, Cause.NEW)

    def tokens_of(self, sequence: int) -> Sequence[int] | None:
        """The tokens of a sequence, while they are remembered."""
        live = self._open.get(sequence)
        return self._ended.get(sequence) if live is None else live.tokens

    def root_of(self, sequence: int) -> Root:
        """The root of a sequence that has not ended."""
        return self._open[sequence].root


@dataclass(frozen=True, slots=True)
class _Missed:
    """A prompt, and the whole blocks of it that were not found: positions ``start … stop - 1``."""

    prompt: NDArray[np.uint32]
    keys: Sequence[bytes]
    start: int
    stop: int
