"""The bill and a request's decision as JSON: money that is not known is null, with what is known
and why not all of it beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from kvikk.pricing.decision import Decision
from kvikk.pricing.prices import Cost, Price
from kvikk.pricing.unknown import Unknown
from kvikk.server.billing.book import Book, Row, Totals, grouped
from kvikk.server.billing.rules import ServedRules

GROUPINGS = ("day", "tenant", "key", "model")
NO_RULES = "no rule set was chosen; start the server with --rules"


@dataclass(frozen=True)
class Wanted:
    """Which rows of a bill ``reader`` wants, and by what they are told apart. None: all.

    The reader is a tenant, or None: the operator. Days are dates as text.
    """

    reader: str | None = None
    by: tuple[str, ...] = ()
    first_day: str | None = None
    last_day: str | None = None
    tenant: str | None = None
    key: str | None = None
    model: str | None = None

    def has(self, row: Row) -> bool:
        """Whether a row is wanted; what was earlier than all days is in no range."""
        return (
            self.reader in (None, row.tenant)
            and (self.first_day is None or self.first_day <= row.day <= "9999")
            and (self.last_day is None or row.day <= self.last_day)
            and self.tenant in (None, row.tenant)
            and self.key in (None, row.key)
            and self.model in (None, row.model)
        )


@dataclass(frozen=True)
class Machine:
    """What the machine costs an hour, None where nobody said, and how long it has been up."""

    price_per_hour: float | None
    up_s: float


def bill_json(
    book: Book,
    rules: ServedRules | None,
    machine: Machine,
    wanted: Wanted,
) -> dict[str, Any]:
    """The bill of what is wanted: a total, and groups where they were asked for.

    How long the machine was idle, and what that cost, is the operator's to know.
    """
    rows = book.rows(wanted.has)
    everything = grouped(rows, ()).get((), Totals())
    told: dict[str, Any] = {
        "rules": None if rules is None else _rules_json(rules),
        "currency": "USD",
        "price_per_hour": machine.price_per_hour,
        "total": _totals_json(everything, rules, machine),
    }
    if wanted.reader is None:
        computed_s = grouped(book.rows(), ()).get((), Totals()).machine_s
        idle_s = max(0.0, machine.up_s - computed_s)
        told["machine"] = {
            "up_s": round(machine.up_s, 3),
            "computed_s": round(computed_s, 3),
            "idle_s": round(idle_s, 3),
            "idle_usd": _machine_usd(idle_s, machine),
        }
    if wanted.by:
        told["by"] = list(wanted.by)
        told["groups"] = [
            dict(zip(wanted.by, values, strict=True)) | _totals_json(totals, rules, machine)
            for values, totals in grouped(rows, wanted.by).items()
        ]
    return told


def decision_json(rules: ServedRules, decision: Decision) -> dict[str, Any]:
    """What a provider would have billed for one prompt: counts, and spans that tile it."""
    return {
        "rules": rules.name,
        "read_tokens": decision.read_tokens,
        "written_tokens": decision.written_tokens,
        "plain_tokens": decision.plain_tokens,
        "written_by_lifetime": decision.written_by_lifetime,
        "spans": [
            {
                "start": span.start,
                "stop": span.stop,
                "kind": span.kind,
                "reason": span.reason.value,
                **({"lifetime": span.lifetime} if span.lifetime else {}),
                **({"changed": list(span.detail)} if span.detail else {}),
            }
            for span in decision.spans
        ],
    }


def decision_header(decision: Decision) -> str:
    """For example ``read=1408; written=12; plain=6``."""
    return (
        f"read={decision.read_tokens}; written={decision.written_tokens}; "
        f"plain={decision.plain_tokens}"
    )


def _rules_json(rules: ServedRules) -> dict[str, Any]:
    return {"name": rules.name, "sources": list(rules.sources), "notes": list(rules.notes)}


def _totals_json(totals: Totals, rules: ServedRules | None, machine: Machine) -> dict[str, Any]:
    unknown = Cost(unknown=(NO_RULES,))
    paid = totals.bill
    costs = (paid.input, paid.uncached, paid.output) if rules else (unknown,) * 3
    ratio: Price = totals.relative.ratio if rules else Unknown(NO_RULES)
    return {
        "requests": totals.requests,
        "prompt_tokens": totals.prompt_tokens,
        "read_tokens": totals.read_tokens,
        "written_tokens": totals.written_tokens,
        "plain_tokens": totals.plain_tokens,
        "written_by_lifetime": dict(totals.written_by_lifetime),
        "completion_tokens": totals.completion_tokens,
        "unanswered": {
            "requests": totals.unanswered_requests,
            "prompt_tokens": totals.unanswered_prompt_tokens,
        },
        "prompt_cost": _money(costs[0]),
        "prompt_cost_uncached": _money(costs[1]),
        "completion_cost": _money(costs[2]),
        # Of what the same prompts cost with nothing cached; needs no price, only its shares.
        "bill_ratio": None if isinstance(ratio, Unknown) else _number(ratio),
        "machine_s": round(totals.machine_s, 6),
        "machine_usd": _machine_usd(totals.machine_s, machine),
    }


def _money(cost: Cost) -> dict[str, Any]:
    total = cost.total
    if not isinstance(total, Unknown):
        return {"usd": _number(total)}
    return {"usd": None, "known_usd": _number(cost.known), "unknown": list(cost.unknown)}


def _machine_usd(seconds: float, machine: Machine) -> float | None:
    price = machine.price_per_hour
    return None if price is None else round(seconds / 3600 * price, 9)


def _number(value: Decimal) -> float:
    return round(float(value), 9)


def read_groupings(text: str | None) -> tuple[str, ...] | None:
    """The groupings in a comma-separated list; None if one of them is none."""
    names: Sequence[str] = () if text is None else [name.strip() for name in text.split(",")]
    return tuple(dict.fromkeys(names)) if all(name in GROUPINGS for name in names) else None
