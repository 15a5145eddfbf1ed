"""Where each kind of cache may cut a prompt: one claim a rule."""

from dataclasses import replace

import pytest

from kvikk.pricing.caching import MessageEnds
from kvikk.pricing.provider_cache import ProviderCache
from tests.pricing.prompts import (
    TEMPLATE_TOKENS,
    caching,
    prompt,
    result,
    said,
    spans,
    system,
    tool,
    user,
    words,
)

REST = len(TEMPLATE_TOKENS)
GPT_4O, GPT_5_5, GPT_5_6 = "openai:gpt-4o", "openai:gpt-5.5", "openai:gpt-5.6"
SONNET, OPUS_5 = "anthropic:claude-sonnet-4-5", "anthropic:claude-opus-5"


def bill_all(name, *prompts):
    """Each prompt's decision, a second after the one before, whose answer has begun."""
    cache = ProviderCache(caching(name))
    return [
        cache.bill(given, started_s=index, first_byte_s=index + 0.5)
        for index, given in enumerate(prompts)
    ]


def reads(name, *prompts):
    return [decision.read_tokens for decision in bill_all(name, *prompts)]


@pytest.mark.parametrize(("shared", "read"), [(1023, 0), (1024, 1024), (1300, 1280), (1408, 1408)])
def test_steps_are_of_128_tokens_from_1024_on(shared, read):
    same = words(7, shared)
    assert reads(GPT_4O, *(prompt(user(same + words(seed, 400))) for seed in (1, 2))) == [0, read]


def test_gpt_5_5_reports_2048_apart_with_128_hidden():
    same = words(7, 12_410)
    for shared, read in ((1919, 0), (1920, 1920), (10_200, 10_112), (12_400, 12_160)):
        given = [prompt(user(same[:shared] + words(seed, 50))) for seed in (1, 2)]
        assert reads(GPT_5_5, *given) == [0, read]


@pytest.mark.parametrize(("tokens", "read"), [(1023, 0), (1024, 1024), (1031, 1031)])
def test_message_ends_are_read_to_the_token_from_1024_on(tokens, read):
    same = words(7, tokens)
    given = [prompt(system(same), user(words(seed, 9))) for seed in (1, 2)]
    assert reads(GPT_5_6, *given) == [0, read]


def test_a_conversation_reads_up_to_its_last_question_and_writes_what_is_new():
    rules, first, second = words(1, 1200), words(2, 30), words(3, 20)
    answer = words(4, 50)
    one = prompt(system(rules), user(first))
    two = prompt(system(rules), user(first), said(answer), user(second))
    before, after = bill_all(GPT_5_6, one, two)
    assert spans(before) == [
        (0, 1230, "written", "new"),
        (1230, 1230 + REST, "plain", "behind_boundary"),
    ]
    assert spans(after) == [
        (0, 1230, "read", "entry"),
        (1230, 1300, "written", "new"),
        (1300, 1300 + REST, "plain", "behind_boundary"),
    ]


def test_a_message_that_grows_is_another_message():
    log = words(5, 3000)
    given = [prompt(system(words(1, 3)), user(log)), prompt(system(words(1, 3)), user((*log, 9)))]
    assert reads(GPT_5_6, *given) == [0, 0]
    assert reads(GPT_4O, *given)[1] == 2944


def test_the_last_tool_result_of_a_run_is_a_boundary_and_those_before_it_are_not():
    head = (system(words(1, 1100)), user(words(2, 20)), said(words(3, 5), kind="tool_use"))
    results = (result(words(4, 100)), result(words(5, 100)))
    shared = prompt(*head, *results)
    again = prompt(*head, *results, said(words(6, 9)), user(words(7, 9)))
    only_first = prompt(*head, results[0], said(words(6, 9)), user(words(7, 9)))
    assert reads(GPT_5_6, shared, again) == [0, 1325]
    assert reads(GPT_5_6, shared, only_first) == [0, 1120]


def test_a_users_question_is_a_boundary_also_behind_results_that_a_user_brings():
    question = user(words(2, 1100))
    results = user(words(4, 100), kind="tool_result")
    first = prompt(question, said(words(3, 5), kind="tool_use"), results)
    assert reads(GPT_5_6, first, prompt(question, said(words(5, 5)))) == [0, 1100]


def test_only_the_latest_boundaries_are_compared():
    rules = replace(caching(GPT_5_6), scheme=MessageEnds(matched=1))
    cache = ProviderCache(rules)
    given = [prompt(system(words(1, 1100)), user(words(seed, 9))) for seed in (2, 3)]
    decisions = [cache.bill(one, started_s=0, first_byte_s=0) for one in (*given, given[0])]
    assert [decision.read_tokens for decision in decisions] == [0, 0, 1109]


def test_explicit_mode_without_a_marker_caches_nothing():
    same = prompt(system(words(1, 2500)), user(words(2, 5)), explicit=True)
    decisions = bill_all(GPT_5_6, same, same)
    assert {tuple(spans(decision)) for decision in decisions} == {
        ((0, 2505 + REST, "plain", "no_breakpoint"),)
    }


def test_explicit_mode_caches_at_its_markers_alone():
    given = [
        prompt(system(words(1, 2500), marker=""), user(words(seed, 30)), explicit=True)
        for seed in (2, 3)
    ]
    decisions = bill_all(GPT_5_6, *given)
    assert spans(decisions[1]) == [
        (0, 2500, "read", "entry"),
        (2500, 2530 + REST, "plain", "behind_boundary"),
    ]


