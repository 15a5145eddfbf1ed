"""The blocks of running sequences: who gets some, who gives way, and whether they will do.

When the pool is full, the newest running request gives way: its blocks go, its tokens stay, and it
joins the queue again at its own place by age. The oldest gets to its end: newer ones of its own
tenant give way to it, then what is kept for other tenants, then all others, and at last pins.
"""

import logging

from kvikk.backends.base import Plan
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import OutOfBlocks
from kvikk.engine.queues import Queues
from kvikk.engine.sequence import Sequence
from kvikk.engine.step import Step
from kvikk.engine.tiering import Tiering
from kvikk.shapes.blocks import most_blocks

logger = logging.getLogger(__name__)


class BlockBudget:
    """Gives blocks of one cache to the sequences of ``queues``, and takes them back."""

    def __init__(
        self,
        cache: CacheManager,
        queues: Queues,
        plan: Plan,
        *,
        step_tokens: int,
        tiering: Tiering | None,
    ) -> None:
        self._cache = cache
        self._queues = queues
        self._tiering = tiering
        self._block_size = plan.block_size
        self._windows = [group.window_tokens for group in plan.groups]
        self._most_blocks = [
            most_blocks(plan.max_context_tokens, window, plan.block_size, step_tokens)
            for window in self._windows
        ]

    def extend(
        self, step: Step, sequence: Sequence, count: int, *, last_resort: bool = False
    ) -> None:
        """Get blocks for the next ``count`` tokens. Raises OutOfBlocks, and changes nothing then.

        What is kept for other tenants is taken as a ``last_resort`` only.
        An answer takes whole blocks, and leaves the cache alone until they are full. What shall be
        forked has no room that is not computed.
        """
        wanted = sequence.num_computed + count - sequence.room
        if wanted <= 0:
            return
        if sequence.remaining == 1 and not sequence.num_forks:
            wanted += -(sequence.room + wanted) % self._block_size
        step.copies += self._cache.append(sequence.number, wanted, last_resort=last_resort)
        sequence.room += wanted
        sequence.table_changed = True

    def make_room(self, step: Step, sequence: Sequence, count: int) -> None:
        """Get blocks for the next ``count`` tokens, or leave the sequence without.

        While there are too few, newer sequences give way, and the budget gets back what they had.
        """
        is_oldest = sequence is self._queues.running[0]
        takes_kept = is_oldest and not self._cache.keeps_shares
        while True:
            try:
                self.extend(step, sequence, count, last_resort=takes_kept)
            except OutOfBlocks as shortage:
                own_only = is_oldest and not takes_kept
                victim = self._choose_victim(sequence, shortage.group, own_only=own_only)
                if victim is not None:
                    step.budget += step.chunks.pop(victim, 0)
                    self.preempt(victim)
                    step.preempted.append(victim)
                elif own_only:
                    takes_kept = True
                elif not (is_oldest and self.give_up_pin()):
                    return
            else:
                return

    def _choose_victim(self, sequence: Sequence, group: int, *, own_only: bool) -> Sequence | None:
        """The newest sequence whose end frees a block of ``group`` now, if newer than ``sequence``.

        For the oldest, any newer one will do: blocks that newer ones share among themselves come
        free only with the last of them. ``own_only``: of its own tenant.
        """
        running, tenant = self._queues.running, sequence.request.origin.tenant
        newer = [
            other
            for other in reversed(running)
            if other.rank > sequence.rank
            and not other.is_loading
            and (not own_only or other.request.origin.tenant == tenant)
        ]
        for other in newer:
            if self._cache.sole_blocks(other.number)[group] > 0:
                return other
        return newer[0] if newer and sequence is running[0] else None

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks; it joins the queue with the tokens it has."""
        self.release(sequence)
        self._queues.wait(sequence)

    def release(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks and its row."""
        if sequence.is_loading and self._tiering is not None:
            self._tiering.abandon(sequence)
            sequence.is_loading = False
        else:
            self._cache.free(sequence.number)
        self._queues.stop(sequence)

    def give_up_pin(self) -> bool:
        """Let the oldest pin go, since somebody could not run beside it; False if there is none."""
        pin = self._cache.unpin_oldest()
        if pin is not None:
            logger.warning(
                "pin %d (%d tokens) is given up: a request could not run beside it",
                pin.number,
                pin.num_tokens,
            )
        return pin is not None

    def fits(self, candidate: Sequence, computed: int, room: int) -> bool:
        """Whether the free blocks will do for all known tokens of everybody, candidate included.

        One block of growth each is added. Without this a long prompt would be let in on the blocks
        of its first piece, and pushed out again for the sake of the next one's. What is kept for
        other tenants than the candidate's is not free.
        """
        if not self._queues.running:
            return True
        needed = self._blocks_needed(candidate, computed, room)
        for sequence in self._queues.running:
            more = self._blocks_needed(sequence, sequence.num_computed, sequence.room)
            needed = [one + other for one, other in zip(needed, more, strict=True)]
        available = self._cache.available(candidate.request.origin.tenant)
        return all(blocks <= free for blocks, free in zip(needed, available, strict=True))

    def _blocks_needed(self, sequence: Sequence, computed: int, room: int) -> list[int]:
        """Blocks a group that a sequence lacks for its known tokens and one block of growth."""
        size = self._block_size
        held = -(-room // size)
        target = -(-min(len(sequence.token_ids) + size, sequence.max_tokens) // size)
        needed = []
        for window, most in zip(self._windows, self._most_blocks, strict=True):
            more = target - held
            if window is not None:
                given_back = max(0, computed - window + 1) // size
                more = min(more, most - (held - given_back))
            needed.append(max(0, more))
        return needed
