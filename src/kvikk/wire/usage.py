"""What a request used, in tokens."""

from dataclasses import dataclass
from typing import Any

from kvikk.wire.reading import JsonValue


@dataclass(frozen=True)
class Usage:
    """Tokens of one request; ``cached_tokens`` of the prompt's were reused, not computed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def to_json(self) -> dict[str, Any]:
        """The ``usage`` object. ``cached_tokens`` is always there and always an integer."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    @classmethod
    def from_json(cls, value: JsonValue) -> "Usage":
        """Read a ``usage`` object; a server that is silent about ``cached_tokens`` counts as 0."""
        details = value.get("prompt_tokens_details")
        cached = JsonValue(None) if details.is_null else details.get("cached_tokens")
        return cls(
            value.get("prompt_tokens").integer(0),
            value.get("completion_tokens").integer(0),
            0 if cached.is_null else cached.integer(0),
        )
