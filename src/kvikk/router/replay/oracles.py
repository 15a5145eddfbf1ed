"""What could have been reused: four bounds to hold a policy against.

* **infinite**: one cache that forgets nothing.
* **one_cache**: one cache of all replicas' memory, under the eviction policy at hand.
* **best_eviction**: the same cache, evicted by somebody who knows which blocks will be used when.
* **perfect_placement**: the replicas' own caches, with every prompt sent where it costs least in
  tokens, whatever waits there, by somebody who knows which blocks will be used again.
"""

import heapq
from collections.abc import Hashable
from itertools import takewhile

from kvikk.cache.eviction.base import Residents, leading_blocks
from kvikk.cache.eviction.lru import Lru
from kvikk.router.holdings.index import PrefixIndex
from kvikk.router.replay.simulation import Progress
from kvikk.router.replay.trace import Trace

# What a block is worth that will be used again, in blocks to compute now: it may go before that in
# any case. No single figure is best for all traces; the better of these two is taken.
_WORTHS = (0.1, 0.25)
PLACEMENTS = len(_WORTHS)
_STEP = 1000


def hit_rate(trace: Trace, cache: Residents) -> float:
    """Hit rate by tokens of one cache, empty at the start."""
    hit_tokens = 0
    for request in trace.requests:
        hit_tokens += trace.hit_tokens(request, leading_blocks(cache, request.blocks))
        cache.use(request.blocks, request.arrival_s)
    return hit_tokens / trace.prompt_tokens


def infinite(trace: Trace) -> float:
    """Hit rate of a cache that forgets nothing."""
    return hit_rate(trace, Lru(max(1, trace.distinct_blocks)))


def best_eviction(trace: Trace, capacity: int, progress: Progress) -> float:
    """Hit rate of one cache that evicts what will not be used for longest, the deepest first.

    What comes in may be that itself. After Belady, "A study of replacement algorithms for a
    virtual-storage computer" (1966). A block is used whenever one behind it is, and so never goes
    before it: the best for single blocks is the best for prefixes.
    """
    never = len(trace.requests)
    next_uses: list[list[int]] = [[]] * never
    upcoming: dict[Hashable, int] = {}
    for turn in reversed(range(never)):
        blocks = trace.requests[turn].blocks
        next_uses[turn] = [upcoming.get(block, never) for block in blocks]
        upcoming.update(dict.fromkeys(blocks, turn))
    held: dict[Hashable, int] = {}  # by when it will be used
    victims: list[tuple[int, int, int, Hashable]] = []
    hit_tokens = num_queued = 0
    for turn, request in enumerate(trace.requests):
        hit = len(list(takewhile(held.__contains__, request.blocks)))
        hit_tokens += trace.hit_tokens(request, hit)
        for depth, (block, use) in enumerate(zip(request.blocks, next_uses[turn], strict=True)):
            held.pop(block, None)
            if use < never:
                held[block] = use
                num_queued += 1
                heapq.heappush(victims, (-use, -depth, num_queued, block))
        while len(held) > capacity:
            use, _, _, block = heapq.heappop(victims)
            if held.get(block) == -use:
                del held[block]
        if turn % _STEP == _STEP - 1:
            progress(_STEP)
    progress(len(trace.requests) % _STEP)
    return hit_tokens / trace.prompt_tokens


def perfect_placement(trace: Trace, replicas: int, capacity: int, progress: Progress) -> float:
    """Hit rate of ``replicas`` LRU caches of ``capacity`` blocks each, placed by one who knows."""
    last_use = {
        block: turn for turn, request in enumerate(trace.requests) for block in request.blocks
    }
    return max(_placed(trace, replicas, capacity, last_use, worth, progress) for worth in _WORTHS)


def _placed(
    trace: Trace,
    replicas: int,
    capacity: int,
    last_use: dict[Hashable, int],
    worth: float,
    progress: Progress,
) -> float:
    caches = [Lru(capacity) for _ in range(replicas)]
    index = PrefixIndex(stride=1)
    used: list[dict[Hashable, int]] = [{} for _ in caches]
    hit_tokens = 0
    for turn, request in enumerate(trace.requests):
        hits = index.hit_blocks(request.blocks, replicas)

        def cost(slot: int) -> tuple[float, int, int]:
            """Blocks computed now and later; then how long its next victim has been idle."""
            computed = len(request.blocks) - hits[slot]  # noqa: B023
            victims = list(caches[slot].oldest(len(caches[slot]) + computed - capacity))
            lost = sum(last_use[key] > turn for key in victims)  # noqa: B023
            idle_since = used[slot][victims[-1]] if victims else -1
            return computed + worth * lost, idle_since, (slot - turn) % replicas  # noqa: B023

        slot = min(range(replicas), key=cost)
        hit_tokens += trace.hit_tokens(request, hits[slot])
        index.add(slot, request.blocks[hits[slot] :])
        evicted = caches[slot].use(request.blocks)
        index.remove(slot, evicted)
        used[slot].update(dict.fromkeys(request.blocks, turn))
        for key in evicted:
            used[slot].pop(key, None)
        if turn % _STEP == _STEP - 1:
            progress(_STEP)
    progress(len(trace.requests) % _STEP)
    return hit_tokens / trace.prompt_tokens
