"""Who computes what in the next step: continuous batching, with a budget of tokens and of blocks.

Each step, oldest first within each line:

    1. decodes      every running answer takes its next token
    2. prefills     running prompts take what is left of the budget, in pieces
    3. admissions   waiting requests join, if step 1 and 2 got all the blocks they needed

A request whose next blocks a running one is computing waits for those, and lets others pass. When
the pool is full, the newest running request gives way: its blocks go, its tokens stay, and it joins
the queue again at its own place by age.

Why this ends. The oldest running request always gets its blocks: it may take them from all others,
and a request that does not fit alone was never accepted. So it finishes, and another one is the
oldest. A waiting request is passed only while it waits for somebody's blocks; whoever computes them
gets there or ends, and then the waiting one, being older than the rest of the queue, comes first.
"""

from bisect import insort
from dataclasses import dataclass, field
from operator import attrgetter

from kvikk.backends.base import Plan
from kvikk.cache.blocks import BlockCopy
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import OutOfBlocks
from kvikk.engine.sequence import NO_ROW, Sequence
from kvikk.shapes.blocks import most_blocks

_BY_AGE = attrgetter("number")


@dataclass
class Step:
    """What one step computes: the next tokens of these sequences, after these copies of blocks."""

    chunks: dict[Sequence, int] = field(default_factory=dict)
    copies: list[BlockCopy] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)


class Scheduler:
    """Owns the queue of waiting and the list of running sequences, both oldest first."""

    def __init__(self, cache: CacheManager, plan: Plan, *, step_tokens: int, max_running: int):
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._cache = cache
        self._block_size = plan.block_size
        self._step_tokens = step_tokens
        self._max_running = max_running
        self._windows = [group.window_tokens for group in plan.groups]
        self._most_blocks = [
            most_blocks(plan.max_context_tokens, window, plan.block_size, step_tokens)
            for window in self._windows
        ]
        self._free_rows = list(range(max_running - 1, -1, -1))

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence by its age."""
        insort(self.waiting, sequence, key=_BY_AGE)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free its blocks."""
        if sequence.is_running:
            self.running.remove(sequence)
            self._release(sequence)
        else:
            self.waiting.remove(sequence)

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
        step = Step()
        budget = self._step_tokens
        short_of_blocks = False
        decodes = [sequence for sequence in self.running if sequence.remaining == 1]
        prefills = [sequence for sequence in self.running if sequence.remaining > 1]
        for sequence in (*decodes, *prefills):
            count = min(sequence.remaining, budget)
            if count == 0:
                break
            if not sequence.is_running:  # it has just given way
                continue
            budget += self._make_room(sequence, count, step)
            if sequence.num_computed + count <= sequence.room:
                step.chunks[sequence] = count
                budget -= count
            else:
                short_of_blocks = True
        if not short_of_blocks and not step.preempted:
            self._admit(step, budget)
        assert step.chunks or not self.num_sequences, "the oldest must always get its blocks"
        assert sum(step.chunks.values()) <= self._step_tokens
        assert len(self.running) + len(self._free_rows) == self._max_running
        return step

    def _make_room(self, sequence: Sequence, count: int, step: Step) -> int:
        """Get blocks for the next ``count`` tokens, or leave the sequence without.

        While there are too few, newer sequences give way. Returns how many tokens of the budget
        that gives back.
        """
        returned_tokens = 0
        wanted = sequence.num_computed + count - sequence.room
        if wanted <= 0:
            return 0
        if sequence.remaining == 1:
            # A decode takes a whole block at once, and leaves the cache alone until it is full.
            wanted += -(sequence.room + wanted) % self._block_size
        while True:
            try:
                step.copies += self._cache.append(sequence.number, wanted)
            except OutOfBlocks as shortage:
                victim = self._choose_victim(sequence, shortage.group)
                if victim is None:
                    return returned_tokens
                returned_tokens += step.chunks.pop(victim, 0)
                self.preempt(victim)
                step.preempted.append(victim)
            else:
                sequence.room += wanted
                sequence.table_changed = True
                return returned_tokens

    def _choose_victim(self, sequence: Sequence, group: int) -> Sequence | None:
        """The newest sequence whose end frees a block of ``group`` now, if newer than ``sequence``.

        For the oldest, any newer one will do: blocks that newer ones share among themselves come
        free only with the last of them.
        """
        newer = [other for other in reversed(self.running) if other.number > sequence.number]
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
        self._cache.free(sequence.number)
        self._free_rows.append(sequence.row)
        sequence.row = NO_ROW
        sequence.num_computed = sequence.room = 0

    def _admit(self, step: Step, budget: int) -> None:
        """Let waiting sequences join, oldest first, while budget, rows and blocks last."""
        place = 0
        while place < len(self.waiting) and budget and len(self.running) < self._max_running:
            sequence = self.waiting[place]
            place += 1
            if sequence.is_waiting_for_blocks():
                continue
            num_tokens = len(sequence.token_ids)
            match = self._cache.match(sequence.block_keys(num_tokens), num_tokens)
            if match.pending_on is not None:
                sequence.awaited = self._running_by_number(match.pending_on)
                sequence.awaited_tokens = match.num_tokens + match.pending_tokens
                continue
            count = min(num_tokens - match.num_tokens, budget)
            if not self._fits(sequence, match.num_tokens, match.num_tokens):
                return
            try:
                self._cache.allocate(sequence.number, match, count)
            except OutOfBlocks:
                return
            if not self._fits(sequence, match.num_tokens, match.num_tokens + count):
                # Blocks of the hit that nobody used are not free any more; too little is left.
                self._cache.free(sequence.number)
                return
            place -= 1
            insort(self.running, self.waiting.pop(place), key=_BY_AGE)
            sequence.row = self._free_rows.pop()
            sequence.num_computed = match.num_tokens
            sequence.room = match.num_tokens + count
            sequence.table_changed = True
            if sequence.cached_tokens is None:
                sequence.cached_tokens = match.num_tokens
                step.admitted.append(sequence)
            step.chunks[sequence] = count
            budget -= count

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
        usage = self._cache.usage_by_group()
        return all(
            blocks <= group.cached_blocks + group.empty_blocks
            for blocks, group in zip(needed, usage, strict=True)
        )

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
