"""Decides what a server's requests read, wrote and took plainly: by a provider's rules, or none."""

from kvikk.errors import RequestError
from kvikk.pricing.caching import Units
from kvikk.pricing.decision import Decision, Reason, Span, joined
from kvikk.pricing.problems import problems
from kvikk.pricing.prompt import ProviderPrompt
from kvikk.pricing.provider_cache import Held, ProviderCache
from kvikk.server.billing.prompts import answer_digest
from kvikk.server.billing.rules import ServedRules


class Decider:
    """One provider's view of all requests of a server; belongs to the engine's thread.

    Without ``rules`` it says what really happened: hits were read, what was computed into full
    blocks was written, and the rest, less than a block, is neither. ``block_size`` None is a server
    that shares nothing.
    """

    def __init__(self, rules: ServedRules | None, block_size: int | None) -> None:
        self.rules = rules
        self._block_size = block_size
        self._cache = None if rules is None else ProviderCache(rules.caching)

    def check(self, prompt: ProviderPrompt | None) -> None:
        """Raise RequestError, at the marker at fault, for what the provider refuses."""
        if self.rules is None or prompt is None:
            return
        for problem in problems(self.rules.caching, prompt):
            path = problem.path.removeprefix("$.")
            raise RequestError(f"{path}: {problem.message} ({self.rules.name})", path)

    def decide(
        self,
        prompt: ProviderPrompt | None,
        num_tokens: int,
        hit_tokens: int,
        *,
        started_s: float,
        first_byte_s: float,
    ) -> Decision:
        """What became of a prompt of ``num_tokens``, of which the real cache had ``hit_tokens``."""
        if self._cache is None or prompt is None:
            return self._physical(num_tokens, hit_tokens)
        held = Held(hit_tokens, self._block_size or 1)
        return self._cache.bill(prompt, started_s=started_s, first_byte_s=first_byte_s, held=held)

    @property
    def keeps_answers(self) -> bool:
        """Whether the provider's cache keeps what was answered, too."""
        return self._cache is not None and isinstance(self._cache.caching.scheme, Units)

    def answered(
        self, prompt: ProviderPrompt, text: str, *, started_s: float, ended_s: float
    ) -> None:
        """A prompt's answer is complete."""
        if self._cache is not None:
            digest = answer_digest(prompt, text)
            self._cache.answered(prompt, digest, started_s=started_s, ended_s=ended_s)

    def _physical(self, num_tokens: int, hit_tokens: int) -> Decision:
        size = self._block_size
        full = hit_tokens if size is None else max(hit_tokens, num_tokens // size * size)
        return Decision(
            num_tokens,
            joined(
                (
                    Span(0, hit_tokens, "read", Reason.ENTRY),
                    Span(hit_tokens, full, "written", Reason.NEW),
                    Span(full, num_tokens, "plain", Reason.BEHIND_BOUNDARY),
                )
            ),
        )
