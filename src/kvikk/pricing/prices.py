"""What a provider takes for a token, and what a request cost: money that knows what it lacks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from kvikk.pricing.decision import Decision
from kvikk.pricing.unknown import Unknown

Price = Decimal | Unknown
"""Of one token, in US dollars, or in units of the input price."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of one token. ``write`` is by the lifetime written with."""

    input: Price
    read: Price
    write: Mapping[str, Price]
    output: Price


@dataclass(frozen=True, slots=True)
class PriceList:
    """The prices of one model.

    A prompt of more than a tier's tokens has that tier's prices, all of it. ``relative`` has the
    same in units of the input price, which is known for more models than dollars are.
    """

    base: Prices
    relative: Prices
    tiers: tuple[tuple[int, Prices], ...] = ()

    def of(self, prompt_tokens: int) -> Prices:
        """The prices for a prompt of so many tokens."""
        reached = [prices for above, prices in self.tiers if prompt_tokens > above]
        return reached[-1] if reached else self.base


@dataclass(frozen=True, slots=True)
class Cost:
    """A sum. ``known`` is what could be added up; ``unknown`` says, once each, what could not."""

    known: Decimal = Decimal(0)
    unknown: tuple[str, ...] = ()

    @property
    def total(self) -> Price:
        """The sum, if all of it is known."""
        return Unknown("; ".join(self.unknown)) if self.unknown else self.known

    def __add__(self, other: "Cost") -> "Cost":
        unknown = dict.fromkeys((*self.unknown, *other.unknown))
        return Cost(self.known + other.known, tuple(unknown))


@dataclass(frozen=True, slots=True)
class Bill:
    """What one prompt costs, its answer, and the prompt had nothing been cached."""

    input: Cost
    uncached: Cost
    output: Cost = field(default_factory=Cost)

    def __add__(self, other: "Bill") -> "Bill":
        return Bill(
            self.input + other.input, self.uncached + other.uncached, self.output + other.output
        )

    @property
    def ratio(self) -> Price:
        """The prompt's cost as a share of what it costs without a cache; 1 of nothing."""
        paid, uncached = self.input.total, self.uncached.total
        if isinstance(paid, Unknown):
            return paid
        if isinstance(uncached, Unknown):
            return uncached
        return paid / uncached if uncached else Decimal(1)


def cost(num_tokens: int, price: Price) -> Cost:
    """What ``num_tokens`` cost; nothing for none, whatever the price."""
    if num_tokens == 0:
        return Cost()
    if isinstance(price, Unknown):
        return Cost(unknown=(price.why,))
    return Cost(num_tokens * price)


def bill(decision: Decision, prices: Prices, completion_tokens: int = 0) -> Bill:
    """What a prompt costs that a provider decided about, and its answer."""
    paid = cost(decision.read_tokens, prices.read) + cost(decision.plain_tokens, prices.input)
    for lifetime, tokens in decision.written_by_lifetime.items():
        price = prices.write.get(lifetime, Unknown(f"no price for writing with {lifetime!r}"))
        paid += cost(tokens, price)
    return Bill(
        paid, cost(decision.num_tokens, prices.input), cost(completion_tokens, prices.output)
    )
