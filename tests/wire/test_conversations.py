"""Every format's spelling of one conversation is read as the same conversation."""

import json
from typing import Any

from kvikk.wire.chat_completions import ChatCompletionRequest
from kvikk.wire.conversation import Message, texts
from kvikk.wire.messages.request import MessagesRequest
from kvikk.wire.reading import parse_json
from kvikk.wire.responses.request import ResponsesRequest
from kvikk.wire.tools import Tool, ToolCall, ToolChoice, ToolUse

PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}}
CALLS = (
    ToolCall("call-1", "weather", '{"place": "Oslo"}'),
    ToolCall("call-2", "weather", '{"place": "Bergen"}'),
)
CONVERSATION = (
    Message("system", texts("Be brief.")),
    Message("user", texts("Where does it rain?", "Look it up.")),
    Message("assistant", texts("I look."), reasoning="Two places.", tool_calls=CALLS),
    Message("tool", texts("Sun"), tool_call_id="call-1"),
    Message("tool", texts("Rain"), tool_call_id="call-2"),
    Message("assistant", texts("In Bergen.")),
    Message("user", texts("Thanks.")),
)
TOOLS = ToolUse(
    (Tool("weather", "The weather of a place", PARAMETERS),),
    ToolChoice("required", "weather"),
    parallel=False,
)

CHAT = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Where does it rain?"},
                {
                    "type": "text",
                    "text": "Look it up.",
                    "prompt_cache_breakpoint": {"mode": "explicit"},
                },
            ],
        },
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Two places.",
            "tool_calls": [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in CALLS
            ],
        },
        {"role": "tool", "tool_call_id": "call-1", "content": "Sun"},
        {"role": "tool", "tool_call_id": "call-2", "content": "Rain"},
        {"role": "assistant", "content": "In Bergen."},
        {"role": "user", "content": "Thanks."},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "The weather of a place",
                "parameters": PARAMETERS,
            },
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "parallel_tool_calls": False,
}
RESPONSES = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Where does it rain?"},
                {"type": "input_text", "text": "Look it up."},
            ],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Two places."}],
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        *(
            {
                "type": "function_call",
                "id": f"fc_{call.id}",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
            }
            for call in CALLS
        ),
        {"type": "function_call_output", "call_id": "call-1", "output": "Sun"},
        {
            "type": "function_call_output",
            "call_id": "call-2",
            "output": [{"type": "input_text", "text": "Rain"}],
        },
        {"role": "assistant", "content": "In Bergen."},
        {"role": "user", "content": "Thanks."},
    ],
    "tools": [
        {
            "type": "function",
            "name": "weather",
            "description": "The weather of a place",
            "parameters": PARAMETERS,
        }
    ],
    "tool_choice": {"type": "function", "name": "weather"},
    "parallel_tool_calls": False,
}
MESSAGES = {
    "model": "m",
    "max_tokens": 1,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "Where does it rain?"},
        {"role": "user", "content": [{"type": "text", "text": "Look it up."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Two places.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                *(
                    {
                        "type": "tool_use",
                        "id": call.id,
                        "name": call.name,
                        "input": json.loads(call.arguments),
                    }
                    for call in CALLS
                ),
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call-1", "content": "Sun"},
                {
                    "type": "tool_result",
                    "tool_use_id": "call-2",
                    "content": [{"type": "text", "text": "Rain"}],
                },
            ],
        },
        {"role": "assistant", "content": "In Bergen."},
        {"role": "user", "content": "Thanks."},
    ],
    "tools": [
        {
            "name": "weather",
            "description": "The weather of a place",
            "input_schema": PARAMETERS,
            "cache_control": {"type": "ephemeral", "ttl": "1h"},
        }
    ],
    "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
}


def read(reader: Any, body: dict) -> Any:
    return reader.from_json(parse_json(json.dumps(body).encode()))


def test_one_conversation_in_three_spellings_is_one() -> None:
    chat = read(ChatCompletionRequest, CHAT)
    responses = read(ResponsesRequest, RESPONSES).prompt
    messages = read(MessagesRequest, MESSAGES).prompt
    assert chat.messages == responses.messages == messages.messages == CONVERSATION
    assert chat.tools == responses.tools == messages.tools == TOOLS


def test_each_text_knows_its_place_in_its_body() -> None:
    def places(messages: tuple[Message, ...]) -> list[str]:
        return [piece.path for message in messages for piece in message.texts][:4]

    assert places(read(ChatCompletionRequest, CHAT).messages) == [
        "messages[0].content",
        "messages[1].content[0].text",
        "messages[1].content[1].text",
        "messages[2].content",
    ]
    assert places(read(ResponsesRequest, RESPONSES).prompt.messages) == [
        "instructions",
        "input[0].content[0].text",
        "input[0].content[1].text",
        "input[2].content[0].text",
    ]
    assert places(read(MessagesRequest, MESSAGES).prompt.messages) == [
        "system[0].text",
        "messages[0].content",
        "messages[1].content[0].text",
        "messages[2].content[2].text",
    ]


def test_a_call_whose_arguments_are_no_json_reaches_the_template_as_it_is() -> None:
    message = Message("assistant", tool_calls=(ToolCall("1", "f", "{oops"),))
    assert message.for_template()["tool_calls"][0]["function"]["arguments"] == "{oops"
    message = Message("assistant", tool_calls=(ToolCall("1", "f", '{"a": 1}'),))
    assert message.for_template()["tool_calls"][0]["function"]["arguments"] == {"a": 1}
