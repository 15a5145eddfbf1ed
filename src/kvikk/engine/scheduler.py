"""Who computes what in the next step: continuous batching, with a budget of tokens and of blocks.

Each step, oldest first but in the last line:

    1. answers      every running answer takes its next token
    2. guesses      of the tokens after it, where they pay (see ``drafting``)
    3. a half       of what is left goes to the oldest prompt, or all if nobody else wants it
    4. admissions   waiting requests join, if everybody so far got all the blocks they needed
    5. the rest     goes to prompts in pieces, those with the least to compute first

How a waiting request joins is told in ``admission``, and who gives way when the pool is full in
``block_budget``.

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

from collections.abc import Callable
from operator import attrgetter

from kvikk.backends.base import Plan
from kvikk.cache.manager import CacheManager
from kvikk.engine.admission import Admission
from kvikk.engine.block_budget import BlockBudget
from kvikk.engine.drafting import add_guesses
from kvikk.engine.queues import Queues
from kvikk.engine.sequence import Sequence
from kvikk.engine.speculation import Speculation
from kvikk.engine.step import Step
from kvikk.engine.tiering import Tiering

_BY_REMAINING = attrgetter("remaining", "rank")


class Scheduler:
    """Plans steps over the sequences that wait and run.

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
        self.speculation = speculation
        self._cache = cache
        self._step_tokens = step_tokens
        self._max_rows = plan.max_batch_sequences
        self._tiering = tiering
        self._queues = Queues(max_running)
        self._blocks = BlockBudget(
            cache, self._queues, plan, step_tokens=step_tokens, tiering=tiering
        )
        self._admission = Admission(
            cache, self._queues, self._blocks, plan, on_admission=on_admission, tiering=tiering
        )

    @property
    def num_waiting(self) -> int:
        """Sequences that hold no blocks yet, or none any more."""
        return len(self._queues.waiting)

    @property
    def waiting_tokens(self) -> int:
        """Tokens that have to be computed before all who are here have their next."""
        sequences = (*self._queues.waiting, *self._queues.running)
        return sum(one.remaining for one in sequences if one.remaining > 1 or not one.is_running)

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._queues.running)

    @property
    def num_sequences(self) -> int:
        """Waiting and running."""
        return self._queues.num_sequences

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence by its priority and age."""
        self._queues.wait(sequence)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Run ``child`` on the blocks of ``parent``, whose known tokens are all computed.

        Where as many run as may, or the blocks that its tenant can have are too few for one more,
        it joins the queue, and finds what is cached like anybody.
        """
        has_room = self._blocks.fits(child, parent.num_computed, parent.room)
        if not (has_room and self._queues.has_free_row):
            self.add(child)
            return
        self._cache.fork(parent.number, child.number)
        child.num_computed = parent.room
        self._queues.run(child, parent.room)

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks; it joins the queue with the tokens it has."""
        self._blocks.preempt(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free its blocks."""
        if sequence.is_running:
            self._blocks.release(sequence)
        else:
            self._queues.waiting.remove(sequence)
        if self._tiering is not None:
            self._tiering.forget(sequence)

    def end_waits(self) -> None:
        """Nobody waits for another's blocks any more: they will not be published."""
        for sequence in self._queues.waiting:
            sequence.awaited = None

    def schedule(self) -> Step:
        """Choose the next step's work and make room for it in the cache."""
        queues = self._queues
        spare_rows = self._max_rows - min(queues.num_sequences, queues.max_running)
        step = Step(self._step_tokens, spare_rows)
        self._admission.end_loads(step)
        prefills: list[Sequence] = []
        at_edge: list[Sequence] = []
        for sequence in queues.running:
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
        if self.speculation is not None:
            add_guesses(self.speculation, step, queues, self._blocks)
        if prefills:
            shared = len(prefills) > 1 or len(queues.waiting) > 0
            self._give(step, prefills[0], -(-step.budget // 2) if shared else step.budget)
        if not step.short_of_blocks and not step.preempted:
            prefills += self._admission.admit(step)
        for sequence in sorted(prefills, key=_BY_REMAINING):
            self._give(step, sequence, step.budget)
        assert step.chunks or not queues.num_sequences or self._admission.awaits_tiers(), (
            "the oldest must always get its blocks"
        )
        assert sum(step.chunks.values()) == self._step_tokens - step.budget
        queues.check()
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
            self._blocks.make_room(step, sequence, planned + count)
        if stop <= sequence.room:
            step.chunks[sequence] = planned + count
            step.budget -= count
            if not sequence.has_told_prompt:
                step.rows -= count - (planned == 0)
        else:
            step.short_of_blocks = True
