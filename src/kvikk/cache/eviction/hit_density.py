"""Evict what promises fewest hits for the room and time it would take: learned while it runs.

Blocks are of four kinds, by how often they were used again. Of each kind it is counted how often a
block is used after so long, and how much time blocks have spent unused at that age: the quotient is
the chance of a hit in the next second. From these follows a *hit density*, hits per block and
second up to the horizon where that is best. After Beckmann, Chen and Cidon, "LHD: Improving Cache
Hit Rate by Maximizing Hit Density" (NSDI 2018), with kinds in place of sampling.

Blocks used by one request and of one kind age together, as one *cohort*: a request costs a few
operations a cohort, and what is done a block runs at C speed. Names are remembered beyond their
stay in the cache, since else nothing is learned of those that went too early.
"""

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvikk.cache.eviction.base import Key

_NUM_KINDS = 4
# Ages in steps of the square root of two, from one second to half a year.
_NUM_AGES = 48
_BEGINS_S = [0.0, *(2.0 ** (step / 2) for step in range(_NUM_AGES))]
_WIDTHS_S = [stop - start for start, stop in pairwise(_BEGINS_S)]
# A kind is believed to be as all kinds together are until it was seen for this many blocks.
_PRIOR_BLOCKS = 20.0
# And all together to be used once in this many blocks' time.
_PRIOR_IDLE_BLOCKS = 50.0
_REFRESH_REQUESTS = 100
# Names remembered for each block of the cache, and at least.
_REMEMBERED = 16
_LEAST_REMEMBERED = 1 << 16


@dataclass(slots=True)
class _Cohort:
    """Blocks of one kind that were used last by the same request. ``count`` are left of them."""

    kind: int
    used_s: float
    keys: Sequence[Key]
    count: int
    age: int = 0


class HitDensity:
    """A ``Ranking`` for a cache of ``capacity`` blocks."""

    num_kinds = _NUM_KINDS

    def __init__(self, capacity: int) -> None:
        self._most_names = max(_REMEMBERED * capacity, _LEAST_REMEMBERED)
        self._now_s = 0.0
        # Names and numbers: nothing in it that the garbage collector would have to look at.
        self._cohort_of: dict[Key, int] = {}
        self._cohorts: dict[int, _Cohort] = {}  # by number, the oldest first
        self._next_cohort = 0
        self._by_age: list[deque[_Cohort]] = [deque() for _ in range(_NUM_AGES)]
        self._uses = [[0.0] * _NUM_AGES for _ in range(_NUM_KINDS)]
        self._idle_s = [[0.0] * _NUM_AGES for _ in range(_NUM_KINDS)]  # in block seconds
        self._num_requests = 0
        self._densities: list[list[float]] = []

    def use(self, keys: Sequence[Key], now_s: float) -> list[int]:
        """See ``Ranking.use``."""
        self._now_s = now_s
        self._grow_older()
        before = list(map(self._cohort_of.get, keys))
        kinds: dict[int | None, int] = {}
        for number, count in Counter(before).items():
            kinds[number] = 0 if number is None else self._reuse(self._cohorts[number], count)
        of_each = list(map(kinds.__getitem__, before))
        numbers: dict[int, int] = {}
        for kind in set(kinds.values()):
            own = [key for key, one in zip(keys, of_each, strict=True) if one == kind]
            numbers[kind] = self._gather(kind, own)
        self._cohort_of.update(zip(keys, map(numbers.__getitem__, of_each), strict=True))
        self._forget()
        self._num_requests += 1
        if self._num_requests % _REFRESH_REQUESTS == 0:
            self._densities = self._estimate()
        return of_each

    def meet(self, key: Key) -> tuple[int, float]:
        """See ``Ranking.meet``."""
        number = self._cohort_of.get(key)
        if number is None:
            number = self._cohort_of[key] = self._gather(0, (key,))
        cohort = self._cohorts[number]
        return cohort.kind, cohort.used_s

    def worth(self, kind: int, used_s: float) -> float:
        """See ``Ranking.worth``. In hits per second; all alike until there are figures."""
        if not self._densities:
            return 0.0
        return self._densities[kind][_age(self._now_s - used_s)]

    def _gather(self, kind: int, keys: Sequence[Key]) -> int:
        number = self._next_cohort
        self._next_cohort += 1
        cohort = _Cohort(kind, self._now_s, keys, len(keys))
        self._cohorts[number] = cohort
        self._by_age[0].append(cohort)
        return number

    def _reuse(self, cohort: _Cohort, count: int) -> int:
        """So many of these blocks are used again. Returns their kind from now on."""
        cohort.count -= count
        idle_s = self._now_s - cohort.used_s - _BEGINS_S[cohort.age]
        self._uses[cohort.kind][cohort.age] += count
        self._idle_s[cohort.kind][cohort.age] += count * max(0.0, idle_s)
        return min(cohort.kind + 1, _NUM_KINDS - 1)

    def _grow_older(self) -> None:
        """Count the time of those that have outlived an age by now."""
        for age, cohorts in enumerate(self._by_age[:-1]):
            ends_s = self._now_s - _BEGINS_S[age + 1]
            while cohorts and cohorts[0].used_s <= ends_s:
                cohort = cohorts.popleft()
                if cohort.count > 0:
                    self._idle_s[cohort.kind][age] += cohort.count * _WIDTHS_S[age]
                    cohort.age = age + 1
                    self._by_age[age + 1].append(cohort)

    def _forget(self) -> None:
        """Let the names go that were not used for longest."""
        while len(self._cohort_of) > self._most_names:
            number = next(iter(self._cohorts))
            cohort = self._cohorts.pop(number)
            for key in cohort.keys:
                if self._cohort_of.get(key) == number:
                    del self._cohort_of[key]
            cohort.count = 0  # by_age drops it in time

    def _estimate(self) -> list[list[float]]:
        """Hit density by kind and age."""
        uses = [sum(column) for column in zip(*self._uses, strict=True)]
        idle_s = [sum(column) for column in zip(*self._idle_s, strict=True)]
        densities = []
        for kind in range(_NUM_KINDS):
            rates = []
            for age, width_s in enumerate(_WIDTHS_S):
                usual = (uses[age] + 0.5) / (idle_s[age] + _PRIOR_IDLE_BLOCKS * width_s)
                weight = _PRIOR_BLOCKS * width_s
                rates.append(
                    (self._uses[kind][age] + weight * usual) / (self._idle_s[kind][age] + weight)
                )
            densities.append(_densities(rates))
        return densities


def _densities(rates: Sequence[float]) -> list[float]:
    """By age, most hits per second that keeping a block can promise, over all horizons.

    ``rates`` are uses per block and second, by age. From the oldest age down, later stretches are
    joined to a stretch as long as they promise more than it does: what is joined is the best
    horizon, and each stretch is joined once.
    """
    densities = []
    stretches: list[tuple[float, float, float]] = []  # hits, seconds, what is left; next one last
    for rate, width_s in zip(reversed(rates), reversed(_WIDTHS_S), strict=True):
        hits = -math.expm1(-rate * width_s)
        time_s, left = hits / rate, 1 - hits
        while stretches and stretches[-1][0] * time_s > hits * stretches[-1][1]:
            more_hits, more_s, after = stretches.pop()
            hits, time_s, left = hits + left * more_hits, time_s + left * more_s, left * after
        stretches.append((hits, time_s, left))
        densities.append(hits / time_s)
    return densities[::-1]


def _age(idle_s: float) -> int:
    return 0 if idle_s < 1 else min(_NUM_AGES - 1, int(2 * math.log2(idle_s)) + 1)
