"""What an audit says: a finding for each cause of missed tokens, an account for each request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvikk.audit.secrets import hidden

# Parts of an account that are no cause of a miss.
HIT = "hit"
NEW = "new"
BEHIND_BOUNDARY = "behind_boundary"

_EXCERPT = 160


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause in one request.

    ``sibling`` is the earlier request that it should have shared with, None where one request shows
    it alone. ``location`` is a JSON path in the request as sent; ``character`` where its text first
    differs; ``common_end`` the last piece that both requests have. ``cost`` in US dollars and
    ``cost_in_input_tokens`` are what the miss cost beyond a hit, None where no price is known.
    """

    request: int
    cause: str
    location: str
    missed_tokens: int
    mend: str
    sibling: int | None = None
    before: str = ""
    after: str = ""
    character: int | None = None
    common_end: str = ""
    note: str = ""
    id: str = ""
    model: str = ""
    provider: str = ""
    cost: float | None = None
    cost_in_input_tokens: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Itself, as ``kvikk audit --json`` prints it."""
        shown: dict[str, Any] = {
            "request": self.request,
            "cause": self.cause,
            "location": self.location,
            "missed_tokens": self.missed_tokens,
            "cost": self.cost,
            "cost_in_input_tokens": self.cost_in_input_tokens,
            "mend": self.mend,
            "sibling": self.sibling,
            "character": self.character,
            "before": excerpt(self.before),
            "after": excerpt(self.after),
            "common_end": self.common_end,
            "note": self.note,
            "id": excerpt(self.id),
            "model": self.model,
            "provider": self.provider,
        }
        return shown


@dataclass(frozen=True, slots=True)
class Account:
    """Where one request's input tokens went: ``parts`` add up to ``input_tokens``.

    ``counted`` says that the provider's count was in the log. ``read``, ``written`` and ``plain``
    are by the rules; ``reported_…`` by the provider, None where it does not say. Costs of the input
    as it was, and as it would be had everything been plain.
    """

    request: int
    input_tokens: int
    parts: Mapping[str, int]
    counted: bool
    model: str = ""
    read: int = 0
    written: int = 0
    plain: int = 0
    reported_read: int | None = None
    reported_written: int | None = None
    rules: str = ""
    rules_known: bool = False
    cost: float | None = None
    cost_in_input_tokens: float | None = None
    uncached_cost: float | None = None

    @property
    def hit_tokens(self) -> int:
        """Tokens that were reused."""
        return self.parts.get(HIT, 0)

    @property
    def missed_tokens(self) -> int:
        """Tokens that could have been reused and were not."""
        return sum(tokens for name, tokens in self.parts.items() if is_cause(name))

    def to_json(self) -> dict[str, Any]:
        """Itself, as ``kvikk audit --json --accounts`` prints it."""
        return {
            "request": self.request,
            "input_tokens": self.input_tokens,
            "counted": self.counted,
            "parts": dict(self.parts),
            "by_rules": {"read": self.read, "written": self.written, "plain": self.plain},
            "reported": {"read": self.reported_read, "written": self.reported_written},
            "rules": self.rules if self.rules_known else None,
            "cost": self.cost,
            "cost_in_input_tokens": self.cost_in_input_tokens,
        }


@dataclass(frozen=True, slots=True)
class Audited:
    """One request, audited."""

    account: Account
    findings: tuple[Finding, ...] = field(default=())


def is_cause(part: str) -> bool:
    """Whether a part of an account is a cause of a miss."""
    return part not in (HIT, NEW, BEHIND_BOUNDARY)


def is_expected(cause: str) -> bool:
    """Whether a cause is a miss by design, or none at all: nothing to mend."""
    return cause.startswith(("expected.", "accounting.", "experiment."))


def excerpt(text: str, most: int = _EXCERPT) -> str:
    """As much of a text as a person wants to see, and no key or password in it."""
    shown = hidden(text[: 4 * most])
    return shown if len(shown) <= most and len(text) <= 4 * most else f"{shown[: most - 1]}…"
