"""Which cached block goes next: one protocol, one file a policy, one table of their names."""

from collections.abc import Callable, Mapping

from kvikk.cache.eviction.base import Residents
from kvikk.cache.eviction.fifo import Fifo
from kvikk.cache.eviction.lru import Lru

EVICTION_POLICIES: Mapping[str, Callable[[int], Residents]] = {"lru": Lru, "fifo": Fifo}
"""Name on the command line → what makes an empty cache of so many blocks."""
