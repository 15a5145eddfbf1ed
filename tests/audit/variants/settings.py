"""Parameters, models and minima."""

from tests.audit.talk import (
    POINT,
    Line,
    block,
    chat,
    converse,
    function,
    gemini,
    messages,
    read,
    responses,
    sent,
    text,
    tool,
)
from tests.audit.variants.record import FIRST, LONG, MORE, RULES, guess, two, variant

# ------------------------------------------------------------------------------ parameters


@variant("params.effort", "$.reasoning.effort")
def less_effort_in_responses() -> list[Line]:
    return two(
        responses(RULES, FIRST, reasoning={"effort": "high"}),
        responses(RULES, MORE, reasoning={"effort": "low"}),
    )


@variant("params.effort", "$.reasoning_effort")
def effort_asked_for_the_first_time_in_chat() -> list[Line]:
    return two(
        chat(RULES, FIRST, model="gpt-5"), chat(RULES, MORE, model="gpt-5", reasoning_effort="low")
    )


@variant("params.effort", "$.output_config.effort")
def effort_without_counts_in_the_log() -> list[Line]:
    said = [[block(text("q", 900), marked=True)]]
    more = [text("q", 900), "Yes.", [block("So?", marked=True)]]
    return guess(
        messages(RULES, said, output_config={"effort": "high"}),
        messages(RULES, more, output_config={"effort": "low"}),
    )


@variant("params.thinking", "$.thinking.budget_tokens")
def another_budget_for_thinking() -> list[Line]:
    said = [[block(text("q", 900), marked=True)]]
    more = [text("q", 900), "Yes.", [block("So?", marked=True)]]
    return two(
        messages(RULES, said, thinking={"type": "enabled", "budget_tokens": 4000}),
        messages(RULES, more, thinking={"type": "enabled", "budget_tokens": 8000}),
        total=4000,
        cached=3000,
    )


@variant("params.thinking", "$.additionalModelRequestFields.thinking")
def thinking_switched_on_in_bedrock() -> list[Line]:
    long = [{"text": RULES}, POINT]
    first = [[{"text": text("q", 900)}, POINT]]
    more = [[{"text": text("q", 900)}], "Yes.", [{"text": "So?"}, POINT]]
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
    return two(
        converse(long, first),
        converse(long, more, additionalModelRequestFields=thinking),
        total=4000,
        cached=3000,
    )


@variant("params.thinking", "$.generationConfig.thinkingConfig")
def thinking_switched_off_in_gemini() -> list[Line]:
    return two(
        gemini(RULES, FIRST, generationConfig={"thinkingConfig": {"thinkingBudget": 1024}}),
        gemini(RULES, MORE, generationConfig={"thinkingConfig": {"thinkingBudget": 0}}),
    )


@variant("params.tool_choice", "$.tool_choice")
def a_tool_is_forced_in_messages() -> list[Line]:
    said = [[block(text("q", 900), marked=True)]]
    more = [text("q", 900), "Yes.", [block("So?", marked=True)]]
    tools = [tool("a"), tool("b")]
    return two(
        messages(RULES, said, tools=tools, tool_choice={"type": "auto"}),
        messages(RULES, more, tools=tools, tool_choice={"type": "tool", "name": "a"}),
        total=4000,
        cached=3000,
    )


@variant("params.tool_choice", "$.tool_choice")
def a_tool_is_required_in_chat() -> list[Line]:
    tools = [function("a"), function("b")]
    return two(
        chat(RULES, FIRST, tools=tools), chat(RULES, MORE, tools=tools, tool_choice="required")
    )


@variant("params.response_schema", "$.response_format")
def another_schema_in_chat() -> list[Line]:
    def form(name: str) -> dict[str, object]:
        schema = {"type": "object", "properties": {name: {"type": "string"}}}
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}

    return two(
        chat(RULES, FIRST, response_format=form("title")),
        chat(RULES, MORE, response_format=form("year")),
    )


