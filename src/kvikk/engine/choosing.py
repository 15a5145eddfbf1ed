"""From logits to each sequence's next tokens, guesses checked.

A sequence with a draft of d tokens has d + 1 rows of logits: the last known token's, and those that
stand if the draft is right so far. Each row's token is chosen as it would be without a draft, from
its own logits with its own chance, and the draft holds as long as it says the same:

    draft          b   c   d
    rows       a:  b   c   x   y       b and c were right: b, c, x are the next tokens,
                                       y stands on a wrong guess and is nobody's

So an answer has the tokens it would have had, greedy or drawn, and speculation has no distribution
of its own to keep exact.
"""

from collections.abc import Sequence as Rows
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.base import Backend
from kvikk.backends.sampling import LogitsError
from kvikk.engine.sequence import Sequence

_UNUSABLE = -1  # no token can be chosen from the row; equal to no guess


def choose(
    backend: Backend, sequences: Rows[Sequence], logits: NDArray[np.float32]
) -> list[list[int]]:
    """The next tokens of each sequence; none where its first row is unusable.

    ``logits`` has ``1 + len(draft)`` rows a sequence, in order. Tokens before an unusable row are
    sound: that row comes again with the next step. An argmax is cheap, so a greedy sequence's rows
    are all looked at together; one that draws looks at a row once the guess before it was right.
    """
    has_drafts = len(logits) > len(sequences)
    if all(sequence.is_greedy and sequence.editor is None for sequence in sequences):
        likeliest = backend.likeliest(logits)
        if likeliest is not None:
            if not has_drafts:
                return [[token] for token in likeliest]
            rows = iter(likeliest)
            return [
                _as_far_as_right(list(islice(rows, 1 + len(one.draft))), one.draft)
                for one in sequences
            ]
    if not has_drafts:
        chosen = _sample(backend, [(sequence, 0) for sequence in sequences], logits)
        return [[] if token == _UNUSABLE else [token] for token in chosen]
    wanted, numbers, num_rows = [], [], 0
    for sequence in sequences:
        for ahead in range(1 + len(sequence.draft) if sequence.is_greedy else 1):
            wanted.append((sequence, ahead))
            numbers.append(num_rows + ahead)
        num_rows += 1 + len(sequence.draft)
    assert num_rows == len(logits), "a row that nobody wanted"
    # Taking some rows copies them; most steps want them all.
    taken = iter(_sample(backend, wanted, logits if len(wanted) == num_rows else logits[numbers]))
    next_tokens, row = [], 0
    for sequence in sequences:
        draft = sequence.draft
        tokens = list(islice(taken, 1 + len(draft) if sequence.is_greedy else 1))
        while len(tokens) <= len(draft) and tokens[-1] == draft[len(tokens) - 1]:
            ahead = len(tokens)
            tokens += _sample(backend, [(sequence, ahead)], logits[row + ahead, None])
        next_tokens.append(_as_far_as_right(tokens, draft))
        row += 1 + len(draft)
    return next_tokens


def _as_far_as_right(tokens: list[int], draft: list[int]) -> list[int]:
    """The first token, and one more for each guess that was right, up to an unusable row."""
    for ahead, token in enumerate(tokens):
        if token == _UNUSABLE:
            return tokens[:ahead]
        if ahead < len(draft) and token != draft[ahead]:
            return tokens[: ahead + 1]
    return tokens


def _sample(
    backend: Backend, wanted: list[tuple[Sequence, int]], logits: NDArray[np.float32]
) -> list[int]:
    """One token a row, each of a sequence and so far ahead; _UNUSABLE where there is none."""
    parameters = [sequence.request.generation.sampling for sequence, _ in wanted]
    uniforms = np.array([sequence.uniform(ahead) for sequence, ahead in wanted])
    edits = None
    if any(sequence.editor is not None for sequence, _ in wanted):
        edits = [sequence.edit(ahead) for sequence, ahead in wanted]
    try:
        chosen: list[int] = backend.sample(logits, parameters, uniforms, edits).tolist()
    except LogitsError as error:
        sound = [row for row in range(len(wanted)) if row not in error.rows]
        tokens = [_UNUSABLE] * len(wanted)
        if sound:
            others = _sample(backend, [wanted[row] for row in sound], logits[sound])
            for row, token in zip(sound, others, strict=True):
                tokens[row] = token
        return tokens
    return chosen
