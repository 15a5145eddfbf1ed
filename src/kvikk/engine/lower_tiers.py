"""From options to the tiers of an engine."""

import shutil
from collections.abc import Sequence

from kvikk.backends.base import Backend, Plan
from kvikk.cache.keys import root_key
from kvikk.cache.tiers.disk import DiskTier
from kvikk.cache.tiers.host import HostTier
from kvikk.cache.tiers.lower import Lower
from kvikk.cache.tiers.stored_block import BlockFormat
from kvikk.cache.tiers.tier import Tier
from kvikk.engine.options import EngineOptions
from kvikk.engine.tiering import PrefillSpeed, Tiering

# Of the disk's free bytes, where no limit is given.
DEFAULT_DISK_SHARE = 0.5
# Elements of this size hold sign and exponent in a byte of their own, which shrinks.
_ELEMENT_BYTES = {"f32": 4, "bf16": 2}


def make_tiering(
    options: EngineOptions,
    backend: Backend,
    plan: Plan,
    *,
    model_digest: bytes,
    block_bytes: Sequence[int],
) -> Tiering | None:
    """The tiers that were chosen, fastest first; None without any.

    Raises ModelError for a folder or URL that cannot be used.
    """
    origin = root_key(
        model=model_digest,
        block_size=plan.block_size,
        kv_dtype=plan.kv_dtype,
        numerics=backend.numerics,
    )
    block_format = BlockFormat(origin, tuple(block_bytes))
    tiers: list[Tier] = []
    if options.host_tier_bytes is not None:
        element_bytes = _ELEMENT_BYTES.get(plan.kv_dtype, 1)
        tiers.append(HostTier(options.host_tier_bytes, block_format, element_bytes))
    if options.disk_tier is not None:
        limit_bytes = options.disk_tier_bytes
        if limit_bytes is None:
            folder = options.disk_tier
            there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
            limit_bytes = int(shutil.disk_usage(there).free * DEFAULT_DISK_SHARE)
        tiers.append(DiskTier(options.disk_tier, limit_bytes, block_format))
    if options.redis_tier is not None:
        # Only here: its client is a good part of what a start imports.
        from kvikk.cache.tiers.redis import RedisTier

        tiers.append(
            RedisTier(options.redis_tier, block_format, expire_s=options.redis_tier_expire_s)
        )
    if not tiers:
        return None
    speed = PrefillSpeed()
    lower = Lower(tiers, plan.block_size, block_bytes, speed.latest)
    return Tiering(backend, plan, lower, block_bytes, speed)
