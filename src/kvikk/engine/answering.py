"""What a step's logits become: further answers, next tokens, ends."""

import time
from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.base import Backend
from kvikk.backends.sampling import LogitsError
from kvikk.cache.manager import CacheManager
from kvikk.engine.arrivals import Arrivals
from kvikk.engine.books import Books
from kvikk.engine.choosing import choose
from kvikk.engine.logprobs import answer_logprobs
from kvikk.engine.open_requests import OpenRequests
from kvikk.engine.pooling import PooledPrompt
from kvikk.engine.requests import FinishReason, Output, TokenLogprob
from kvikk.engine.scheduler import Scheduler
from kvikk.engine.sequence import Sequence
from kvikk.errors import RequestError


class Answering:
    """Moves sequences on. ``totals`` are the engine's, under the names that ``Stats`` has."""

    def __init__(
        self,
        backend: Backend,
        cache: CacheManager,
        scheduler: Scheduler,
        requests: OpenRequests,
        arrivals: Arrivals,
        books: Books | None,
        totals: Counter[str],
    ) -> None:
        self._backend = backend
        self._cache = cache
        self._block_size = cache.block_size
        self._scheduler = scheduler
        self._requests = requests
        self._arrivals = arrivals
        self._books = books
        self._totals = totals

    def set_computed(self, sequence: Sequence, num_tokens: int) -> None:
        """Tell the cache how far a sequence has come, where that fills a block or all its room."""
        size = self._block_size
        fills = num_tokens // size > sequence.num_computed // size
        sequence.num_computed = num_tokens
        if fills or num_tokens == sequence.room:
            keys = sequence.block_keys(num_tokens)
            self._cache.commit(sequence.number, num_tokens, keys)
            # A block may be another's now, and the own one given back.
            sequence.table_changed = True

    def fork(
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
                self.set_computed(parent, parent.num_prompt_tokens)
            for choice in range(1, 1 + parent.num_forks):
                child = self._arrivals.another(parent, choice)
                self._requests.add(child)
                self._totals["forks"] += 1
                if self._books is not None:
                    self._books.fork(child.request, child.number, child.token_ids, child.adapter)
                self._scheduler.fork(parent, child)
                if child.is_running:
                    forked.append(child)
                    rows.append(own_rows.start)
            parent.num_forks = 0
        return forked, logits[rows]

    def answer(self, sequences: list[Sequence], logits: NDArray[np.float32]) -> list[Output]:
        """Choose and accept each sequence's next tokens; unusable logits end only their own."""
        try:
            next_tokens = choose(self._backend, sequences, logits)
            logprobs = answer_logprobs(self._backend, sequences, next_tokens, logits)
        except Exception as error:
            return self._requests.fail(sequences, error)
        now_s = time.monotonic()
        outputs = []
        for row, (sequence, token_ids) in enumerate(zip(sequences, next_tokens, strict=True)):
            if token_ids:
                outputs.append(self._accept(sequence, token_ids, logprobs[row], now_s))
            else:
                reason = _own_fault(sequence) or LogitsError((row,))
                outputs += self._requests.fail([sequence], reason)
        return outputs

    def pool(self, sequence: Sequence, pooled: PooledPrompt) -> Output:
        """End a request whose prompt was wanted as a vector, and is computed."""
        vector = pooled.vector()
        if not np.isfinite(vector).all():
            not_finite = ArithmeticError("a prompt's hidden states are no finite numbers")
            error = _own_fault(sequence) or not_finite
            return self._requests.fail([sequence], error)[0]
        self.set_computed(sequence, sequence.num_prompt_tokens)
        sequence.timings = replace(sequence.timings, first_token_s=time.monotonic())
        usage, timings = sequence.usage(), sequence.timings
        output = Output(sequence.request.id, (), "", None, usage, timings, embedding=vector)
        return self._requests.finish(sequence, "stop", output)

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
        self.set_computed(sequence, len(sequence.token_ids) - 1)
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
        return output if reason is None else self._requests.finish(sequence, reason, output)


def _own_fault(sequence: Sequence) -> RequestError | None:
    """What a request asked for that left nothing to go on with; None where it is not that."""
    refusal = None if sequence.editor is None else sequence.editor.refusal
    if refusal is None and sequence.adapter is not None:
        return RequestError(
            f"model: with the adapter {sequence.adapter.name!r} numbers grow beyond what can be "
            "computed with; its weights are damaged or were made for another model",
            "model",
        )
    return refusal
