"""The engine: requests in, tokens out, one step at a time.

It knows nothing of HTTP, threads or how anything is computed. ``step`` is the one place where work
is done: what to compute is the scheduler's choice, what becomes of it is ``answering``'s.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.base import Backend, Batch, Plan
from kvikk.cache.ledger.accountant import DEFAULT_MEMORY_BYTES
from kvikk.cache.ledger.records import NO_ORIGINS
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import GroupSpec, ResetResult
from kvikk.engine.adapters import Adapters
from kvikk.engine.ahead import Ahead
from kvikk.engine.answering import Answering
from kvikk.engine.arrivals import Arrivals
from kvikk.engine.batching import BatchBuilder
from kvikk.engine.books import Books
from kvikk.engine.limits import Limits, longest_that_fits
from kvikk.engine.logprobs import take_prompt_logprobs
from kvikk.engine.machine_time import MachineTime
from kvikk.engine.open_requests import OpenRequests
from kvikk.engine.pooling import take_hidden_states
from kvikk.engine.requests import Output, Request
from kvikk.engine.scheduler import Scheduler
from kvikk.engine.sequence import Sequence
from kvikk.engine.sessions import Sessions
from kvikk.engine.speculation import Speculation
from kvikk.engine.stats import GroupStats, Stats
from kvikk.engine.step import Step
from kvikk.engine.tiering import NO_TIERS, Tiering, TieringStats
from kvikk.errors import BusyError, RequestError
from kvikk.text.tokenizer import Tokenizer

# With nothing to do but to wait for a tier, new requests are looked for this often.
_TIER_WAIT_S = 0.005


class Engine:
    """Runs requests over one backend and one cache. Not safe to share between threads.

    ``backend`` has loaded the model whose content is ``model_digest`` under ``plan``; token ids are
    below ``vocabulary_size``. ``tokenizer`` None gives tokens without text. ``step_tokens`` is the
    budget of one step, ``max_queue`` how many requests may wait beyond ``max_running``. Without
    ``use_cache`` all keys and values are forgotten after each token and computed again for the
    next: what generation costs where nobody keeps them. ``speculation`` None guesses nothing ahead.
    ``ledger_memory_bytes`` bounds what the books remember of what is not in the cache; None keeps
    no books. ``block_bytes``, a group, are for their stories. ``tiering`` keeps blocks in slower
    places as well; ``tenant_share`` of each pool is kept for each tenant;
    ``eviction`` is one of ``LIVE_POLICIES``.
    """

    def __init__(
        self,
        backend: Backend,
        plan: Plan,
        *,
        model_digest: bytes,
        vocabulary_size: int,
        tokenizer: Tokenizer | None = None,
        prefix_caching: bool = True,
        use_cache: bool = True,
        step_tokens: int = 256,
        max_running: int = 64,
        max_queue: int = 256,
        speculation: Speculation | None = None,
        block_bytes: tuple[int, ...] = (),
        ledger_memory_bytes: int | None = DEFAULT_MEMORY_BYTES,
        tiering: Tiering | None = None,
        tenant_share: float = 0.0,
        eviction: str = "lru",
    ) -> None:
        assert max_running <= step_tokens <= plan.max_batch_tokens
        assert max_running <= plan.max_batch_sequences
        self.books = (
            None
            if ledger_memory_bytes is None
            else Books(
                plan,
                model_digest=model_digest,
                numerics=backend.numerics,
                tokenizer=tokenizer,
                block_bytes=block_bytes or (0,) * len(plan.groups),
                step_tokens=step_tokens,
                eviction=eviction,
                memory_bytes=ledger_memory_bytes,
                keeps_apart=lambda: tenant_share > 0 or bool(self.cache.pins),
            )
        )
        self.cache = CacheManager(
            [
                GroupSpec(num_blocks, group.window_tokens)
                for group, num_blocks in zip(plan.groups, plan.num_blocks, strict=True)
            ],
            plan.block_size,
            prefix_caching=prefix_caching and use_cache,
            on_event=None if self.books is None else self.books.hear,
            on_publish=None if tiering is None else tiering.note_published,
            on_evict=None if tiering is None else tiering.note_evicted,
            tenant_share=tenant_share,
            eviction=eviction,
        )
        self.tiering = tiering
        if tiering is not None:
            tiering.attach(self.cache)
        self.tokenizer = tokenizer
        self.max_requests = max_running + max_queue
        self.max_context_tokens = longest_that_fits(
            self.cache, plan.max_context_tokens, step_tokens
        )
        self._limits = Limits(
            self.max_context_tokens, vocabulary_size, max_running, has_text=tokenizer is not None
        )
        self.adapters = Adapters(backend)
        self._arrivals = Arrivals(
            plan,
            model_digest=model_digest,
            numerics=backend.numerics,
            tokenizer=tokenizer,
            max_context_tokens=self.max_context_tokens,
            names_blocks=self.cache.prefix_caching,
            adapters=self.adapters,
        )
        self._use_cache = use_cache
        self._backend = backend
        self._plan = plan
        # Without a cache a guess would have to be computed with everything before it.
        self._speculation = speculation if use_cache else None
        self._scheduler = Scheduler(
            self.cache,
            plan,
            step_tokens=step_tokens,
            max_running=max_running,
            speculation=self._speculation,
            on_admission=self._open_ledger,
            tiering=tiering,
        )
        self._batches = BatchBuilder(plan, self.cache)
        self._ahead = Ahead(backend, self.cache, plan)
        self._machine_time = MachineTime()
        self.sessions = Sessions(plan.block_size)
        self._requests = OpenRequests(
            self._scheduler,
            books=self.books,
            tiering=tiering,
            sessions=self.sessions,
            adapters=self.adapters,
            block_size=plan.block_size,
        )
        self._totals: Counter[str] = Counter()
        self._answering = Answering(
            backend,
            self.cache,
            self._scheduler,
            self._requests,
            self._arrivals,
            self.books,
            self._totals,
        )
        self._outputs: list[Output] = []  # of requests that ended between two steps

    @property
    def use_cache(self) -> bool:
        """Whether keys and values are kept from one token to the next."""
        return self._use_cache

    @use_cache.setter
    def use_cache(self, value: bool) -> None:
        """Change it between requests, to compare both ways on one backend.

        Only where nothing else keeps or guesses what shall be computed again.
        """
        assert not self.has_work, "requests are running"
        assert not self.cache.prefix_caching, "the prefix cache would keep it"
        assert self._speculation is None, "guesses rest on it"
        self._use_cache = value

    @property
    def speculates(self) -> bool:
        """Whether tokens are guessed ahead."""
        return self._scheduler.speculation is not None

    @speculates.setter
    def speculates(self, value: bool) -> None:
        """Change it between requests, to compare both ways on one backend."""
        assert not self.has_work, "requests are running"
        assert self._speculation is not None, "the engine was made without"
        self._scheduler.speculation = self._speculation if value else None

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has anything to do or to tell."""
        loading = self.tiering is not None and self.tiering.is_loading
        return bool(self._requests or self._outputs or loading)

    def check(self, request: Request) -> None:
        """Raise RequestError if the request can never be served. Looks at nothing that changes."""
        self._limits.check(request)

    def add(self, request: Request, arrived_s: float | None = None) -> None:
        """Queue a request. Raises RequestError if it can never be served, BusyError if not now."""
        self.check(request)
        if request.id in self._requests:
            raise RequestError(f"a request {request.id!r} is already running", "id")
        if len(self._requests) >= self.max_requests:
            raise BusyError(
                f"{len(self._requests)} requests are running or waiting, which is the limit; "
                "try again soon"
            )
        sequence = self._arrivals.first(request, arrived_s)
        self._requests.add(sequence)
        self._scheduler.add(sequence)

    def abort(self, request_id: str) -> bool:
        """End a request now; its last output comes with the next step. False if there is none."""
        sequences = self._requests.of(request_id)
        self._outputs += [self._requests.finish(sequence, "abort") for sequence in sequences]
        return bool(sequences)

    def find(self, request_id: str) -> Sequence | None:
        """The first answer of a request that has not ended yet; not to be changed."""
        return next(iter(self._requests.of(request_id)), None)

    def step(self) -> list[Output]:
        """Compute one batch and return what it brought, at most one output an answer.

        A failing backend ends the requests of the batch with reason ``error``; the others go on.
        """
        outputs, self._outputs = self._outputs, []
        step = self._scheduler.schedule()
        assert self._scheduler.num_sequences == self._requests.num_sequences, "a request is lost"
        self._count(step)
        if self.tiering is not None:
            self.tiering.flush()
        if not step.chunks:
            if self.tiering is not None and self.has_work and not outputs:
                self.tiering.wait(_TIER_WAIT_S)
            return outputs
        self._machine_time.begin()
        batch = self._batches.build(step.chunks, tuple(step.copies))
        started_s = time.perf_counter()
        try:
            logits = self._backend.forward(batch)
        except Exception as error:
            return outputs + self._requests.fail(list(step.chunks), error)
        self._machine_time.share(step.chunks)
        answering = self._batches.decoding
        if not answering:
            answering, logits = self._move_on(step, batch, logits, outputs)
        if answering:
            outputs += self._answering.answer(answering, logits)
            if not self._use_cache:
                for sequence in answering:
                    if sequence.is_running:
                        self._scheduler.preempt(sequence)
            if self._speculation is not None and len(logits) == len(batch.token_ids):
                self._speculation.observe(len(logits), time.perf_counter() - started_s)
        if self.tiering is not None:
            self.tiering.speed.observe(len(batch.token_ids), time.perf_counter() - started_s)
            self.tiering.flush()
        self._machine_time.end()
        return outputs

    def _move_on(
        self, step: Step, batch: Batch, logits: NDArray[np.float32], outputs: list[Output]
    ) -> tuple[list[Sequence], NDArray[np.float32]]:
        """What a step brought to prompts. Returns who has a next token, and the logits for it."""
        if any(not sequence.has_told_prompt for sequence in step.chunks):
            logits = take_prompt_logprobs(self._backend, step.chunks, logits)
        if batch.hidden_rows is not None:
            take_hidden_states(step.chunks.items(), self._backend.hidden_states())
        answering = []
        for sequence, count in step.chunks.items():
            if count < sequence.remaining:
                self._answering.set_computed(sequence, sequence.num_computed + count)
            elif sequence.pooled is not None:
                outputs.append(self._answering.pool(sequence, sequence.pooled))
            else:
                answering.append(sequence)
        if any(sequence.num_forks for sequence in answering):
            return self._answering.fork(answering, logits)
        return answering, logits

    def touch_ahead(self) -> Iterator[None]:
        """Use a pause: make memory ready for what comes, in pieces of milliseconds.

        To be left off as soon as anything else is done with the engine.
        """
        return self._ahead.touch()

    def _open_ledger(self, sequence: Sequence) -> None:
        """Account for the prompt of a sequence that was just admitted."""
        if self.books is None:
            return
        num_prompt_tokens = sequence.num_prompt_tokens
        reads = self.cache.prefix_caching and sequence.reads_cache
        self.books.admit(
            sequence.request,
            sequence.number,
            sequence.token_ids,
            sequence.block_keys(num_prompt_tokens) if reads else None,
            hit_tokens=sequence.cached_tokens or 0,
            waited_for=sequence.waited_for,
            computing=lambda key: self.cache.computing(key, besides=sequence.number),
            origins=NO_ORIGINS if self.tiering is None else self.tiering.origins(sequence),
            adapter=sequence.adapter,
        )

    def _count(self, step: Step) -> None:
        """Enter a step into the totals, and when its new requests began."""
        now_s = time.monotonic()
        for sequence in step.admitted:
            sequence.timings = replace(sequence.timings, scheduled_s=now_s)
            self._totals["prompt_tokens"] += sequence.num_prompt_tokens
            if self.cache.prefix_caching:
                self._totals["prefix_query_tokens"] += sequence.num_prompt_tokens
                self._totals["prefix_hit_tokens"] += sequence.cached_tokens or 0
        self._totals["steps"] += bool(step.chunks)
        self._totals["preemptions"] += len(step.preempted)
        self._totals["copied_blocks"] += len(step.copies)
        self._totals["computed_tokens"] += sum(step.chunks.values())

    def reset_cache(self) -> ResetResult:
        """Forget everything computed so far; says what still holds blocks."""
        self._scheduler.end_waits()
        if self.books is not None:
            self.books.reset()
        if self.tiering is not None:
            self.tiering.reset()
        return self.cache.reset()

    def stats(self) -> Stats:
        """Figures of this moment, and totals."""
        groups = tuple(
            GroupStats(
                group.window_tokens,
                usage.total_blocks,
                usage.live_blocks,
                usage.cached_blocks,
                usage.empty_blocks,
            )
            for group, usage in zip(self._plan.groups, self.cache.usage_by_group(), strict=True)
        )
        return Stats(
            running_requests=self._scheduler.num_running,
            waiting_requests=self._scheduler.num_waiting,
            waiting_tokens=self._scheduler.waiting_tokens,
            block_size=self._plan.block_size,
            groups=groups,
            finished_requests=dict(self._requests.num_finished),
            tiering=self.tiering_stats(),
            **self._totals,
        )

    def tiering_stats(self) -> TieringStats:
        """Figures of the tiers; may be asked for in any thread."""
        return NO_TIERS if self.tiering is None else self.tiering.stats()

    def close(self) -> None:
        """Write what is to be kept in tiers, and let go of them; nothing runs any more."""
        if self.tiering is not None:
            self.tiering.close()
