"""What is refused about markers before anything is computed."""

import pytest

from kvikk.pricing.problems import problems
from tests.pricing.prompts import caching, prompt, said, system, tool, user, words

SONNET = "anthropic:claude-sonnet-4-5"


def refused(*pieces, name=SONNET):
    return [(problem.path, problem.message) for problem in problems(caching(name), prompt(*pieces))]


def test_a_fifth_marker_is_refused_where_it_stands():
    four = [user(words(seed, 5), marker="") for seed in range(4)]
    assert refused(*four) == []
    assert refused(*four, user(words(9, 5), marker="")) == [
        ("$[4]", "at most 4 blocks with cache_control, found 5")
    ]
    assert refused(*four, user(words(9, 5), marker=""), name="openai:gpt-5.6") == []


@pytest.mark.parametrize("short", ["", "5m"])
def test_a_longer_lifetime_must_not_come_after_a_shorter_one(short):
    tools, rules, turn = tool(words(1, 5), marker=short), words(2, 5), user(words(3, 5))
    found = refused(tools, system(rules, marker="1h"), turn)
    assert [path for path, _ in found] == ["$[1]"]
    assert "must not come after" in found[0][1]
    assert refused(tool(words(1, 5), marker="1h"), system(rules, marker=short), turn) == []


def test_an_unknown_lifetime_is_refused():
    assert refused(system(words(1, 5), marker="10m"), said(words(2, 5))) == [
        ("$[0]", 'a ttl of \'10m\'; expected "5m" or "1h"')
    ]
