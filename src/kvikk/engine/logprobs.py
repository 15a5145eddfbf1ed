"""Log-probabilities for those who ask: of an answer's tokens, and of a prompt's."""

from collections.abc import Sequence as Rows

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.base import Backend
from kvikk.engine.requests import TokenLogprob
from kvikk.engine.sequence import Sequence


def answer_logprobs(
    backend: Backend,
    sequences: Rows[Sequence],
    next_tokens: Rows[list[int]],
    logits: NDArray[np.float32],
) -> list[tuple[TokenLogprob, ...]]:
    """Those of each sequence's next tokens; none where they are not asked for.

    ``logits`` has ``1 + len(draft)`` rows a sequence, in order.
    """
    told: list[tuple[TokenLogprob, ...]] = []
    row = 0
    for sequence, token_ids in zip(sequences, next_tokens, strict=True):
        num_top = sequence.request.generation.num_logprobs
        if num_top is None:
            told.append(())
        else:
            told.append(_tell(backend, logits[row : row + len(token_ids)], token_ids, num_top))
        row += 1 + len(sequence.draft)
    return told


def take_prompt_logprobs(
    backend: Backend, chunks: dict[Sequence, int], logits: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Tell those of the prompts' tokens; returns the rows of logits that answers are chosen from.

    A row of logits at position p says what the token at p + 1 is:

        prompt            t0   t1   t2   t3
        rows              r0   r1   r2   r3       r3 is for the answer
        log-probabilities      r0   r1   r2       of t1 t2 t3
    """
    kept: list[int] = []
    row = 0
    for sequence, count in chunks.items():
        num_rows = sequence.num_logits(count)
        for_answer = num_rows
        known = sequence.prompt_logprobs
        if known is not None and not sequence.has_told_prompt:
            first = len(known)
            stop = min(sequence.num_computed + count, sequence.num_prompt_tokens - 1)
            token_ids = sequence.token_ids[first + 1 : stop + 1]
            num_top = sequence.request.generation.num_prompt_logprobs or 0
            known += _tell(backend, logits[row : row + len(token_ids)], token_ids, num_top)
            for_answer = num_rows - len(token_ids)
        kept += range(row + num_rows - for_answer, row + num_rows)
        row += num_rows
    assert row == len(logits), "a row that nobody wanted"
    return logits[kept]


def _tell(
    backend: Backend, logits: NDArray[np.float32], token_ids: Rows[int], num_top: int
) -> tuple[TokenLogprob, ...]:
    if not token_ids:
        return ()
    found = backend.logprobs(logits, np.array(token_ids, np.int64), num_top)
    tops = zip(found.top_ids.tolist(), found.top.tolist(), strict=True)
    return tuple(
        TokenLogprob(token_id, logprob, rank, tuple(zip(ids, values, strict=True)))
        for token_id, logprob, rank, (ids, values) in zip(
            token_ids, found.chosen.tolist(), found.ranks.tolist(), tops, strict=True
        )
    )
