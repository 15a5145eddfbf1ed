"""What the tests of single claims share: prompts as numbers, and a request served whole."""

from collections.abc import Sequence

from kvikk.cache.keys import KeyChain, root_key
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import GroupSpec

ROOT = root_key(model=b"model", block_size=4, kv_dtype="f32", numerics="test")


def keys_of(tokens: Sequence[int], block_size: int = 4) -> Sequence[bytes]:
    return KeyChain(ROOT, block_size, tokens).keys


def full_cache(num_blocks: int, block_size: int = 4) -> CacheManager:
    return CacheManager([GroupSpec(num_blocks)], block_size)


def open_whole(cache: CacheManager, sequence_id: int, tokens: Sequence[int]) -> int:
    """Match and allocate all of a prompt; returns the tokens that were hit."""
    match = cache.match(keys_of(tokens, cache.block_size), len(tokens))
    cache.allocate(sequence_id, match, len(tokens) - match.num_tokens)
    return match.num_tokens


def compute(cache: CacheManager, sequence_id: int, tokens: Sequence[int]) -> None:
    cache.commit(sequence_id, len(tokens), keys_of(tokens, cache.block_size))


def serve(cache: CacheManager, sequence_id: int, tokens: Sequence[int]) -> int:
    """One request from arrival to its end; returns the tokens that were hit."""
    hit = open_whole(cache, sequence_id, tokens)
    compute(cache, sequence_id, tokens)
    cache.free(sequence_id)
    cache.check()
    return hit


def hit_of(cache: CacheManager, tokens: Sequence[int]) -> int:
    return cache.match(keys_of(tokens, cache.block_size), len(tokens)).num_tokens
