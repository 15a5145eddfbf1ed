"""What went wrong in other engines' caches, as claims about ours, named by the public report."""

import random

import pytest

from kvikk.cache.blocks import Usage
from kvikk.cache.events import BlockRemoved, Event
from kvikk.cache.keys import KeyChain, root_key
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import FreeResult, GroupSpec, OutOfBlocks
from tests.cache.common import compute, full_cache, hit_of, keys_of, open_whole, serve


@pytest.mark.parametrize("num_partial", [1, 5, 30])
def test_vllm_42656_unhashed_blocks_never_push_out_cached_ones(num_partial: int) -> None:
    cache = full_cache(12)
    serve(cache, 0, range(20))  # five cached
    for sequence_id in range(1, num_partial + 1):  # short answers that never fill a block
        serve(cache, sequence_id, [1000 + sequence_id] * 3)
        assert hit_of(cache, range(21)) == 20
    open_whole(cache, 99, range(500, 528))  # all seven empty ones
    assert hit_of(cache, range(21)) == 20


def test_llm_d_inference_sim_704_a_chain_is_evicted_from_its_end_never_its_head() -> None:
    cache = full_cache(9)
    serve(cache, 0, range(16))
    serve(cache, 1, [*range(8), *range(50, 58)])  # a second tail on the same head
    hits = []
    open_whole(cache, 2, [777])
    while True:
        try:
            cache.append(2, 4)
        except OutOfBlocks:
            break
        hits.append((hit_of(cache, range(17)), hit_of(cache, [*range(8), *range(50, 58), 0])))
        cache.check()
    # Every lost block is the end of a chain, so as many tokens can be hit as blocks are cached.
    assert hits == [(16, 16), (16, 16), (12, 16), (8, 16), (8, 12), (8, 8), (4, 4), (0, 0)]


def test_vllm_12621_and_lmcache_4086_keys_are_full_width_digests() -> None:
    root = root_key(model=b"m", block_size=4, kv_dtype="f32", numerics="test")
    keys = [KeyChain(root, 4, [0, 0, 0, token]).keys[0] for token in range(2000)]
    assert {len(key) for key in [root, *keys]} == {32}
    # No 16-bit part of a key decides it, as a truncated digest would.
    assert len(set(keys)) == 2000 > len({key[:2] for key in keys})


def test_lmcache_1139_two_processes_agree_on_keys_and_a_salt_is_explicit() -> None:
    fields = {"model": b"m", "block_size": 4, "kv_dtype": "f32", "numerics": "test"}
    assert root_key(**fields) == root_key(**fields, salt=b"")
    assert root_key(**fields) != root_key(**fields, salt=b"tenant")
    # Another process, whenever it runs, computes the same.
    assert KeyChain(root_key(**fields), 4, range(8)).keys[1].hex()[:16] == "6a1b71bce1c89302"


def test_vllm_30931_new_weights_under_an_old_name_are_never_served_stale_blocks() -> None:
    fields = {"block_size": 4, "kv_dtype": "f32", "numerics": "test"}
    cache = full_cache(16)
    for i, (model, adapter) in enumerate([(b"w1", b"a1"), (b"w2", b"a1"), (b"w1", b"a2")]):
        keys = KeyChain(root_key(model=model, adapter=adapter, **fields), 4, range(9)).keys
        match = cache.match(keys, 9)
        assert match.num_tokens == 0
        cache.allocate(i, match, 9)
        cache.commit(i, 9, keys)


def test_vllm_12284_a_reset_says_what_it_did_and_what_still_holds_blocks() -> None:
    cache = full_cache(16)
    serve(cache, 0, range(50, 59))
    open_whole(cache, 1, range(9))
    compute(cache, 1, range(9))
    result = cache.reset()
    assert not result.complete
    assert (result.dropped_blocks, result.held_blocks, result.held_by) == (2, 3, (1,))
    assert hit_of(cache, range(9)) == hit_of(cache, range(50, 59)) == 0
    assert cache.free(1) == FreeResult(cached_blocks=0, empty_blocks=3)
    result = cache.reset()
    assert result.complete
    assert (result.dropped_blocks, result.held_blocks, result.held_by) == (0, 0, ())


def test_sglang_35270_the_parts_add_up_after_each_of_two_thousand_operations() -> None:
    chance = random.Random(35270)
    cache = CacheManager([GroupSpec(40), GroupSpec(25, window_tokens=10)], 4)
    live: dict[int, list[int]] = {}
    for number in range(2000):
        prompt = [chance.randrange(2) for _ in range(4)] * chance.randint(1, 6)
        try:
            if live and chance.random() < 0.4:
                cache.free(victim := chance.choice(list(live)))
                del live[victim]
            elif live and chance.random() < 0.3:
                grown = chance.choice(list(live))
                cache.append(grown, 4)
                live[grown] += [7] * 4
                compute(cache, grown, live[grown])
            else:
                open_whole(cache, number, prompt)
                live[number] = prompt
                compute(cache, number, prompt)
        except OutOfBlocks:
            pass
        for group in cache.usage_by_group():
            parts = group.live_blocks + group.cached_blocks + group.empty_blocks
            assert parts == group.total_blocks
        if number % 20 == 0:
            cache.check()
    for sequence_id in live:
        cache.free(sequence_id)
    assert cache.usage().live_blocks == 0
    cache.check()


