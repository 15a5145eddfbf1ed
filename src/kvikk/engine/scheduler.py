"""Who computes what in the next step: continuous batching, with a budget of tokens and of blocks.

Each step, oldest first but in the last line:

    1. answers      every running answer takes its next token
    2. guesses      of the tokens after it, where they pay (see ``speculation``)
    3. a half       of what is left goes to the oldest prompt, or all if nobody else wants it
    4. admissions   waiting requests join, if everybody so far got all the blocks they needed
    5. the rest     goes to prompts in pieces, those with the least to compute first

A request whose next blocks a running one is computing waits for those, and lets others pass; and so
does one whose blocks are looked for in slower tiers, or loaded from there. When
the pool is full, the newest running request gives way: its blocks go, its tokens stay, and it joins
the queue again at its own place by age.

A short prompt behind a long one so has its answer as if the machine were half as fast, and many
short ones delay a long one by no more than that.

Why this ends. The oldest running request always gets its blocks: it may take them from all others,
a request that does not fit alone was never accepted, and of the budget it gets a half of what the
answers leave, at least a token. So it finishes, and another one is the oldest. A waiting request is
passed only while it waits for somebody's blocks; whoever computes them gets there or ends, and then
the waiting one, being older than the rest of the queue, comes first. Who is loading gives way to
nobody, since others write to its blocks; but a load ends, well or not, in bounded time.

Old is who came early, among requests of one priority: one that goes before others counts as older
than all of them. Those may then wait as long as such requests come.
"""

import logging
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from kvikk.backends.base import Plan
from kvikk.cache.blocks import BlockCopy
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import Match, OutOfBlocks
from kvikk.cache.tiers.lower import Found
from kvikk.engine.lookup import Guess
from kvikk.engine.sequence import NO_ROW, Sequence
from kvikk.engine.speculation import MAX_ANSWERS, MAX_DRAFT_TOKENS, Speculation
from kvikk.engine.tiering import NOTHING, Tiering
from kvikk.shapes.blocks import most_blocks

_BY_RANK = attrgetter("rank")
_BY_REMAINING = attrgetter("remaining", "rank")


logger = logging.getLogger(__name__)


@dataclass
class Step:
    """What one step computes: the next tokens of these sequences, after these copies of blocks.

    ``budget`` is how many tokens more it may hold, ``rows`` how many rows of logits beside the one
    that every sequence has.
    """

    budget: int
    rows: int
    chunks: dict[Sequence, int] = field(default_factory=dict)
    copies: list[BlockCopy] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    short_of_blocks: bool = False


