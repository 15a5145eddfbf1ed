"""Engines over the exact backend with tiers below their pools."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvikk.cache.keys import root_key
from kvikk.cache.tiers.disk import DiskTier
from kvikk.cache.tiers.host import HostTier
from kvikk.cache.tiers.lower import Lower
from kvikk.cache.tiers.redis import RedisTier
from kvikk.cache.tiers.stored_block import BlockFormat
from kvikk.cache.tiers.tier import Tier
from kvikk.engine.engine import Engine
from kvikk.engine.tiering import PrefillSpeed, Tiering
from tests.engine import driver
from tests.engine.exact_backend import VOCABULARY_SIZE, ExactBackend

SLOT_BYTES = 8


def block_format(num_groups: int = 1, block_size: int = 4) -> BlockFormat:
    origin = root_key(model=b"exact", block_size=block_size, kv_dtype="f32", numerics="exact")
    return BlockFormat(origin, (SLOT_BYTES * block_size,) * num_groups)


def host(limit_bytes: int = 1 << 20, **shape: int) -> HostTier:
    return HostTier(limit_bytes, block_format(**shape), 1)


def disk(folder: Path, limit_bytes: int = 1 << 20, **shape: int) -> DiskTier:
    return DiskTier(folder, limit_bytes, block_format(**shape))


def redis(url: str, **options: Any) -> RedisTier:
    return RedisTier(url, block_format(), answer_timeout_s=0.3, **options)


def make_engine(
    tiers: Sequence[Tier],
    *,
    step_tokens: int = 16,
    max_running: int = 8,
    queue_bytes: int = 1 << 20,
    speed: PrefillSpeed | None = None,
    **sizes: Any,
) -> Engine:
    shape = driver.plan(step_tokens=step_tokens, max_running=max_running, **sizes)
    backend = ExactBackend()
    backend.load(None, shape)
    speed = speed or PrefillSpeed()
    block_bytes = [SLOT_BYTES * shape.block_size] * len(shape.groups)
    lower = Lower(tiers, shape.block_size, block_bytes, speed.latest)
    tiering = Tiering(backend, shape, lower, block_bytes, speed, queue_bytes)
    return Engine(
        backend,
        shape,
        model_digest=b"exact",
        vocabulary_size=VOCABULARY_SIZE,
        step_tokens=step_tokens,
        max_running=max_running,
        max_queue=1000,
        tiering=tiering,
    )
