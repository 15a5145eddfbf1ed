"""Which cached block goes next: one protocol, one file a policy, one table of their names."""

from collections.abc import Callable, Mapping

from kvikk.cache.eviction.base import Ranking, Residents
from kvikk.cache.eviction.duel import Duel
from kvikk.cache.eviction.fifo import Fifo
from kvikk.cache.eviction.hit_density import HitDensity
from kvikk.cache.eviction.lru import Lru
from kvikk.cache.eviction.ranked import Ranked
from kvikk.cache.eviction.s3_fifo import S3Fifo
from kvikk.cache.eviction.sieve import Sieve

RANKINGS: Mapping[str, Callable[[int], Ranking]] = {"duel": Duel, "hit_density": HitDensity}
"""Name on the command line → what orders the blocks of a cache of so many, here and live."""

EVICTION_POLICIES: Mapping[str, Callable[[int], Residents]] = {
    "lru": Lru,
    "duel": lambda capacity: Ranked(capacity, Duel(capacity)),
    "hit_density": lambda capacity: Ranked(capacity, HitDensity(capacity)),
    "fifo": Fifo,
    "sieve": Sieve,
    "s3_fifo": S3Fifo,
}
"""Name on the command line → what makes an empty cache of so many blocks."""

LIVE_POLICIES = ("lru", *RANKINGS)
"""Those that the engine's pool offers."""
