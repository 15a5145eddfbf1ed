"""The index of all replicas, held against a set for each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvikk.router.holdings.index import PrefixIndex

NUM_SLOTS = 5


def chain(name: int, length: int) -> list[tuple[int, int]]:
    return [(name, depth) for depth in range(length)]


@given(
    st.lists(st.tuples(st.integers(0, NUM_SLOTS - 1), st.integers(0, 2), st.integers(0, 300))),
    st.sampled_from([1, 4, 8]),
    st.integers(0, 300),
)
def test_every_replica_s_hit_is_as_long_as_what_it_holds(
    held: list[tuple[int, int, int]], stride: int, asked: int
) -> None:
    index, longest = PrefixIndex(stride), {}
    for slot, name, length in held:
        index.add(slot, chain(name, length))
        longest[slot, name] = max(length, longest.get((slot, name), 0))
    for name in range(3):
        expected = [min(asked, longest.get((slot, name), 0)) for slot in range(NUM_SLOTS)]
        assert index.hit_blocks(chain(name, asked), NUM_SLOTS) == expected


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, NUM_SLOTS - 1), st.integers(0, 40))),
)
def test_with_stride_one_a_hit_ends_at_the_first_gap(
    changes: list[tuple[bool, int, int]],
) -> None:
    index, held = PrefixIndex(stride=1), [set() for _ in range(NUM_SLOTS)]
    for is_there, slot, key in changes:
        (index.add if is_there else index.remove)(slot, [key])
        (held[slot].add if is_there else held[slot].discard)(key)
    expected = [next(n for n in range(50) if n not in keys) for keys in held]
    assert index.hit_blocks(list(range(50)), NUM_SLOTS) == expected
    assert len(index) == len(set().union(*held))
    assert all(
        index.holders(key) == sum(1 << s for s in range(5) if key in held[s]) for key in range(50)
    )


@pytest.mark.parametrize("keys", [[], [7]])
def test_an_unknown_prompt_hits_nowhere(keys: list[int]) -> None:
    assert PrefixIndex().hit_blocks(keys, 3) == [0, 0, 0]
