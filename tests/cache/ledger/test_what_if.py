"""What other amounts of memory would hit, against real caches of each size that serve the same."""

import random
from collections.abc import Sequence
from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from kvikk.cache.eviction import LIVE_POLICIES, hit_density
from kvikk.cache.keys import KeyChain
from kvikk.cache.ledger.what_if import MOST_BLOCKS, WhatIfs
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import GroupSpec
from tests.engine import driver

SIZE, STEP = 2, 8
ROOT = b"\0" * 32
SHARES = (Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))
# Groups of the cache as it is; half of it holds the longest prompt. Windows look back on whole
# blocks: only there does an unfinished block, which is left out, never move what they hold.
CACHES: dict[str, list[GroupSpec]] = {
    "full": [GroupSpec(14)],
    "window and full": [GroupSpec(16, window_tokens=7), GroupSpec(18)],
    "window": [GroupSpec(14, window_tokens=5)],
}
PIECES = [[1, 2], [3, 4], [5, 6], [1, 1, 2, 2], [7, 8, 9, 10]]
PROMPTS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map(
    lambda pieces: [token for piece in pieces for token in piece][:12]
)


@pytest.fixture(autouse=True)
def _learn_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hit_density, "_REFRESH_REQUESTS", 2)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def hits_of_a_real_cache(
    groups: Sequence[GroupSpec], eviction: str, prompts: Sequence[tuple[float, list[int]]]
) -> int:
    """Prompts one after another, a step at a time, each with a token more than its full blocks."""
    clock = Clock()
    manager = CacheManager(groups, SIZE, eviction=eviction, clock=clock)
    hits = 0
    for number, (idle_s, prompt) in enumerate(prompts):
        clock.now_s += idle_s
        keys = KeyChain(ROOT, SIZE, prompt).keys
        match = manager.match(keys, len(prompt) + 1)
        end, done = len(prompt) + 1, match.num_tokens
        manager.allocate(number, match, 1)  # as the engine does: a token, then the rest of a step
        room = done + 1
        while done < end:
            step = min(STEP, end - done)
            manager.append(number, done + step - room)
            done = room = done + step
            manager.commit(number, done, keys)
        manager.free(number)
        hits += match.num_tokens
    return hits


@settings(max_examples=80)
@given(
    cache=st.sampled_from(sorted(CACHES)),
    eviction=st.sampled_from(LIVE_POLICIES),
    prompts=st.lists(st.tuples(st.sampled_from([0.0, 1.0, 60.0]), PROMPTS), max_size=40),
)
def test_names_alone_hit_what_a_real_cache_of_that_size_and_policy_hits(
    cache: str, eviction: str, prompts: list[tuple[float, list[int]]]
) -> None:
    groups, clock = CACHES[cache], Clock()
    what_ifs = WhatIfs(groups, SIZE, SHARES, eviction=eviction, step_tokens=STEP, clock=clock)
    for idle_s, prompt in prompts:
        clock.now_s += idle_s
        keys = KeyChain(ROOT, SIZE, prompt).keys
        what_ifs.ask(keys, len(prompt) + 1)
        what_ifs.use(keys)
    for share, result in zip(SHARES, what_ifs.result(), strict=True):
        scaled = [GroupSpec(int(share * one.num_blocks), one.window_tokens) for one in groups]
        assert result.hit_tokens == hits_of_a_real_cache(scaled, eviction, prompts)
        assert result.prompt_tokens == sum(len(prompt) + 1 for _, prompt in prompts)
        assert result.eviction == eviction


def test_twice_the_memory_hits_what_the_engine_with_half_of_it_had_said() -> None:
    chance = random.Random(0)
    stories = [[chance.randrange(1, 60) for _ in range(40)] for _ in range(6)]
    # Each ends inside a block, so that one is in use without a name, as is thought of all.
    prompts = [chance.choice(stories)[: chance.randrange(9, 40, 4)] for _ in range(120)]
    achieved, said = [], []
    for times in (1, 2):
        engine, _ = driver.make_engine(num_blocks=(18 * times,), block_size=4)
        for number, prompt in enumerate(prompts):
            driver.run(engine, [driver.request(f"r{number}", prompt, 2)])
        achieved.append(sum(one.ledger.hit_tokens for one in engine.books.accounts.latest(1000)))
        said.append([result.hit_tokens for result in engine.books.what_if()])
    (_, first_as_it_is, first_twice, _), (second_half, second_as_it_is, _, _) = said
    assert (first_as_it_is, second_as_it_is) == tuple(achieved)
    assert (first_twice, second_half) == (achieved[1], achieved[0])
    assert achieved[0] < achieved[1]


def test_of_a_large_cache_a_sample_of_the_names_says_about_the_same() -> None:
    chance = random.Random(1)
    groups = [GroupSpec(2 * MOST_BLOCKS)]
    what_ifs = WhatIfs(groups, SIZE, (Fraction(1),), eviction="lru", step_tokens=STEP)
    manager = CacheManager(groups, SIZE)
    conversations = [[chance.randrange(9999) for _ in range(400)] for _ in range(60)]
    hits = 0
    for number in range(300):
        prompt = chance.choice(conversations)[: chance.randrange(300, 400)]
        keys = KeyChain(ROOT, SIZE, prompt).keys
        match = manager.match(keys, len(prompt))
        manager.allocate(number, match, len(prompt) - match.num_tokens)
        manager.commit(number, len(prompt), keys)
        manager.free(number)
        hits += match.num_tokens
        what_ifs.ask(keys, len(prompt))
        what_ifs.use(keys)
    (result,) = what_ifs.result()
    assert result.sampling == 2
    assert abs(result.hit_tokens - hits) < 0.03 * hits


def test_a_cleared_cache_has_nothing_and_keeps_what_was_counted() -> None:
    what_ifs = WhatIfs([GroupSpec(9)], SIZE, SHARES, eviction="duel", step_tokens=STEP)
    keys = KeyChain(ROOT, SIZE, [1, 2, 3, 4]).keys
    for expected in (0, 4, 4):
        what_ifs.ask(keys, 5)
        assert what_ifs.result()[1].hit_tokens == expected
        what_ifs.use(keys)
        if expected:
            what_ifs.clear()
