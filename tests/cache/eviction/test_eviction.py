"""Caches as names only, held against slow recounts and against the engine's own pool."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvikk.cache.events import BlockRemoved
from kvikk.cache.eviction import EVICTION_POLICIES, LIVE_POLICIES, RANKINGS, hit_density
from kvikk.cache.eviction.base import Residents, leading_blocks
from kvikk.cache.eviction.fifo import Fifo
from kvikk.cache.eviction.lru import Lru
from kvikk.cache.eviction.ranked import Ranked
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import GroupSpec

BLOCK_SIZE = 4


@st.composite
def prompts(draw: st.DrawFn) -> list[list[int]]:
    """Prompts that branch off each other, as names of their blocks: nodes of a growing tree."""
    parents: list[int] = []  # the parent of each node, -1 for a root

    def path(node: int) -> list[int]:
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = parents[node]
        return nodes[::-1]

    result = []
    for _ in range(draw(st.integers(1, 25))):
        node = draw(st.integers(-1, len(parents) - 1))
        for _ in range(draw(st.integers(0, 4))):
            parents.append(node)
            node = len(parents) - 1
        result.append(path(node))
    return [prompt for prompt in result if prompt]


def recount(prompts: Sequence[Sequence[int]], capacity: int, *, by_use: bool) -> list[int]:
    """Hits in blocks, from the definition: each victim is searched for among all that there is."""
    age: dict[int, tuple[int, int]] = {}
    hits = []
    for turn, prompt in enumerate(prompts):
        hit = 0
        while hit < len(prompt) and prompt[hit] in age:
            hit += 1
        hits.append(hit)
        own = prompt[:capacity]
        for depth, block in enumerate(own):
            if by_use or block not in age:
                age[block] = (turn, -depth)
        while len(age) > capacity:
            del age[min((block for block in age if block not in own), key=age.__getitem__)]
    return hits


def hits_of(name: str, prompts: Sequence[Sequence[int]], capacity: int) -> list[int]:
    cache, hits = EVICTION_POLICIES[name](capacity), []
    for prompt in prompts:
        hits.append(leading_blocks(cache, prompt))
        cache.use(prompt)
        assert len(cache) <= capacity
    return hits


@given(prompts(), st.integers(1, 12))
def test_lru_hits_what_a_recount_by_last_use_says(sequence: list[list[int]], capacity: int) -> None:
    assert hits_of("lru", sequence, capacity) == recount(sequence, capacity, by_use=True)


@given(prompts(), st.integers(1, 12))
def test_fifo_hits_what_a_recount_by_first_use_says(
    sequence: list[list[int]], capacity: int
) -> None:
    assert hits_of("fifo", sequence, capacity) == recount(sequence, capacity, by_use=False)


@pytest.mark.parametrize("name", LIVE_POLICIES)
@given(
    sequence=prompts(),
    capacity=st.integers(1, 12),
    step_s=st.sampled_from([0.3, 5.0, 2000.0]),
    refresh=st.sampled_from([1, 3]),
)
def test_replay_evicts_what_the_cache_manager_evicts(
    name: str, sequence: list[list[int]], capacity: int, step_s: float, refresh: int
) -> None:
    """Key by key. A block more than the cache has: each prompt goes on one token beyond its blocks.

    Prompts come at uneven times, and what is learned is put to use early.
    """
    now_s = 0.0
    removed: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hit_density, "_REFRESH_REQUESTS", refresh)
        manager = CacheManager(
            [GroupSpec(capacity + 1)],
            BLOCK_SIZE,
            on_event=lambda event: (
                removed.extend(getattr(event, "keys", ()))
                if isinstance(event, BlockRemoved)
                else None
            ),
            eviction=name,
            clock=lambda: now_s,
        )
        cache: Residents = Lru(capacity)
        if name in RANKINGS:
            cache = Ranked(capacity, RANKINGS[name](capacity + 1))
        for number, prompt in enumerate(sequence):
            if len(prompt) > capacity:
                continue
            now_s += step_s * (number * number % 7)
            keys = [block.to_bytes(32) for block in prompt]
            num_tokens = len(keys) * BLOCK_SIZE + 1
            match = manager.match(keys, num_tokens)
            assert match.num_tokens == leading_blocks(cache, keys) * BLOCK_SIZE
            removed.clear()
            manager.allocate(number, match, num_tokens - match.num_tokens)
            manager.commit(number, num_tokens, keys)
            manager.free(number)
            assert removed == list(cache.use(keys, now_s))
            manager.check()


@pytest.mark.parametrize("name", EVICTION_POLICIES)
@given(sequence=prompts(), capacity=st.integers(1, 12))
def test_what_use_does_not_return_is_there(
    name: str, sequence: list[list[int]], capacity: int
) -> None:
    """A mirror that adds a prompt's blocks and takes away what is returned equals the cache."""
    cache, mirror = EVICTION_POLICIES[name](capacity), set()
    for prompt in sequence:
        mirror.update(prompt)
        mirror.difference_update(cache.use(prompt))
        assert mirror == {block for prompt in sequence for block in prompt if block in cache}


def test_a_hit_renews_a_block_under_lru_and_not_under_fifo() -> None:
    for cache, kept, gone in ((Lru(2), "a", "b"), (Fifo(2), "b", "a")):
        for block in "abac":
            cache.use([block])
        assert kept in cache
        assert gone not in cache


def test_a_smaller_cache_gives_up_what_is_oldest() -> None:
    cache = Lru(4)
    cache.use("ab")
    cache.use("cd")
    assert list(cache.oldest(2)) == ["b", "a"]
    assert cache.resize(3) == ["b"]
    assert cache.resize(9) == []
    assert len(cache) == 3
