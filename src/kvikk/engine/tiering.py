"""The engine's side of its tiers: which blocks go down, which come up, and who waits for them.

    computed ── lasting tiers get a copy of every full block as soon as it is published
    evicted ─── the others, of a block that leaves the pool, before anything is written over it
    admitted ── a prompt is looked up first; if a load is worth it, it waits for that, others run

A sequence's way: *unknown*, being *looked up*, *known* (with what was found), and, if that is worth
having, *loading*: it then holds blocks and a row like a running one, and computes nothing.
"""

from collections.abc import Sequence as Keys
from dataclasses import dataclass, field
from enum import Enum

from kvikk.backends.base import Backend, Plan
from kvikk.cache.ledger.records import NO_ORIGINS, Cause, Origins
from kvikk.cache.manager import CacheManager
from kvikk.cache.tiers.lower import Found, Lookup, Lower, Name
from kvikk.cache.tiers.speed import Average
from kvikk.cache.tiers.tier import TierUsage
from kvikk.engine.sequence import Sequence
from kvikk.engine.tier_threads import QUEUE_BYTES, Loaded, Looked, TierThreads

# A load that fails leaves its tier without what failed, or resting: soon nothing is found any more.
_MOST_ATTEMPTS = 3
# Steps of fewer tokens say little about how fast prompts are computed.
_LEAST_PREFILL_TOKENS = 16
_CLOSING_S = 10.0
NOTHING = Found(0)


class _State(Enum):
    UNKNOWN = "not asked, or the answer holds no more"
    LOOKING = "being looked up"
    KNOWN = "looked up"
    LOADING = "being loaded"


@dataclass(slots=True)
class _Restore:
    """Where a sequence stands, and what was found for it."""

    state: _State = _State.UNKNOWN
    found: Found = NOTHING
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class TieringStats:
    """The tiers, fastest first. ``dropped_blocks`` came too fast to be written.

    ``emptying``: a reset is not through with all of them, and nothing in any is used meanwhile.
    """

    tiers: tuple[TierUsage, ...] = ()
    dropped_blocks: int = 0
    emptying: bool = False


NO_TIERS = TieringStats()


@dataclass(slots=True)
class PrefillSpeed:
    """How fast prompts are computed: written by the engine's thread, read by any."""

    tokens_per_s: Average = field(default_factory=Average)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        if num_tokens >= _LEAST_PREFILL_TOKENS and seconds > 0:
            self.tokens_per_s.feed(num_tokens / seconds)

    def latest(self) -> float | None:
        """Tokens a second; None while nothing was computed."""
        return self.tokens_per_s.latest


