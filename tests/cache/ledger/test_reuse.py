"""Reuse distances against real caches of each size that serve the same requests."""

import random

import hypothesis.strategies as st
from hypothesis import given, settings

from kvikk.cache.keys import KeyChain
from kvikk.cache.ledger.reuse import ReuseDistances
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import GroupSpec

SIZE = 2
ROOT = b"\0" * 32
CAPACITIES = (6, 9, 14, 30)
# Whole blocks, so that no block is in use without a name.
PIECES = [[1, 2], [3, 4], [5, 6], [1, 1, 2, 2], [7, 8, 9, 10]]
PROMPTS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map(
    lambda pieces: [token for piece in pieces for token in piece]
)


def hits_of_a_real_cache(num_blocks: int, prompts: list[list[int]]) -> int:
    manager = CacheManager([GroupSpec(num_blocks)], SIZE)
    hits = 0
    for number, prompt in enumerate(prompts):
        keys = KeyChain(ROOT, SIZE, prompt).keys
        match = manager.match(keys, len(prompt))
        manager.allocate(number, match, len(prompt) - match.num_tokens)
        manager.commit(number, len(prompt), keys)
        manager.free(number)
        hits += match.num_tokens
    return hits


@settings(max_examples=200, deadline=None)
@given(st.lists(PROMPTS, max_size=40).filter(lambda prompts: all(len(p) <= 12 for p in prompts)))
def test_one_pass_says_what_a_cache_of_each_size_hits(prompts: list[list[int]]) -> None:
    distances = ReuseDistances(CAPACITIES, SIZE)
    for prompt in prompts:
        keys = KeyChain(ROOT, SIZE, prompt).keys
        distances.ask(keys, len(prompt))
        distances.use(keys)
    for result in distances.result():
        # A prompt that is cached whole computes its last block once more, in a block without name.
        least = hits_of_a_real_cache(result.num_blocks, prompts)
        most = hits_of_a_real_cache(result.num_blocks + 1, prompts)
        assert least <= result.hit_tokens <= most
        assert result.prompt_tokens == sum(map(len, prompts))


def test_what_no_size_holds_any_more_is_forgotten() -> None:
    distances = ReuseDistances((100, 400), SIZE)
    generator = random.Random(0)
    prompts = [[generator.randrange(10**6) for _ in range(200)] for _ in range(60)]
    prompts += [prompts[-1], prompts[-3], prompts[-6]]
    for prompt in prompts:
        keys = KeyChain(ROOT, SIZE, prompt).keys
        distances.ask(keys, len(prompt))
        distances.use(keys)
    assert len(distances._last) <= 2 * 400 + 2048
    for result in distances.result():
        assert result.hit_tokens == hits_of_a_real_cache(result.num_blocks + 1, prompts)
