"""Hit density, the duel, SIEVE and S3-FIFO: by their definitions, and where they should win."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvikk.cache.eviction import EVICTION_POLICIES, hit_density
from kvikk.cache.eviction.base import leading_blocks
from kvikk.cache.eviction.hit_density import HitDensity
from kvikk.cache.eviction.s3_fifo import S3Fifo
from tests.cache.eviction.test_eviction import hits_of, prompts


@given(st.lists(st.floats(1e-9, 1e3), min_size=48, max_size=48))
def test_a_density_is_the_best_of_all_horizons(rates: list[float]) -> None:
    widths_s = np.diff([0.0, *(2.0 ** (step / 2) for step in range(48))])
    for age, found in enumerate(hit_density._densities(rates)):
        alive, hits, time_s, best = 1.0, 0.0, 0.0, 0.0
        for rate, width_s in zip(rates[age:], widths_s[age:], strict=True):
            hit = -np.expm1(-rate * width_s)
            hits, time_s = hits + alive * hit, time_s + alive * hit / rate
            alive *= 1 - hit
            best = max(best, hits / time_s)
        assert found == pytest.approx(best, rel=1e-6)


def test_blocks_that_come_back_at_a_steady_pace_are_worth_that_pace() -> None:
    """Kinds 0 and 1 are passed on the way; from the third use on, a use every 64 s."""
    ranking = HitDensity(1000)
    for turn in range(400):
        kinds = ranking.use([("steady", turn % 16, depth) for depth in range(50)], 4.0 * turn)
        ranking.use([("once", turn)], 4.0 * turn)
    assert set(kinds) == {3}
    now_s = 4.0 * 399
    assert ranking.worth(3, now_s - 50) > 1 / 64
    assert ranking.worth(3, now_s) == pytest.approx(1 / 64, rel=0.3)
    assert ranking.worth(3, now_s - 50) > ranking.worth(3, now_s)  # its time is near
    assert ranking.worth(0, now_s - 50) > ranking.worth(0, now_s - 500)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hit_density, "_LEAST_REMEMBERED", 100)
    ranking = HitDensity(5)
    for turn in range(2000):
        ranking.use([(turn // 3, depth) for depth in range(7)], float(turn))
        ranking.meet(("answer", turn))
    ranking.use([], 1e7)
    ranking.use([], 2e7)
    assert len(ranking._cohort_of) <= 100
    assert len(ranking._cohorts) <= 120
    assert sum(map(len, ranking._by_age)) <= 120


@given(prompts(), st.integers(1, 12))
def test_sieve_hits_what_its_description_says(sequence: list[list[int]], capacity: int) -> None:
    assert hits_of("sieve", sequence, capacity) == sieve(sequence, capacity)


def sieve(prompts: Sequence[Sequence[int]], capacity: int) -> list[int]:
    """Hits in blocks, with a plain list, the newest first as in the paper."""
    queue: list[int] = []
    visited: dict[int, bool] = {}
    hand: int | None = None
    hits = []
    for prompt in prompts:
        hits.append(next((n for n, key in enumerate(prompt) if key not in queue), len(prompt)))
        own = prompt[:capacity]
        for key in reversed(own):
            if key in queue:
                visited[key] = True
            else:
                queue.insert(0, key)
                visited[key] = False
        while len(queue) > capacity:
            at = len(queue) - 1 if hand is None else queue.index(hand)
            while queue[at] in own or visited[queue[at]]:
                if queue[at] not in own:
                    visited[queue[at]] = False
                at = (at - 1) % len(queue)
            hand = queue[at - 1] if at else None
            del visited[queue.pop(at)]
    return hits


def test_s3_fifo_lets_pass_what_is_used_once_and_keeps_what_returns() -> None:
    cache = S3Fifo(10)
    for _ in range(3):
        cache.use("k")
    for number in range(30):
        cache.use([number])
    assert "k" in cache  # moved to the main queue
    assert 12 not in cache
    cache.use([25])
    evicted = [number for number in range(30) if number not in cache]
    cache.use([evicted[-1]])  # its name was remembered
    for number in range(100, 130):
        cache.use([number])
    assert evicted[-1] in cache


@pytest.mark.parametrize("policy", ["hit_density", "duel"])
def test_learning_wins_where_some_conversations_go_on_and_most_end(policy: str) -> None:
    """Every fifth conversation has a turn every 50 s, six times; the others have one."""
    rng = np.random.default_rng(5)
    turns: list[tuple[float, int, int]] = []
    for number in range(900):
        starts_s = float(rng.uniform(0, 6000))
        lasts = 6 if number % 5 == 0 else 1
        turns += [(starts_s + 50 * turn, number, turn) for turn in range(lasts)]
    turns.sort()
    hits = {}
    for name in ("lru", policy):
        cache = EVICTION_POLICIES[name](60)
        hits[name] = 0
        for at_s, number, turn in turns:
            keys = [(number, depth) for depth in range(8 + 2 * turn)]
            hits[name] += leading_blocks(cache, keys)
            cache.use(keys, at_s)
    assert hits[policy] > 1.3 * hits["lru"]


def test_a_duel_is_never_far_behind_the_better_of_the_two() -> None:
    """A working set that fits next to a stream, where there is nothing to learn for long."""
    rng = np.random.default_rng(6)
    for capacity in (20, 60, 150):
        hits = dict.fromkeys(("lru", "hit_density", "duel"), 0)
        caches = {name: EVICTION_POLICIES[name](capacity) for name in hits}
        for turn in range(1500):
            session = int(rng.zipf(1.3)) % 200
            keys = [(session, depth) for depth in range(5 + turn % 3)]
            for name, cache in caches.items():
                hits[name] += leading_blocks(cache, keys)
                cache.use(keys, 2.0 * turn)
        assert hits["duel"] > 0.97 * max(hits.values())
