"""All tiers of one engine together, fastest first: what could be had, what is worth it, and the
having. Everything here may wait for disks and networks and so runs beside the engine's thread.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvikk.cache.prefix import longest_prefix
from kvikk.cache.tiers.speed import TierSpeed
from kvikk.cache.tiers.tier import Tier, TierUsage, tier_key

# Blocks are loaded in pieces of about this size: what a failure wastes, and what is held at once.
SLICE_BYTES = 32 << 20
_BLOCKS_PER_QUESTION = 128

# One group's part of a block: the group, and the block's key.
Name = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a prompt could reuse, if tiers had it.

    ``keys`` are those of all blocks that a hit may reach; ``held`` which of them each group of the
    pool has, ``reaches`` how many blocks before a hit's end a group needs (None: all). The pool
    serves ``hit_blocks`` by itself.
    """

    keys: tuple[bytes, ...]
    held: tuple[frozenset[bytes], ...]
    reaches: tuple[int | None, ...]
    hit_blocks: int


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Blocks ``start`` … ``stop`` - 1 are in a tier, and computing them is faster."""

    start: int
    stop: int
    tier: str


@dataclass(frozen=True, slots=True)
class Found:
    """A prefix of ``num_blocks`` can be served, with what tiers (by number) have of it.

    No more than the pool's own hit where nothing is there or worth it.
    """

    num_blocks: int
    places: Mapping[Name, int] = field(default_factory=dict)
    passed_over: PassedOver | None = None


class Lower:
    """The tiers, what they were measured to do, and decisions by it.

    ``block_bytes`` is a group's; ``prefill_tokens_per_s`` says how fast prompts are computed, None
    while that is unknown. Safe to use from several threads.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        block_size: int,
        block_bytes: Sequence[int],
        prefill_tokens_per_s: Callable[[], float | None],
    ) -> None:
        self.tiers = tuple(tiers)
        self.speeds = tuple(TierSpeed() for _ in tiers)
        self._block_size = block_size
        self._block_bytes = tuple(block_bytes)
        self._prefill_tokens_per_s = prefill_tokens_per_s

    @property
    def has_lasting(self) -> bool:
        """Whether blocks should go down as soon as they are computed."""
        return any(tier.lasting for tier in self.tiers)

    @property
    def has_passing(self) -> bool:
        """Whether blocks should go down when they leave the pool."""
        return any(not tier.lasting for tier in self.tiers)

    def put(self, names: Sequence[Name], blocks: Sequence[bytes], *, leaving: bool) -> None:
        """Keep blocks: in lasting tiers always, in the others if they are ``leaving`` the pool."""
        keys = [tier_key(*name) for name in names]
        for tier in self.tiers:
            if leaving or tier.lasting:
                tier.put(keys, blocks)

    def touch(self, names: Sequence[Name]) -> None:
        """These were used together: a chain from its beginning.

        Nobody waits for the answer, and it says how soon a tier answers now, also one that is not
        asked because it was slow.
        """
        keys = [tier_key(*name) for name in names]
        for tier, speed in zip(self.tiers, self.speeds, strict=True):
            started_s = time.perf_counter()
            tier.touch(keys)
            if keys and tier.readable:
                speed.asked(time.perf_counter() - started_s)

    def find(self, lookup: Lookup) -> Found:
        """The prefix that is worth having, and where what the pool lacks of it lies.

        A tier whose answer alone would take longer than computing everything is not asked.
        """
        places: dict[Name, int] = {}
        best, most = Found(lookup.hit_blocks), 0.0
        longest = lookup.hit_blocks
        passed_over: PassedOver | None = None
        computing_s = self._computing_s(len(lookup.keys) - lookup.hit_blocks)
        for number, tier in enumerate(self.tiers):
            if (self.speeds[number].latency_s.value or 0.0) > computing_s:
                continue
            self._locate(lookup, number, places, computing_s)
            num_blocks = self._servable(lookup, places)
            if num_blocks <= longest:
                continue
            start, longest = longest, num_blocks
            needed = {name: places[name] for name in self._missing(lookup, num_blocks)}
            saved_s = self._saved_s(num_blocks - lookup.hit_blocks, needed)
            if saved_s > most:
                best, most, passed_over = Found(num_blocks, needed), saved_s, None
            else:
                passed_over = PassedOver(start, num_blocks, tier.name)
        return Found(best.num_blocks, best.places, passed_over)

    def load(
        self, names: Iterable[tuple[Name, int]], receive: Callable[[Name, bytes], None]
    ) -> bool:
        """Fetch blocks from the tiers they are in; False, and no more is fetched, if one is gone.

        ``receive`` is told of each as it comes.
        """
        for number, together in self._slices(names):
            keys = [tier_key(*name) for name in together]
            started_s = time.perf_counter()
            blocks = self.tiers[number].get(keys)
            num_bytes = sum(len(block) for block in blocks if block is not None)
            if num_bytes and self.tiers[number].readable:
                self.speeds[number].loaded(num_bytes, time.perf_counter() - started_s)
            for name, block in zip(together, blocks, strict=True):
                if block is None:
                    return False
                receive(name, block)
        return True

    def evict_all(self) -> bool:
        """Forget everything in every tier; False while one of them could not."""
        emptied = [tier.evict() for tier in self.tiers]
        return all(emptied)

    def usage(self) -> tuple[TierUsage, ...]:
        """Of each tier."""
        return tuple(tier.usage() for tier in self.tiers)

    def close(self) -> None:
        """Let go of files and connections."""
        for tier in self.tiers:
            tier.close()

    def _locate(self, lookup: Lookup, number: int, places: dict[Name, int], most_s: float) -> None:
        """Ask one tier for what no faster one has, as far as a prefix without a hole can go.

        After ``most_s`` it is asked no more.
        """
        begun_s = time.perf_counter()
        for start in range(0, len(lookup.keys), _BLOCKS_PER_QUESTION):
            chunk = lookup.keys[start : start + _BLOCKS_PER_QUESTION]
            wanted = [
                (group, key)
                for group, held in enumerate(lookup.held)
                for key in chunk
                if key not in held and (group, key) not in places
            ]
            if wanted:
                started_s = time.perf_counter()
                answers = self.tiers[number].contains([tier_key(*name) for name in wanted])
                if self.tiers[number].readable:  # one that hangs rests, and is not slow after that
                    self.speeds[number].asked(time.perf_counter() - started_s)
                places.update(
                    (name, number) for name, there in zip(wanted, answers, strict=True) if there
                )
            if time.perf_counter() - begun_s > most_s:
                return
            for group, (held, reach) in enumerate(zip(lookup.held, lookup.reaches, strict=True)):
                if reach is None and not all(
                    key in held or (group, key) in places for key in chunk
                ):
                    return

    def _servable(self, lookup: Lookup, places: Mapping[Name, int]) -> int:
        indexes = []
        for group, (held, reach) in enumerate(zip(lookup.held, lookup.reaches, strict=True)):
            found = {key for of, key in places if of == group}
            indexes.append((held | found, reach))
        return longest_prefix(lookup.keys, len(lookup.keys), indexes)

    def _missing(self, lookup: Lookup, num_blocks: int) -> Iterator[Name]:
        """What a hit of ``num_blocks`` needs and the pool lacks."""
        for group, (held, reach) in enumerate(zip(lookup.held, lookup.reaches, strict=True)):
            first = 0 if reach is None else max(0, num_blocks - reach)
            for key in lookup.keys[first:num_blocks]:
                if key not in held:
                    yield group, key

    def _saved_s(self, num_blocks: int, needed: Mapping[Name, int]) -> float:
        """Time that loading these saves against computing so many blocks."""
        if self._prefill_tokens_per_s() is None:
            return num_blocks
        num_bytes = [0] * len(self.tiers)
        for (group, _), number in needed.items():
            num_bytes[number] += self._block_bytes[group]
        loading_s = sum(
            speed.seconds(count) for speed, count in zip(self.speeds, num_bytes, strict=True)
        )
        return self._computing_s(num_blocks) - loading_s

    def _computing_s(self, num_blocks: int) -> float:
        """What computing so many blocks takes; without end while that is unknown."""
        rate = self._prefill_tokens_per_s()
        return math.inf if rate is None else num_blocks * self._block_size / rate

    def _slices(self, names: Iterable[tuple[Name, int]]) -> Iterator[tuple[int, list[Name]]]:
        """Neighbours that lie in one tier, in pieces of at most about ``SLICE_BYTES``."""
        together: list[Name] = []
        where, num_bytes = 0, 0
        for name, number in names:
            if together and (number != where or num_bytes >= SLICE_BYTES):
                yield where, together
                together, num_bytes = [], 0
            together.append(name)
            where = number
            num_bytes += self._block_bytes[name[0]]
        if together:
            yield where, together
