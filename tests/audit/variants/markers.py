"""Markers and lifetimes."""

from tests.audit.talk import (
    EPHEMERAL,
    POINT,
    Line,
    block,
    chat,
    converse,
    messages,
    read,
    responses,
    sent,
    text,
    tool,
    tool_result,
    turns,
)
from tests.audit.variants.record import FIRST, LONG, MORE, RULES, guess, two, variant

# -------------------------------------------------------------------------------- markers


@variant("breakpoint.missing", "$.system")
def no_marker_at_all() -> list[Line]:
    first, second = messages([block(RULES)], FIRST), messages([block(RULES)], MORE)
    return [read(sent(line, 100 + 20 * at), LONG, 0, 0) for at, line in enumerate((first, second))]


@variant("breakpoint.missing", "$.system")
def no_point_in_bedrock() -> list[Line]:
    first, second = converse([{"text": RULES}], FIRST), converse([{"text": RULES}], MORE)
    return [read(sent(line, 100 + 20 * at), LONG, 0, 0) for at, line in enumerate((first, second))]


@variant("breakpoint.missing", "$.prompt_cache_options.mode")
def explicit_mode_in_chat() -> list[Line]:
    options = {"prompt_cache_options": {"mode": "explicit"}}
    return two(
        chat(RULES, FIRST, model="gpt-5.6-sol", **options),
        chat(RULES, ["Other?"], model="gpt-5.6-sol", **options),
    )


@variant("breakpoint.placement", "$.messages[0].content")
def a_handbook_at_the_head_of_a_user_message() -> list[Line]:
    return two(
        chat(None, [f"{RULES} Question: how long?"], model="gpt-5.6-sol"),
        chat(None, [f"{RULES} Question: who pays?"], model="gpt-5.6-sol"),
    )


@variant("breakpoint.placement", "$.tools[1]")
def only_the_tools_are_marked() -> list[Line]:
    tools = [tool("a", text("t", 1100)), {**tool("b"), **EPHEMERAL}]
    return two(
        messages([block(RULES)], FIRST, tools=tools),
        messages([block(RULES)], MORE, tools=tools),
        total=4200,
        cached=1150,
    )


@variant("breakpoint.placement", "$.system[0].cache_control")
def a_growing_history_is_never_marked() -> list[Line]:
    said = [text("q", 900), text("r", 900), "So?"]
    system = [block(text("a", 1500), marked=True)]
    return [
        read(sent(messages(system, said), 100), 3300, 0, 1500),
        read(sent(messages(system, [*said, "Yes.", "And?"]), 120), 3320, 1500, 0),
    ]


@variant("breakpoint.on_volatile_block", "$.messages[0].content[1]")
def a_row_before_the_point_in_bedrock() -> list[Line]:
    def body(row: str) -> Line:
        return converse([], [[{"text": RULES}, {"text": row}, POINT]])

    return two(body("row 1: alpha"), body("row 2: beta"))


@variant("breakpoint.on_volatile_block", "$.messages[0].content")
def an_automatic_marker_on_the_question() -> list[Line]:
    automatic = {"cache_control": {"type": "ephemeral"}}
    return two(
        messages([block(RULES)], ["How long?"], **automatic),
        messages([block(RULES)], ["Who pays?"], **automatic),
    )


@variant("breakpoint.lookback_overflow", "$.messages[0].content[39]")
def forty_blocks_are_added_at_once() -> list[Line]:
    old = [block(text("brief", 2500), marked=True)]
    new = [
        block(text("brief", 2500)),
        *[block(f"note {index}: {text(str(index), 5)}") for index in range(39)],
    ]
    new[-1] = {**new[-1], **EPHEMERAL}
    return two(messages([], turns(old)), messages([], turns(new)))


@variant("breakpoint.lookback_overflow", "$.messages")
def many_turns_between_two_markers() -> list[Line]:
    said = [text("q", 1500), "Yes."]
    later = [f"Turn {index}: {text(str(index), 6)}" for index in range(26)]
    return two(
        messages([], turns([block(said[0], marked=True)])),
        messages([], turns(*said, *later, [block("So?", marked=True)])),
    )


@variant("breakpoint.implicit_boundary_moved", "$.messages[1].content")
def a_log_grows_inside_its_message() -> list[Line]:
    log = text("log", LONG)
    return two(
        chat("Short.", [log], model="gpt-5.6-terra"),
        chat("Short.", [f"{log}\nnext"], model="gpt-5.6-terra"),
    )


