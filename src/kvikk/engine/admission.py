"""From the queue into the batch: what a waiting prompt can reuse, and whether there is room for it.

A request whose next blocks a running one is computing waits for those, and lets others pass; and so
does one whose blocks are looked for in slower tiers, or loaded from there.
"""

from collections.abc import Callable

from kvikk.backends.base import Plan
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import Match, OutOfBlocks
from kvikk.cache.tiers.lower import Found
from kvikk.engine.block_budget import BlockBudget
from kvikk.engine.queues import Queues
from kvikk.engine.sequence import Sequence
from kvikk.engine.step import Step
from kvikk.engine.tiering import NOTHING, Tiering


class Admission:
    """Lets the sequences that wait in ``queues`` run on the blocks of one cache.

    ``on_admission`` is told of a sequence that runs for the first time, at that moment.
    """

    def __init__(
        self,
        cache: CacheManager,
        queues: Queues,
        blocks: BlockBudget,
        plan: Plan,
        *,
        on_admission: Callable[[Sequence], None],
        tiering: Tiering | None,
    ) -> None:
        self._cache = cache
        self._queues = queues
        self._blocks = blocks
        self._block_size = plan.block_size
        self._on_admission = on_admission
        self._tiering = tiering

    def admit(self, step: Step) -> list[Sequence]:
        """Let waiting sequences join, oldest first, while budget, rows and blocks last.

        Each has a token in the step from the beginning, so that it is worth its blocks.
        """
        admitted: list[Sequence] = []
        waiting, running = self._queues.waiting, self._queues.running
        place = 0
        while place < len(waiting) and step.budget and self._queues.has_free_row:
            sequence = waiting[place]
            place += 1
            if sequence.is_waiting_for_blocks() or self._is_looked_up(sequence):
                continue
            num_tokens = len(sequence.token_ids)
            # A prompt whose tokens somebody wants to see is computed, cached or not.
            keys = sequence.block_keys(num_tokens) if sequence.reads_cache else ()
            match = self._cache.match(keys, num_tokens)
            if match.pending_on is not None:
                sequence.awaited = self._queues.find_running(match.pending_on)
                sequence.waited_for = match.pending_on
                sequence.awaited_tokens = match.num_tokens + match.pending_tokens
                continue
            if not self._blocks.fits(sequence, match.num_tokens, match.num_tokens):
                return admitted
            found = self._find_below(sequence, match)
            if found is None:
                continue
            if found.num_blocks:
                if not self._load(sequence, match, found.num_blocks):
                    return admitted
                place -= 1
                continue
            alone = not running
            tenant = sequence.request.origin.tenant
            try:
                self._cache.allocate(sequence.number, match, 1, tenant=tenant, last_resort=alone)
            except OutOfBlocks:
                if alone and self._blocks.give_up_pin():
                    place -= 1
                    continue
                return admitted
            if not self._blocks.fits(sequence, match.num_tokens, match.num_tokens + 1):
                # Blocks of the hit that nobody used are not free any more; too little is left.
                self._cache.free(sequence.number)
                return admitted
            place -= 1
            self._join(sequence, match.num_tokens + 1)
            self._settle(step, sequence, match.num_tokens)
            step.chunks[sequence] = 1
            step.budget -= 1
            admitted.append(sequence)
        return admitted

    def _join(self, sequence: Sequence, room: int) -> None:
        """Let a waiting sequence, which has that much room, run."""
        self._queues.waiting.remove(sequence)
        self._queues.run(sequence, room)

    def _settle(self, step: Step, sequence: Sequence, hit_tokens: int) -> None:
        """Begin behind the hit; the first time, say so."""
        sequence.num_computed = hit_tokens
        if sequence.cached_tokens is None:
            sequence.cached_tokens = hit_tokens
            step.admitted.append(sequence)
            self._on_admission(sequence)
        if self._tiering is not None:
            self._tiering.forget(sequence)

    # From slower tiers.

    def awaits_tiers(self) -> bool:
        """Whether somebody waits for an answer from slower tiers."""
        return self._tiering is not None and (
            self._tiering.is_loading or any(map(self._is_looked_up, self._queues.waiting))
        )

    def _is_looked_up(self, sequence: Sequence) -> bool:
        return self._tiering is not None and self._tiering.is_looking(sequence)

    def _find_below(self, sequence: Sequence, match: Match) -> Found | None:
        """What slower tiers can serve beyond the pool's hit; None while that is found out."""
        if self._tiering is None or not match.keys:
            return NOTHING
        most_blocks = (len(sequence.token_ids) - 1) // self._block_size
        hit_blocks = match.num_tokens // self._block_size
        return self._tiering.find(sequence, match.keys[:most_blocks], hit_blocks)

    def _load(self, sequence: Sequence, match: Match, num_blocks: int) -> bool:
        """Give a sequence a prefix's blocks and have them filled; False if there are too few."""
        assert self._tiering is not None
        num_tokens = num_blocks * self._block_size
        alone = not self._queues.running
        tenant = sequence.request.origin.tenant
        try:
            blocks = self._cache.restore(
                sequence.number, match.keys, num_blocks, tenant=tenant, last_resort=alone
            )
        except OutOfBlocks:
            return alone and self._blocks.give_up_pin()  # then it is looked at once more
        if not self._blocks.fits(sequence, num_tokens, num_tokens):
            self._cache.free(sequence.number)
            return False
        self._join(sequence, num_tokens)
        sequence.is_loading = True
        self._tiering.load(sequence, blocks)
        return True

    def end_loads(self, step: Step) -> None:
        """Let those run whose blocks are filled; where that failed, they join the queue again."""
        if self._tiering is None:
            return
        for number, complete in self._tiering.ended_loads():
            sequence = self._queues.find_running(number)
            num_tokens = sequence.room
            if complete:
                self._settle(step, sequence, num_tokens)
                self._tiering.publish(sequence, num_tokens)
                sequence.is_loading = False
            else:
                sequence.is_loading = False
                self._blocks.preempt(sequence)
                self._tiering.retry(sequence)
