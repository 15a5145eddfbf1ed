"""What is kept and let go on purpose: pins, and the blocks of a conversation that goes to sleep."""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvikk.cache.events import BlockRemoved, Event
from kvikk.cache.eviction.base import Ranking
from kvikk.cache.prefix import longest_prefix
from kvikk.cache.queue import COMMON
from kvikk.cache.records import GroupSpec
from kvikk.cache.state import NOT_HELD, CachedSequence, CacheState

# Of each pool's blocks, all pins together.
PIN_SHARE = 0.25
_NOBODY = -1

Hook = Callable[[int, bytes, int], None]


@dataclass(frozen=True, slots=True)
class Pin:
    """A prefix whose blocks stay: its number, its tokens, and its blocks in all groups."""

    number: int
    num_tokens: int
    num_blocks: int


class CacheKeeping(CacheState):
    """Keeps some blocks from eviction, and evicts others without need.

    ``tenant_share`` of each pool is kept for each tenant's indexed blocks, as far as it has any:
    another tenant's blocks evict them only as a last resort.
    """

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        block_size: int,
        prefix_caching: bool,
        tenant_share: float,
        ranking: Ranking | None,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(groups, block_size, prefix_caching, ranking, clock)
        self._tenant_share = tenant_share
        self._owners: dict[str, int] = {}
        self._pins: dict[int, Pin] = {}  # oldest first
        self._num_pins = 0
        self._on_event: Callable[[Event], None] | None = None
        self._on_evict: Hook | None = None
        self._unsent: list[Event] = []

    @property
    def keeps_shares(self) -> bool:
        """Whether blocks are kept for tenants."""
        return self._tenant_share > 0

    @property
    def pins(self) -> tuple[Pin, ...]:
        """Oldest first."""
        return tuple(self._pins.values())

    def pin(self, keys: Sequence[bytes]) -> Pin | None:
        """Keep the longest prefix of these blocks that a hit could use now; None if there is none.

        Raises ValueError, and pins nothing, if all pins together would take more than ``PIN_SHARE``
        of a pool.
        """
        groups = [(pool.index, reach) for pool, reach in zip(self._pools, self._reach, strict=True)]
        hit = longest_prefix(keys, len(keys), groups)
        if hit == 0:
            return None
        first_held = self._first_needed(hit)
        number = self._num_pins + 1
        tables: list[array[int]] = []
        for pool, first in zip(self._pools, first_held, strict=True):
            blocks = [pool.index[key] for key in keys[first:hit]]
            pinned = {
                block
                for pin in self._pins
                for block in self._sequences[_sequence_of(pin)].tables[len(tables)]
            }
            if len(pinned | set(blocks)) > PIN_SHARE * pool.num_blocks:
                raise ValueError(
                    f"pins may take {PIN_SHARE:.0%} of the cache's blocks; this prefix of "
                    f"{hit * self.block_size} tokens would make them take more"
                )
            tables.append(array("i", [NOT_HELD] * first + blocks))
        for pool, table, first in zip(self._pools, tables, first_held, strict=True):
            pool.acquire(table[first:])
        self._num_pins = number
        self._sequences[_sequence_of(number)] = CachedSequence(
            tables=tables,
            first_held=first_held,
            num_tokens=hit * self.block_size,
            num_computed=hit * self.block_size,
            num_published=hit,
            last_key=keys[hit - 1],
            promised=(),
            publishes=False,
            owner=COMMON,
        )
        pin = Pin(number, hit * self.block_size, sum(hit - first for first in first_held))
        self._pins[number] = pin
        return pin

    def unpin(self, number: int) -> bool:
        """Let a pin's blocks be evicted like any; False if there is no such pin."""
        if self._pins.pop(number, None) is None:
            return False
        sequence = self._sequences.pop(_sequence_of(number))
        for pool, table, first in zip(
            self._pools, sequence.tables, sequence.first_held, strict=True
        ):
            pool.release(reversed(table[first:]))
        return True

    def unpin_oldest(self) -> Pin | None:
        """Give up the oldest pin, for what could not run otherwise; None if there is none."""
        if not self._pins:
            return None
        pin = next(iter(self._pins.values()))
        self.unpin(pin.number)
        return pin

    def idle(self, keys: Sequence[bytes]) -> list[tuple[int, bytes, int]]:
        """The blocks of a chain that nobody else needs: group, key and block, deepest first.

        Those that nobody uses, from the end back to the first that somebody does or that another
        cached chain goes through.
        """
        groups = range(len(self._pools))
        children = [
            pool.num_children() if reach is None else Counter()
            for pool, reach in zip(self._pools, self._reach, strict=True)
        ]
        found: list[tuple[int, bytes, int]] = []
        for key in reversed(keys):
            blocks = {
                group: self._pools[group].index[key]
                for group in groups
                if key in self._pools[group].index
            }
            for group, block in blocks.items():
                if self._pools[group].references[block] or children[group][key] > 0:
                    return found
            for group, block in blocks.items():
                found.append((group, key, block))
                children[group][self._pools[group].parent_key(block)] -= 1
        return found

    def let_go(self, blocks: Sequence[tuple[int, bytes, int]]) -> None:
        """Empty blocks that ``idle`` named, or some of them from the front."""
        removed: list[list[bytes]] = [[] for _ in self._pools]
        for group, key, _ in blocks:
            self._pools[group].drop(key)
            removed[group].append(key)
        self._unsent += [
            BlockRemoved(tuple(keys), group, _NOBODY, "sleep")
            for group, keys in enumerate(removed)
            if keys
        ]
        self._send()

    def available(self, tenant: str) -> tuple[int, ...]:
        """Blocks a group that this tenant can have without taking what is kept for others."""
        owner = self._owner(tenant)
        return tuple(pool.num_available(owner, last_resort=False) for pool in self._pools)

    def _owner(self, tenant: str) -> int:
        """The owner of a tenant's blocks in every pool."""
        share = self._tenant_share
        owner = self._owners.get(tenant)
        if owner is None and share > 0 and (len(self._owners) + 1) * share <= 1:
            for pool in self._pools:
                owner = pool.add_owner(int(share * pool.num_blocks))
            assert owner is not None
            self._owners[tenant] = owner
        return COMMON if owner is None else owner

    def _evict(self, group: int, key: bytes, block: int, removed: list[list[bytes]]) -> None:
        removed[group].append(key)
        if self._on_evict is not None:
            self._on_evict(group, key, block)

    def _send(self) -> None:
        """Tell what changed. Last in every operation, so that a listener meets a whole manager."""
        unsent, self._unsent = self._unsent, []
        if self._on_event is not None:
            for event in unsent:
                self._on_event(event)


def _sequence_of(pin: int) -> int:
    """A pin holds its blocks as a sequence would, under a name that no request has."""
    return -pin