class Tiering:
    """Owned by the engine's thread. ``cache`` tells it what is published and what leaves."""

    def __init__(
        self,
        backend: Backend,
        plan: Plan,
        lower: Lower,
        block_bytes: Keys[int],
        speed: PrefillSpeed,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        self.speed = speed
        self._backend = backend
        self._plan = plan
        self._lower = lower
        self._block_bytes = tuple(block_bytes)
        self._threads = TierThreads(lower, self._fill, queue_bytes)
        self._restores: dict[int, _Restore] = {}
        self._outdated: set[int] = set()  # being looked up since before a reset
        self._abandoned: set[int] = set()  # loading for nobody any more
        self._loads = 0
        self._published: list[tuple[Name, int]] = []
        self._leaving: list[tuple[Name, int]] = []
        self._unsaved: set[Name] = set()  # in the pool, and not handed down for want of room
        self._dropped_blocks = 0
        self._listens = True

    def attach(self, cache: CacheManager) -> None:
        """Follow this cache; once."""
        self._cache = cache

    # What goes down.

    def note_published(self, group: int, key: bytes, block: int) -> None:
        """Note what is published: until the next step is scheduled it lies there."""
        if self._listens and self._lower.has_lasting:
            self._published.append(((group, key), block))

    def note_evicted(self, group: int, key: bytes, block: int) -> None:
        """Note what is evicted: until the next step is computed it still lies there."""
        if self._lower.has_passing or (group, key) in self._unsaved:
            self._leaving.append(((group, key), block))

    def flush(self) -> None:
        """Copy what was noted out of the pool and hand it to the writer, as far as it has room."""
        for blocks, leaving in ((self._published, False), (self._leaving, True)):
            for name, block in blocks:
                self._unsaved.discard(name)
                if self._threads.has_room(self._block_bytes[name[0]]):
                    data = self._backend.read(name[0], [block])
                    self._threads.save(name, data, leaving=leaving)
                else:
                    self._dropped_blocks += 1
                    if not leaving:
                        self._unsaved.add(name)
            blocks.clear()

    def hand_down(self, blocks: Keys[tuple[int, bytes, int]]) -> int:
        """Have copies of cached blocks put into every tier; how many, from the front, there is room
        for. Each is its group, key and block.
        """
        for count, (group, key, block) in enumerate(blocks):
            if not self._threads.has_room(self._block_bytes[group]):
                return count
            data = self._backend.read(group, [block])
            self._threads.save((group, key), data, leaving=True)
            self._unsaved.discard((group, key))
        return len(blocks)

    def used(self, sequence: Sequence) -> None:
        """A sequence has ended: its blocks were used, wherever they came from."""
        keys = sequence.block_keys(sequence.num_computed)
        full = sequence.num_computed // self._plan.block_size
        groups = range(len(self._plan.groups))
        self._threads.touch([(group, key) for group in groups for key in keys[:full]])

    # What comes up.

    def is_looking(self, sequence: Sequence) -> bool:
        """Whether the tiers have not answered yet."""
        restore = self._restores.get(sequence.number)
        return restore is not None and restore.state is _State.LOOKING

    def find(self, sequence: Sequence, keys: Keys[bytes], hit_blocks: int) -> Found | None:
        """What tiers can add to a hit of ``hit_blocks``; None while that is being found out.

        ``keys`` are those of the blocks that a hit may reach.
        """
        restore = self._restores.setdefault(sequence.number, _Restore())
        if restore.state is _State.KNOWN:
            found = restore.found
            if found.num_blocks <= hit_blocks:
                return NOTHING
            if self._cache.missing(keys, found.num_blocks) <= found.places.keys():
                return found
            restore.state = _State.UNKNOWN  # what the pool had then has been evicted since
        if restore.state is _State.UNKNOWN:
            if len(keys) <= hit_blocks or restore.attempts == _MOST_ATTEMPTS:
                restore.state, restore.found = _State.KNOWN, NOTHING
                return NOTHING
            restore.state = _State.LOOKING
            restore.attempts += 1
            lookup = Lookup(tuple(keys), self._cache.held(keys), self._cache.reaches, hit_blocks)
            self._threads.look_up(sequence.number, lookup)
        return None

    def load(self, sequence: Sequence, blocks: dict[Name, int]) -> None:
        """Fill a sequence's blocks, by name, from where they were found.

        What was evicted for them is read first: the loaders write as soon as they are told.
        """
        self.flush()
        restore = self._restores[sequence.number]
        restore.state = _State.LOADING
        self._loads += 1
        places = restore.found.places
        self._threads.load(
            sequence.number, [(name, places[name], block) for name, block in blocks.items()]
        )

    def abandon(self, sequence: Sequence) -> None:
        """The sequence has ended while it was loading: its blocks go when nobody writes to them."""
        self._abandoned.add(sequence.number)
        self._cache.renounce(sequence.number)

    def ended_loads(self) -> list[tuple[int, bool]]:
        """Take in answers: the sequences whose loads are over, and whether all came."""
        ended = []
        for answer in self._threads.answers():
            number = answer.sequence
            if isinstance(answer, Looked):
                restore = self._restores.get(number)
                if restore is not None:
                    known = number not in self._outdated
                    restore.state = _State.KNOWN if known else _State.UNKNOWN
                    restore.found = answer.found
                self._outdated.discard(number)
            elif isinstance(answer, Loaded):
                self._loads -= 1
                if number in self._abandoned:
                    self._abandoned.discard(number)
                    self._cache.free(number)
                else:
                    ended.append((number, answer.complete))
        return ended

    def retry(self, sequence: Sequence) -> None:
        """A load failed: look once more what is there, if that was not tried too often."""
        self._restores[sequence.number].state = _State.UNKNOWN

    def publish(self, sequence: Sequence, num_tokens: int) -> None:
        """Commit loaded blocks; tiers need not be told of what they had."""
        self._listens = False
        self._cache.commit(sequence.number, num_tokens, sequence.block_keys(num_tokens))
        self._listens = True

    def origins(self, sequence: Sequence) -> Origins:
        """What the ledger of a sequence that is admitted wants to know."""
        restore = self._restores.get(sequence.number)
        if restore is None:
            return NO_ORIGINS
        num_hit_blocks = (sequence.cached_tokens or 0) // self._plan.block_size
        causes = [Cause.HIT_DEVICE] * num_hit_blocks
        if restore.state is _State.LOADING:
            slowest: dict[bytes, int] = {}
            for (_, key), tier in restore.found.places.items():
                slowest[key] = max(slowest.get(key, 0), tier)
            keys = sequence.block_keys(num_hit_blocks * self._plan.block_size)
            for block in range(num_hit_blocks):
                if keys[block] in slowest:
                    causes[block] = self._lower.tiers[slowest[keys[block]]].cause
        passed = restore.found.passed_over
        if passed is None:
            return Origins(tuple(causes))
        return Origins(tuple(causes), range(passed.start, passed.stop), passed.tier)

    def forget(self, sequence: Sequence) -> None:
        """The sequence was admitted, or ended before it was."""
        self._restores.pop(sequence.number, None)

    @property
    def is_loading(self) -> bool:
        """Whether blocks are being filled."""
        return self._loads > 0

    def wait(self, timeout_s: float) -> None:
        """Sleep until something is answered, or for so long."""
        self._threads.wait(timeout_s)

    # All of it.

    def reset(self) -> None:
        """Nothing that was computed before is found in any tier any more."""
        self._published.clear()
        self._leaving.clear()
        self._unsaved.clear()
        for number, restore in self._restores.items():
            if restore.state is _State.LOOKING:
                self._outdated.add(number)
            elif restore.state is _State.KNOWN:
                restore.state = _State.UNKNOWN
        self._threads.forget()

    def stats(self) -> TieringStats:
        """Figures of this moment."""
        return TieringStats(self._lower.usage(), self._dropped_blocks, self._threads.is_forgetting)

    def written(self, timeout_s: float) -> bool:
        """Wait until all that was handed down is written; in any thread but the engine's."""
        return self._threads.flush(timeout_s)

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was handed down is written; False if that takes longer."""
        self.flush()
        return self._threads.flush(timeout_s)

    def close(self) -> None:
        """Write what is queued and end the threads."""
        self.flush()
        self._threads.close(_CLOSING_S)

    def _fill(self, group: int, block: int, data: bytes) -> None:
        self._backend.write(group, [block], data)
