"""Which requests an engine can serve at all, by what never changes about it."""

from dataclasses import dataclass

from kvikk.cache.manager import CacheManager
from kvikk.engine.requests import Request
from kvikk.errors import RequestError


@dataclass(frozen=True, slots=True)
class Limits:
    """Prompt and answer have at most ``max_context_tokens``, with ids below ``vocabulary_size``.

    A request has at most ``max_choices`` answers. Stop strings need ``has_text``.
    """

    max_context_tokens: int
    vocabulary_size: int
    max_choices: int
    has_text: bool

    def check(self, request: Request) -> None:
        """Raise RequestError if the request can never be served."""
        num_tokens = len(request.prompt_token_ids)
        if num_tokens == 0:
            raise RequestError("the prompt is empty; at least one token is needed", "prompt")
        if num_tokens >= self.max_context_tokens + (request.pooling is not None):
            answer = "" if request.pooling else "with at least one for the answer "
            raise RequestError(
                f"the prompt has {num_tokens} tokens; {answer}the limit "
                f"is {self.max_context_tokens} (the context, or what the KV memory holds if less)",
                "prompt",
            )
        lowest, highest = min(request.prompt_token_ids), max(request.prompt_token_ids)
        if lowest < 0 or highest >= self.vocabulary_size:
            raise RequestError(
                f"the prompt holds token id {lowest if lowest < 0 else highest}; ids are 0 to "
                f"{self.vocabulary_size - 1}",
                "prompt",
            )
        if request.generation.choices > self.max_choices:
            raise RequestError(
                f"n is {request.generation.choices}; this engine runs {self.max_choices} answers "
                "at once",
                "n",
            )
        for token_id, _ in request.generation.logit_bias:
            if not 0 <= token_id < self.vocabulary_size:
                raise RequestError(
                    f"logit_bias names token id {token_id}; ids are 0 to "
                    f"{self.vocabulary_size - 1}",
                    "logit_bias",
                )
        if request.generation.stop and not self.has_text:
            raise RequestError("stop strings need a tokenizer, and this engine has none", "stop")


def longest_that_fits(cache: CacheManager, context_tokens: int, step_tokens: int) -> int:
    """The longest sequence that a cache to itself can hold, at most ``context_tokens``."""
    low, high = 0, context_tokens
    while low < high:
        middle = (low + high + 1) // 2
        if cache.can_ever_fit(middle, step_tokens):
            low = middle
        else:
            high = middle - 1
    return low
