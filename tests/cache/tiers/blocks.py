"""Blocks for tests, known by their keys."""

import random

from kvikk.cache.keys import KeyChain, root_key
from kvikk.cache.tiers.stored_block import BlockFormat
from kvikk.cache.tiers.tier import tier_key

BLOCK_BYTES = 4096


def origin(model: bytes = b"model") -> bytes:
    return root_key(model=model, block_size=4, kv_dtype="bf16", numerics="test")


def block_format(block_bytes: int = BLOCK_BYTES, model: bytes = b"model") -> BlockFormat:
    return BlockFormat(origin(model), (block_bytes, block_bytes // 2))


def chain(length: int, start: int = 0) -> list[bytes]:
    """Tier keys of a chain of blocks in the first group."""
    keys = KeyChain(origin(), 1, range(start, start + length)).keys
    return [tier_key(0, key) for key in keys]


def content(key: bytes, num_bytes: int = BLOCK_BYTES) -> bytes:
    """What the block of this key holds, and no other."""
    return random.Random(key).randbytes(num_bytes // (1 + key[-1]))


def contents(keys: list[bytes], num_bytes: int = BLOCK_BYTES) -> list[bytes]:
    return [content(key, num_bytes) for key in keys]
