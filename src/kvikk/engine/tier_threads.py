"""Everything that crosses threads between the engine and its tiers.

    engine ── save ──► bounded queue ──► writer ──► tiers
    engine ── look_up, load ──► loaders ──► tiers, and ``write`` into blocks nobody else uses
    engine ◄── answers ─────── loaders

The engine never waits here but in ``wait``, which it calls with nothing else to do. What loaders
are given is theirs until they answer; every order is answered, whatever happens.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Condition, Event, Thread

from kvikk.cache.tiers.lower import Found, Lookup, Lower, Name

logger = logging.getLogger(__name__)

# Copies of blocks that wait to be written; more are dropped.
QUEUE_BYTES = 256 << 20
_LOADERS = 2
_BLOCKS_PER_WRITE = 16
_MOST_TOUCHES = 64
_FORGET_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found for a sequence."""

    sequence: int
    found: Found


@dataclass(frozen=True, slots=True)
class Loaded:
    """A sequence's blocks are no longer being written; whether all of them are filled."""

    sequence: int
    complete: bool


Answer = Looked | Loaded


@dataclass(frozen=True, slots=True)
class _Save:
    name: Name
    block: bytes
    leaving: bool


class TierThreads:
    """One writer and some loaders over the tiers; every method is for the engine's thread.

    ``write`` fills one block of one group, in a loader's thread.
    """

    def __init__(
        self,
        lower: Lower,
        write: Callable[[int, int, bytes], None],
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        self._lower = lower
        self._write = write
        self._queue_limit = queue_bytes
        self._condition = Condition()
        # Guarded by the condition's lock.
        self._queue: deque[_Save] = deque()
        self._queued_bytes = 0
        self._used: deque[Sequence[Name]] = deque()
        self._writing = False
        self._forgetting = False
        self._closing = False
        # Appended to by loaders, emptied by the engine: each operation is atomic.
        self._answers: deque[Answer] = deque()
        self._answered = Event()
        self._loaders = ThreadPoolExecutor(_LOADERS, "kvikk-tier-loader")
        self._writer = Thread(target=self._run_writer, name="kvikk-tier-writer", daemon=True)
        self._writer.start()

    def has_room(self, num_bytes: int) -> bool:
        """Whether ``save`` would take a block of that size."""
        return self._queued_bytes + num_bytes <= self._queue_limit

    def save(self, name: Name, block: bytes, *, leaving: bool) -> None:
        """Have a copy of a block written; in lasting tiers only, unless it is ``leaving``."""
        with self._condition:
            self._queue.append(_Save(name, block, leaving))
            self._queued_bytes += len(block)
            self._condition.notify_all()

    def touch(self, names: Sequence[Name]) -> None:
        """Have it noted that these were used; where much is to be written, that is let go."""
        with self._condition:
            if len(self._used) < _MOST_TOUCHES:
                self._used.append(names)
                self._condition.notify_all()

    def look_up(self, sequence: int, lookup: Lookup) -> None:
        """Have it found out what tiers could serve; answered by ``Looked``."""

        def work() -> Answer:
            if self._forgetting:
                return Looked(sequence, Found(lookup.hit_blocks))
            return Looked(sequence, self._lower.find(lookup))

        self._order(work, Looked(sequence, Found(lookup.hit_blocks)))

    def load(self, sequence: int, orders: Sequence[tuple[Name, int, int]]) -> None:
        """Have blocks filled: name, number of the tier, block. Answered by ``Loaded``."""
        blocks = {name: block for name, _, block in orders}

        def receive(name: Name, block: bytes) -> None:
            self._write(name[0], blocks[name], block)

        def work() -> Answer:
            names = ((name, tier) for name, tier, _ in orders)
            return Loaded(sequence, self._lower.load(names, receive))

        self._order(work, Loaded(sequence, False))

    def answers(self) -> list[Answer]:
        """What was answered since the last call."""
        self._answered.clear()
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def wait(self, timeout_s: float) -> None:
        """Sleep until there is an answer, or for so long."""
        self._answered.wait(timeout_s)

    def forget(self) -> None:
        """Have every tier emptied; until that is done, nothing is found in any."""
        with self._condition:
            self._queue.clear()
            self._used.clear()
            self._queued_bytes = 0
            self._forgetting = True
            self._condition.notify_all()

    @property
    def is_forgetting(self) -> bool:
        """Whether some tier could not be emptied yet."""
        return self._forgetting

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was saved is written; False if that takes longer."""
        with self._condition:
            return self._condition.wait_for(
                lambda: not (self._queue or self._used or self._writing or self._forgetting),
                timeout_s,
            )

    def close(self, timeout_s: float) -> None:
        """Write what is queued, for so long at most, and end the threads."""
        self.flush(timeout_s)
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._writer.join(timeout_s)
        self._loaders.shutdown(cancel_futures=True)
        self._lower.close()

    def _order(self, work: Callable[[], Answer], failure: Answer) -> None:
        def run() -> None:
            try:
                answer = work()
            except Exception:
                logger.exception("a tier failed; going on without what it has")
                answer = failure
            self._answers.append(answer)
            self._answered.set()

        self._loaders.submit(run)

    def _run_writer(self) -> None:
        while True:
            with self._condition:
                self._writing = False
                self._condition.notify_all()
                self._condition.wait_for(
                    lambda: self._queue or self._used or self._forgetting or self._closing
                )
                if self._closing:
                    return
                forgetting = self._forgetting
                batch = self._next_batch()
                used = None if batch or forgetting else self._used.popleft()
                self._writing = True
            try:
                if forgetting:
                    self._empty_tiers()
                elif used is not None:
                    self._lower.touch(used)
                else:
                    names, blocks = [one.name for one in batch], [one.block for one in batch]
                    self._lower.put(names, blocks, leaving=batch[0].leaving)
            except Exception:
                logger.exception("a tier failed; blocks are not kept there")

    def _next_batch(self) -> list[_Save]:
        batch: list[_Save] = []
        while self._queue and len(batch) < _BLOCKS_PER_WRITE and not self._forgetting:
            if batch and self._queue[0].leaving != batch[0].leaving:
                break
            batch.append(self._queue.popleft())
            self._queued_bytes -= len(batch[-1].block)
        return batch

    def _empty_tiers(self) -> None:
        if self._lower.evict_all():
            with self._condition:
                self._forgetting = False
        else:
            time.sleep(_FORGET_AGAIN_S)
