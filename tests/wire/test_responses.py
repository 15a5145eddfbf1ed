"""The openai package's own types say whether a body has the shape its users expect."""

from openai.types import Completion as OpenAICompletion
from openai.types import Model
from openai.types.chat import ChatCompletion as OpenAIChatCompletion
from openai.types.chat import ChatCompletionChunk as OpenAIChunk

from kvikk.wire.answer_format import Ending
from kvikk.wire.chat_completions import ChatAnswer
from kvikk.wire.completions import CompletionAnswer
from kvikk.wire.deltas import TextDelta, ToolCallDelta, WholeAnswer, join
from kvikk.wire.models import ModelCard
from kvikk.wire.reading import JsonValue
from kvikk.wire.usage import Usage

USAGE = Usage(70, 3, cached_tokens=64, cache_write_tokens=4)


def test_a_chat_completion_has_the_clients_shape():
    answer = ChatAnswer("id", 1, "m", include_usage=True)
    body = answer.whole(WholeAnswer("Hi", None, ()), Ending("stop"), USAGE)
    parsed = OpenAIChatCompletion.model_validate(body, strict=True)
    assert parsed.choices[0].message.content == "Hi"
    assert parsed.choices[0].finish_reason == "stop"
    assert parsed.usage.total_tokens == 73
    assert parsed.usage.prompt_tokens_details.cached_tokens == 64
    assert parsed.usage.prompt_tokens_details.cache_write_tokens == 4


def test_chunks_have_the_clients_shape():
    answer = ChatAnswer("id", 1, "m", include_usage=True)
    events = [*answer.begin(USAGE), *answer.delta(TextDelta("Hi"))]
    events += answer.end(Ending("length"), USAGE)
    chunks = [OpenAIChunk.model_validate(event.data, strict=True) for event in events]
    assert [chunk.choices[0].delta.content for chunk in chunks[:3]] == ["", "Hi", None]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[2].choices[0].finish_reason == "length"
    assert chunks[3].choices == []
    assert chunks[3].usage.prompt_tokens_details.cached_tokens == 64


def test_a_call_of_a_tool_has_the_clients_shape_streamed_and_whole():
    answer = ChatAnswer("id", 1, "m", include_usage=False)
    deltas = [ToolCallDelta(0, "", "call-1", "weather"), ToolCallDelta(0, '{"place": "Oslo"}')]
    events = [event for delta in deltas for event in answer.delta(delta)]
    events += answer.end(Ending("stop"), USAGE)
    chunks = [OpenAIChunk.model_validate(event.data, strict=True) for event in events]
    calls = [chunk.choices[0].delta.tool_calls for chunk in chunks[:2]]
    assert (calls[0][0].id, calls[0][0].function.name) == ("call-1", "weather")
    assert calls[1][0].function.arguments == '{"place": "Oslo"}'
    assert chunks[2].choices[0].finish_reason == "tool_calls"
    body = answer.whole(join(deltas), Ending("stop"), USAGE)
    parsed = OpenAIChatCompletion.model_validate(body, strict=True)
    assert parsed.choices[0].finish_reason == "tool_calls"
    assert parsed.choices[0].message.tool_calls[0].function.arguments == '{"place": "Oslo"}'


def test_completions_have_the_clients_shape():
    answer = CompletionAnswer("id", 1, "m", include_usage=True)
    whole = answer.whole(WholeAnswer("Hi", None, ()), Ending("stop"), USAGE)
    assert OpenAICompletion.model_validate(whole, strict=True).choices[0].text == "Hi"
    piece, end, usage = [
        OpenAICompletion.model_construct(**event.data)
        for event in (*answer.delta(TextDelta("Hi")), *answer.end(Ending("stop"), USAGE))
    ]
    assert [len(piece.choices), len(end.choices), len(usage.choices)] == [1, 1, 0]
    Model.model_validate(ModelCard("m", 1, 8192).to_json(), strict=True)


def test_usage_read_back_is_the_same_and_silence_about_the_cache_is_zero():
    assert Usage.from_json(JsonValue(USAGE.to_json())) == USAGE
    silent = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    assert Usage.from_json(JsonValue(silent)).cached_tokens == 0
    assert Usage.from_json(JsonValue(silent | {"prompt_tokens_details": None})).cached_tokens == 0
