"""What a request of OpenAI's APIs says about caching its prompt."""

from dataclasses import dataclass
from typing import Any, Literal, cast

from kvikk.wire.reading import JsonValue

MAX_KEY_CHARACTERS = 1024

RETENTIONS = ("in_memory", "24h")
LIFETIMES = ("30m", "12h")

Mode = Literal["implicit", "explicit"]


@dataclass(frozen=True)
class CacheFields:
    """``prompt_cache_key``, ``…_retention`` and ``…_options``; None: not said.

    The server's own cache needs none of them: every full block is kept, under its tenant's salt.
    They are for providers' rules, for routing, and for diagnostics (``comparison_response_id``).
    """

    key: str | None = None
    retention: str | None = None
    mode: Mode | None = None
    ttl: str | None = None
    comparison_response_id: str | None = None

    @classmethod
    def from_json(cls, body: JsonValue) -> "CacheFields":
        """Read them. Raises RequestError, naming the path, for what cannot be understood."""
        key, options = body.get("prompt_cache_key"), body.get("prompt_cache_options")
        if not key.is_null and len(key.string()) > MAX_KEY_CHARACTERS:
            key.fail(f"at most {MAX_KEY_CHARACTERS} characters, not {len(key.string())}")
        retention = _one_of(body.get("prompt_cache_retention"), RETENTIONS)
        if options.is_null:
            return cls(None if key.is_null else key.string(), retention)
        compared = options.get("comparison_response_id")
        if options.get("prewarm").boolean(False):
            options.get("prewarm").fail("is not supported; ask for one token of an answer")
        return cls(
            None if key.is_null else key.string(),
            retention,
            cast(Mode | None, _one_of(options.get("mode"), ("implicit", "explicit"))),
            _one_of(options.get("ttl"), LIFETIMES),
            None if compared.is_null else compared.string(),
        )

    def to_json(self) -> dict[str, Any]:
        """The fields of a body, those not said left out."""
        fields = {"prompt_cache_key": self.key, "prompt_cache_retention": self.retention}
        options = {
            "mode": self.mode,
            "ttl": self.ttl,
            "comparison_response_id": self.comparison_response_id,
        }
        said = {name: value for name, value in options.items() if value is not None}
        known: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        return known | {"prompt_cache_options": said} if said else known


def _one_of(value: JsonValue, known: tuple[str, ...]) -> str | None:
    if value.is_null:
        return None
    if value.string() not in known:
        value.fail(f"expected one of {', '.join(known)}, not {value.string()[:40]!r}")
    return value.string()