@variant("params.response_schema", "$.text.format")
def plain_text_after_a_schema_in_responses() -> list[Line]:
    return two(
        responses(RULES, FIRST, text={"format": {"type": "json_object"}}),
        responses(RULES, MORE, text={"format": {"type": "text"}}),
    )


@variant("params.verbosity", "$.text.verbosity")
def shorter_answers_in_responses() -> list[Line]:
    return two(
        responses(RULES, FIRST, text={"verbosity": "high"}),
        responses(RULES, MORE, text={"verbosity": "low"}),
    )


@variant("params.verbosity", "$.verbosity")
def shorter_answers_in_chat() -> list[Line]:
    return two(chat(RULES, FIRST, model="gpt-5"), chat(RULES, MORE, model="gpt-5", verbosity="low"))


@variant("params.other", "$.parallel_tool_calls")
def parallel_calls_switched_off() -> list[Line]:
    return two(responses(RULES, FIRST), responses(RULES, MORE, parallel_tool_calls=False))


@variant("params.other", "$.speed")
def a_faster_service() -> list[Line]:
    return two(messages(RULES, FIRST), messages(RULES, MORE, speed="fast"))


# ----------------------------------------------------------------------------------- model


@variant("model.switched", "$.model")
def a_smaller_model_for_the_next_turn() -> list[Line]:
    return two(chat(RULES, FIRST, model="gpt-5"), chat(RULES, MORE, model="gpt-5-mini"))


@variant("model.switched", "$.model")
def a_name_with_a_date() -> list[Line]:
    return two(
        messages(RULES, FIRST, model="claude-sonnet-4-5"),
        messages(RULES, MORE, model="claude-sonnet-4-5-20250929"),
    )


@variant("model.switched", "$.model")
def a_gateway_answers_with_another_model() -> list[Line]:
    first, second = two(chat(RULES, FIRST, model="best"), chat(RULES, MORE, model="best"))
    first["response"]["model"], second["response"]["model"] = "gpt-4.1", "gpt-4.1-mini"
    return [first, second]


@variant("model.switched", "$.model", request=2)
def another_model_after_a_failure() -> list[Line]:
    first, second = messages(RULES, FIRST), messages(RULES, MORE)
    fallback = messages(RULES, MORE, model="claude-haiku-4-5")
    return [
        read(sent(first, 100), LONG, 0),
        {**sent(second, 110), "status": 529},
        read(sent(fallback, 112), LONG + 20, 0),
    ]


# --------------------------------------------------------------------------------- minimum


@variant("below_minimum", "$.messages[0].content")
def nine_hundred_tokens_for_gpt_4o() -> list[Line]:
    system = text("a", 850)
    return two(
        chat(system, FIRST, model="gpt-4o"), chat(system, ["Other?"], model="gpt-4o"), total=900
    )


@variant("below_minimum", "$.instructions")
def less_than_the_first_boundary_of_gpt_5_5() -> list[Line]:
    system = text("a", 1500)
    return two(
        responses(system, FIRST, model="gpt-5.5", prompt_cache_key="k"),
        responses(system, ["Other?"], model="gpt-5.5", prompt_cache_key="k"),
        total=1550,
    )


@variant("below_minimum", "$.system[0]")
def a_short_point_in_bedrock() -> list[Line]:
    model = "us.anthropic.claude-haiku-4-5-20251001-v1:0"
    system = [{"text": text("a", 2500)}, POINT]
    lines = [
        converse(system, FIRST, model=model),
        converse(system, ["Other?"], model=model),
    ]
    return [read(sent(line, 100 + 20 * at), 2520, 0, 0) for at, line in enumerate(lines)]


@variant("below_minimum", "$.systemInstruction")
def three_thousand_tokens_for_gemini_pro() -> list[Line]:
    return two(
        gemini(RULES, FIRST, model="gemini-2.5-pro"),
        gemini(RULES, ["Other?"], model="gemini-2.5-pro"),
    )
