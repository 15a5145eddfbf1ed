"""When guessed tokens are worth computing: what they cost against what they may save.

A pass of the backend over n tokens takes about a + b·n seconds: a for reading the weights, b for
arithmetic; and some n suit the backend's kernels better than others. A step for n answers brings n
tokens, and with m guesses in it as many more as are right. So of all m that one is best for which

    (n + the guesses' chances to be right, added up) / seconds of a pass over n + m tokens

is largest. With one answer, a CPU bound by memory takes guesses that are right one time in ten;
with very many answers, a pass costs each token its price, and nothing is left to gain. What passes
cost is learnt from the passes themselves, since it is the machine's, the model's, the context's.
"""

from collections.abc import Sequence
from typing import Protocol

from kvikk.engine.lookup import Guess, PromptLookup
from kvikk.engine.requests import Request

# With the last known token they fill a pass of 8; beyond, each token costs its full price.
MAX_DRAFT_TOKENS = 7
# Beside more answers than this nothing is guessed: a pass is bound by arithmetic long before.
MAX_ANSWERS = 16

# A gain that is smaller than this share may be an error of what was measured.
_LEAST_GAIN = 0.03
# What is believed before there are measurements, and keeps its weight beside them: a pass of 8
# tokens takes 1.7 times one of 1.
_BELIEVED_TOKENS, _BELIEVED_COST = (1, 8), (1.0, 1.7)
_BELIEF_WEIGHT = 4.0
_MEMORY = 0.99  # how much of a pass's weight is left after the next one
_LEARNING_RATE = 1 / 16
_OUTLIER = 1.5  # what took longer than this many times the expected was interrupted
_MAX_PASS_TOKENS = 64  # beyond, a pass says nothing about single tokens


class PassCost:
    """Seconds of a pass by its tokens, up to 64: a line, and each number's deviation from it.

    The line is fitted by least squares to the latest passes and follows what changes for all, such
    as longer contexts. Until the first pass its scale is 1 for one token.
    """

    def __init__(self) -> None:
        # Over passes, the older the lighter: sums of 1, n, n·n, seconds, n·seconds.
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._deviations = [1.0] * (_MAX_PASS_TOKENS + 1)
        (few, many), (low, high) = _BELIEVED_TOKENS, _BELIEVED_COST
        self._believed_slope = (high - low) / (many - few)
        self._fixed_s, self._token_s = low - few * self._believed_slope, self._believed_slope

    def expected_s(self, num_tokens: int) -> float:
        """Seconds of a pass over so many tokens."""
        deviation = self._deviations[min(num_tokens, _MAX_PASS_TOKENS)]
        return (self._fixed_s + self._token_s * num_tokens) * deviation

    def share_of_tokens(self, num_tokens: int) -> float:
        """The part of a pass's seconds that grows with its tokens: 1 where arithmetic bounds it."""
        grows_s = self._token_s * num_tokens
        return grows_s / (self._fixed_s + grows_s)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from one pass."""
        if num_tokens > _MAX_PASS_TOKENS:
            return
        if self._sums[0] > 0:
            seconds = min(seconds, _OUTLIER * self.expected_s(num_tokens))
        weight, tokens, squares, times, products = (_MEMORY * total for total in self._sums)
        weight, tokens, squares = weight + 1, tokens + num_tokens, squares + num_tokens**2
        times, products = times + seconds, products + num_tokens * seconds
        self._sums = (weight, tokens, squares, times, products)
        # The belief takes its scale from what was measured, and says how steep the line is.
        one_s = times / (weight + self._believed_slope * (tokens - weight))
        for believed, cost in zip(_BELIEVED_TOKENS, _BELIEVED_COST, strict=True):
            weight += _BELIEF_WEIGHT
            tokens += _BELIEF_WEIGHT * believed
            squares += _BELIEF_WEIGHT * believed**2
            times += _BELIEF_WEIGHT * one_s * cost
            products += _BELIEF_WEIGHT * one_s * cost * believed
        token_s = (weight * products - tokens * times) / (weight * squares - tokens * tokens)
        self._token_s = min(max(token_s, 0.0), times / tokens)
        self._fixed_s = (times - self._token_s * tokens) / weight
        deviation = seconds / (self._fixed_s + self._token_s * num_tokens)
        old = self._deviations[num_tokens]
        self._deviations[num_tokens] = old + (deviation - old) * _LEARNING_RATE


class Drafter(Protocol):
    """Guesses one sequence's next tokens."""

    def draft(self, tokens: Sequence[int], least_chance: float, max_tokens: int) -> list[Guess]:
        """What may follow ``tokens``, as far as the whole guess is at least that likely."""
        ...


class Speculation:
    """Who guesses for a sequence, and which guesses are computed."""

    def __init__(self) -> None:
        self._cost = PassCost()

    def drafter(self, request: Request, max_tokens: int) -> Drafter:
        """A guesser for a sequence of at most ``max_tokens`` tokens, prompt and answer."""
        return PromptLookup(max_tokens)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn what a pass of the backend cost."""
        self._cost.observe(num_tokens, seconds)

    def least_chance(self, num_answers: int) -> float:
        """Below this a guess is not worth a thought: half of where one more would pay by itself."""
        return 0.5 * self._cost.share_of_tokens(num_answers)

    def num_worthwhile(self, num_answers: int, chances: Sequence[float]) -> int:
        """How many guesses to compute beside so many answers, the likeliest of them first."""
        best, gained = 0, float(num_answers)
        best_rate = (1 + _LEAST_GAIN) * gained / self._cost.expected_s(num_answers)
        for count, chance in enumerate(chances, 1):
            gained += chance
            rate = gained / self._cost.expected_s(num_answers + count)
            if rate > best_rate:
                best, best_rate = count, rate
        return best