class Scheduler:
    """Owns the queue of waiting and the list of running sequences, both oldest first.

    ``speculation`` None guesses nothing; it may change between requests. ``on_admission`` is told
    of a sequence that runs for the first time, at that moment.
    """

    def __init__(
        self,
        cache: CacheManager,
        plan: Plan,
        *,
        step_tokens: int,
        max_running: int,
        speculation: Speculation | None,
        on_admission: Callable[[Sequence], None] = lambda sequence: None,
        tiering: Tiering | None = None,
    ) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._cache = cache
        self._block_size = plan.block_size
        self._step_tokens = step_tokens
        self._max_running = max_running
        self._max_rows = plan.max_batch_sequences
        self.speculation = speculation
        self._on_admission = on_admission
        self._tiering = tiering
        self._windows = [group.window_tokens for group in plan.groups]
        self._most_blocks = [
            most_blocks(plan.max_context_tokens, window, plan.block_size, step_tokens)
            for window in self._windows
        ]
        self._free_rows = list(range(max_running - 1, -1, -1))

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence by its priority and age."""
        insort(self.waiting, sequence, key=_BY_RANK)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free its blocks."""
        if sequence.is_running:
            self.running.remove(sequence)
            self._release(sequence)
        else:
            self.waiting.remove(sequence)
        if self._tiering is not None:
            self._tiering.forget(sequence)

    @property
    def num_sequences(self) -> int:
        """Waiting and running."""
        return len(self.waiting) + len(self.running)

    def end_waits(self) -> None:
        """Nobody waits for another's blocks any more: they will not be published."""
        for sequence in self.waiting:
            sequence.awaited = None

    def schedule(self) -> Step:
        """Choose the next step's work and make room for it in the cache."""
        spare_rows = self._max_rows - min(self.num_sequences, self._max_running)
        step = Step(self._step_tokens, spare_rows)
        self._end_loads(step)
        prefills: list[Sequence] = []
        at_edge: list[Sequence] = []
        for sequence in self.running:
            if sequence.is_loading:
                continue
            if sequence.remaining > 1:
                prefills.append(sequence)
            elif sequence.num_computed < sequence.room:
                step.chunks[sequence] = 1
            else:
                at_edge.append(sequence)
        step.budget -= len(step.chunks)
        for sequence in at_edge:
            self._give(step, sequence, 1)
        self._speculate(step)
        if prefills:
            shared = len(prefills) > 1 or len(self.waiting) > 0
            self._give(step, prefills[0], -(-step.budget // 2) if shared else step.budget)
        if not step.short_of_blocks and not step.preempted:
            prefills += self._admit(step)
        for sequence in sorted(prefills, key=_BY_REMAINING):
            self._give(step, sequence, step.budget)
        assert step.chunks or not self.num_sequences or self._tiering_is_awaited, (
            "the oldest must always get its blocks"
        )
        assert sum(step.chunks.values()) == self._step_tokens - step.budget
        assert len(self.running) + len(self._free_rows) == self._max_running
        return step

    def _give(self, step: Step, sequence: Sequence, most: int) -> None:
        """Let a sequence compute up to ``most`` more tokens in this step, if there are blocks."""
        planned = step.chunks.get(sequence, 0)
        count = min(sequence.remaining - planned, most, step.budget)
        if not sequence.has_told_prompt:  # a row for each token
            count = min(count, step.rows + (planned == 0))
        if count <= 0 or not sequence.is_running:  # it may have given way just now
            return
        stop = sequence.num_computed + planned + count
        if stop > sequence.room:
            self._make_room(step, sequence, planned + count)
        if stop <= sequence.room:
            step.chunks[sequence] = planned + count
            step.budget -= count
            if not sequence.has_told_prompt:
                step.rows -= count - (planned == 0)
        else:
            step.short_of_blocks = True

    def _speculate(self, step: Step) -> None:
        """Add guesses to the answers in a step, as far as they are likely enough to pay.

        Nobody gives way to a guess, and prompts keep half of the budget.
        """
        answers, speculation = list(step.chunks), self.speculation
        if speculation is None or not 0 < len(answers) <= MAX_ANSWERS:
            return
        # Every guess wants a row of logits more.
        budget = min(
            step.rows, step.budget if self.num_sequences == len(answers) else step.budget // 2
        )
        likely = speculation.least_chance(len(answers))
        drafts = [(one, self._guess(speculation, one, likely, budget)) for one in answers]
        chances = sorted([guess.chance for _, draft in drafts for guess in draft], reverse=True)
        left = speculation.num_worthwhile(len(answers), chances[: max(budget, 0)])
        least = chances[left - 1] if left else 1.0
        for sequence, guesses in drafts:
            draft = [guess.token_id for guess in guesses[:left] if guess.chance >= least]
            if not draft:
                continue
            try:
                self._extend(step, sequence, 1 + len(draft))
            except OutOfBlocks:
                del draft[sequence.room - sequence.num_computed - 1 :]
            sequence.draft = draft
            step.chunks[sequence] += len(draft)
            step.budget -= len(draft)
            step.rows -= len(draft)
            left -= len(draft)

    def _guess(
        self, speculation: Speculation, sequence: Sequence, least_chance: float, budget: int
    ) -> list[Guess]:
        """What may follow an answer, as far as there is room for it."""
        room = sequence.max_tokens - len(sequence.token_ids) - 1
        most = min(MAX_DRAFT_TOKENS, budget, room)
        if most <= 0 or sequence.num_forks or not sequence.has_told_prompt:
            return []
        if sequence.drafter is None:  # not before: those that wait in the queue need no memory
            sequence.drafter = speculation.drafter(sequence.request, sequence.max_tokens)
        return sequence.drafter.draft(sequence.token_ids, least_chance, most)

    def _make_room(self, step: Step, sequence: Sequence, count: int) -> None:
        """Get blocks for the next ``count`` tokens, or leave the sequence without.

        While there are too few, newer sequences give way, and the budget gets back what they had.
        """
        while True:
            try:
                self._extend(step, sequence, count)
            except OutOfBlocks as shortage:
                victim = self._choose_victim(sequence, shortage.group)
                if victim is None:
                    if sequence is self.running[0] and self._give_up_pin():
                        continue
                    return
                step.budget += step.chunks.pop(victim, 0)
                self.preempt(victim)
                step.preempted.append(victim)
            else:
                return

    def _extend(self, step: Step, sequence: Sequence, count: int) -> None:
        """Get blocks for the next ``count`` tokens. Raises OutOfBlocks, and changes nothing then.

        An answer takes whole blocks, and leaves the cache alone until they are full. What shall be
        forked has no room that is not computed.
        """
        wanted = sequence.num_computed + count - sequence.room
        if wanted <= 0:
            return
        if sequence.remaining == 1 and not sequence.num_forks:
            wanted += -(sequence.room + wanted) % self._block_size
        # The oldest may take what is kept for other tenants, so that it gets to its end.
        oldest = sequence is self.running[0]
        step.copies += self._cache.append(sequence.number, wanted, last_resort=oldest)
        sequence.room += wanted
        sequence.table_changed = True

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Run ``child`` on the blocks of ``parent``, whose known tokens are all computed.

        Where as many run as may, it joins the queue, and finds what is cached like anybody.
        """
        if not self._free_rows:
            self.add(child)
            return
        self._cache.fork(parent.number, child.number)
        child.row = self._free_rows.pop()
        child.num_computed = child.room = parent.room
        child.table_changed = True
        insort(self.running, child, key=_BY_RANK)

    def _choose_victim(self, sequence: Sequence, group: int) -> Sequence | None:
        """The newest sequence whose end frees a block of ``group`` now, if newer than ``sequence``.

        For the oldest, any newer one will do: blocks that newer ones share among themselves come
        free only with the last of them.
        """
        newer = [
            other
            for other in reversed(self.running)
            if other.rank > sequence.rank and not other.is_loading
        ]
        for other in newer:
            if self._cache.sole_blocks(other.number)[group] > 0:
                return other
        return newer[0] if newer and sequence is self.running[0] else None

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks; it joins the queue with the tokens it has."""
        self.running.remove(sequence)
        self._release(sequence)
        self.add(sequence)

    def _release(self, sequence: Sequence) -> None:
        if sequence.is_loading and self._tiering is not None:
            self._tiering.abandon(sequence)
            sequence.is_loading = False
        else:
            self._cache.free(sequence.number)
        self._free_rows.append(sequence.row)
        sequence.row = NO_ROW
        sequence.num_computed = sequence.room = 0
        sequence.draft = []

    def _admit(self, step: Step) -> list[Sequence]:
        """Let waiting sequences join, oldest first, while budget, rows and blocks last.

        Each has a token in the step from the beginning, so that it is worth its blocks.
        """
        admitted: list[Sequence] = []
        place = 0
        while place < len(self.waiting) and step.budget and len(self.running) < self._max_running:
            sequence = self.waiting[place]
            place += 1
            if sequence.is_waiting_for_blocks() or self._is_looked_up(sequence):
                continue
            num_tokens = len(sequence.token_ids)
            # A prompt that shall be told of is computed, cached or not.
            keys = sequence.block_keys(num_tokens) if sequence.has_told_prompt else ()
            match = self._cache.match(keys, num_tokens)
            if match.pending_on is not None:
                sequence.awaited = self._running_by_number(match.pending_on)
                sequence.waited_for = match.pending_on
                sequence.awaited_tokens = match.num_tokens + match.pending_tokens
                continue
            if not self._fits(sequence, match.num_tokens, match.num_tokens):
                return admitted
            found = self._find_below(sequence, match)
            if found is None:
                continue
            if found.num_blocks:
                if not self._load(sequence, match, found.num_blocks):
                    return admitted
                place -= 1
                continue
            alone = not self.running
            tenant = sequence.request.origin.tenant
            try:
                self._cache.allocate(sequence.number, match, 1, tenant=tenant, last_resort=alone)
            except OutOfBlocks:
                if alone and self._give_up_pin():
                    place -= 1
                    continue
                return admitted
            if not self._fits(sequence, match.num_tokens, match.num_tokens + 1):
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
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_BY_RANK)
        sequence.row = self._free_rows.pop()
        sequence.room = room
        sequence.table_changed = True

    def _settle(self, step: Step, sequence: Sequence, hit_tokens: int) -> None:
        """Begin behind the hit; the first time, say so."""
        sequence.num_computed = hit_tokens
        if sequence.cached_tokens is None:
            sequence.cached_tokens = hit_tokens
            step.admitted.append(sequence)
            self._on_admission(sequence)
        if self._tiering is not None:
            self._tiering.forget(sequence)

    @property
    def _tiering_is_awaited(self) -> bool:
        """Whether somebody waits for an answer from slower tiers."""
        return self._tiering is not None and (
            self._tiering.is_loading or any(map(self._is_looked_up, self.waiting))
        )

    def _give_up_pin(self) -> bool:
        """Let the oldest pin go, since somebody could not run beside it; False if there is none."""
        pin = self._cache.unpin_oldest()
        if pin is not None:
            logger.warning(
                "pin %d (%d tokens) is given up: a request could not run beside it",
                pin.number,
                pin.num_tokens,
            )
        return pin is not None

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
        alone = not self.running
        tenant = sequence.request.origin.tenant
        try:
            blocks = self._cache.restore(
                sequence.number, match.keys, num_blocks, tenant=tenant, last_resort=alone
            )
        except OutOfBlocks:
            return alone and self._give_up_pin()  # then it is looked at once more
        if not self._fits(sequence, num_tokens, num_tokens):
            self._cache.free(sequence.number)
            return False
        self._join(sequence, num_tokens)
        sequence.is_loading = True
        self._tiering.load(sequence, blocks)
        return True

    def _end_loads(self, step: Step) -> None:
        """Let those run whose blocks are filled; where that failed, they join the queue again."""
        if self._tiering is None:
            return
        for number, complete in self._tiering.ended_loads():
            sequence = self._running_by_number(number)
            num_tokens = sequence.room
            if complete:
                self._settle(step, sequence, num_tokens)
                self._tiering.publish(sequence, num_tokens)
                sequence.is_loading = False
            else:
                sequence.is_loading = False
                self.preempt(sequence)
                self._tiering.retry(sequence)

    def _running_by_number(self, number: int) -> Sequence:
        return next(sequence for sequence in self.running if sequence.number == number)

    def _fits(self, candidate: Sequence, computed: int, room: int) -> bool:
        """Whether the free blocks will do for all known tokens of everybody, candidate included.

        One block of growth each is added. Without this a long prompt would be let in on the blocks
        of its first piece, and pushed out again for the sake of the next one's.
        """
        if not self.running:
            return True
        needed = self._blocks_needed(candidate, computed, room)
        for sequence in self.running:
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
