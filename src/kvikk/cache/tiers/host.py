"""Blocks in this process's memory, compressed: more of them than the pool would hold there.

Of bfloat16 blocks about 69 % is left (see docs/tiers.md); other types of one byte do not shrink and
are kept as they are.
"""

from collections.abc import Sequence
from threading import Lock

from kvikk.cache.ledger.records import Cause
from kvikk.cache.tiers.health import log_unfit
from kvikk.cache.tiers.recency import Recency
from kvikk.cache.tiers.stored_block import BlockFormat, fitting
from kvikk.cache.tiers.tier import TierUsage


class HostTier:
    """At most ``limit_bytes`` of stored blocks. ``element_bytes`` are those of the KV type."""

    name = "host"
    cause = Cause.HIT_HOST
    lasting = False

    def __init__(self, limit_bytes: int, block_format: BlockFormat, element_bytes: int) -> None:
        self.place = "host memory"
        self._format = block_format
        self._element_bytes = element_bytes
        self._lock = Lock()
        self._recency = Recency(limit_bytes)
        self._values: dict[bytes, bytes] = {}
        self._stored = self._loaded = self._evicted = self._unfit = 0

    @property
    def readable(self) -> bool:
        """Always."""
        return True

    def put(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> int:
        """Compress and keep blocks."""
        stored = 0
        for key, block in zip(keys, blocks, strict=True):
            if self.contains([key])[0]:
                continue
            value = self._format.pack(key, block, self._element_bytes)
            with self._lock:
                victims = self._recency.room_for(len(value))
                if victims is None or key in self._recency:
                    continue
                for victim in victims:
                    del self._values[victim]
                self._evicted += len(victims)
                self._recency.add(key, len(value))
                self._values[key] = value
                stored += 1
        self._stored += stored
        self.touch(keys)
        return stored

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The blocks, decompressed."""
        with self._lock:
            values = [self._values.get(key) for key in keys]
            self._recency.touch(keys)
        blocks, unfit = fitting(self._format, keys, values)
        log_unfit(self.place, unfit)
        self.evict(list(unfit))
        with self._lock:
            self._unfit += len(unfit)
            self._loaded += sum(block is not None for block in blocks)
        return blocks

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """Which are here."""
        return [key in self._values for key in keys]

    def touch(self, keys: Sequence[bytes]) -> None:
        """Let them go later than others."""
        with self._lock:
            self._recency.touch(keys)

    def evict(self, keys: Sequence[bytes] | None = None) -> bool:
        """Forget these, or all."""
        with self._lock:
            for key in list(self._values) if keys is None else keys:
                if self._recency.drop(key):
                    del self._values[key]
        return True

    def usage(self) -> TierUsage:
        """Figures of this moment."""
        return TierUsage(
            name=self.name,
            place=self.place,
            used_blocks=len(self._recency),
            used_bytes=self._recency.used_bytes,
            limit_bytes=self._recency.limit_bytes,
            trouble=None,
            stored=self._stored,
            loaded=self._loaded,
            evicted=self._evicted,
            unfit=self._unfit,
            failures=0,
        )

    def close(self) -> None:
        """Nothing is open."""
