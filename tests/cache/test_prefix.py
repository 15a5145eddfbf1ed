"""The one-pass search for a hit against the definition, position by position."""

import hypothesis.strategies as st
from hypothesis import example, given

from kvikk.cache.prefix import longest_prefix, reach_blocks

WINDOWS = st.none() | st.integers(1, 20)


@given(WINDOWS, st.integers(1, 7), st.integers(0, 30))
def test_a_reach_is_the_blocks_that_the_window_before_a_boundary_touches(
    window: int | None, block_size: int, boundary_block: int
) -> None:
    boundary = boundary_block * block_size
    first_seen = 0 if window is None else max(0, boundary - window + 1)
    touched = {position // block_size for position in range(first_seen, boundary)}
    reach = reach_blocks(window, block_size)
    assert len(touched) == (boundary_block if reach is None else min(reach, boundary_block))


@given(
    st.lists(st.tuples(WINDOWS, st.sets(st.integers(0, 11))), min_size=1, max_size=4),
    st.sets(st.integers(0, 11)),
    st.integers(1, 5),
    st.integers(0, 12),
)
@example([(13, {0, 2, 3, 4, 5}), (2, {0, 1, 3, 4, 5})], set(), 4, 6)
def test_the_hit_is_the_longest_prefix_of_which_every_group_has_what_is_seen(
    groups: list[tuple[int | None, set[int]]],
    promised: set[int],
    block_size: int,
    max_blocks: int,
) -> None:
    def serves(blocks: int) -> bool:
        boundary = blocks * block_size
        return all(
            position // block_size in present | promised
            for window, present in groups
            for position in range(boundary)
            if window is None or position > boundary - window
        )

    names = [bytes([block]) for block in range(12)]
    found = longest_prefix(
        names,
        max_blocks,
        [({names[i] for i in here}, reach_blocks(window, block_size)) for window, here in groups],
        {names[i] for i in promised},
    )
    assert found == max(blocks for blocks in range(max_blocks + 1) if serves(blocks))
