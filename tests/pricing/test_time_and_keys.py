"""How long an entry lives, when it can be read, and what else must be equal."""

import pytest

from kvikk.pricing.provider_cache import EVERYTHING, Held, ProviderCache
from tests.pricing.prompts import caching, prompt, spans, system, user, words

SAME = (system(words(1, 2000), marker=""), user(words(2, 5)))


def second_read(name, gap_s, *, first=None, second=None, held=None, **options):
    """What the second of two requests, ``gap_s`` apart, reads, and the reason of its first span."""
    cache = ProviderCache(caching(name))
    cache.bill(first or prompt(*SAME, **options), started_s=0, first_byte_s=1)
    options = {} if held is None else {"held": held}
    decision = cache.bill(
        second or first or prompt(*SAME), started_s=gap_s, first_byte_s=gap_s + 1, **options
    )
    return decision.read_tokens, decision.spans[0].reason.value


@pytest.mark.parametrize(
    ("name", "lifetime", "lives_s"),
    [
        ("openai:gpt-4o", "", 300),
        ("openai:gpt-4o", "24h", 86_400),
        ("openai:gpt-5.6", "", 1800),
        ("openai:gpt-5.6", "12h", 43_200),
        ("anthropic:claude-sonnet-4-5", "", 300),
        ("anthropic:claude-sonnet-4-5", "1h", 3600),
    ],
)
def test_an_entry_lives_as_long_as_was_asked_for(name, lifetime, lives_s):
    given = prompt(*SAME, lifetime=lifetime)
    read, _ = second_read(name, lives_s - 1, first=given)
    assert read >= 1920
    assert second_read(name, lives_s, first=given) == (0, "expired")


def test_reuse_begins_the_time_again_for_nothing():
    cache = ProviderCache(caching("anthropic:claude-sonnet-4-5"))
    given = prompt(*SAME)
    reads = [
        cache.bill(given, started_s=at_s, first_byte_s=at_s + 1).read_tokens
        for at_s in (0, 299, 598, 897, 1197)
    ]
    assert reads == [0, 2000, 2000, 2000, 0]


def test_before_5_6_an_entry_lives_an_hour_at_most_however_often_it_is_used():
    cache = ProviderCache(caching("openai:gpt-4o"))
    times = range(0, 4001, 250)
    reads = [
        cache.bill(prompt(*SAME), started_s=at_s, first_byte_s=at_s).read_tokens for at_s in times
    ]
    assert [at_s for at_s, read in zip(times, reads, strict=True) if not read] == [0, 3750]


def test_what_starts_before_the_first_response_begins_reads_nothing():
    name = "anthropic:claude-sonnet-4-5"
    assert second_read(name, 0.5) == (0, "not_readable_yet")
    assert second_read(name, 1.0) == (2000, "entry")


def test_the_order_in_which_overlapping_requests_are_settled_does_not_matter():
    given = [prompt(SAME[0], user(words(seed, 5))) for seed in range(4)]
    times = [(0.0, 1.4), (0.05, 1.5), (0.09, 1.3), (2.2, 2.9)]
    for order in ((0, 1, 2, 3), (2, 0, 1, 3), (1, 2, 0, 3)):
        cache = ProviderCache(caching("anthropic:claude-sonnet-4-5"))
        reads = {
            index: cache.bill(
                given[index], started_s=times[index][0], first_byte_s=times[index][1]
            ).read_tokens
            for index in order
        }
        assert reads == {0: 0, 1: 0, 2: 0, 3: 2000}


def test_of_two_that_write_at_once_the_first_to_begin_makes_it_readable():
    for name in ("anthropic:claude-sonnet-4-5", "openai:gpt-4o"):
        cache = ProviderCache(caching(name))
        times = ((0, 5), (1, 2), (3, 4))
        reads = [
            cache.bill(prompt(*SAME), started_s=started_s, first_byte_s=first_byte_s).read_tokens
            for started_s, first_byte_s in times
        ]
        assert reads[:2] == [0, 0]
        assert reads[2] > 0


def test_what_the_cache_lost_is_written_anew_and_lives_from_then_on():
    cache = ProviderCache(caching("anthropic:claude-sonnet-4-5"))
    reads = [
        cache.bill(prompt(*SAME), started_s=at_s, first_byte_s=at_s, held=held).read_tokens
        for at_s, held in ((0, EVERYTHING), (200, Held(0)), (400, EVERYTHING))
    ]
    assert reads == [0, 0, 2000]


