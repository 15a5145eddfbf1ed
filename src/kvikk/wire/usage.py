"""What a request used, in tokens."""

from dataclasses import dataclass
from typing import Any

from kvikk.wire.reading import JsonValue


@dataclass(frozen=True)
class Usage:
    """Tokens of one request.

    Of the prompt's, ``cached_tokens`` were read from the cache and ``cache_write_tokens`` were
    written to it; the two exclude each other, and what is left went past it. Of those written,
    ``long_write_tokens`` are kept for the longer of an API's two lifetimes. Of the completion's,
    ``reasoning_tokens`` were thought and not said.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cache_write_tokens: int = 0
    long_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def plain_tokens(self) -> int:
        """The prompt's that were neither read nor written."""
        return self.prompt_tokens - self.cached_tokens - self.cache_write_tokens

    def to_json(self) -> dict[str, Any]:
        """The ``usage`` of Chat Completions and Completions; every count is always there."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": self.cached_tokens,
                "cache_write_tokens": self.cache_write_tokens,
            },
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }

    @classmethod
    def from_json(cls, value: JsonValue) -> "Usage":
        """Read a ``usage`` object; what a server is silent about counts as 0."""
        prompt, completion = (
            value.get(f"{name}_tokens_details") for name in ("prompt", "completion")
        )
        return cls(
            value.get("prompt_tokens").integer(0),
            value.get("completion_tokens").integer(0),
            _count(prompt, "cached_tokens"),
            _count(prompt, "cache_write_tokens"),
            reasoning_tokens=_count(completion, "reasoning_tokens"),
        )


def _count(details: JsonValue, name: str) -> int:
    if details.is_null or details.get(name).is_null:
        return 0
    return details.get(name).integer(0)
