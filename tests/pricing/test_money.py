"""Money from tokens, and what becomes of it where a price is not known."""

from decimal import Decimal

from kvikk.pricing.decision import Decision, Reason, Span
from kvikk.pricing.prices import Bill, Cost, bill
from kvikk.pricing.unknown import Unknown
from tests.pricing.prompts import rules

DECISION = Decision(
    3000,
    (
        Span(0, 2000, "read", Reason.ENTRY),
        Span(2000, 2900, "written", Reason.NEW, "30m"),
        Span(2900, 3000, "plain", Reason.BEHIND_BOUNDARY),
    ),
)


def test_each_token_is_paid_at_one_of_three_exclusive_rates():
    prices = rules("openai:gpt-5.6-sol").prices
    paid = bill(DECISION, prices.of(3000))
    # 2,000 at 0.40, 900 at 5.00, 100 at 4.00 dollars a million
    assert paid.input.total == Decimal("0.0057")
    assert paid.uncached.total == Decimal("0.012")
    assert paid.ratio == Decimal("0.475")
    assert bill(DECISION, prices.relative).ratio == Decimal("0.475")


def test_an_unknown_price_makes_the_sum_unknown_and_says_so_once():
    prices = rules("openai:gpt-5.6-luna").prices
    paid = bill(DECISION, prices.of(3000)) + bill(DECISION, prices.of(3000))
    assert isinstance(paid.input.total, Unknown)
    assert isinstance(paid.ratio, Unknown)
    assert paid.uncached.unknown == ("no price of openai:gpt-5.6-luna for input is known",)
    assert bill(DECISION, prices.relative).ratio == Decimal("0.475")


def test_what_is_known_is_kept_beside_what_is_not():
    total = Cost(Decimal(3)) + Cost(unknown=("no price of x",)) + Cost(Decimal(4))
    assert (total.known, total.unknown) == (7, ("no price of x",))


def test_above_272k_tokens_all_is_repriced_and_nobody_says_at_what():
    prices = rules("openai:gpt-5.6-sol").prices
    assert not isinstance(prices.of(272_000).input, Unknown)
    assert "above 272,000" in prices.of(272_001).input.why


def test_nothing_costs_nothing_even_where_no_price_is_known():
    prices = rules("openai:gpt-5.6-luna").prices.base
    assert bill(DECISION, prices).output == Cost()
    assert Bill(Cost(), Cost()).ratio == 1