@pytest.mark.parametrize(
    ("held", "read"), [(2000, 2000), (1984, 2000), (1983, 0), (1952, 0), (0, 0)]
)
def test_a_read_needs_all_full_blocks_below_the_boundary(held, read):
    # 2,000 is in the 63rd block of 32; 62 full ones are 1,984 tokens.
    reason = "entry" if read else "not_held"
    second = prompt(SAME[0], user(words(3, 5)))
    found = second_read(
        "openai:gpt-5.6", 5, first=prompt(*SAME), second=second, held=Held(held, 32)
    )
    assert found == (read, reason)


def test_a_cache_that_holds_less_gives_the_furthest_boundary_that_it_holds():
    cache = ProviderCache(caching("openai:gpt-4o"))
    given = prompt(*SAME)
    cache.bill(given, started_s=0, first_byte_s=0)
    decision = cache.bill(given, started_s=1, first_byte_s=1, held=Held(1500, 32))
    assert spans(decision)[:2] == [(0, 1408, "read", "entry"), (1408, 1920, "plain", "not_held")]


@pytest.mark.parametrize(
    ("name", "parameter", "read"),
    [
        ("openai:gpt-4o", "reasoning_effort", 0),
        ("openai:gpt-5.6", "text_format", 0),
        ("openai:gpt-5.6", "verbosity", 0),
        ("openai:gpt-5.6", "parallel_tool_calls", 0),
        ("openai:gpt-5.6", "temperature", 2005),
        ("anthropic:claude-sonnet-4-5", "speed", 0),
        ("anthropic:claude-sonnet-4-5", "thinking", 2000),
        ("anthropic:claude-sonnet-4-5", "tool_choice", 2000),
        ("gemini:gemini-2.5-flash", "response_schema", 0),
    ],
)
def test_a_parameter_of_the_key_breaks_reuse_from_its_section_on(name, parameter, read):
    pieces = (SAME[0], user(words(2, 5), marker=""))
    first, second = (prompt(*pieces, parameters={parameter: value}) for value in "ab")
    found = second_read(name, 5, first=first, second=second)
    assert found[0] == read
    if not read:
        assert found[1] == "changed"


def test_thinking_breaks_the_messages_and_says_so():
    pieces = (SAME[0], user(words(2, 5), marker=""))
    cache = ProviderCache(caching("anthropic:claude-opus-5"))
    for index, value in enumerate(("adaptive", "disabled")):
        given = prompt(*pieces, parameters={"thinking": value})
        decision = cache.bill(given, started_s=index, first_byte_s=index)
    assert [(span.reason.value, span.detail) for span in decision.spans[:2]] == [
        ("entry", ()),
        ("changed", ("thinking",)),
    ]


def test_a_cache_key_separates_from_5_6_on_and_routes_before():
    for name, read in (("openai:gpt-4o", 1920), ("openai:gpt-5.6", 0)):
        first, second = (prompt(*SAME, cache_key=key) for key in "ab")
        assert second_read(name, 5, first=first, second=second)[0] == read


def test_accounts_share_nothing_and_are_not_told_of_each_other():
    first, second = (prompt(*SAME, account=account) for account in "ab")
    for tells, reason in ((False, "new"), (True, "changed")):
        cache = ProviderCache(caching("openai:gpt-4o"), tells_accounts=tells)
        cache.bill(first, started_s=0, first_byte_s=0)
        decision = cache.bill(second, started_s=1, first_byte_s=1)
        assert (decision.read_tokens, decision.spans[0].reason.value) == (0, reason)


def test_a_table_that_is_full_forgets_what_was_used_longest_ago():
    cache = ProviderCache(caching("openai:gpt-5.6"), most_entries=4)
    given = [prompt(system(words(seed, 1500)), user(words(seed, 5))) for seed in range(3)]
    for at_s, index in enumerate((0, 1, 0, 2)):
        cache.bill(given[index], started_s=at_s, first_byte_s=at_s)
    reads = [cache.bill(one, started_s=9, first_byte_s=9).read_tokens for one in given[::2]]
    assert reads == [1505, 1505]
