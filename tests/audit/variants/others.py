"""Requests that overlap or go elsewhere, what is so by design, and what is no miss."""

from tests.audit.talk import (
    POINT,
    Line,
    block,
    chat,
    converse,
    gemini,
    messages,
    read,
    responses,
    sent,
    text,
    turns,
)
from tests.audit.variants.record import FIRST, LONG, MORE, RULES, guess, two, variant

# ------------------------------------------------------------------- overlap and placement


@variant("concurrency.cold_race")
def two_workers_of_gpt_4_1() -> list[Line]:
    lines = [chat(RULES, ["Part 0"]), chat(RULES, ["Part 1"])]
    return [
        {**read(sent(line, 100 + at / 10), LONG, 0), "first_byte_s": 101.5}
        for at, line in enumerate(lines)
    ]


@variant("concurrency.cold_race")
def two_workers_without_the_time_of_their_first_bytes() -> list[Line]:
    lines = [messages(RULES, ["Part 0"]), messages(RULES, ["Part 1"])]
    return [{**read(line, LONG, 0), "at_s": 100 + at / 10} for at, line in enumerate(lines)]


@variant("routing.key_missing", "$.prompt_cache_key", request=2)
def some_calls_hit_and_some_do_not() -> list[Line]:
    hits = (0, 2944, 0, 2944, 0)
    return [
        read(sent(chat(RULES, [f"Ping {at}"], model="gpt-4o"), 100 + 30 * at), LONG, hit)
        for at, hit in enumerate(hits)
    ]


@variant("routing.key_missing", "$.prompt_cache_key")
def a_key_is_left_out_the_second_time() -> list[Line]:
    return two(responses(RULES, FIRST, prompt_cache_key="c1"), responses(RULES, MORE))


@variant("routing.key_volatile", "$.prompt_cache_key")
def a_key_for_each_call_in_azure() -> list[Line]:
    lines = two(
        chat(RULES, FIRST, prompt_cache_key="3f0c9a52"),
        chat(RULES, MORE, prompt_cache_key="0b7e5d30"),
    )
    return [{**line, "provider": "azure"} for line in lines]


@variant("routing.key_volatile", "$.prompt_cache_key")
def a_key_with_the_turn_in_it_without_counts() -> list[Line]:
    return guess(
        responses(RULES, FIRST, model="gpt-5.6-sol", prompt_cache_key="chat-9-turn-1"),
        responses(RULES, MORE, model="gpt-5.6-sol", prompt_cache_key="chat-9-turn-2"),
    )


@variant("routing.key_shared_overflow", "$.prompt_cache_key", request=25)
def one_key_for_everybody() -> list[Line]:
    hits = [0] + [2944 if at % 5 else 0 for at in range(1, 26)]
    return [
        read(sent(chat(RULES, [f"Ping {at}"], prompt_cache_key="app"), 100 + 2 * at), LONG, hit)
        for at, hit in enumerate(hits)
    ]


@variant("routing.key_shared_overflow", "$.prompt_cache_key", request=20)
def one_key_for_a_fan_out_in_responses() -> list[Line]:
    return [
        read(
            sent(responses(RULES, [f"Ping {at}"], prompt_cache_key="app"), 100 + at),
            LONG,
            0 if at in (0, 20) else 2944,
        )
        for at in range(21)
    ]


@variant("routing.key_shared_overflow", "$.prompt_cache_key", request=5)
def one_key_and_a_few_calls_in_a_row() -> list[Line]:
    hits = (0, 2944, 2944, 0, 2944, 0)
    return [
        read(sent(chat(RULES, [f"Ping {at}"], prompt_cache_key="app"), 100 + 1.5 * at), LONG, hit)
        for at, hit in enumerate(hits)
    ]


@variant("routing.account_rotated", request=2)
def two_workspaces_in_turn() -> list[Line]:
    said = [text("q", 900), "Yes.", text("q2", 900), "Yes.", "So?"]
    lines = [
        messages(RULES, turns(*said[:index], [block(said[index], marked=True)]))
        for index in (0, 2, 4)
    ]
    counts = ((3900, 0), (4800, 0), (4900, 3900))
    return [
        {**read(sent(line, 100 + 20 * at), *counts[at]), "account": f"workspace-{at % 2}"}
        for at, line in enumerate(lines)
    ]


@variant("routing.account_rotated")
def another_organisation_in_gemini() -> list[Line]:
    first, second = two(gemini(RULES, FIRST), gemini(RULES, MORE))
    return [{**first, "account": "project-a"}, {**second, "account": "project-b"}]


@variant("routing.upstream_switched")
def an_aggregator_says_who_answered() -> list[Line]:
    first, second = two(
        chat(RULES, FIRST, model="qwen/qwen4"), chat(RULES, MORE, model="qwen/qwen4")
    )
    first["response"]["provider"], second["response"]["provider"] = "HostA", "HostB"
    return [{**line, "provider": "openrouter"} for line in (first, second)]


@variant("routing.upstream_switched")
def another_replica_of_ones_own() -> list[Line]:
    first, second = two(chat(RULES, FIRST, model="m"), chat(RULES, MORE, model="m"))
    return [
        {**line, "provider": "self_hosted", "host": f"10.0.0.{at}"}
        for at, line in enumerate((first, second))
    ]


# -------------------------------------------------------------------------- by design, odd


@variant("expected.common_prefix_detection", "$.messages[1].content")
def a_second_question_to_deepseek() -> list[Line]:
    lines = two(
        chat(RULES, ["What is the first rule?"], model="deepseek-v4"),
        chat(RULES, ["Who wrote them?"], model="deepseek-v4"),
    )
    return [{**line, "provider": "deepseek"} for line in lines]


