"""What other amounts of memory would have hit, from one pass over what was asked for.

Under LRU a block is in a cache of C blocks exactly if fewer than C others were used since. So one
number a block, its *distance*, answers for every size at once: no cache of another size is run. A
hit is a prefix, so what counts is how many leading blocks are all near enough.

    used, oldest first     d  b  c  a
    distance               4  3  2  1       a cache of 2 blocks holds c and a
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_MOMENTS_PER_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Prompt tokens asked for, and how many a cache of ``num_blocks`` blocks would have hit."""

    num_blocks: int
    prompt_tokens: int
    hit_tokens: int


class ReuseDistances:
    """Follows one stream of requests for several sizes of cache, at most the largest's blocks.

    For requests that run one after another it is exact but for blocks in use without a name, such
    as an unfinished one; where many run at once it leaves out that their blocks cannot be evicted.
    """

    def __init__(self, num_blocks: Sequence[int], block_size: int) -> None:
        self._sizes = tuple(num_blocks)
        self._block_size = block_size
        # Moments at which a block was used for the last time, and their number in each chunk.
        num_chunks = math.ceil(2 * max(self._sizes) / _MOMENTS_PER_CHUNK) + 1
        self._is_last = np.zeros(num_chunks * _MOMENTS_PER_CHUNK, np.bool_)
        self._per_chunk = np.zeros(num_chunks, np.int64)
        self._last: dict[bytes, int] = {}
        self._now = 0
        self._prompt_tokens = 0
        self._hit_blocks = [0] * len(self._sizes)

    def ask(self, keys: Sequence[bytes], num_prompt_tokens: int) -> None:
        """A prompt of so many tokens is admitted; ``keys`` are those of its full blocks."""
        self._prompt_tokens += num_prompt_tokens
        later_chunks = len(self._last) - np.cumsum(self._per_chunk)
        farthest, largest = 0, max(self._sizes)
        for key in keys[: (num_prompt_tokens - 1) // self._block_size]:
            moment = self._last.get(key)
            if moment is None:
                break
            chunk = moment // _MOMENTS_PER_CHUNK
            same_chunk = self._is_last[moment : (chunk + 1) * _MOMENTS_PER_CHUNK]
            farthest = max(farthest, int(later_chunks[chunk] + np.count_nonzero(same_chunk)))
            if farthest > largest:
                break
            for index, size in enumerate(self._sizes):
                self._hit_blocks[index] += farthest <= size

    def use(self, keys: Sequence[bytes]) -> None:
        """A sequence with these full blocks has ended; its first block counts as used last."""
        for key in reversed(keys):
            if self._now == len(self._is_last):
                self._forget_and_renumber()
            before = self._last.get(key)
            if before is not None:
                self._mark(before, False)
            self._mark(self._now, True)
            self._last[key] = self._now
            self._now += 1

    def clear(self) -> None:
        """The cache was emptied: nothing from before can be hit."""
        self._last.clear()
        self._renumber([])

    def result(self) -> tuple[WhatIf, ...]:
        """For each size, since the start."""
        return tuple(
            WhatIf(size, self._prompt_tokens, blocks * self._block_size)
            for size, blocks in zip(self._sizes, self._hit_blocks, strict=True)
        )

    def _mark(self, moment: int, is_last: bool) -> None:
        self._is_last[moment] = is_last
        self._per_chunk[moment // _MOMENTS_PER_CHUNK] += 1 if is_last else -1

    def _forget_and_renumber(self) -> None:
        """Make room for moments to come; what the largest cache does not hold any more goes."""
        by_moment = sorted(self._last, key=self._last.__getitem__)
        self._renumber(by_moment[-max(self._sizes) :])

    def _renumber(self, keys: Sequence[bytes]) -> None:
        self._last = {key: moment for moment, key in enumerate(keys)}
        self._now = len(keys)
        self._is_last[:] = False
        self._is_last[: self._now] = True
        self._per_chunk[:] = np.add.reduceat(
            self._is_last.astype(np.int64), np.arange(0, len(self._is_last), _MOMENTS_PER_CHUNK)
        )
