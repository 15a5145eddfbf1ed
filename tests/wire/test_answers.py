"""Answers with thoughts and calls, in the shapes that the vendors' own packages define."""

import json
from typing import Any

import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import RawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from kvikk.wire.answer_format import Ending, Event
from kvikk.wire.deltas import ReasoningDelta, TextDelta, ToolCallDelta, join
from kvikk.wire.errors import ErrorBody
from kvikk.wire.messages.answer import MessagesAnswer
from kvikk.wire.responses.answer import ResponsesAnswer
from kvikk.wire.usage import Usage

USAGE = Usage(
    100,
    9,
    cached_tokens=64,
    cache_write_tokens=32,
    long_write_tokens=8,
    reasoning_tokens=3,
)
DELTAS = (
    ReasoningDelta("Two "),
    ReasoningDelta("places."),
    TextDelta("I "),
    TextDelta("look."),
    ToolCallDelta(0, "", "call-1", "weather"),
    ToolCallDelta(0, '{"place": '),
    ToolCallDelta(0, '"Oslo"}'),
    ToolCallDelta(1, "{}", "call-2", "time"),
)
FAILURE = ErrorBody("the engine failed", "server_error")


def messages_answer() -> MessagesAnswer:
    return MessagesAnswer("msg_1", "m", None)


def responses_answer(kept: list[dict[str, Any]]) -> ResponsesAnswer:
    echo = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return ResponsesAnswer(
        "resp_1", 1, "m", echo=echo, diagnose=lambda usage: None, keep=kept.append
    )


def stream(answer: MessagesAnswer | ResponsesAnswer, ending: Ending) -> list[Event]:
    events = [*answer.begin(USAGE)]
    events += [event for delta in DELTAS for event in answer.delta(delta)]
    return [*events, *answer.end(ending, USAGE)]


def test_a_message_is_whole_what_its_stream_builds_up() -> None:
    adapter = TypeAdapter(RawMessageStreamEvent)
    events = [event.data for event in stream(messages_answer(), Ending("stop"))]
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "ping":
            continue
        adapter.validate_python(event)
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(blocks)
                blocks.append(dict(block))
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                assert index == len(blocks) - 1
                match delta:
                    case {"type": "text_delta", "text": text}:
                        blocks[index]["text"] += text
                    case {"type": "thinking_delta", "thinking": text}:
                        blocks[index]["thinking"] += text
                    case {"type": "input_json_delta", "partial_json": text}:
                        before = blocks[index].get("json", "")
                        blocks[index]["json"] = before + text
    for block in blocks:
        if "json" in block:
            block["input"] = json.loads(block.pop("json"))
    whole = messages_answer().whole(join(DELTAS), Ending("stop"), USAGE)
    AnthropicMessage.model_validate(whole)
    assert blocks == whole["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"] == "tool_use"
    assert events[-2]["usage"] == whole["usage"]
    assert whole["usage"]["input_tokens"] == 100 - 64 - 32
    assert whole["usage"]["cache_creation"] == {
        "ephemeral_5m_input_tokens": 24,
        "ephemeral_1h_input_tokens": 8,
    }


def test_a_response_is_whole_what_its_stream_builds_up() -> None:
    adapter = TypeAdapter(ResponseStreamEvent)
    kept: list[dict[str, Any]] = []
    events = [event.data for event in stream(responses_answer(kept), Ending("stop"))]
    for event in events:
        adapter.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]
    assert last["type"] == "response.completed"
    whole = responses_answer(kept).whole(join(DELTAS), Ending("stop"), USAGE)
    Response.model_validate(whole)
    assert last["response"] == whole == kept[0] == kept[1]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == whole["output"]
    assert [item["type"] for item in done] == ["reasoning", "message", *["function_call"] * 2]
    joined: dict[str, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            joined[event["item_id"]] = joined.get(event["item_id"], "") + event["delta"]
    reasoning, message, *calls = done
    assert joined[reasoning["id"]] == reasoning["content"][0]["text"] == "Two places."
    assert joined[message["id"]] == message["content"][0]["text"] == "I look."
    assert [joined[call["id"]] for call in calls] == [call["arguments"] for call in calls]
    assert whole["usage"]["input_tokens_details"]["cache_write_tokens_details"] == {
        "ttl_30m_tokens": 24,
        "ttl_12h_tokens": 8,
    }


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_an_answer_says_why_it_ends(reason: str) -> None:
    ending = Ending(reason, "END" if reason == "stop" else None)
    text = join([TextDelta("Hi")])
    message = messages_answer().whole(text, ending, USAGE)
    response = responses_answer([]).whole(text, ending, USAGE)
    if reason == "stop":
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")
        assert (response["status"], response["incomplete_details"]) == ("completed", None)
    else:
        assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)
        assert response["status"] == response["output"][0]["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_stream_that_fails_says_so_in_its_own_words() -> None:
    (event,) = messages_answer().failure(FAILURE)
    assert event.name == event.data["type"] == "error"
    assert event.data["error"] == {"type": "api_error", "message": "the engine failed"}
    kept: list[dict[str, Any]] = []
    answer = responses_answer(kept)
    begun = [*answer.begin(USAGE), *answer.delta(TextDelta("Hi"))]
    (event,) = answer.failure(FAILURE)
    TypeAdapter(ResponseStreamEvent).validate_python(event.data)
    assert event.name == event.data["type"] == "response.failed"
    assert event.data["sequence_number"] == len(begun)
    assert event.data["response"]["error"]["message"] == "the engine failed"
    assert kept == []  # nobody goes on from it


def test_an_answer_of_nothing_is_an_answer() -> None:
    nothing = join([])
    message = messages_answer().whole(nothing, Ending("stop"), USAGE)
    assert (message["content"], message["stop_reason"]) == ([], "end_turn")
    assert AnthropicMessage.model_validate(message).content == []
    response = responses_answer([]).whole(nothing, Ending("stop"), USAGE)
    assert Response.model_validate(response).output_text == ""
