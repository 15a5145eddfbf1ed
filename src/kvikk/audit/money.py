"""What requests and misses cost, by the dated prices; unknown where no price is."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from kvikk.audit.exchange import Exchange
from kvikk.audit.findings import Finding
from kvikk.audit.missed import Cause
from kvikk.audit.provider import Rules
from kvikk.pricing.decision import Decision
from kvikk.pricing.prices import Price, Prices
from kvikk.pricing.unknown import Unknown


@dataclass(frozen=True, slots=True)
class Money:
    """One prompt: in US dollars, in units of the price of an input token; and all of it plain."""

    cost: float | None = None
    relative: float | None = None
    uncached: float | None = None


@dataclass(frozen=True, slots=True)
class _Counts:
    read: int
    written: int
    plain: int
    lifetime: str


def account_money(exchange: Exchange, rules: Rules, decision: Decision, total: int) -> Money:
    """What one prompt cost: by the provider's counts where it gives them, else by the rules."""
    if rules.prices is None:
        return Money()
    counts = _counts(exchange, rules, decision, total)
    return Money(
        _sum(counts, rules.prices.of(total)),
        _sum(counts, rules.prices.relative),
        _times(total, rules.prices.of(total).input),
    )


def missed_money(
    finding: Finding, exchange: Exchange, rules: Rules, decision: Decision, cause: Cause
) -> Finding:
    """The finding, with what its tokens cost beyond what reading them would have."""
    if rules.prices is None:
        return finding
    total = decision.num_tokens
    counts = _counts(exchange, rules, decision, total)
    # Written is what follows what was read; the plain rest comes last.
    written = max(0, min(cause.stop, counts.read + counts.written) - max(cause.start, counts.read))
    share = written / max(1, cause.stop - cause.start)
    return replace(
        finding,
        cost=_excess(finding.missed_tokens, share, rules.prices.of(total), counts.lifetime),
        cost_in_input_tokens=_excess(
            finding.missed_tokens, share, rules.prices.relative, counts.lifetime
        ),
    )


def _counts(exchange: Exchange, rules: Rules, decision: Decision, total: int) -> _Counts:
    usage = exchange.usage
    if usage.read_tokens is None:
        written = decision.written_tokens
        return _Counts(decision.read_tokens, written, decision.plain_tokens, _main(decision, rules))
    read = min(total, usage.read_tokens)
    # Where it is not reported, the rules say how much is written.
    reported = usage.written_tokens
    written = min(decision.written_tokens if reported is None else reported, total - read)
    lifetime = _main(decision, rules)
    if usage.long_written_tokens and "1h" in rules.caching.lifetimes:
        lifetime = "1h"
    return _Counts(read, written, total - read - written, lifetime)


def _main(decision: Decision, rules: Rules) -> str:
    """The lifetime that most of a prompt was written with."""
    by_lifetime: Mapping[str, int] = decision.written_by_lifetime
    if not by_lifetime:
        return rules.caching.default_lifetime
    return max(by_lifetime, key=lambda name: by_lifetime[name])


def _sum(counts: _Counts, prices: Prices) -> float | None:
    """Nothing without a price of reading, even if nothing was read: sums must be of the same."""
    if isinstance(prices.read, Unknown):
        return None
    parts = (
        _times(counts.read, prices.read),
        _times(counts.written, _writing(prices, counts.lifetime)),
        _times(counts.plain, prices.input),
    )
    return None if any(part is None for part in parts) else sum(part or 0.0 for part in parts)


def _excess(tokens: int, written: float, prices: Prices, lifetime: str) -> float | None:
    plain, read = _times(tokens, prices.input), _times(tokens, prices.read)
    writing = _times(tokens, _writing(prices, lifetime)) if written else 0.0
    if plain is None or read is None or writing is None:
        return None
    return round(written * writing + (1 - written) * plain - read, 9)


def _writing(prices: Prices, lifetime: str) -> Price:
    """The price of writing; where none is charged, that of input."""
    if not prices.write:
        return prices.input
    return prices.write.get(lifetime, Unknown("no price of this lifetime"))


def _times(tokens: int, price: Price) -> float | None:
    if not tokens:
        return 0.0
    return None if isinstance(price, Unknown) else float(Decimal(tokens) * price)
