"""What the bookkeeping costs: ``pytest tests/cache/test_speed.py --benchmark-enable`` prints it.

A prompt of 32,000 tokens in blocks of 16, pools of a million blocks: a figure divided by 32,000 is
the cost of a token. Run plainly, each is one round and asserts that the work was done.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from kvikk.cache.keys import KeyChain
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import GroupSpec
from tests.cache.common import ROOT

NUM_TOKENS = 32_000
BLOCK_SIZE = 16
NUM_BLOCKS = 1_000_000
GROUPS = {
    "full": [GroupSpec(NUM_BLOCKS)],
    "full and window": [GroupSpec(NUM_BLOCKS), GroupSpec(NUM_BLOCKS, window_tokens=512)],
}


@pytest.fixture(params=list(GROUPS))
def cache(request: pytest.FixtureRequest) -> CacheManager:
    return CacheManager(GROUPS[request.param], BLOCK_SIZE)


def prompt(number: int) -> list[int]:
    """Prompts of different numbers share nothing."""
    return [number, *((token * 7919) % 49_152 for token in range(NUM_TOKENS - 1))]


def keys_of_prompt(number: int) -> Sequence[bytes]:
    return KeyChain(ROOT, BLOCK_SIZE, prompt(number)).keys


def admit(cache: CacheManager, keys: Sequence[bytes]) -> int:
    match = cache.match(keys, NUM_TOKENS)
    cache.allocate(0, match, NUM_TOKENS - match.num_tokens)
    return match.num_tokens


def test_hashing_32000_tokens(benchmark: Any) -> None:
    tokens = prompt(0)
    chain = benchmark(lambda: KeyChain(ROOT, BLOCK_SIZE, tokens))
    assert len(chain.keys) == NUM_TOKENS // BLOCK_SIZE


def test_admitting_32000_new_tokens(benchmark: Any, cache: CacheManager) -> None:
    keys = keys_of_prompt(0)
    admit(cache, keys)

    def close() -> None:
        cache.free(0)

    assert benchmark.pedantic(lambda: admit(cache, keys), setup=close, rounds=30) == 0


def test_admitting_32000_cached_tokens(benchmark: Any, cache: CacheManager) -> None:
    keys = keys_of_prompt(0)
    admit(cache, keys)
    cache.commit(0, NUM_TOKENS, keys)

    def close() -> None:
        cache.free(0)

    hit = benchmark.pedantic(lambda: admit(cache, keys), setup=close, rounds=30)
    assert hit == NUM_TOKENS - BLOCK_SIZE


def test_admitting_32000_new_tokens_where_each_block_evicts_another(benchmark: Any) -> None:
    cache = CacheManager([GroupSpec(NUM_TOKENS // BLOCK_SIZE)], BLOCK_SIZE)
    prompts = [keys_of_prompt(number) for number in range(31)]
    admit(cache, prompts[-1])

    def cache_another() -> tuple[tuple[Sequence[bytes]], dict[str, Any]]:
        keys = prompts.pop()
        cache.commit(0, NUM_TOKENS, keys)
        cache.free(0)
        assert cache.usage().empty_blocks == 0
        return (prompts[-1],), {}

    hit = benchmark.pedantic(lambda keys: admit(cache, keys), setup=cache_another, rounds=30)
    assert hit == 0


def test_publishing_32000_tokens(benchmark: Any, cache: CacheManager) -> None:
    prompts = [keys_of_prompt(number) for number in range(31)]
    admit(cache, prompts[-1])

    def open_another() -> tuple[tuple[Sequence[bytes]], dict[str, Any]]:
        cache.free(0)
        keys = prompts.pop()
        assert admit(cache, keys) == 0
        return (keys,), {}

    benchmark.pedantic(
        lambda keys: cache.commit(0, NUM_TOKENS, keys), setup=open_another, rounds=30
    )
    cache.free(0)
    assert cache.usage_by_group()[0].cached_blocks > 0


def test_a_decode_step_of_256_sequences(benchmark: Any, cache: CacheManager) -> None:
    chains = [KeyChain(ROOT, BLOCK_SIZE, [number, *range(999)]) for number in range(256)]
    length = 1000
    for number, chain in enumerate(chains):
        cache.allocate(number, cache.match(chain.keys, length), length)
        cache.commit(number, length, chain.keys)

    def step() -> None:
        nonlocal length
        length += 1
        for number, chain in enumerate(chains):
            cache.append(number, 1)
            chain.extend([7])
            cache.commit(number, length, chain.keys)

    benchmark(step)
    assert len(cache.block_table(255, 0)) == -(-length // BLOCK_SIZE)


def test_building_a_pool_of_a_million_blocks(benchmark: Any) -> None:
    cache = benchmark(lambda: CacheManager([GroupSpec(NUM_BLOCKS)], BLOCK_SIZE))
    assert cache.usage().empty_blocks == NUM_BLOCKS
