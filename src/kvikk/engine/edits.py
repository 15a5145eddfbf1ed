"""What one request's options do to its logits, followed token by token.

The penalties count the tokens there are, guesses included where a row of logits stands on some, so
that an answer has the tokens it would have had without speculation. Definitions are vLLM's:
``repetition_penalty`` looks at prompt and answer, ``presence_`` and ``frequency_penalty`` at the
answer; the bias comes first, as in transformers.
"""

from collections.abc import Sequence

import numpy as np

from kvikk.backends.base import LogitsEdit
from kvikk.engine.requests import Generation
from kvikk.errors import RequestError
from kvikk.text.grammars import GrammarState

_FIRST_ROOM = 64


class LogitsEditor:
    """Belongs to one answer and outlives its preemptions: all it knows follows from the tokens."""

    def __init__(
        self, generation: Generation, num_prompt_tokens: int, end_token_ids: frozenset[int]
    ) -> None:
        self._generation = generation
        self._num_prompt_tokens = num_prompt_tokens
        self._grammar: GrammarState | None = (
            None if generation.grammar is None else generation.grammar.start()
        )
        self._penalises = generation.penalises
        self._num_seen = 0
        # A place for every token that something is done to; places are never given up.
        self._places: dict[int, int] = {}
        self._token_ids = np.zeros(_FIRST_ROOM, np.int64)
        self._biases = np.zeros(_FIRST_ROOM, np.float32)
        self._counts = np.zeros(_FIRST_ROOM, np.int64)  # in the answer
        self._is_seen = np.zeros(_FIRST_ROOM, bool)  # in prompt or answer
        for token_id, bias in generation.logit_bias:
            place = self._place(token_id)  # may put a longer array in the place of the biases
            self._biases[place] += np.float32(bias)
        self._forbidden = np.array(
            [self._place(token_id) for token_id in sorted(end_token_ids)]
            if generation.min_tokens
            else [],
            np.int64,
        )

    @classmethod
    def for_request(
        cls, generation: Generation, num_prompt_tokens: int, end_token_ids: frozenset[int]
    ) -> "LogitsEditor | None":
        """An editor; None where the options leave logits alone."""
        edits = generation.penalises or generation.logit_bias or generation.min_tokens
        if not edits and generation.grammar is None:
            return None
        return cls(generation, num_prompt_tokens, end_token_ids)

    @property
    def refusal(self) -> RequestError | None:
        """Why no token can come next, where that is the grammar's doing."""
        return None if self._grammar is None else self._grammar.refusal

    def edit(self, token_ids: Sequence[int], guesses: Sequence[int] = ()) -> LogitsEdit | None:
        """What to do to the logits that follow ``token_ids``, prompt and answer, and ``guesses``.

        ``token_ids`` go on from those of the last call. None: nothing.
        """
        self._follow(token_ids)
        counts, is_seen = self._counts, self._is_seen
        if self._penalises and guesses:
            places = [self._place(token_id) for token_id in guesses]
            counts, is_seen = self._counts.copy(), self._is_seen.copy()
            np.add.at(counts, places, 1)
            is_seen[places] = True
        generation, size = self._generation, len(self._places)
        biases = self._biases[:size]
        num_generated = len(token_ids) + len(guesses) - self._num_prompt_tokens
        if num_generated < generation.min_tokens:
            biases = biases.copy()
            biases[self._forbidden] = -np.inf
        counts, is_seen = counts[:size], is_seen[:size]
        discounts = generation.frequency_penalty * counts + generation.presence_penalty * (
            counts > 0
        )
        return LogitsEdit(
            self._token_ids[:size],
            biases,
            np.where(is_seen, np.float32(generation.repetition_penalty), np.float32(1)),
            discounts.astype(np.float32),
            None if self._grammar is None else self._grammar.allowed(guesses),
        )

    def _follow(self, token_ids: Sequence[int]) -> None:
        """Count the tokens that came since the last call."""
        new = token_ids[self._num_seen :]
        first = self._num_prompt_tokens - self._num_seen  # of the answer, among the new ones
        self._num_seen = len(token_ids)
        if self._penalises:
            for offset, token_id in enumerate(new):
                place = self._place(token_id)
                self._is_seen[place] = True
                self._counts[place] += offset >= first
        if self._grammar is not None:
            self._grammar.advance(new[max(0, first) :])

    def _place(self, token_id: int) -> int:
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._token_ids):
            grown = [
                np.concatenate([values, np.zeros_like(values)])
                for values in (self._token_ids, self._biases, self._counts, self._is_seen)
            ]
            self._token_ids, self._biases, self._counts, self._is_seen = grown
        self._token_ids[place] = token_id
        return place
