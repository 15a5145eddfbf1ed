"""Whether equal prompts meet at one cache: the same request eight times, with a key and without."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvikk.probe.api import Prompt
from kvikk.probe.money import Estimate, estimate
from kvikk.probe.run import Ask, Exchange, Run, contamination, hits
from kvikk.text.words import text_of

REQUESTS = 8
WORDS = 2_400
_ARMS = ("without_key", "with_key")


@dataclass(frozen=True)
class Repeated:
    """One arm: the first request and those that could have read what it wrote."""

    exchanges: Sequence[Exchange]
    contaminated: str | None

    def to_json(self) -> dict[str, Any]:
        """Hits of how many; null where nothing is told of them."""
        return {
            "hits": hits(self.exchanges),
            "of": len(self.exchanges) - 1,
            "contaminated": self.contaminated is not None,
        }


def routing(run: Run, words: int = WORDS) -> Iterator[tuple[str, Repeated]]:
    """Both arms, as they are done; for the style that has such keys."""
    shared_tokens = run.shared_tokens()
    for name in _ARMS:

        def ask_all(nonce: str, ask: Ask, name: str = name) -> None:
            key = {"prompt_cache_key": f"probe {nonce}"} if name == "with_key" else {}
            prompt = Prompt(user=(f"{nonce} {text_of(words, 'routing')}",), fields=key)
            for _ in range(REQUESTS):
                ask(prompt, "with a prompt_cache_key" if key else "without a key")

        exchanges = run.arm(name, ask_all)
        yield name, Repeated(exchanges, contamination(exchanges, shared_tokens))


def planned(words: int = WORDS) -> Estimate:
    """What a run sends."""
    return estimate([text_of(words, "routing")] * (len(_ARMS) * REQUESTS))
