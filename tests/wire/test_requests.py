import json
from dataclasses import replace

import pytest

from kvikk.errors import RequestError
from kvikk.wire.chat_completions import ChatCompletionRequest
from kvikk.wire.choices import ChoiceFields
from kvikk.wire.completions import CompletionRequest
from kvikk.wire.conversation import Message, texts
from kvikk.wire.generation import GenerationFields
from kvikk.wire.grammars import GrammarSpec
from kvikk.wire.reading import JsonValue, parse_json

HELLO = [{"role": "user", "content": "Hello"}]


def read_chat(**fields):
    body = {"model": "m", "messages": HELLO} | fields
    return ChatCompletionRequest.from_json(parse_json(json.dumps(body).encode()))


def read_completion(**fields):
    body = {"model": "m", "prompt": "Hello"} | fields
    return CompletionRequest.from_json(parse_json(json.dumps(body).encode()))


def test_what_is_left_out_has_the_apis_defaults():
    request = read_chat()
    assert request.messages == (Message("user", texts("Hello")),)
    assert request.generation == GenerationFields("m")
    assert request.generation.temperature == 1.0
    assert read_completion().generation.max_tokens == 16


def test_null_is_as_good_as_absent():
    names = ["temperature", "top_p", "top_k", "seed", "stop", "stream", "stream_options", "user"]
    names += ["max_tokens", "max_completion_tokens", "n", "tools", "logit_bias", "cache_salt"]
    assert read_chat(**dict.fromkeys(names)) == read_chat()


def test_what_real_clients_send_is_understood():
    request = read_chat(
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "Be"}]},
            {"role": "user", "name": "Ada", "content": [{"type": "text", "text": t} for t in "ab"]},
            {"role": "assistant", "content": None, "refusal": None, "tool_calls": []},
            {"role": "user", "content": ""},
        ],
        max_completion_tokens=5,
        max_tokens=9,
        stop="END",
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        user="u",
        n=1,
        tools=[],
        tool_choice="auto",
        response_format={"type": "text"},
        logprobs=False,
        presence_penalty=0.0,
        parallel_tool_calls=True,
        metadata={"a": "b"},
        some_new_field=[1, 2, 3],
        top_k=-1,
    )
    assert request.messages == (
        Message("system", texts("Be")),
        Message("user", texts("a", "b"), "Ada"),
        Message("assistant"),
        Message("user", texts("")),
    )
    generation = request.generation
    assert (generation.max_tokens, generation.stop, generation.top_k) == (5, ("END",), 0)
    assert generation.stream
    assert generation.include_usage


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", "a"), ([1, 2], (1, 2)), (["a"], "a"), ([[1, 2]], (1, 2)), ("", ""), ([], ())],
)
def test_a_prompt_is_text_or_token_ids_or_a_list_of_one(prompt, expected):
    assert read_completion(prompt=prompt).prompt == expected