def test_a_request_writes_at_its_implicit_boundaries_and_the_latest_three_markers():
    parts = [user(words(seed, 1100), ends_message=seed == 14, marker="") for seed in range(10, 15)]
    first = prompt(*parts, user(words(1, 10)))
    read = [
        reads(GPT_5_6, first, prompt(*parts[:count], user(words(2, 10))))[1]
        for count in range(1, 6)
    ]
    assert read == [0, 0, 3300, 4400, 5500]


def test_a_marker_on_what_an_assistant_said_is_ignored():
    head = (system(words(1, 100)), user(words(2, 1000)), said(words(3, 500), marker=""))
    first = prompt(*head, user(words(4, 5)))
    second = prompt(*head, user(words(5, 5)))
    assert reads(GPT_5_6, first, second) == [0, 0]
    assert reads(GPT_5_6, prompt(*head[:2]), second) == [0, 1100]


def test_anthropic_writes_and_reads_only_at_markers():
    same, question = words(1, 2000), words(2, 8)
    unmarked = prompt(system(same), user(question))
    assert [spans(decision) for decision in bill_all(SONNET, unmarked, unmarked)] == [
        [(0, 2008 + REST, "plain", "no_breakpoint")]
    ] * 2
    marked = [prompt(system(same, marker=""), user(words(seed, 8))) for seed in (2, 3)]
    first, second = bill_all(SONNET, *marked)
    assert spans(first) == [
        (0, 2000, "written", "new"),
        (2000, 2008 + REST, "plain", "behind_boundary"),
    ]
    assert spans(second)[0] == (0, 2000, "read", "entry")


def test_a_marker_behind_what_changes_never_hits():
    given = [
        prompt(user(words(1, 2500), ends_message=False), user(words(row, 6), marker=""))
        for row in (2, 3, 4)
    ]
    assert reads(SONNET, *given) == [0, 0, 0]


def test_a_marker_is_not_part_of_the_text():
    pieces = (system(words(1, 1500)), user(words(2, 10)), said(words(3, 10)), user(words(4, 10)))
    first = prompt(pieces[0], user(words(2, 10), marker=""))
    second = prompt(*pieces[:3], user(words(4, 10), marker=""))
    assert reads(SONNET, first, second) == [0, 1510]


@pytest.mark.parametrize(("between", "read"), [(18, 1500), (19, 0)])
def test_an_entry_is_found_twenty_positions_back_the_marker_counted(between, read):
    start = user(words(1, 1500))
    first = prompt(user(words(1, 1500), marker=""))
    blocks = [said(words(seed + 2, 5)) for seed in range(between)]
    second = prompt(start, *blocks, user(words(99, 5), marker=""))
    _, decision = bill_all(SONNET, first, second)
    assert decision.read_tokens == read
    if not read:
        assert spans(decision)[0] == (0, 1500, "written", "lookback")


def test_runs_of_tool_uses_and_of_results_are_one_position_each():
    start = user(words(1, 1500))
    calls = [said(words(seed + 2, 5), kind="tool_use") for seed in range(12)]
    results = [user(words(seed + 50, 5), kind="tool_result") for seed in range(12)]
    first = prompt(user(words(1, 1500), marker=""))
    second = prompt(
        start, *calls, *results[:-1], user(results[-1].tokens, kind="tool_result", marker="")
    )
    assert reads(OPUS_5, first, second) == [0, 1500]


def test_below_the_minimum_a_marker_is_silently_ignored():
    same = prompt(system(words(1, 3200), marker=""), user(words(2, 5)))
    assert reads("anthropic:claude-haiku-4-5-20251001", same, same) == [0, 0]
    assert spans(bill_all("anthropic:claude-haiku-4-5-20251001", same)[0]) == [
        (0, 3205 + REST, "plain", "below_minimum")
    ]
    assert reads(SONNET, same, same) == [0, 3200]


def test_a_longer_lifetime_in_front_is_written_at_its_own_price():
    given = prompt(
        tool(words(1, 600), marker="1h"),
        system(words(2, 900), marker="1h"),
        user(words(3, 40), marker="5m"),
        user(words(4, 7)),
    )
    (decision,) = bill_all(SONNET, given)
    assert decision.written_by_lifetime == {"1h": 1500, "5m": 40}
    assert decision.plain_tokens == 7 + REST


def test_a_change_of_the_tools_loses_everything_behind_them():
    def with_tools(*seeds):
        tools = [tool(words(seed, 200)) for seed in seeds]
        return prompt(*tools, system(words(9, 3000), marker=""), user(words(8, 5)))

    assert reads(OPUS_5, with_tools(1, 2), with_tools(1, 2, 3)) == [0, 0]
    assert reads(OPUS_5, with_tools(1, 2), with_tools(2, 1)) == [0, 0]


def test_deepseek_needs_two_requests_to_see_what_is_common_and_serves_the_third():
    filing = words(3, 4000)
    given = [prompt(system(words(1, 3)), user(filing + words(seed, 5))) for seed in (5, 6, 7)]
    assert reads("deepseek:deepseek-v4-flash", *given) == [0, 0, 3968]


def test_deepseek_keeps_the_end_of_the_input_and_of_the_answer():
    question, answer = user(words(1, 500)), said(words(2, 100))
    first = prompt(question)
    following = prompt(question, answer, user(words(3, 5)))
    assert reads("deepseek:deepseek-v4-flash", first, following) == [0, 500]
    cache = ProviderCache(caching("deepseek:deepseek-v4-flash"))
    cache.bill(first, started_s=0, first_byte_s=0.5)
    cache.answered(first, following.positions[1].digest, started_s=0, ended_s=2)
    assert cache.bill(following, started_s=3, first_byte_s=3).read_tokens == 600