@variant("breakpoint.implicit_boundary_moved", "$.input[0].content[1]")
def a_part_is_added_to_a_message() -> list[Line]:
    def body(*parts: str) -> Line:
        content = [{"type": "input_text", "text": part} for part in parts]
        return responses("Short.", [{"role": "user", "content": content}], model="gpt-5.6-terra")

    return two(body(text("log", LONG)), body(text("log", LONG), "one more line"))


@variant("breakpoint.dropped_by_gateway", "$.system[0].cache_control", request=0)
def a_gateway_translates_and_loses_the_marker() -> list[Line]:
    line = messages(RULES, FIRST)
    passed_on = chat(RULES, FIRST, model="anthropic/claude-sonnet-4-5")["request"]
    return [{**read(sent(line, 100), LONG, 0, 0), "upstream_request": passed_on}]


@variant("breakpoint.dropped_by_gateway", "$.messages[0].content[0]")
def a_marker_that_neither_reads_nor_writes() -> list[Line]:
    def body(*said: object) -> Line:
        part = {"type": "text", "text": RULES, **EPHEMERAL}
        system = [{"role": "system", "content": [part]}, *turns(*said)]
        line = chat(None, system, model="anthropic/claude-sonnet-4.5")
        return {**line, "provider": "openrouter"}

    usage = {"prompt_tokens": LONG, "completion_tokens": 5, "cache_creation_input_tokens": 0}
    usage |= {"cache_read_input_tokens": 0}
    return [
        {**sent(body(*said), 100 + 20 * at), "response": {"usage": usage}}
        for at, said in enumerate((FIRST, MORE))
    ]


@variant("breakpoint.too_many", "$.messages[0].content[0].cache_control", request=0)
def five_markers_in_messages() -> list[Line]:
    results = [tool_result(f"toolu_{index}", "x", marked=True) for index in range(4)]
    line = messages(RULES, [{"role": "user", "content": results}])
    return [{**sent(line, 100), "status": 400}]


@variant("breakpoint.too_many", "$.cache_control", request=0)
def four_markers_and_an_automatic_one() -> list[Line]:
    system = [block(text("a", 900), marked=True), block(text("b", 900), marked=True)]
    said = [[block("q", marked=True)], "Yes.", [block("So?", marked=True)], "Ok.", "And?"]
    line = messages(system, turns(*said), cache_control={"type": "ephemeral"})
    return [{**sent(line, 100), "status": 400}]


@variant("breakpoint.ttl_order", "$.messages[0].content[0].cache_control.ttl", request=0)
def an_hour_behind_five_minutes_in_messages() -> list[Line]:
    line = messages(RULES, turns([block("Hello", ttl="1h")]))
    return [{**sent(line, 100), "status": 400}]


@variant("breakpoint.ttl_order", "$.system[1].cachePoint.ttl", request=0)
def an_hour_behind_five_minutes_in_bedrock() -> list[Line]:
    tools = {"tools": [{"toolSpec": {"name": "a", "inputSchema": {"json": {}}}}, POINT]}
    hour = {"cachePoint": {"type": "default", "ttl": "1h"}}
    line = converse([{"text": RULES}, hour], FIRST, toolConfig=tools)
    return [{**sent(line, 100), "status": 400}]


# ------------------------------------------------------------------------------- lifetimes


@variant("ttl.expired", "$.messages[0].content[0].cache_control")
def ten_minutes_between_two_turns() -> list[Line]:
    return two(messages(RULES, FIRST), messages(RULES, MORE), gap_s=601)


@variant("ttl.expired", "$.system[0].cache_control")
def seventy_minutes_after_an_hour_without_counts() -> list[Line]:
    system = [block(RULES, ttl="1h")]
    return guess(messages(system, FIRST), messages(system, MORE), gap_s=70 * 60)


@variant("ttl.expired", "$")
def two_hours_on_gpt_4_1() -> list[Line]:
    key = {"prompt_cache_key": "k"}
    return two(chat(RULES, FIRST, **key), chat(RULES, MORE, **key), gap_s=7200)


@variant("ttl.expired", "$")
def forty_minutes_on_gpt_5_6() -> list[Line]:
    model = "gpt-5.6-sol"
    return two(chat(RULES, FIRST, model=model), chat(RULES, MORE, model=model), gap_s=2400)


@variant("ttl.tier_changed", "$.system[0].cache_control.ttl")
def five_minutes_after_an_hour() -> list[Line]:
    return two(messages([block(RULES, ttl="1h")], FIRST), messages(RULES, MORE))


@variant("ttl.tier_changed", "$.prompt_cache_retention")
def a_day_after_minutes_in_openai() -> list[Line]:
    key = {"prompt_cache_key": "k"}
    return two(chat(RULES, FIRST, **key), chat(RULES, MORE, prompt_cache_retention="24h", **key))
