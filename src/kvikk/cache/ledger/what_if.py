"""What other amounts of memory would have hit: caches of those sizes that hold names only.

They are run by the code that runs the real one, under the same eviction policy, windows included,
on the same requests, one after another. Where the real cache is large they see a sample of the
names, each cache with its share of the memory: miniature simulations, after Waldspurger,
Saemundsson, Ahmad and Park (ATC 2017). A sample of a chain is a chain.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvikk.cache.manager import CacheManager
from kvikk.cache.prefix import reach_blocks
from kvikk.cache.records import GroupSpec, OutOfBlocks

# Of a group, in the largest of the caches: more bring more of the same.
MOST_BLOCKS = 4096
_SEQUENCE = 0


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Prompt tokens asked for, and how many a cache of ``num_blocks`` blocks would have hit.

    The blocks are those of the group that bounds a hit: one that keeps all tokens, or the largest
    window where none does. ``sampling`` is how many names stand behind each that was seen.
    """

    num_blocks: int
    eviction: str
    prompt_tokens: int
    hit_tokens: int
    sampling: int


class WhatIfs:
    """Follows one stream of requests for caches of several ``shares`` of the real one's blocks.

    Exact for requests that run one after another; where many run at once it leaves out that their
    blocks cannot be evicted. ``step_tokens`` are computed at once, which is what a window holds
    beyond itself. Tenants' shares and pins are not known here.
    """

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        block_size: int,
        shares: Sequence[Fraction],
        *,
        eviction: str,
        step_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._groups = tuple(groups)
        self._block_size = block_size
        self._shares = tuple(shares)
        self._eviction = eviction
        self._clock = clock
        most = max(shares) * max(group.num_blocks for group in groups)
        self._sampling = math.ceil(most / MOST_BLOCKS)
        # A block is a position here, and so the unit of windows and steps. Without a window it
        # does not matter how a sequence is cut.
        self._step_blocks = MOST_BLOCKS
        if any(group.window_tokens is not None for group in groups):
            self._step_blocks = max(1, step_tokens // block_size // self._sampling)
        self._prompt_tokens = 0
        self._hit_blocks = [0] * len(shares)
        self.clear()

    def ask(self, keys: Sequence[bytes], num_prompt_tokens: int) -> None:
        """A prompt of so many tokens is admitted; ``keys`` are those of its full blocks."""
        self._prompt_tokens += num_prompt_tokens
        sample = self._sample(keys[: (num_prompt_tokens - 1) // self._block_size])
        for place, cache in enumerate(self._caches):
            self._hit_blocks[place] += cache.match(sample, len(sample) + 1).num_tokens

    def use(self, keys: Sequence[bytes]) -> None:
        """A sequence with these full blocks has ended, and what comes behind them with it."""
        sample = self._sample(keys)
        for cache in self._caches:
            self._run(cache, sample)

    def clear(self) -> None:
        """The cache was emptied: nothing from before can be hit."""
        self._caches = [self._cache(share) for share in self._shares]

    def result(self) -> tuple[WhatIf, ...]:
        """For each share, since the start."""
        full = [group.num_blocks for group in self._groups if group.window_tokens is None]
        bound = min(full) if full else max(group.num_blocks for group in self._groups)
        tokens = self._sampling * self._block_size
        return tuple(
            WhatIf(
                max(1, int(share * bound)),
                self._eviction,
                self._prompt_tokens,
                min(hits * tokens, self._prompt_tokens),
                self._sampling,
            )
            for share, hits in zip(self._shares, self._hit_blocks, strict=True)
        )

    def _cache(self, share: Fraction) -> CacheManager:
        groups = []
        for group in self._groups:
            reach = reach_blocks(group.window_tokens, self._block_size)
            window = None if reach is None else math.ceil(reach / self._sampling) + 1
            groups.append(GroupSpec(max(1, int(share * group.num_blocks / self._sampling)), window))
        return CacheManager(groups, 1, eviction=self._eviction, clock=self._clock)

    def _run(self, cache: CacheManager, keys: Sequence[bytes]) -> None:
        """One sequence from its first position to the one behind its full blocks.

        What does not fit is not taken in.
        """
        match = cache.match(keys, len(keys) + 1)
        try:
            cache.allocate(_SEQUENCE, match, 1)
        except OutOfBlocks:
            return
        room, end = match.num_tokens + 1, len(keys) + 1
        step = self._step_blocks - 1  # and the position that there is room for
        while True:
            more = min(step, end - room, *cache.available(""))
            cache.append(_SEQUENCE, more)
            room += more
            cache.commit(_SEQUENCE, min(room, len(keys)), keys)
            step = self._step_blocks
            if room == end or not min(cache.available("")):
                break
        cache.free(_SEQUENCE)

    def _sample(self, keys: Sequence[bytes]) -> Sequence[bytes]:
        if self._sampling == 1:
            return keys
        return [key for key in keys if int.from_bytes(key[:4]) % self._sampling == 0]
