"""A prompt as one vector: what its last hidden states come to.

``last`` is that of the last token, which has seen all others; ``mean`` is the mean over all tokens,
added in their order, so that it does not depend on how the prompt was cut.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvikk.engine.requests import Pooling

if TYPE_CHECKING:
    from kvikk.engine.sequence import Sequence


class PooledPrompt:
    """Takes the hidden states of a prompt of ``num_tokens`` tokens as they are computed."""

    def __init__(self, pooling: Pooling, num_tokens: int) -> None:
        self._is_mean = pooling == "mean"
        self._num_tokens = num_tokens
        self._num_pooled = 0 if self._is_mean else num_tokens - 1  # tokens that need not be seen
        self._sum = np.zeros(0)

    @property
    def needs_all(self) -> bool:
        """Whether tokens are still to be seen that a cached block would leave out."""
        return self._is_mean and self._num_pooled < self._num_tokens

    def num_wanted(self, stop: int) -> int:
        """Of the tokens before ``stop``, as many of the last ones as have to be seen."""
        return max(0, stop - self._num_pooled)

    def take(self, hidden_states: NDArray[np.float32]) -> None:
        """The next tokens' hidden states, ``[wanted, hidden_size]``."""
        for row in hidden_states.astype(np.float64):
            self._sum = self._sum + row if len(self._sum) else row
        self._num_pooled += len(hidden_states)

    def vector(self) -> NDArray[np.float32]:
        """What they came to, ``[hidden_size]``; once all were seen."""
        assert self._num_pooled == self._num_tokens, "a token is missing"
        return (self._sum / (self._num_tokens if self._is_mean else 1)).astype(np.float32)


def take_hidden_states(
    chunks: Iterable[tuple["Sequence", int]], hidden_states: NDArray[np.float32]
) -> None:
    """Hand a step's hidden states to the prompts that they are of, in the step's order."""
    row = 0
    for sequence, count in chunks:
        wanted = sequence.num_hidden(count)
        if wanted and sequence.pooled is not None:
            sequence.pooled.take(hidden_states[row : row + wanted])
            row += wanted
    assert row == len(hidden_states), "a row that nobody wanted"
