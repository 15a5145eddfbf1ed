"""The tree of many caches against ``Lru``, a table of blocks for each of them."""

from hashlib import blake2b

from hypothesis import given, settings
from hypothesis import strategies as st

from kvikk.cache.eviction.base import leading_blocks
from kvikk.cache.eviction.lru import Lru
from kvikk.router.holdings.keys import joined
from kvikk.router.holdings.tree import PrefixTree, TreeCache

CACHES = 3
# A prompt continues an earlier one from some place on; short alphabets make them meet again. Which
# caches use it, and which of them changes its size, and to what.
steps = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.integers(0, 12),
        st.binary(max_size=9),
        st.sets(st.integers(0, CACHES - 1)),
        st.tuples(st.integers(0, CACHES - 1), st.integers(0, 30)),
    ),
    min_size=1,
    max_size=40,
)


def chain(blocks: bytes) -> list[bytes]:
    """Keys as they are: equal where all is equal up to there, and never the same object."""
    return [blake2b(blocks[: stop + 1], digest_size=8).digest() for stop in range(len(blocks))]


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=CACHES, max_size=CACHES), steps)
def test_each_cache_of_a_tree_is_an_lru_cache_to_the_block(capacities: list[int], steps) -> None:
    tree = PrefixTree()
    caches = [TreeCache(tree, place, capacity) for place, capacity in enumerate(capacities)]
    tables = [Lru(capacity) for capacity in capacities]
    last_uses: list[dict[bytes, int]] = [{} for _ in caches]
    earlier = [b""]
    for turn, (which, kept, added, users, (changed, size)) in enumerate(steps):
        blocks = earlier[-1 - which % len(earlier)][:kept] + bytes(byte % 3 for byte in added)
        earlier.append(blocks)
        names = chain(blocks)
        keys = joined(names)
        if 0 < size <= 20:
            caches[changed].resize(size)
            tables[changed].resize(size)
        held = [leading_blocks(table, names) for table in tables]
        path = tree.walk(keys)
        assert tree.hit_blocks(keys, CACHES) == held == [one.leading(path) for one in caches]
        for user in users:
            table = tables[user]
            table.use(names)
            last_uses[user].update(dict.fromkeys(names[: table.capacity], turn))
            assert caches[user].use(keys, turn) == min(held[user], table.capacity)
        orders = [list(table.oldest(len(table))) for table in tables]
        assert len(tree) == len(set().union(*orders))
        for cache, order, last_use in zip(caches, orders, last_uses, strict=True):
            assert cache.num_blocks == len(order)
            assert [cache.last_use(place) for place in range(-1, len(order))] == [
                -1,
                *(last_use[key] for key in order),
            ]
    for cache in caches:
        cache.resize(0)
    assert len(tree) == 0


def test_what_was_evicted_of_a_run_is_no_part_of_it_when_it_is_used_again() -> None:
    tree = PrefixTree()
    cache = TreeCache(tree, 0, 4)
    for blocks in (b"abcd", b"xy", b"ab"):
        cache.use(joined(chain(blocks)))
    asked = (b"a", b"aq", b"ab", b"abq", b"abcd")
    assert [tree.hit_blocks(joined(chain(blocks)), 1)[0] for blocks in asked] == [1, 1, 2, 2, 2]
