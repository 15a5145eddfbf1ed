"""The manager's rules, one at a time, on prompts short enough to count by hand."""

import numpy as np
import pytest

from kvikk.cache.blocks import BlockCopy, Usage
from kvikk.cache.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import FreeResult, GroupSpec, OutOfBlocks
from tests.cache.common import compute, full_cache, hit_of, keys_of, open_whole, serve

EDGES = [1, 3, 4, 5, 7, 8, 9, 255, 256, 257, 511, 512, 513]


# Lengths


@pytest.mark.parametrize("block_size", [1, 4, 256])
@pytest.mark.parametrize("num_tokens", EDGES)
def test_the_same_prompt_again_reuses_all_full_blocks_that_leave_a_token_to_run(
    num_tokens: int, block_size: int
) -> None:
    cache = full_cache(600, block_size)
    prompt = list(range(num_tokens))
    assert serve(cache, 0, prompt) == 0
    assert serve(cache, 1, prompt) == (num_tokens - 1) // block_size * block_size < num_tokens


@pytest.mark.parametrize("block_size", [1, 4, 256])
@pytest.mark.parametrize("num_tokens", EDGES)
def test_a_sequence_holds_as_many_blocks_as_its_positions_touch(
    num_tokens: int, block_size: int
) -> None:
    at_once, grown = full_cache(600, block_size), full_cache(600, block_size)
    open_whole(at_once, 0, range(num_tokens))
    open_whole(grown, 0, [0])
    for _ in range(num_tokens - 1):
        assert grown.append(0, 1) == ()
    for cache in (at_once, grown):
        assert cache.usage().live_blocks == -(-num_tokens // block_size)
        assert len(cache.block_table(0, 0)) == -(-num_tokens // block_size)
        cache.check()


def test_an_empty_prompt_matches_nothing_and_cannot_be_opened() -> None:
    cache = full_cache(4)
    match = cache.match([], 0)
    assert (match.num_tokens, match.pending_tokens, match.pending_on) == (0, 0, None)
    with pytest.raises(ValueError, match="at least one position"):
        cache.allocate(0, match, 0)
    assert cache.usage() == Usage(4, 0, 0, 4)


def test_the_empty_blocks_that_come_next_are_those_that_are_taken() -> None:
    cache = full_cache(9)
    serve(cache, 0, range(8))  # two stay cached
    open_whole(cache, 1, range(100, 108))
    cache.free(1)
    upcoming = cache.next_empty(0, 4)
    assert len(cache.next_empty(0, 100)) == 7
    open_whole(cache, 2, range(200, 216))
    assert list(cache.block_table(2, 0)) == upcoming


def test_room_for_no_tokens_changes_nothing() -> None:
    cache = full_cache(2)
    open_whole(cache, 0, range(8))
    assert cache.append(0, 0) == ()
    assert len(cache.block_table(0, 0)) == 2


def test_more_keys_than_the_prompt_has_full_blocks_are_not_looked_at() -> None:
    # Traces count the unfinished last block as one.
    cache = full_cache(8)
    cache.allocate(0, cache.match([b"a", b"b", b"c"], 10), 10)
    cache.commit(0, 10, [b"a", b"b", b"c"])
    assert cache.match([b"a", b"b", b"c"], 10).num_tokens == 8
    assert cache.match([b"a", b"b", b"c", b"d"], 16).num_tokens == 8


# Room


def test_hits_that_are_cached_do_not_count_as_free_for_the_same_request() -> None:
    cache = full_cache(4)
    serve(cache, 0, range(12))  # three cached, one empty
    with pytest.raises(OutOfBlocks) as caught:
        open_whole(cache, 1, range(17))  # hits those three and needs two more
    assert (caught.value.group, caught.value.needed_blocks) == (0, 2)
    assert caught.value.available_blocks == 1
    assert cache.usage() == Usage(4, 0, 3, 1)
    assert hit_of(cache, range(17)) == 12
    cache.check()


def test_a_request_that_fails_in_the_second_group_has_changed_nothing_in_the_first() -> None:
    events: list[Event] = []
    cache = CacheManager([GroupSpec(2), GroupSpec(3)], 4, on_event=events.append)
    serve(cache, 0, range(8))
    open_whole(cache, 1, [7])  # takes the only empty block of group 1 and evicts one of group 0
    before, num_events = cache.usage_by_group(), len(events)
    with pytest.raises(OutOfBlocks):
        cache.append(1, 12)
    with pytest.raises(OutOfBlocks):
        open_whole(cache, 2, range(50, 60))
    assert cache.usage_by_group() == before
    assert len(events) == num_events
    cache.check()


def test_a_stale_match_is_refused_and_changes_nothing() -> None:
    cache = full_cache(3)
    serve(cache, 0, range(8))
    match = cache.match(keys_of(range(9)), 9)
    serve(cache, 1, range(20, 32))
    with pytest.raises(ValueError, match="stale"):
        cache.allocate(2, match, 1)
    assert cache.usage() == Usage(3, 0, 3, 0)
    cache.check()


def test_misuse_is_refused_in_words_and_changes_nothing() -> None:
    cache = full_cache(8)
    open_whole(cache, 0, range(6))
    with pytest.raises(ValueError, match="open already"):
        open_whole(cache, 0, range(6))
    with pytest.raises(ValueError, match="not 7"):
        cache.commit(0, 7, keys_of(range(6)))
    compute(cache, 0, range(6))
    with pytest.raises(ValueError, match="not 5"):
        cache.commit(0, 5, keys_of(range(6)))
    cache.append(0, 4)
    with pytest.raises(ValueError, match="do not continue"):
        cache.commit(0, 10, keys_of(range(50, 60)))
    with pytest.raises(ValueError, match="between steps"):
        cache.fork(0, 1)
    cache.commit(0, 10, keys_of(range(10)))
    with pytest.raises(ValueError, match="open already"):
        cache.fork(0, 0)
    with pytest.raises(KeyError):
        cache.free(1)
    assert cache.usage() == Usage(8, 3, 0, 5)
    cache.check()


@pytest.mark.parametrize(
    ("num_blocks", "window", "block_size"), [(0, None, 4), (1, 0, 4), (1, None, 0)]
)
def test_a_cache_without_blocks_windows_or_positions_is_refused(
    num_blocks: int, window: int | None, block_size: int
) -> None:
    with pytest.raises(ValueError, match="at least one"):
        CacheManager([GroupSpec(num_blocks, window)], block_size)


@pytest.mark.parametrize("block_size", [1, 3, 4])
@pytest.mark.parametrize("window", [1, 2, 4, 5, 9])
@pytest.mark.parametrize("chunk", [1, 3, 4, 8])
def test_can_ever_fit_says_exactly_whether_chunks_fit_wherever_they_start(
    block_size: int, window: int, chunk: int
) -> None:
    def runs_out(num_blocks: int, first_chunk: int) -> bool:
        groups = [GroupSpec(40), GroupSpec(num_blocks, window)]
        cache = CacheManager(groups, block_size, prefix_caching=False)
        try:
            cache.allocate(0, cache.match([], 40), first_chunk)
            for computed in range(first_chunk, 40, chunk):
                cache.commit(0, computed, [])
                cache.append(0, min(chunk, 40 - computed))
        except OutOfBlocks:
            return True
        return False

    for num_blocks in range(1, 18):
        cache = CacheManager([GroupSpec(40), GroupSpec(num_blocks, window)], block_size)
        fits = not any(runs_out(num_blocks, first_chunk) for first_chunk in range(1, chunk + 1))
        assert cache.can_ever_fit(40, chunk) == fits
        assert not cache.can_ever_fit(40 * block_size + 1, chunk), "the full group is too small"


# Eviction


def test_the_least_recently_used_chain_goes_first_and_from_its_end() -> None:
    cache = full_cache(6)
    old, young = list(range(8)), list(range(50, 58))
    serve(cache, 0, old)
    serve(cache, 1, young)
    serve(cache, 2, [*old, 99])  # used again: now the younger one
    assert cache.usage() == Usage(6, 0, 4, 2)
    open_whole(cache, 3, range(70, 82))  # three blocks: the two empty ones, then one cached
    assert (hit_of(cache, [*old, 1]), hit_of(cache, [*young, 1])) == (8, 4)
    cache.append(3, 4)
    assert (hit_of(cache, [*old, 1]), hit_of(cache, [*young, 1])) == (8, 0)
    cache.append(3, 4)
    assert (hit_of(cache, [*old, 1]), hit_of(cache, [*young, 1])) == (4, 0)


def test_what_is_evicted_from_a_full_group_leaves_the_window_groups_too() -> None:
    cache = CacheManager([GroupSpec(9, window_tokens=4), GroupSpec(3)], 4)
    serve(cache, 0, range(8))
    open_whole(cache, 1, range(50, 58))  # evicts the second block of the full group
    windowed, full = cache.usage_by_group()
    assert full == Usage(3, 2, 1, 0)
    assert windowed == Usage(9, 2, 1, 6), "a window block that no hit can reach is not cached"


def test_window_groups_fill_what_a_full_group_freed_before_they_evict_their_own() -> None:
    cache = CacheManager([GroupSpec(3, window_tokens=4), GroupSpec(3)], 4)
    serve(cache, 0, range(8))  # the window group's oldest is block 0, the full group's block 1
    open_whole(cache, 1, range(50, 58))
    assert hit_of(cache, range(8)) == 4
    assert cache.usage_by_group() == (Usage(3, 2, 1, 0), Usage(3, 2, 1, 0))


# Sharing


def test_two_that_computed_the_same_blocks_at_once_end_up_on_one_copy() -> None:
    cache = full_cache(8)
    open_whole(cache, 0, range(9))
    open_whole(cache, 1, range(9))
    assert cache.usage().live_blocks == 6
    compute(cache, 0, range(9))
    compute(cache, 1, range(9))
    assert list(cache.block_table(1, 0))[:2] == list(cache.block_table(0, 0))[:2]
    assert cache.usage() == Usage(8, 4, 0, 4)
    assert cache.free(0) == FreeResult(cached_blocks=0, empty_blocks=1)
    assert cache.free(1) == FreeResult(cached_blocks=2, empty_blocks=1)
    cache.check()


def test_a_fork_shares_all_blocks_and_copies_the_unfinished_one_on_its_first_write() -> None:
    cache = full_cache(8)
    open_whole(cache, 0, range(6))
    compute(cache, 0, range(6))
    cache.fork(0, 1)
    assert cache.usage().live_blocks == 2
    assert cache.sole_blocks(0) == (0,)
    shared = cache.block_table(0, 0)[1]
    copies = cache.append(1, 1)
    assert copies == (BlockCopy(group=0, source=shared, target=cache.block_table(1, 0)[1]),)
    assert copies[0].target != shared
    assert cache.append(0, 1) == (), "the other one is its sole owner now"
    assert cache.block_table(0, 0)[1] == shared
    assert cache.sole_blocks(0) == cache.sole_blocks(1) == (1,)
    cache.check()


def test_copy_on_write_needs_a_block_and_says_so_before_it_changes_anything() -> None:
    cache = full_cache(2)
    open_whole(cache, 0, range(6))
    compute(cache, 0, range(6))
    cache.fork(0, 1)
    with pytest.raises(OutOfBlocks):
        cache.append(1, 1)
    cache.free(0)
    assert cache.append(1, 1) == ()


def test_without_prefix_caching_nothing_is_published_and_everything_else_works() -> None:
    events: list[Event] = []
    cache = CacheManager([GroupSpec(8)], 4, prefix_caching=False, on_event=events.append)
    for sequence_id in range(3):
        open_whole(cache, sequence_id, range(9))
        compute(cache, sequence_id, range(9))
        assert cache.match(keys_of(range(9)), 9).pending_tokens == 0
        cache.fork(sequence_id, sequence_id + 10)
        assert len(cache.append(sequence_id, 1)) == 1
        cache.free(sequence_id + 10)
        assert cache.free(sequence_id) == FreeResult(cached_blocks=0, empty_blocks=3)
    assert not events


# Pending


def test_what_a_live_sequence_is_computing_is_worth_a_wait_but_is_no_hit() -> None:
    cache = full_cache(16)
    open_whole(cache, 7, range(12))
    match = cache.match(keys_of(range(20)), 20)
    assert (match.num_tokens, match.pending_tokens, match.pending_on) == (0, 12, 7)
    cache.commit(7, 6, keys_of(range(12)))
    match = cache.match(keys_of(range(20)), 20)
    assert (match.num_tokens, match.pending_tokens, match.pending_on) == (4, 8, 7)
    match = cache.match(keys_of(range(8)), 8)
    assert (match.num_tokens, match.pending_tokens) == (4, 0), "one token is left to run anyway"
    compute(cache, 7, range(12))
    match = cache.match(keys_of(range(20)), 20)
    assert (match.num_tokens, match.pending_tokens, match.pending_on) == (12, 0, None)


def test_nobody_waits_for_a_sequence_that_is_gone() -> None:
    cache = full_cache(16)
    open_whole(cache, 0, range(12))
    open_whole(cache, 1, range(10))
    assert cache.match(keys_of(range(12)), 12).pending_on == 0
    cache.free(0)
    match = cache.match(keys_of(range(12)), 12)
    assert (match.pending_tokens, match.pending_on) == (8, 1), "another one is computing it too"
    cache.free(1)
    assert cache.match(keys_of(range(12)), 12).pending_on is None


# Windows


def test_a_hit_needs_only_the_blocks_that_the_next_token_sees() -> None:
    # Window 6: the token at 12 sees 7 … 11, which lie in blocks 1 and 2.
    cache = CacheManager([GroupSpec(8), GroupSpec(8, window_tokens=6)], 4)
    serve(cache, 0, range(13))
    assert open_whole(cache, 1, range(13)) == 12
    assert [block == -1 for block in cache.block_table(1, 1)] == [True, False, False, False]
    assert [group.live_blocks for group in cache.usage_by_group()] == [4, 3]
    cache.check()


def test_several_windows_settle_on_the_longest_prefix_that_serves_all() -> None:
    # The windows' pools hold different remainders of the same chain.
    cache = CacheManager(
        [GroupSpec(20), GroupSpec(20, window_tokens=5), GroupSpec(20, window_tokens=9)], 4
    )
    serve(cache, 0, range(24))
    keys = keys_of(range(24))
    for group, lost in [(1, 4), (2, 1)]:
        cache._pools[group].drop(keys[lost])
    # Of 25 tokens, 24 in six blocks could be hit. Group 1 reads one block back and lacks block 4:
    # no hit of 5. Group 2 reads two back and lacks block 1: none of 2 or 3.
    lengths = [cache.match(keys[:blocks], 99).num_tokens // 4 for blocks in range(7)]
    assert lengths == [0, 1, 1, 1, 4, 4, 6]


def test_a_window_of_one_token_keeps_nothing_before_the_next_token() -> None:
    cache = CacheManager([GroupSpec(8), GroupSpec(2, window_tokens=1)], 4)
    open_whole(cache, 0, range(8))
    compute(cache, 0, range(8))
    assert list(cache.block_table(0, 1)) == [-1, -1]
    assert open_whole(cache, 1, range(9)) == 8
    cache.check()


def test_a_conversation_in_small_windows_hits_its_last_turn() -> None:
    cache = CacheManager([GroupSpec(40), GroupSpec(6, window_tokens=8)], 4)
    conversation: list[int] = []
    for turn in range(10):
        history = len(conversation)
        conversation += range(100 * turn, 100 * turn + 9)
        assert serve(cache, turn, conversation[: history + 9]) == history // 4 * 4


def test_keys_that_come_late_publish_what_is_still_held() -> None:
    cache = CacheManager([GroupSpec(8), GroupSpec(8, window_tokens=6)], 4)
    open_whole(cache, 0, range(13))
    cache.commit(0, 13, [])
    assert cache.usage().cached_blocks == 0
    cache.commit(0, 13, keys_of(range(13)))
    cache.check()
    assert [len(pool.index) for pool in cache._pools] == [3, 1]
    # A hit of 12 tokens reads back into block 1, which the window group gave back unnamed.
    assert hit_of(cache, range(13)) == 0


# Reset


def test_a_sequence_that_lived_through_a_reset_publishes_nothing_more_nor_do_its_forks() -> None:
    cache = full_cache(12)
    open_whole(cache, 0, range(10))
    cache.commit(0, 4, keys_of(range(10)))
    cache.reset()
    assert cache.match(keys_of(range(10)), 10).pending_on is None
    compute(cache, 0, range(10))
    cache.fork(0, 1)
    for sequence_id in (0, 1):
        cache.append(sequence_id, 8)
        cache.commit(sequence_id, 18, keys_of(range(18)))
        cache.free(sequence_id)
        cache.check()
    assert cache.usage() == Usage(12, 0, 0, 12)
    assert serve(cache, 2, range(10)) == 0
    assert hit_of(cache, range(10)) == 8


# Events


def test_events_tell_what_was_stored_where_and_what_went() -> None:
    events: list[Event] = []
    cache = CacheManager([GroupSpec(3), GroupSpec(3, window_tokens=5)], 4, on_event=events.append)
    keys = keys_of(range(12))
    open_whole(cache, 0, range(12))
    cache.commit(0, 4, keys)
    cache.commit(0, 12, keys)
    assert events == [
        BlockStored(tuple(keys[start:stop]), parent_key, 4, group, window, 0, 4 * start)
        for start, stop, parent_key in [(0, 1, None), (1, 3, keys[0])]
        for group, window in [(0, None), (1, 5)]
    ]
    events.clear()
    cache.free(0)
    assert hit_of(cache, range(12)) == 8
    open_whole(cache, 1, range(12))
    # What the group of all tokens loses is of no use to the window's either.
    assert events == [
        BlockRemoved((keys[2],), 0, 1, "room"),
        BlockRemoved((keys[2],), 1, 1, "useless"),
    ]
    events.clear()
    compute(cache, 1, range(12))
    assert [(event.group, event.keys) for event in events if isinstance(event, BlockStored)] == [
        (0, (keys[2],)),
        (1, (keys[2],)),
    ]
    cache.reset()
    assert events[-1] == AllBlocksCleared()


def test_a_listener_that_fails_leaves_a_whole_cache() -> None:
    def fail(event: Event) -> None:
        raise RuntimeError("listener")

    cache = CacheManager([GroupSpec(4), GroupSpec(4)], 4, on_event=fail)
    open_whole(cache, 0, range(9))
    with pytest.raises(RuntimeError, match="listener"):
        compute(cache, 0, range(9))
    cache.check()
    assert hit_of(cache, range(9)) == 8


# Tables


def test_a_block_table_goes_into_a_row_of_int32_as_it_is() -> None:
    cache = CacheManager([GroupSpec(8, window_tokens=2)], 4)
    open_whole(cache, 0, range(12))
    compute(cache, 0, range(12))
    table = cache.block_table(0, 0)
    row = np.full(5, -1, dtype=np.int32)
    row[: len(table)] = table
    assert np.asarray(table).dtype == np.int32
    assert row.tolist() == [-1, -1, table[2], -1, -1]
    cache.append(0, 1)  # the row is a copy: the table may grow
    cache.check()
