"""The engine: requests in, tokens out, one step at a time.

It knows nothing of HTTP, threads or how anything is computed. What changes about a request changes
here or in the scheduler; ``step`` is the one place where work is done.
"""

import logging
import time
from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.base import Backend, Plan
from kvikk.backends.sampling import LogitsError
from kvikk.cache.keys import KeyChain, root_key
from kvikk.cache.ledger.accountant import DEFAULT_MEMORY_BYTES
from kvikk.cache.ledger.records import NO_ORIGINS
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import GroupSpec, ResetResult
from kvikk.engine.answer_text import AnswerText
from kvikk.engine.batching import BatchBuilder
from kvikk.engine.books import Books
from kvikk.engine.chance import choice_seed, draw_seed
from kvikk.engine.choosing import choose
from kvikk.engine.logprobs import answer_logprobs, take_prompt_logprobs
from kvikk.engine.machine_time import MachineTime
from kvikk.engine.requests import FinishReason, Output, Request, TokenLogprob
from kvikk.engine.scheduler import Scheduler
from kvikk.engine.sequence import Sequence
from kvikk.engine.sessions import WAKE_ROUTE, Sessions
from kvikk.engine.speculation import Speculation
from kvikk.engine.stats import GroupStats, Stats
from kvikk.engine.step import Step
from kvikk.engine.tiering import NO_TIERS, Tiering, TieringStats
from kvikk.errors import BusyError, RequestError
from kvikk.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

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
                memory_bytes=ledger_memory_bytes,
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
        self.max_context_tokens = self._longest_that_fits(plan.max_context_tokens, step_tokens)
        self._use_cache = use_cache
        self._backend = backend
        self._plan = plan
        self._model_digest = model_digest
        self._vocabulary_size = vocabulary_size
        self._end_token_ids = frozenset() if tokenizer is None else tokenizer.eos_token_ids
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
        self._max_running = max_running
        self._machine_time = MachineTime()
        self.sessions = Sessions(plan.block_size)
        self._sequences: dict[str, list[Sequence]] = {}  # of each request those that have not ended
        self._num_sequences = 0
        self._outputs: list[Output] = []  # of requests that ended between two steps
        self._arrivals = 0
        self._totals: Counter[str] = Counter()
        self._finished: Counter[str] = Counter()

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
        return bool(self._sequences or self._outputs or loading)

    def check(self, request: Request) -> None:
        """Raise RequestError if the request can never be served. Looks at nothing that changes."""
        num_tokens = len(request.prompt_token_ids)
        if num_tokens == 0:
            raise RequestError("the prompt is empty; at least one token is needed", "prompt")
        if num_tokens >= self.max_context_tokens:
            raise RequestError(
                f"the prompt has {num_tokens} tokens; with at least one for the answer the limit "
                f"is {self.max_context_tokens} (the context, or what the KV memory holds if less)",
                "prompt",
            )
        lowest, highest = min(request.prompt_token_ids), max(request.prompt_token_ids)
        if lowest < 0 or highest >= self._vocabulary_size:
            raise RequestError(
                f"the prompt holds token id {lowest if lowest < 0 else highest}; ids are 0 to "
                f"{self._vocabulary_size - 1}",
                "prompt",
            )
        if request.generation.choices > self._max_running:
            raise RequestError(
                f"n is {request.generation.choices}; this engine runs {self._max_running} answers "
                "at once",
                "n",
            )
        for token_id, _ in request.generation.logit_bias:
            if not 0 <= token_id < self._vocabulary_size:
                raise RequestError(
                    f"logit_bias names token id {token_id}; ids are 0 to "
                    f"{self._vocabulary_size - 1}",
                    "logit_bias",
                )
        if request.generation.stop and self.tokenizer is None:
            raise RequestError("stop strings need a tokenizer, and this engine has none", "stop")

    def add(self, request: Request, arrived_s: float | None = None) -> None:
        """Queue a request. Raises RequestError if it can never be served, BusyError if not now."""
        self.check(request)
        if request.id in self._sequences:
            raise RequestError(f"a request {request.id!r} is already running", "id")
        if len(self._sequences) >= self.max_requests:
            raise BusyError(
                f"{len(self._sequences)} requests are running or waiting, which is the limit; "
                "try again soon"
            )
        seed = request.generation.seed
        sequence = self._sequence(
            request,
            choice=0,
            seed=draw_seed() if seed is None else seed,
            arrived_s=time.monotonic() if arrived_s is None else arrived_s,
        )
        self._sequences[request.id] = [sequence]
        self._scheduler.add(sequence)

    def _sequence(self, request: Request, *, choice: int, seed: int, arrived_s: float) -> Sequence:
        """One answer to be, as the latest arrival."""
        generation = request.generation
        room = self.max_context_tokens - len(request.prompt_token_ids)
        answer_tokens = room if generation.max_tokens is None else min(generation.max_tokens, room)
        # A grammar says itself when an answer is complete, and has nothing to say after that.
        ignore_eos = generation.ignore_eos and generation.grammar is None
        model_ends = frozenset() if ignore_eos else self._end_token_ids
        sequence = Sequence(
            self._arrivals,
            request,
            max_tokens=len(request.prompt_token_ids) + answer_tokens,
            seed=seed,
            end_token_ids=model_ends.union(generation.stop_token_ids),
            keys=self._key_chain(request.salt),
            text=None if self.tokenizer is None else AnswerText(self.tokenizer, generation),
            arrived_s=arrived_s,
            choice=choice,
        )
        self._arrivals += 1
        self._num_sequences += 1
        return sequence

    def abort(self, request_id: str) -> bool:
        """End a request now; its last output comes with the next step. False if there is none."""
        sequences = self._sequences.get(request_id)
        if sequences is None:
            return False
        self._outputs += [self._finish(sequence, "abort") for sequence in sequences.copy()]
        return True

    def find(self, request_id: str) -> Sequence | None:
        """The first answer of a request that has not ended yet; not to be changed."""
        sequences = self._sequences.get(request_id)
        return None if sequences is None else sequences[0]

    def step(self) -> list[Output]:
        """Compute one batch and return what it brought, at most one output an answer.

        A failing backend ends the requests of the batch with reason ``error``; the others go on.
        """
        outputs, self._outputs = self._outputs, []
        step = self._scheduler.schedule()
        assert self._scheduler.num_sequences == self._num_sequences, "a request is lost"
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
            return outputs + self._fail(list(step.chunks), error)
        self._machine_time.share(step.chunks)
        if any(not sequence.has_told_prompt for sequence in step.chunks):
            logits = take_prompt_logprobs(self._backend, step.chunks, logits)
        answering = []
        for sequence, count in step.chunks.items():
            if count < sequence.remaining:
                self._set_computed(sequence, sequence.num_computed + count)
            else:
                answering.append(sequence)
        if any(sequence.num_forks for sequence in answering):
            answering, logits = self._fork(answering, logits)
        if answering:
            outputs += self._answer(answering, logits)
            if self._speculation is not None and len(logits) == len(batch.token_ids):
                self._speculation.observe(len(logits), time.perf_counter() - started_s)
        if self.tiering is not None:
            self.tiering.speed.observe(len(batch.token_ids), time.perf_counter() - started_s)
            self.tiering.flush()
        self._machine_time.end()
        return outputs

    def _open_ledger(self, sequence: Sequence) -> None:
        """Account for the prompt of a sequence that was just admitted."""
        if self.books is None:
            return
        num_prompt_tokens = sequence.num_prompt_tokens
        reads = self.cache.prefix_caching and sequence.has_told_prompt
        self.books.admit(
            sequence.request,
            sequence.number,
            sequence.token_ids,
            sequence.block_keys(num_prompt_tokens) if reads else None,
            hit_tokens=sequence.cached_tokens or 0,
            waited_for=sequence.waited_for,
            computing=lambda key: self.cache.computing(key, besides=sequence.number),
            origins=NO_ORIGINS if self.tiering is None else self.tiering.origins(sequence),
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

    def _fork(
        self, sequences: list[Sequence], logits: NDArray[np.float32]
    ) -> tuple[list[Sequence], NDArray[np.float32]]:
        """The sequences, and behind each whose prompt is computed the others that it becomes.

        They choose their first tokens from the same logits. What finds no row to run in waits.
        """
        forked: list[Sequence] = []
        rows: list[int] = []
        row = 0
        for parent in sequences:
            own_rows = range(row, row + 1 + len(parent.draft))
            forked.append(parent)
            rows += own_rows
            row = own_rows.stop
            if parent.num_forks:
                self._set_computed(parent, parent.num_prompt_tokens)
            for choice in range(1, 1 + parent.num_forks):
                child = self._child(parent, choice)
                self._scheduler.fork(parent, child)
                if child.is_running:
                    forked.append(child)
                    rows.append(own_rows.start)
            parent.num_forks = 0
        return forked, logits[rows]

    def _child(self, parent: Sequence, choice: int) -> Sequence:
        """One more answer to the prompt of ``parent``, which is counted and accounted for once."""
        child = self._sequence(
            parent.request,
            choice=choice,
            seed=choice_seed(parent.seed, choice),
            arrived_s=parent.timings.arrived_s,
        )
        child.timings = parent.timings
        child.cached_tokens = parent.cached_tokens
        self._sequences[parent.request.id].append(child)
        self._totals["forks"] += 1
        if self.books is not None:
            self.books.fork(child.request, child.number, child.token_ids)
        return child

    def _answer(self, sequences: list[Sequence], logits: NDArray[np.float32]) -> list[Output]:
        """Choose and accept each sequence's next tokens; unusable logits end only their own."""
        try:
            next_tokens = choose(self._backend, sequences, logits)
            logprobs = answer_logprobs(self._backend, sequences, next_tokens, logits)
        except Exception as error:
            return self._fail(sequences, error)
        now_s = time.monotonic()
        outputs = []
        for row, (sequence, token_ids) in enumerate(zip(sequences, next_tokens, strict=True)):
            if token_ids:
                outputs.append(self._accept(sequence, token_ids, logprobs[row], now_s))
            else:
                outputs += self._fail([sequence], LogitsError((row,)))
        return outputs

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
            block_size=self._plan.block_size,
            groups=groups,
            finished_requests=dict(self._finished),
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

    def _set_computed(self, sequence: Sequence, num_tokens: int) -> None:
        """Tell the cache how far a sequence has come, where that fills a block or all its room."""
        size = self._plan.block_size
        fills = num_tokens // size > sequence.num_computed // size
        sequence.num_computed = num_tokens
        if fills or num_tokens == sequence.room:
            keys = sequence.block_keys(num_tokens)
            self.cache.commit(sequence.number, num_tokens, keys)
            # A block may be another's now, and the own one given back.
            sequence.table_changed = True

    def _fail(self, sequences: list[Sequence], error: Exception) -> list[Output]:
        """End these requests; the engine lives on."""
        logger.error("%d requests end: the backend failed", len(sequences), exc_info=error)
        reason = f"the backend failed: {type(error).__name__}: {error}"
        return [self._finish(sequence, "error", error=reason) for sequence in sequences]

    def _accept(
        self,
        sequence: Sequence,
        token_ids: list[int],
        logprobs: tuple[TokenLogprob, ...],
        now_s: float,
    ) -> Output:
        """Add tokens to their sequence, as far as its end, and end it there.

        The last one's keys and values are not computed yet. Those of a wrong guess lie behind,
        where the tokens that come in its place will overwrite them.
        """
        prompt_logprobs = None
        if sequence.timings.first_token_s is None:
            sequence.timings = replace(sequence.timings, first_token_s=now_s)
            if sequence.prompt_logprobs is not None:
                prompt_logprobs = tuple(sequence.prompt_logprobs)
        num_taken = min(len(token_ids), sequence.max_tokens - len(sequence.token_ids))
        is_last = num_taken == sequence.max_tokens - len(sequence.token_ids)
        reason: FinishReason | None = "length" if is_last else None
        num_shown = num_taken
        for place in range(num_taken):
            if token_ids[place] in sequence.end_token_ids:
                num_taken, num_shown, reason = place + 1, place, "stop"
                break
        text = ""
        if sequence.text is not None:
            text, num_matched = sequence.text.push(token_ids[:num_shown])
            if num_matched is not None:
                num_taken, reason = num_matched, "stop"
        new_ids = tuple(token_ids[:num_taken])
        sequence.token_ids += new_ids
        self._totals["generated_tokens"] += num_taken
        if sequence.draft:
            self._totals["drafts"] += 1
            self._totals["drafted_tokens"] += len(sequence.draft)
            self._totals["accepted_tokens"] += num_taken - 1
            sequence.draft = []
        self._set_computed(sequence, len(sequence.token_ids) - 1)
        output = Output(
            sequence.request.id,
            new_ids,
            text,
            None,
            sequence.usage(),
            sequence.timings,
            choice=sequence.choice,
            logprobs=logprobs[:num_taken],
            prompt_logprobs=prompt_logprobs,
        )
        if reason is not None:
            return self._finish(sequence, reason, output)
        if not self._use_cache:
            self._scheduler.preempt(sequence)
        return output

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        output: Output | None = None,
        error: str | None = None,
    ) -> Output:
        """Give back all that an answer holds; its last output, which ``output`` becomes."""
        if reason in ("stop", "length"):
            self._note_use(sequence)
        self._scheduler.remove(sequence)
        self._num_sequences -= 1
        request_id = sequence.request.id
        others = self._sequences[request_id]
        others.remove(sequence)
        if not others:
            del self._sequences[request_id]
            self._finished[reason] += 1
        if self.books is not None and sequence.cached_tokens is not None:
            self.books.end(sequence.number, sequence.keys)
        if output is None:
            output = Output(
                request_id, (), "", None, sequence.usage(), sequence.timings, choice=sequence.choice
            )
        text, stop_string = output.text, None
        if sequence.text is not None and reason in ("stop", "length"):
            text += sequence.text.finish()
            stop_string = sequence.text.stop_string
        return replace(
            output,
            text=text,
            finish_reason=reason,
            timings=replace(
                sequence.timings, finished_s=time.monotonic(), machine_s=sequence.machine_s
            ),
            error=error,
            stop_string=stop_string,
            ends_request=not others,
        )

    def _note_use(self, sequence: Sequence) -> None:
        """An answer is complete: its tiers and its session are told."""
        request = sequence.request
        if self.tiering is not None:
            self.tiering.used(sequence)
        if request.origin.route == WAKE_ROUTE:
            self.sessions.woken(request.session, request.origin.tenant)
        elif sequence.choice == 0:
            keys = sequence.block_keys(sequence.num_computed)
            full = sequence.num_computed // self._plan.block_size
            self.sessions.ended(request, sequence.token_ids, keys[:full])

    def _key_chain(self, salt: bytes) -> KeyChain | None:
        if not self.cache.prefix_caching:
            return None
        root = root_key(
            model=self._model_digest,
            block_size=self._plan.block_size,
            kv_dtype=self._plan.kv_dtype,
            numerics=self._backend.numerics,
            salt=salt,
        )
        return KeyChain(root, self._plan.block_size)

    def _longest_that_fits(self, context_tokens: int, step_tokens: int) -> int:
        """The longest sequence that a pool to itself can hold, at most ``context_tokens``."""
        low, high = 0, context_tokens
        while low < high:
            middle = (low + high + 1) // 2
            if self.cache.can_ever_fit(middle, step_tokens):
                low = middle
            else:
                high = middle - 1
        return low