@variant("expected.first_request", "$", request=1)
def two_conversations_that_share_nothing() -> list[Line]:
    return two(messages(RULES, FIRST), messages(text("other", LONG), ["Elsewhere"]))


@variant("expected.first_request", "$", request=0)
def one_request_and_no_more() -> list[Line]:
    return [read(sent(messages(RULES, FIRST), 100), LONG, 0)]


@variant("accounting.normalisation", "$.usage.prompt_tokens", request=0)
def a_gateway_leaves_the_reads_out_of_the_total() -> list[Line]:
    usage = {"prompt_tokens": 4, "completion_tokens": 9, "cache_read_input_tokens": 3000}
    usage["prompt_tokens_details"] = {"cached_tokens": 3000}  # type: ignore[assignment]
    return [{**sent(messages(RULES, FIRST), 100), "response": {"usage": usage}}]


@variant("accounting.normalisation", "$.usage.input_tokens_details.cached_tokens", request=0)
def a_gateway_forgets_the_reads_in_responses() -> list[Line]:
    usage = {"input_tokens": 3004, "output_tokens": 9, "cache_read_input_tokens": 3000}
    usage["input_tokens_details"] = {"cached_tokens": 0}  # type: ignore[assignment]
    return [{**sent(responses(RULES, FIRST), 100), "response": {"usage": usage}}]


@variant("accounting.normalisation", "$.usage.prompt_tokens_details.cached_tokens", request=0)
def a_gateway_forgets_deepseeks_hits() -> list[Line]:
    usage = {"prompt_tokens": 3004, "completion_tokens": 9, "prompt_cache_hit_tokens": 2944}
    usage["prompt_tokens_details"] = {"cached_tokens": 0}  # type: ignore[assignment]
    line = {**chat(RULES, FIRST, model="deepseek-v4"), "provider": "deepseek"}
    return [{**sent(line, 100), "response": {"usage": usage}}]


@variant("accounting.normalisation", "$.usage.prompt_tokens", request=0)
def a_stream_that_was_not_counted() -> list[Line]:
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    return [{**sent(chat(RULES, FIRST, stream=True), 100), "response": {"usage": usage}}]


@variant("accounting.normalisation", "$.usage.prompt_tokens", request=0)
def a_gateway_counts_the_reads_twice() -> list[Line]:
    usage = {"prompt_tokens": 6004, "completion_tokens": 9, "input_tokens": 4}
    usage |= {"cache_read_input_tokens": 3000, "cache_creation_input_tokens": 0}
    return [{**sent(messages(RULES, FIRST), 100), "response": {"usage": usage}}]


@variant("experiment.contaminated", "$.input[0].content", request=2)
def a_probe_without_a_nonce() -> list[Line]:
    def body(model: str, said: str) -> Line:
        first = {"role": "developer", "content": RULES}
        return responses("", [first, {"role": "user", "content": said}], model=model)

    return [
        read(sent(body("gpt-5-mini", "before"), 0), LONG, 0),
        read(sent(body("gpt-4o-mini", "q"), 200), LONG, 0),
        read(sent(body("gpt-5-mini", "q"), 210), LONG, 2944),
    ]


@variant("provider.unexplained")
def the_same_again_with_a_key() -> list[Line]:
    line = chat(RULES, FIRST, prompt_cache_key="k")
    return two(line, line)


@variant("provider.unexplained")
def the_same_again_in_bedrock() -> list[Line]:
    line = converse([{"text": RULES}, POINT], FIRST)
    return two(line, line)


# ----------------------------------------------------------------------------- no miss


@variant(None)
def a_conversation_that_grows_in_messages() -> list[Line]:
    said = [text("q", 900), "Yes.", text("q2", 900), "Yes.", "So?"]
    lines = [
        messages(RULES, turns(*said[:index], [block(said[index], marked=True)]))
        for index in (0, 2, 4)
    ]
    counts = ((3900, 0), (4800, 3900), (4810, 4800))
    return [read(sent(line, 100 + 20 * at), *counts[at]) for at, line in enumerate(lines)]


@variant(None)
def a_conversation_that_grows_without_counts() -> list[Line]:
    said = [text("q", 900), "Yes.", text("q2", 900), "Yes.", "So?"]
    return [sent(responses(RULES, said[: index + 1]), 100 + index) for index in (0, 2, 4)]


@variant(None)
def other_samples_and_limits() -> list[Line]:
    return two(
        chat(RULES, FIRST, temperature=0.2, max_tokens=10, user="ann", seed=1),
        chat(RULES, MORE, temperature=0.9, max_tokens=99, user="bob", stream=True),
        cached=2944,
    )


@variant(None)
def a_string_becomes_a_block_and_a_marker_moves() -> list[Line]:
    return two(
        messages(RULES, turns([block("Hello there", marked=True)])),
        messages(RULES, turns("Hello there", "Hi.", [block("So?", marked=True)])),
        cached=2990,
    )


@variant(None)
def questions_to_one_handbook() -> list[Line]:
    return two(chat(RULES, ["How long?"]), chat(RULES, ["Who pays for it?"]), cached=2944)


@variant(None)
def a_picture_in_the_newest_turn() -> list[Line]:
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBO" * 200}}
    return two(chat(RULES, FIRST), chat(RULES, [*MORE[:2], [shown]]), cached=2944)


@variant(None)
def an_answer_edited_on_a_provider_that_keeps_no_answers() -> list[Line]:
    first, second = two(
        chat(RULES, FIRST), chat(RULES, ["What first?", "This", "And?"]), cached=2944
    )
    first["response"]["choices"] = [{"message": {"role": "assistant", "content": "This\n"}}]
    return [first, second]


@variant(None)
def a_question_is_asked_again() -> list[Line]:
    line = chat(RULES, FIRST)
    return two(line, line, cached=2944)