@pytest.mark.parametrize(
    ("fields", "parameter", "message"),
    [
        ({"model": None}, "model", "is missing; expected a string"),
        ({"model": 1}, "model", "expected a string, not 1"),
        ({"messages": None}, "messages", "is missing; expected a list"),
        ({"messages": []}, "messages", "at least one message"),
        ({"messages": "Hello"}, "messages", "expected a list, not a string"),
        ({"messages": [1]}, "messages[0]", "expected an object, not 1"),
        ({"messages": [*HELLO, {}]}, "messages[1].role", "is missing"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0].role", "one of system"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "text parts"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "text parts, not"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "only text parts",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
            "messages[0].content[0].text",
            "expected a string",
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}]},
            "messages[0].tool_calls[0].function",
            "expected an object",
        ),
        ({"temperature": -0.1}, "temperature", "from 0 to 2"),
        ({"temperature": 2.1}, "temperature", "from 0 to 2"),
        ({"temperature": "hot"}, "temperature", "expected a number, not a string"),
        ({"temperature": True}, "temperature", "expected a number, not true"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"top_p": 1.01}, "top_p", "from 0 to 1"),
        ({"top_k": -2}, "top_k", "at least -1"),
        ({"top_k": 1.5}, "top_k", "whole number"),
        ({"seed": 2**63}, "seed", "at most"),
        ({"seed": "x"}, "seed", "whole number"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_completion_tokens": -1}, "max_completion_tokens", "at least 1"),
        ({"max_tokens": 10**30}, "max_tokens", "at most"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "at most 4 stop strings, not 5"),
        ({"stop": ["a", ""]}, "stop[1]", "1 to 1024 characters"),
        ({"stop": [1]}, "stop[0]", "expected a string"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "at least 0"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "only for streams"),
        ({"stream": True, "stream_options": []}, "stream_options", "expected an object"),
        ({"ignore_eos": 1}, "ignore_eos", "true or false"),
        ({"cache_salt": 1}, "cache_salt", "expected a string"),
        ({"n": 0}, "n", "must be at least 1"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "expected an object"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"prompt_cache_key": 5}, "prompt_cache_key", "expected a string"),
        ({"prompt_cache_key": "k" * 1025}, "prompt_cache_key", "at most 1024 characters"),
        ({"prompt_cache_retention": "1h"}, "prompt_cache_retention", "one of in_memory, 24h"),
        ({"prompt_cache_options": {"mode": "x"}}, "prompt_cache_options.mode", "one of implicit"),
        ({"prompt_cache_options": {"ttl": "1s"}}, "prompt_cache_options.ttl", "one of 30m, 12h"),
        ({"logprobs": 3}, "logprobs", "expected true or false"),
        ({"top_logprobs": 3}, "top_logprobs", "set logprobs to true"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "'x' is no token id"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "from -100 to 100"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "text, json_object or"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "expected an object",
        ),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "strings to choose"),
        ({"structured_outputs": {"rejex": "a"}}, "structured_outputs.rejex", "expected json or"),
        ({"kvikk": {"legder": True}}, "kvikk.legder", "expected ledger"),
        ({"guided_regex": 5}, "guided_regex", "expected a string"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "guided_regex is one"),
        ({"frequency_penalty": 2.5}, "frequency_penalty", "from -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "from 0.001 to 1000"),
        ({"repetition_penalty": 1e-320}, "repetition_penalty", "from 0.001 to 1000"),
        ({"min_p": 1.1}, "min_p", "from 0 to 1"),
        ({"min_tokens": "x"}, "min_tokens", "whole number"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "leave stream out"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name_and_not_ignored(fields, parameter, message):
    with pytest.raises(RequestError, match=message) as caught:
        read_chat(**fields)
    assert caught.value.parameter == parameter
    assert str(caught.value).startswith(f"{parameter}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "parameter", "message"),
    [
        ({"prompt": None}, "prompt", "is missing"),
        ({"prompt": 5}, "prompt", "expected a list, not 5"),
        ({"prompt": ["a", "b"]}, "prompt", "one prompt a request, not 2"),
        ({"prompt": [1, "a"]}, "prompt[1]", "whole number"),
        ({"prompt": [1, -1]}, "prompt[1]", "at least 0"),
        ({"prompt": [1.5]}, "prompt[0]", "whole number"),
        ({"prompt": [[1], [2]]}, "prompt", "one prompt a request"),
        ({"prompt": [["a"]]}, "prompt[0][0]", "whole number, not a string"),
        ({"prompt": [[[1]]]}, "prompt[0][0]", "whole number, not a list"),
        ({"echo": 1}, "echo", "expected true or false"),
        ({"suffix": "x"}, "suffix", "no such mode"),
        ({"best_of": 2, "stream": True}, "best_of", "known at the end only"),
        ({"logprobs": 21}, "logprobs", "at most 20"),
    ],
)
def test_completions_refuse_what_they_cannot_do(fields, parameter, message):
    with pytest.raises(RequestError, match=message) as caught:
        read_completion(**fields)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"1"])
def test_a_body_is_an_object(body):
    for kind in (ChatCompletionRequest, CompletionRequest):
        with pytest.raises(RequestError, match=r"the body: .*expected an object"):
            kind.from_json(parse_json(body))


def test_a_request_written_and_read_again_is_the_same():
    generation = GenerationFields(
        "m", 7, 0.5, 0.9, 40, 3, ("a", "b"), (1,), True, "salt", stream=True, include_usage=True
    )
    options = replace(
        generation,
        min_tokens=2,
        min_p=0.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.2,
        logit_bias=((5, 1.0), (7, -100.0)),
        choices=ChoiceFields(3, logprobs=2),
        priority=-1,
    )
    grammars = [
        GrammarSpec("json_schema", '{"type": "object"}', "structured_outputs.json"),
        GrammarSpec("choice", '["a", "b"]', "structured_outputs.choice"),
        GrammarSpec("regex", "a+", "structured_outputs.regex"),
    ]
    messages = (Message("system", texts("s"), "n"), Message("assistant"))
    for request in (
        ChatCompletionRequest(generation, messages),
        ChatCompletionRequest(options, messages),
        CompletionRequest(generation, "text"),
        CompletionRequest(options, (1, 2, 3)),
        *(CompletionRequest(replace(options, grammar=grammar), "x") for grammar in grammars),
    ):
        body = json.loads(json.dumps(request.to_json()))
        assert type(request).from_json(JsonValue(body)) == request