def test_imp_1115_cached_blocks_are_not_counted_as_used() -> None:
    cache = full_cache(10)
    assert cache.usage() == Usage(10, 0, 0, 10)
    open_whole(cache, 0, range(10))
    compute(cache, 0, range(10))
    assert cache.usage() == Usage(10, 3, 0, 7)
    cache.free(0)
    assert cache.usage() == Usage(10, 0, 2, 8)
    open_whole(cache, 1, range(40))  # cached memory is free memory: all of it can be taken
    assert cache.usage() == Usage(10, 10, 0, 0)


def test_inference_sim_963_what_can_never_fit_is_known_before_it_is_tried() -> None:
    cache = full_cache(10)
    assert cache.can_ever_fit(40, max_chunk_tokens=8)
    assert not cache.can_ever_fit(41, max_chunk_tokens=8)
    open_whole(cache, 0, range(40))
    assert cache.can_ever_fit(40, max_chunk_tokens=8), "a full pool is a reason to wait, not this"


@pytest.mark.parametrize("num_tokens", [4, 8, 256])
def test_nano_vllm_144_a_fully_cached_prompt_still_runs_a_token(num_tokens: int) -> None:
    cache = full_cache(200)
    serve(cache, 0, range(num_tokens))
    match = cache.match(keys_of(range(num_tokens)), num_tokens)
    assert match.num_tokens == num_tokens - 4
    cache.allocate(1, match, num_tokens - match.num_tokens)
    compute(cache, 1, range(num_tokens))
    assert cache.usage().live_blocks == num_tokens // 4, "and shares even the block it ran again"
    cache.check()


def test_nano_vllm_211_a_preempted_sequence_comes_back_onto_its_own_blocks() -> None:
    cache = full_cache(8)
    prompt, answer = list(range(10)), [77, 78, 79]
    open_whole(cache, 0, prompt)
    compute(cache, 0, prompt)
    cache.append(0, 3)
    compute(cache, 0, prompt + answer)
    cache.free(0)  # preempted
    assert open_whole(cache, 0, prompt + answer) == 12
    assert len(cache.block_table(0, 0)) == 4
    cache.append(0, 4)
    compute(cache, 0, [*prompt, *answer, 80, 81, 82, 83])
    cache.check()


def test_nano_vllm_217_the_257th_token_takes_the_second_block_of_256() -> None:
    cache = full_cache(4, block_size=256)
    open_whole(cache, 0, range(255))
    tables = []
    for num_tokens in (256, 257, 258):
        cache.append(0, 1)
        compute(cache, 0, range(num_tokens))
        tables.append(len(cache.block_table(0, 0)))
    assert tables == [1, 2, 2]
    assert [hit_of(cache, range(n)) for n in (255, 256, 257, 258)] == [0, 0, 256, 256]


def test_vllm_11382_windowed_layers_give_back_what_left_the_window() -> None:
    # Gemma 3's shape: windows of 512, blocks of 32, a prompt of 8,192 in chunks of 512.
    cache = CacheManager([GroupSpec(300), GroupSpec(300, window_tokens=512)], 32)
    prompt = range(8192)
    keys = keys_of(prompt, 32)
    cache.allocate(0, cache.match(keys, 8192), 512)
    most = 0
    for computed in range(512, 8192, 512):
        cache.commit(0, computed, keys)
        cache.append(0, 512)
        most = max(most, cache.usage_by_group()[1].live_blocks)
    cache.commit(0, 8192, keys)
    full, windowed = cache.usage_by_group()
    assert most == (512 + 512) // 32
    assert (full.live_blocks, windowed.live_blocks) == (256, 512 // 32)
    assert windowed.cached_blocks == 256 - 16, "given back, and still there to be found"
    cache.check()


def test_vllm_25780_a_recompute_shows_as_a_hit_only_what_the_index_knew() -> None:
    # The cache tells what it found; that a preempted request found its own blocks is told by ids.
    events: list[Event] = []
    cache = CacheManager([GroupSpec(4)], 4, on_event=events.append)
    open_whole(cache, 0, range(8))
    cache.free(0)  # preempted before anything was computed
    assert open_whole(cache, 0, range(8)) == 0
    assert not events, "a hit that brings nothing, and nothing evicted: nothing to tell"
    compute(cache, 0, range(8))
    assert {event.sequence_id for event in events if not isinstance(event, BlockRemoved)} == {0}


def test_vllm_46283_an_abort_at_any_moment_gives_everything_back() -> None:
    prompt = list(range(18))
    for moment in range(8):
        cache = CacheManager([GroupSpec(10), GroupSpec(8, window_tokens=6)], 4)
        cache.allocate(0, cache.match(keys_of(prompt), 18), 5)
        for step in range(moment):
            if step % 2 == 0:
                cache.commit(0, 5 + 3 * (step // 2), keys_of(prompt))
            else:
                cache.append(0, 3)
        cache.free(0)
        cache.check()
        assert cache.usage().live_blocks == 0
        assert cache.match(keys_of(prompt), 18).pending_on is None
