"""The openai package's own types say whether a body has the shape its users expect."""

from openai.types import Completion as OpenAICompletion
from openai.types import Model
from openai.types.chat import ChatCompletion as OpenAIChatCompletion
from openai.types.chat import ChatCompletionChunk as OpenAIChunk

from kvikk.wire.chat_completions import ChatCompletion, ChatCompletionChunk
from kvikk.wire.completions import Completion
from kvikk.wire.models import ModelCard
from kvikk.wire.reading import JsonValue
from kvikk.wire.usage import Usage

USAGE = Usage(prompt_tokens=70, completion_tokens=3, cached_tokens=64)


def test_a_chat_completion_has_the_clients_shape():
    answer = ChatCompletion("id", 1, "m", "Hi", "stop", USAGE)
    parsed = OpenAIChatCompletion.model_validate(answer.to_json(), strict=True)
    assert parsed.choices[0].message.content == "Hi"
    assert parsed.choices[0].finish_reason == "stop"
    assert parsed.usage.total_tokens == 73
    assert parsed.usage.prompt_tokens_details.cached_tokens == 64


def test_chunks_have_the_clients_shape():
    first = ChatCompletionChunk("id", 1, "m", role="assistant").to_json()
    text = ChatCompletionChunk("id", 1, "m", "Hi").to_json()
    last = ChatCompletionChunk("id", 1, "m", finish_reason="length").to_json()
    usage = ChatCompletionChunk("id", 1, "m", usage=USAGE).to_json()
    chunks = [OpenAIChunk.model_validate(c, strict=True) for c in (first, text, last, usage)]
    assert [chunk.choices[0].delta.content for chunk in chunks[:3]] == ["", "Hi", None]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[2].choices[0].finish_reason == "length"
    assert chunks[3].choices == []
    assert chunks[3].usage.prompt_tokens_details.cached_tokens == 64


def test_completions_have_the_clients_shape():
    for text, reason, usage in [("Hi", "stop", USAGE), ("Hi", None, None), (None, None, USAGE)]:
        body = Completion("id", 1, "m", text, reason, usage).to_json()
        parsed = OpenAICompletion.model_construct(**body) if reason is None else None
        parsed = parsed or OpenAICompletion.model_validate(body, strict=True)
        assert len(parsed.choices) == (0 if text is None else 1)
    Model.model_validate(ModelCard("m", 1, 8192).to_json(), strict=True)


def test_usage_read_back_is_the_same_and_silence_about_the_cache_is_zero():
    assert Usage.from_json(JsonValue(USAGE.to_json())) == USAGE
    silent = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    assert Usage.from_json(JsonValue(silent)).cached_tokens == 0
    assert Usage.from_json(JsonValue(silent | {"prompt_tokens_details": None})).cached_tokens == 0
