"""What a probe costs before it runs, and what its requests were billed against no caching."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from kvikk.errors import ModelError
from kvikk.pricing.prices import Bill, Price, Prices, cost
from kvikk.pricing.registry import RuleSet, find
from kvikk.pricing.unknown import Unknown
from kvikk.probe.api import ANSWER_TOKENS, Counts

# A word of English is fewer tokens than this in every vocabulary that is sold.
_TOKENS_A_WORD = 1.5


@dataclass(frozen=True)
class Estimate:
    """The most that a run sends: requests, and all their prompts' tokens together."""

    requests: int
    prompt_tokens: int

    def __add__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.requests + other.requests, self.prompt_tokens + other.prompt_tokens)


_FIRST = Estimate(4, 400)


def estimate(texts: Iterable[str]) -> Estimate:
    """Of prompts that will be sent, and of the short ones that every run begins with."""
    sizes = [round(_TOKENS_A_WORD * len(text.split())) for text in texts]
    return Estimate(len(sizes), sum(sizes)) + _FIRST


class Tariff:
    """The prices of one rule set, or none. Money only: what hits is read from the responses.

    Raises ModelError for a rule set that nobody knows.
    """

    def __init__(self, rules: str | None) -> None:
        self.rules = rules
        self._found: RuleSet | None = None
        if rules is not None:
            found = find(rules)
            if isinstance(found, Unknown):
                raise ModelError(f"--prices: {found.why}")
            self._found = found

    def most(self, planned: Estimate) -> Price:
        """Dollars for a run in which every token is billed at the dearest rate it could have."""
        if self._found is None:
            return Unknown("no prices were named (--prices RULESET)")
        prices = self._found.prices.base
        dearest = [price for price in (prices.input, _write(prices)) if isinstance(price, Decimal)]
        if not dearest or isinstance(prices.output, Unknown):
            lacking = prices.input if isinstance(prices.input, Unknown) else prices.output
            return lacking if isinstance(lacking, Unknown) else Unknown("no prices are known")
        answers = planned.requests * ANSWER_TOKENS * prices.output
        return planned.prompt_tokens * max(dearest) + answers

    def spent(self, counts: Iterable[Counts]) -> Price:
        """Dollars for requests that were answered."""
        if self._found is None:
            return Unknown("no prices were named (--prices RULESET)")
        total = Bill(cost(0, Decimal(0)), cost(0, Decimal(0)))
        for one in counts:
            prices = self._found.prices.of(one.prompt_tokens)
            total += _bill(one, prices) + Bill(
                cost(0, Decimal(0)), cost(0, Decimal(0)), cost(ANSWER_TOKENS, prices.output)
            )
        return (total.input + total.output).total

    def ratio(self, counts: Iterable[Counts]) -> Price:
        """The prompts' price as a share of what they cost where nothing is cached.

        Unknown where no answer tells what was read, or what was written at a price of its own.
        """
        if self._found is None:
            return Unknown("no prices were named (--prices RULESET)")
        counts = list(counts)
        if counts and all(one.read_tokens is None for one in counts):
            return Unknown("no answer tells how many tokens were read from a cache")
        writes_cost = bool(self._found.prices.relative.write)
        if writes_cost and counts and all(one.written_tokens is None for one in counts):
            return Unknown("no answer tells how many tokens were written")
        total = Bill(cost(0, Decimal(0)), cost(0, Decimal(0)))
        for one in counts:
            total += _bill(one, self._found.prices.relative)
        return total.ratio


def _bill(counts: Counts, prices: Prices) -> Bill:
    paid = (
        cost(counts.read_tokens or 0, prices.read)
        + cost(counts.written_tokens or 0, _write(prices))
        + cost(counts.plain_tokens, prices.input)
    )
    return Bill(paid, cost(counts.prompt_tokens, prices.input))


def _write(prices: Prices) -> Price:
    """The price of the shortest lifetime, which is what a probe writes with.

    Where no list knows of writing, what a server of our own counts as written is plain input.
    """
    return next(iter(prices.write.values()), prices.input)
