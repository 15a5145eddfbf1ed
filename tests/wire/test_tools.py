"""Tools and their calls, read and written as the API has them."""

import json

import pytest
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageFunctionToolCall

from kvikk.errors import RequestError
from kvikk.wire.deltas import ReasoningDelta, TextDelta, ToolCallDelta, join
from kvikk.wire.reading import parse_json
from kvikk.wire.tools import Tool, ToolCall, ToolChoice, ToolUse

WEATHER: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}


def read(**fields: object) -> ToolUse:
    return ToolUse.from_json(parse_json(json.dumps(fields).encode()))


def test_tools_come_back_as_they_were_sent() -> None:
    sent = {
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
    }
    use = read(**sent)
    assert use.to_json() == sent
    assert use.choice == ToolChoice("required", "weather")
    assert read() == ToolUse()
    assert read(tools=[WEATHER], tool_choice="none").offered == ()


def test_a_call_is_what_the_official_client_makes_of_it() -> None:
    call = ToolCall("call-1", "weather", '{"place": "Bergen"}')
    parsed = ChatCompletionMessageFunctionToolCall.model_validate(call.to_json())
    assert (parsed.id, parsed.function.name) == (call.id, call.name)
    assert ToolCall.from_json(parse_json(parsed.model_dump_json().encode())) == call


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "perhaps"}, "tool_choice"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "function", "function": {"name": "other"}},
            },
            "tool_choice",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_at_its_place(fields: dict, place: str) -> None:
    with pytest.raises(RequestError) as refusal:
        read(**fields)
    assert refusal.value.parameter == place


def test_deltas_join_to_the_whole_answer() -> None:
    whole = join(
        [
            ReasoningDelta("hm"),
            TextDelta("I "),
            TextDelta("look."),
            ToolCallDelta(0, "", "a", "weather"),
            ToolCallDelta(1, "{}", "b", "time"),
            ToolCallDelta(0, '{"place"'),
            ToolCallDelta(0, ': "Oslo"}'),
        ]
    )
    assert (whole.text, whole.reasoning) == ("I look.", "hm")
    assert whole.tool_calls == (
        ToolCall("a", "weather", '{"place": "Oslo"}'),
        ToolCall("b", "time", "{}"),
    )
    assert join([ToolCallDelta(0, "{}", "a", "x")]).text is None
    assert Tool("x").to_json()["function"] == {"name": "x", "description": ""}
