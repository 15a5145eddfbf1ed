"""Guesses about answers that are known, as many of them right as a test wants."""

from collections.abc import Sequence
from dataclasses import replace

from kvikk.engine.lookup import Guess
from kvikk.engine.requests import Request
from kvikk.engine.speculation import Speculation
from tests.engine.exact_backend import VOCABULARY_SIZE, answer


class Knowing(Speculation):
    """Computes every guess. Of eight guesses ``right_of_eight`` are what the exact backend says."""

    def __init__(
        self, windows: Sequence[int | None], max_context_tokens: int, right_of_eight: int
    ) -> None:
        super().__init__()
        self._windows = windows
        self._max_context_tokens = max_context_tokens
        self._right_of_eight = right_of_eight

    def drafter(self, request: Request, max_tokens: int) -> "KnowingDrafter":
        generation = request.generation
        if generation.sampling.temperature > 0 and generation.seed is None:
            generation = replace(generation, seed=0)  # as good a guess as any
        prompt = list(request.prompt_token_ids)
        tokens, _ = answer(prompt, generation, self._windows, self._max_context_tokens)
        return KnowingDrafter(prompt + tokens, self._right_of_eight)

    def num_worthwhile(self, num_answers: int, chances: Sequence[float]) -> int:
        return len(chances)


class KnowingDrafter:
    def __init__(self, truth: list[int], right_of_eight: int) -> None:
        self._truth = truth
        self._right_of_eight = right_of_eight

    def draft(self, tokens: Sequence[int], least_chance: float, max_tokens: int) -> list[Guess]:
        guesses = []
        for position in range(len(tokens), len(tokens) + max_tokens):
            # Behind the end of an answer anything may be guessed.
            token_id = self._truth[position] if position < len(self._truth) else position
            wrong = position * 5 % 8 >= self._right_of_eight
            guesses.append(Guess((token_id + wrong) % VOCABULARY_SIZE, 0.5))
        return guesses
