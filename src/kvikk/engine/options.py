"""What can be chosen when an engine is started."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kvikk.cache.eviction import LIVE_POLICIES
from kvikk.cache.ledger.accountant import DEFAULT_MEMORY_BYTES
from kvikk.errors import ModelError
from kvikk.shapes.dtypes import kvikk_dtype

BackendName = Literal["auto", "cpu", "reference"]
# The KV data type each backend keeps unless told otherwise.
DEFAULT_KV_DTYPES = {"cpu": "bf16", "reference": "f32"}


@dataclass(frozen=True)
class EngineOptions:
    """Options of one engine. Raises ModelError for a value that makes no sense.

    ``model`` is an alias, a folder, a GGUF file or a hub id. ``threads`` None takes every core that
    this process may use. ``kv_memory_bytes`` None takes a share of the free memory (see
    ``engine.memory``). ``max_context_tokens`` None is the model's own. ``step_tokens`` bounds the
    tokens of one step: decodes first, then pieces of prompts, so it is also the longest stall that
    a long prompt causes to running answers. At most ``max_running`` requests run at once and
    ``max_queue`` more may wait. ``use_cache`` False forgets all keys and values after each token
    (see ``Engine``). ``speculation`` guesses tokens ahead where that is faster; it changes no
    answer. ``ledger_memory_bytes`` bounds what the books remember of what is not in the cache any
    more; None keeps none. ``chat_template`` is a file to use instead of the model's own.

    Blocks that leave the pool, or all as they fill, go to the tiers that are chosen: memory of this
    process, a folder, a Redis or Valkey by its URL. ``disk_tier_bytes`` None is half of what is
    free there; what Redis holds goes ``redis_tier_expire_s`` after its last use, None: never.
    ``tenant_share`` is the part of the KV blocks that each tenant keeps from the others, and
    ``eviction`` the policy by which a cached block goes for a new one. ``adapters`` are loaded from
    the start: names, and the folders they are in.
    """

    model: str = "smollm2"
    backend: BackendName = "auto"
    threads: int | None = None
    kv_memory_bytes: int | None = None
    kv_dtype: str | None = None
    block_size: int = 32
    max_context_tokens: int | None = None
    prefix_caching: bool = True
    use_cache: bool = True
    speculation: bool = True
    step_tokens: int = 256
    max_running: int = 64
    max_queue: int = 256
    chat_template: Path | None = None
    ledger_memory_bytes: int | None = DEFAULT_MEMORY_BYTES
    host_tier_bytes: int | None = None
    disk_tier: Path | None = None
    disk_tier_bytes: int | None = None
    redis_tier: str | None = field(default=None, repr=False)  # it may hold a password
    redis_tier_expire_s: float | None = None
    tenant_share: float = 0.0
    eviction: str = "duel"
    adapters: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.backend not in ("auto", "cpu", "reference"):
            raise ModelError(f"backend {self.backend!r} is not one of auto, cpu, reference")
        if self.kv_dtype is not None:
            kvikk_dtype(self.kv_dtype)
        if self.block_size < 1 or self.block_size & (self.block_size - 1):
            raise ModelError(f"block size {self.block_size} is not a power of two")
        positive = {
            "threads": self.threads,
            "KV memory": self.kv_memory_bytes,
            "maximum context": self.max_context_tokens,
            "maximum of running requests": self.max_running,
            "memory for the ledger": self.ledger_memory_bytes,
            "the host tier's size": self.host_tier_bytes,
            "the disk tier's size": self.disk_tier_bytes,
        }
        for name, value in positive.items():
            if value is not None and value < 1:
                raise ModelError(f"{name} is {value}; at least 1 is needed")
        if self.redis_tier_expire_s is not None and not self.redis_tier_expire_s > 0:
            raise ModelError(f"blocks cannot expire after {self.redis_tier_expire_s:g} s")
        if not 0 <= self.tenant_share <= 1:
            raise ModelError(f"a tenant's share of {self.tenant_share:g} is not between 0 and 1")
        if self.eviction not in LIVE_POLICIES:
            known = ", ".join(LIVE_POLICIES)
            raise ModelError(f"eviction policy {self.eviction!r} is not one of {known}")
        tiers = (self.host_tier_bytes, self.disk_tier, self.redis_tier)
        if any(tier is not None for tier in tiers) and not (self.prefix_caching and self.use_cache):
            raise ModelError("tiers keep what is shared, and this engine shares nothing")
        if self.max_queue < 0:
            raise ModelError(f"queue limit is {self.max_queue}; it cannot be negative")
        if self.step_tokens < self.max_running:
            # Every running request must be able to take a token in one step.
            raise ModelError(
                f"{self.step_tokens} tokens a step cannot serve {self.max_running} running "
                "requests; raise the one or lower the other"
            )
