"""A provider's table of cache entries: which prefix was written when, for how long, under what.

An entry is a promise about a prefix, not its keys and values: what the real cache holds is asked
elsewhere. The table is bounded; what was used longest ago goes first.
"""

from collections import OrderedDict
from dataclasses import dataclass

from kvikk.pricing.caching import Lifetime

# What else must be equal, by name: account, model, cache key, parameters.
Facets = tuple[tuple[str, str], ...]

MOST_ENTRIES = 1 << 17


@dataclass(slots=True)
class Entry:
    """One prefix, written. Times are seconds on the caller's clock.

    It can be read by requests that start once the response of the one that wrote it has begun.
    """

    facets: Facets
    lifetime: Lifetime
    made_s: float
    readable_s: float
    used_s: float

    def is_alive(self, now_s: float) -> bool:
        """Whether it has not outlived its time."""
        most_s = self.lifetime.at_most_s
        return now_s < self.used_s + self.lifetime.idle_s and (
            most_s is None or now_s < self.made_s + most_s
        )


class Entries:
    """Entries by digest; several where prompts are equal and what else must be equal is not."""

    def __init__(self, most_entries: int = MOST_ENTRIES) -> None:
        self._most = most_entries
        self._by_digest: OrderedDict[bytes, dict[Facets, Entry]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, digest: bytes, facets: Facets) -> Entry | None:
        """The entry of this prefix under exactly these facets, dead or alive."""
        return self._by_digest.get(digest, {}).get(facets)

    def nearest(self, digest: bytes, facets: Facets, now_s: float) -> tuple[str, ...] | None:
        """What the live entry most like these ``facets`` has otherwise; None without any."""
        differences = [
            tuple(name for name, value in facets if dict(entry.facets).get(name) != value)
            for entry in self._by_digest.get(digest, {}).values()
            if entry.is_alive(now_s)
        ]
        return min(differences, key=len, default=None)

    def put(self, digest: bytes, entry: Entry) -> None:
        """Write, in place of what was there under the same facets."""
        same = self._by_digest.setdefault(digest, {})
        self._count += entry.facets not in same
        same[entry.facets] = entry
        self._by_digest.move_to_end(digest)
        while self._count > self._most:
            _, dropped = self._by_digest.popitem(last=False)
            self._count -= len(dropped)

    def use(self, digest: bytes, entry: Entry, now_s: float) -> None:
        """An entry was reused: its time begins again."""
        entry.used_s = max(entry.used_s, now_s)
        self._by_digest.move_to_end(digest)
