"""The essay's four arrangements of a handbook and a question, under the rules of three models."""

from decimal import Decimal

import pytest

from kvikk.pricing.prices import Bill, Cost, bill
from kvikk.pricing.provider_cache import ProviderCache
from tests.pricing.prompts import caching, prompt, rules, system, user, words

HANDBOOK = words(99, 5144)
ARRANGEMENTS = {
    "A": lambda question: prompt(user(question + HANDBOOK)),
    "B": lambda question: prompt(user(HANDBOOK + question)),
    "C": lambda question: prompt(system(HANDBOOK), user(question)),
    "D": lambda question: prompt(system(question), user(HANDBOOK)),
}
# How many of the seven requests that could have read something did, as the essay measured.
HITS = {
    "openai:gpt-4o": {"A": 0, "B": 7, "C": 7, "D": 0},
    "openai:gpt-5.4": {"A": 0, "B": 7, "C": 7, "D": 0},
    "openai:gpt-5.6": {"A": 0, "B": 0, "C": 7, "D": 0},
}


def run(name: str, arrangement: str) -> tuple[int, Bill]:
    cache = ProviderCache(caching(name))
    hits, total = 0, Bill(Cost(), Cost())
    for index in range(8):
        given = ARRANGEMENTS[arrangement](words(index, 14))
        decision = cache.bill(given, started_s=10.0 * index, first_byte_s=10.0 * index + 1)
        hits += decision.read_tokens > 0
        total += bill(decision, rules(name).prices.relative)
    return hits, total


@pytest.mark.parametrize("name", HITS)
def test_an_arrangement_hits_as_often_as_the_essay_measured(name):
    assert {arrangement: run(name, arrangement)[0] for arrangement in "ABCD"} == HITS[name]


def test_on_gpt_5_6_the_handbook_in_the_system_field_costs_a_quarter_and_elsewhere_a_quarter_more():
    ratios = {arrangement: run("openai:gpt-5.6", arrangement)[1].ratio for arrangement in "ABCD"}
    assert {name: round(ratio, 2) for name, ratio in ratios.items()} == {
        "A": Decimal("1.25"),
        "B": Decimal("1.25"),
        "C": Decimal("0.25"),
        "D": Decimal("1.25"),
    }
