"""When a guessed token is worth computing: what it costs against what it may save.

A pass over n tokens takes about a + b·n seconds: a for reading the weights, b for arithmetic. With
n answers under way each of its tokens comes at (a + b·n) / n; one more token in the pass costs b.
So a guess pays if it is right with a chance of at least

    b·n / (a + b·n)

which is a tenth for one answer on a CPU whose passes are bound by memory, and nearly one for very
many: then there is nothing left to gain. Both numbers are learnt from the passes themselves, since
they are the machine's, the model's and the context's.
"""

from collections.abc import Sequence
from typing import Protocol

from kvikk.engine.lookup import PromptLookup
from kvikk.engine.requests import Request

# A pass of one token and seven guesses: more tokens in one pass cost each their full price.
MAX_DRAFT_TOKENS = 7

# What is believed before there are measurements, and keeps its weight among the first of them: a
# pass of 8 tokens takes 1.84 times one of 1.
_FEW, _MANY, _MANY_COST = 1, 8, 1.84
_BELIEF_WEIGHT = 4.0
_MEMORY = 0.99  # how much of a pass's weight is left after the next one
_OUTLIER = 3.0  # a pass that takes longer than this many times what was expected was interrupted
_MAX_PASS_TOKENS = 64  # beyond, passes are prefills and say nothing about single tokens


class PassCost:
    """Seconds of a pass as a line over its tokens, by least squares over the latest passes."""

    def __init__(self) -> None:
        # Sums over passes of 1, n, n·n, seconds and n·seconds, the older the lighter.
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._fixed_s = 0.0
        self._token_s = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from one pass."""
        if num_tokens > _MAX_PASS_TOKENS:
            return
        n = float(num_tokens)
        expected_s = self._fixed_s + self._token_s * n
        if expected_s > 0:
            seconds = min(seconds, _OUTLIER * expected_s)
        weight, tokens, squares, times, products = self._sums
        weight, tokens, squares = (
            weight * _MEMORY + 1,
            tokens * _MEMORY + n,
            squares * _MEMORY + n * n,
        )
        times, products = times * _MEMORY + seconds, products * _MEMORY + n * seconds
        self._sums = (weight, tokens, squares, times, products)
        # The belief has the scale of what was measured, and says only how steep the line is.
        slope = (_MANY_COST - 1) / (_MANY - _FEW)
        one_s = times / (weight + slope * (tokens - weight))
        weight += 2 * _BELIEF_WEIGHT
        tokens += _BELIEF_WEIGHT * (_FEW + _MANY)
        squares += _BELIEF_WEIGHT * (_FEW**2 + _MANY**2)
        times += _BELIEF_WEIGHT * one_s * (1 + _MANY_COST)
        products += _BELIEF_WEIGHT * one_s * (_FEW + _MANY * _MANY_COST)
        token_s = (weight * products - tokens * times) / (weight * squares - tokens * tokens)
        self._token_s = min(max(token_s, 0.0), times / tokens)
        self._fixed_s = (times - self._token_s * tokens) / weight

    def least_chance(self, num_answers: int) -> float:
        """The chance from which on a guess pays in a pass for so many answers."""
        if self._fixed_s + self._token_s == 0:  # nothing was measured yet
            return 1.0
        marginal_s = self._token_s * num_answers
        return marginal_s / (self._fixed_s + marginal_s)


class Drafter(Protocol):
    """Guesses one sequence's next tokens."""

    def draft(self, tokens: Sequence[int], least_chance: float, max_tokens: int) -> list[int]:
        """What may follow ``tokens``, as far as the whole guess is at least that likely."""
        ...


class Speculation:
    """Who guesses for a sequence, and how likely a guess must be to be computed."""

    def __init__(self) -> None:
        self._cost = PassCost()

    def drafter(self, request: Request, max_tokens: int) -> Drafter:
        """A guesser for a sequence of at most ``max_tokens`` tokens, prompt and answer."""
        return PromptLookup(max_tokens)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn what a pass of the backend cost."""
        self._cost.observe(num_tokens, seconds)

    def least_chance(self, num_answers: int) -> float:
        """The chance from which on a guess pays in a pass for so many answers."""
        return self._cost.least_chance(num_answers)
