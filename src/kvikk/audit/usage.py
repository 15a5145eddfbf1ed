"""What a provider says it counted, whatever it calls it; zero and "not reported" differ.

    OpenAI     prompt_tokens   [ cached_tokens ][ cache_write_tokens ][ plain ]
    Anthropic                  [ cache_read   ] [ cache_creation     ][ input_tokens ]

A gateway that writes both vocabularies into one answer may contradict itself: its own counter and
the provider's cannot both be right, and then the provider's is believed and the place is told.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A counter that cannot be right: its path in the response, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReportedUsage:
    """Tokens of one request; None where the answer does not say.

    ``input_tokens`` counts the whole prompt, cached or not. ``read_tokens`` were read from the
    cache, ``written_tokens`` written to it at a price, ``long_written_tokens`` for an hour.
    """

    input_tokens: int | None = None
    read_tokens: int | None = None
    written_tokens: int | None = None
    long_written_tokens: int | None = None
    output_tokens: int | None = None
    contradictions: tuple[Contradiction, ...] = ()


no_usage = ReportedUsage()

# What providers themselves call the tokens read, where a gateway's own counter stands beside.
_NATIVE_READ = (
    "cache_read_input_tokens",
    "prompt_cache_hit_tokens",
    "cacheReadInputTokens",
    "cachedContentTokenCount",
)


def read_usage(usage: Mapping[str, Any], provider: str = "") -> ReportedUsage:
    """The counts in ``usage``, in the words of any provider."""
    if "promptTokenCount" in usage or "prompt_token_count" in usage:
        return _gemini(usage)
    if "inputTokens" in usage:
        return _exclusive(
            usage, "inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "outputTokens"
        )
    if "prompt_tokens" in usage:
        return _inclusive(usage, "prompt_tokens", "prompt_tokens_details", "completion_tokens")
    if "input_tokens_details" in usage:
        return _inclusive(usage, "input_tokens", "input_tokens_details", "output_tokens")
    if "input_tokens" in usage and (provider != "openai" or "cache_read_input_tokens" in usage):
        return _exclusive(
            usage,
            "input_tokens",
            "cache_read_input_tokens",
            "cache_creation_input_tokens",
            "output_tokens",
        )
    return ReportedUsage(
        input_tokens=_count(usage, "input_tokens"), output_tokens=_count(usage, "output_tokens")
    )


def _exclusive(
    usage: Mapping[str, Any], plain: str, read: str, written: str, output: str
) -> ReportedUsage:
    """Counts where the plain tokens exclude those of the cache."""
    counts = [_count(usage, name) for name in (plain, read, written)]
    by_lifetime = usage.get("cache_creation")
    long = by_lifetime if isinstance(by_lifetime, dict) else {}
    return ReportedUsage(
        input_tokens=None if counts[0] is None else sum(count or 0 for count in counts),
        read_tokens=counts[1],
        written_tokens=counts[2],
        long_written_tokens=_count(long, "ephemeral_1h_input_tokens"),
        output_tokens=_count(usage, output),
    )


def _inclusive(usage: Mapping[str, Any], total: str, details: str, output: str) -> ReportedUsage:
    """Counts where the total includes those of the cache; the provider's own may stand beside."""
    inner = usage.get(details)
    detail: dict[str, Any] = inner if isinstance(inner, dict) else {}
    input_tokens = _count(usage, total)
    read, written = _count(detail, "cached_tokens"), _count(detail, "cache_write_tokens")
    native = next((name for name in _NATIVE_READ if _count(usage, name) is not None), "")
    native_read = _count(usage, native)
    native_written = _count(usage, "cache_creation_input_tokens")
    if native_written is None:
        native_written = _count(usage, "cacheWriteInputTokens")
    wrong: list[Contradiction] = []
    if native_read is not None and read is not None and native_read != read:
        wrong.append(
            Contradiction(
                f"$.usage.{details}.cached_tokens",
                f"says {read:,} where the provider's own {native} says {native_read:,}",
            )
        )
    read = read if native_read is None else native_read
    written = written if native_written is None else native_written
    cached = (read or 0) + (written or 0)
    if input_tokens is not None and cached > input_tokens:
        wrong.append(
            Contradiction(
                f"$.usage.{total}",
                f"says {input_tokens:,} in all where {cached:,} were read or written: it leaves "
                "the cache's tokens out",
            )
        )
        input_tokens += cached
    elif input_tokens is not None and (plain := _count(usage, "input_tokens")) is not None:
        together = plain + cached
        if total != "input_tokens" and native_read is not None and input_tokens > together > plain:
            wrong.append(
                Contradiction(
                    f"$.usage.{total}",
                    f"says {input_tokens:,} where the provider's own counts add up to "
                    f"{together:,}: tokens of the cache are counted twice",
                )
            )
            input_tokens = together
    return ReportedUsage(
        input_tokens=input_tokens,
        read_tokens=read,
        written_tokens=written,
        output_tokens=_count(usage, output),
        contradictions=tuple(wrong),
    )


def _gemini(usage: Mapping[str, Any]) -> ReportedUsage:
    """Gemini leaves a count of zero out, as its encoding does."""
    read = _count(usage, "cachedContentTokenCount")
    if read is None:
        read = _count(usage, "cached_content_token_count")
    total = _count(usage, "promptTokenCount")
    return ReportedUsage(
        input_tokens=_count(usage, "prompt_token_count") if total is None else total,
        read_tokens=read or 0,
        output_tokens=_count(usage, "candidatesTokenCount"),
    )


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value
