"""The tree of runs against ``Lru``, which keeps a table of blocks."""

from hypothesis import given
from hypothesis import strategies as st

from kvikk.cache.eviction.base import leading_blocks
from kvikk.cache.eviction.lru import Lru
from kvikk.router.holdings.chains import Chains

# A prompt continues an earlier one from some place on; short alphabets make them meet again.
prompts = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 12), st.binary(max_size=9), st.integers(0, 30)),
    min_size=1,
    max_size=40,
)


def chain(blocks: bytes) -> list[bytes]:
    """Keys as they are: equal where all is equal up to there, and never the same object."""
    return [bytes(bytearray(blocks[: stop + 1])) for stop in range(len(blocks))]


@given(capacity=st.integers(1, 20), steps=prompts)
def test_a_tree_of_runs_is_an_lru_cache_to_the_block(
    capacity: int, steps: list[tuple[int, int, bytes, int]]
) -> None:
    tree, table = Chains(capacity), Lru(capacity)
    last_use: dict[bytes, int] = {}
    earlier = [b""]
    for turn, (which, kept, added, resized) in enumerate(steps):
        blocks = earlier[-1 - which % len(earlier)][:kept] + bytes(byte % 3 for byte in added)
        earlier.append(blocks)
        keys = chain(blocks)
        if 0 < resized <= 20:
            assert sorted(tree.resize(resized)) == sorted(table.resize(resized))
        held = leading_blocks(table, keys)
        assert tree.leading(keys) == held
        taken, left_out = keys[: table.capacity], keys[table.capacity :]
        evicted = [key for key in table.use(keys) if key not in left_out]
        last_use.update(dict.fromkeys(taken, turn))
        found, gone = tree.use(keys, turn)
        assert (found, sorted(gone)) == (min(held, table.capacity), sorted(evicted))
        order = list(table.oldest(len(table)))
        assert len(tree) == len(order)
        assert [tree.last_use(place) for place in range(-1, len(order))] == [
            -1,
            *(last_use[key] for key in order),
        ]
    assert sorted(tree.resize(0)) == sorted(table.resize(0))
