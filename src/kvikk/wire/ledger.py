"""A request's ledger as it goes over the wire: the spans of its prompt, and their story."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvikk.wire.reading import JsonValue


@dataclass(frozen=True)
class LedgerSpan:
    """Prompt positions ``start … stop - 1``, their cause, and what else is known of them.

    ``detail`` has, where they apply, ``request`` (the other one), ``waited`` (a hit was waited
    for), ``seconds_ago``, ``more_blocks`` (what would have kept it) of the ``group`` that lost it
    and its ``window_tokens`` (none where it keeps all), ``part``
    (what changed or dropped it), ``tier`` (had it, slower than computing it), and of a moved run
    ``differs_at`` (the first token that differs), ``value`` and ``seen_value`` (both texts from
    there on), their ``kind`` and ``where`` they are.
    """

    start: int
    stop: int
    cause: str
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Tokens in it."""
        return self.stop - self.start

    @property
    def is_hit(self) -> bool:
        """Whether its tokens were reused."""
        return self.cause.startswith("hit.")

    def to_json(self) -> dict[str, Any]:
        """The span as an object."""
        return {
            "start": self.start,
            "stop": self.stop,
            "cause": self.cause,
            "detail": dict(self.detail),
        }

    @classmethod
    def from_json(cls, value: JsonValue) -> "LedgerSpan":
        """Read a span. Raises RequestError, naming the path, for what is none."""
        return cls(
            value.get("start").integer(0),
            value.get("stop").integer(1),
            value.get("cause").string(),
            value.get("detail").members(),
        )


@dataclass(frozen=True)
class LedgerFinding:
    """One cause of tokens that were computed, in words; ``mend`` says what helps, if anything."""

    cause: str
    start: int
    tokens: int
    text: str
    mend: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The finding as an object."""
        return {
            "cause": self.cause,
            "start": self.start,
            "tokens": self.tokens,
            "text": self.text,
            "mend": self.mend,
        }

    @classmethod
    def from_json(cls, value: JsonValue) -> "LedgerFinding":
        """Read a finding. Raises RequestError, naming the path, for what is none."""
        mend = value.get("mend")
        return cls(
            value.get("cause").string(),
            value.get("start").integer(0),
            value.get("tokens").integer(0),
            value.get("text").string(),
            None if mend.is_null else mend.string(),
        )


@dataclass(frozen=True)
class LedgerStory:
    """What was reused of how much, and why not more: findings, most tokens first."""

    headline: str
    findings: tuple[LedgerFinding, ...]

    def to_json(self) -> dict[str, Any]:
        """The story as an object."""
        findings = [finding.to_json() for finding in self.findings]
        return {"headline": self.headline, "findings": findings}

    @classmethod
    def from_json(cls, value: JsonValue) -> "LedgerStory":
        """Read a story. Raises RequestError, naming the path, for what is none."""
        findings = map(LedgerFinding.from_json, value.get("findings").items())
        return cls(value.get("headline").string(), tuple(findings))


@dataclass(frozen=True)
class RequestLedger:
    """One request, its prompt accounted for. ``at`` is its admission in seconds since 1970."""

    id: str
    model: str
    tenant: str
    route: str
    at: float
    prompt_tokens: int
    spans: tuple[LedgerSpan, ...]
    story: LedgerStory | None = None

    @property
    def cached_tokens(self) -> int:
        """Tokens reused."""
        return sum(span.num_tokens for span in self.spans if span.is_hit)

    @property
    def by_cause(self) -> dict[str, int]:
        """Tokens by cause, in the order in which the prompt has them."""
        totals: dict[str, int] = {}
        for span in self.spans:
            totals[span.cause] = totals.get(span.cause, 0) + span.num_tokens
        return totals

    @property
    def header(self) -> str:
        """For example ``hit.device=1408; tail=12``."""
        return "; ".join(f"{cause}={tokens}" for cause, tokens in self.by_cause.items())

    def to_json(self) -> dict[str, Any]:
        """The request as an object; a story only if there is one."""
        ledger: dict[str, Any] = {
            "id": self.id,
            "model": self.model,
            "tenant": self.tenant,
            "route": self.route,
            "at": self.at,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "spans": [span.to_json() for span in self.spans],
        }
        return ledger if self.story is None else ledger | {"story": self.story.to_json()}

    @classmethod
    def from_json(cls, value: JsonValue) -> "RequestLedger":
        """Read a request. Raises RequestError, naming the path, for what is none."""
        story = value.get("story")
        prompt_tokens = value.get("prompt_tokens").integer(1)
        spans = tuple(map(LedgerSpan.from_json, value.get("spans").items()))
        starts, stops = [span.start for span in spans], [span.stop for span in spans]
        if [0, *stops] != [*starts, prompt_tokens] or sorted({0, *stops}) != [0, *stops]:
            value.get("spans").fail(f"do not add up to a prompt of {prompt_tokens} tokens")
        return cls(
            value.get("id").string(),
            value.get("model").string(),
            value.get("tenant").string(),
            value.get("route").string(),
            value.get("at").number(0, 1e12),
            prompt_tokens,
            spans,
            None if story.is_null else LedgerStory.from_json(story),
        )
