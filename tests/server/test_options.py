"""Options of an answer, asked for by the official client as its users do."""

import json
import math

import jsonschema
import openai
import pytest

MESSAGES = [{"role": "user", "content": "Name an animal."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "maxLength": 12}},
            "required": ["place"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now", "description": "The time"}}


@pytest.fixture(scope="module")
def client(server):
    return server.client()


def chat(client, **fields):
    fields = {"messages": MESSAGES, "max_tokens": 8, "temperature": 0} | fields
    return client.chat.completions.create(model="smollm2", **fields)


def complete(client, prompt, **fields):
    fields = {"max_tokens": 6, "temperature": 0} | fields
    return client.completions.create(model="smollm2", prompt=prompt, **fields)


def test_several_answers_are_each_its_own_and_the_prompt_is_counted_once(client):
    many = chat(client, n=3, temperature=1, seed=7)
    assert [choice.index for choice in many.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in many.choices]
    assert len(set(texts)) == 3
    one = chat(client, temperature=1, seed=7)
    assert one.choices[0].message.content == texts[0]
    assert many.usage.prompt_tokens == one.usage.prompt_tokens
    assert many.usage.completion_tokens == 24
    streamed = ["", "", ""]
    stream = chat(
        client, n=3, temperature=1, seed=7, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts
    assert chunk.usage.completion_tokens == 24


def test_the_best_of_several_is_the_likeliest(client):
    made = complete(client, "The sea is", n=4, temperature=1, seed=3, logprobs=0)
    best = complete(client, "The sea is", best_of=4, temperature=1, seed=3)
    means = [sum(one.logprobs.token_logprobs) / 6 for one in made.choices]
    assert [one.text for one in best.choices] == [made.choices[means.index(max(means))].text]
    assert best.usage.completion_tokens == 24


def test_logprobs_have_the_clients_shape_whole_and_streamed(client):
    (choice,) = chat(client, logprobs=True, top_logprobs=2).choices
    told = choice.logprobs.content
    assert "".join(token.token for token in told) == choice.message.content
    for token in told:
        assert token.bytes == list(token.token.encode())
        assert token.top_logprobs[0].logprob == token.logprob  # greedy
        assert len(token.top_logprobs) == 2
        assert token.logprob <= 0
    streamed = [
        token
        for chunk in chat(client, logprobs=True, top_logprobs=2, stream=True)
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    assert streamed == told


def test_an_echo_with_logprobs_tells_of_the_prompt_and_agrees_with_the_answer(client):
    answer = complete(client, "One, two, three, four,", logprobs=1).choices[0]
    whole = complete(
        client, "One, two, three, four," + answer.text, echo=True, logprobs=1, max_tokens=1
    ).choices[0]
    assert whole.text.startswith("One, two, three, four," + answer.text)
    told = whole.logprobs
    assert "".join(told.tokens) == whole.text
    assert told.token_logprobs[0] is told.top_logprobs[0] is None
    assert told.text_offset == [
        len("".join(told.tokens[:place])) for place in range(len(told.tokens))
    ]
    # The same bits, whether a token was chosen or given.
    assert told.token_logprobs[-7:-1] == answer.logprobs.token_logprobs
    by_ids = complete(
        client, "One", echo=True, logprobs=1, extra_body={"prompt_logprobs": 1}, n=2, max_tokens=1
    )
    for choice in by_ids.choices:
        assert choice.text.startswith("One")
        assert choice.logprobs.token_logprobs[0] is None
        assert choice.prompt_logprobs[0] is None


def test_a_bias_forbids_and_forces(client):
    plain = complete(client, "One, two,", logprobs=0, max_tokens=1).choices[0]
    (first,) = plain.logprobs.tokens
    forced = complete(client, "One, two,", max_tokens=3, logit_bias={"260": 100})
    assert len(set(forced.choices[0].text.split())) == 1
    assert not forced.choices[0].text.startswith(first)


def test_penalties_keep_a_model_from_repeating_itself(client):
    prompt = "ha ha ha ha ha ha ha"
    tokens = complete(client, prompt, max_tokens=12, logprobs=0).choices[0].logprobs.tokens
    assert len(set(tokens)) < 4
    penalised = complete(
        client, prompt, max_tokens=12, logprobs=0, frequency_penalty=2, presence_penalty=2
    )
    assert len(set(penalised.choices[0].logprobs.tokens)) > len(set(tokens))


def test_an_answer_keeps_to_a_schema_a_regex_and_a_choice(client):
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 10},
            "legs": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "legs"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "animal", "schema": schema}}
    answer = chat(client, response_format=wanted, max_tokens=60)
    jsonschema.validate(json.loads(answer.choices[0].message.content), schema)
    assert answer.choices[0].finish_reason == "stop"
    streamed = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in chat(client, response_format=wanted, max_tokens=60, stream=True)
    )
    assert streamed == answer.choices[0].message.content
    regex = chat(client, extra_body={"guided_regex": "[A-Z]{3}-[0-9]{2}"})
    assert len(regex.choices[0].message.content) == 6
    choices = {"structured_outputs": {"choice": ["a raven", "an owl"]}}
    chosen = chat(client, extra_body=choices, n=2, temperature=2, seed=1)
    assert {one.message.content for one in chosen.choices} <= {"a raven", "an owl"}


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
         "response_format.json_schema.schema"),
        ({"guided_regex": "["}, "guided_regex"),
        ({"guided_grammar": "start: x"}, "guided_grammar"),
        ({"structured_outputs": {"choice": ["a"]}, "min_tokens": 2}, "min_tokens"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"n": 100}, "n"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_to_is_refused_at_its_place(client, fields, parameter):
    with pytest.raises(openai.BadRequestError) as refusal:
        chat(client, extra_body=fields)
    assert refusal.value.param == parameter
    assert "\n" not in refusal.value.body["message"]


def test_a_tool_that_must_be_called_is_called_as_its_schema_says(client):
    forced = {"tools": [WEATHER, NOW], "tool_choice": "required", "max_tokens": 60}
    answer = chat(client, **forced)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    for call in choice.message.tool_calls:
        assert call.function.name in ("weather", "now")
        if call.function.name == "weather":
            schema = WEATHER["function"]["parameters"]
            jsonschema.validate(json.loads(call.function.arguments), schema)
    named = {"type": "function", "function": {"name": "now"}}
    (only,) = chat(client, **forced | {"tool_choice": named}).choices[0].message.tool_calls
    assert only.function.name == "now"


def test_the_clients_own_helper_reads_streamed_calls_and_results_go_back(client):
    with client.chat.completions.stream(
        model="smollm2",
        messages=MESSAGES,
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=60,
        temperature=0,
    ) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_completion().choices[0]
    assert kinds.count("tool_calls.function.arguments.delta") > 2
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls
    assert "place" in json.loads(call.function.arguments)
    turn = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump(exclude_none=True)]},
        {"role": "tool", "tool_call_id": call.id, "content": "It rains."},
    ]
    reply = chat(client, messages=turn, tools=[WEATHER], tool_choice="none", max_tokens=4)
    assert reply.choices[0].message.content
    assert reply.choices[0].message.tool_calls is None


def test_logprobs_are_probabilities(client):
    (choice,) = complete(client, "One, two,", logprobs=20, max_tokens=1).choices
    total = sum(math.exp(value) for value in choice.logprobs.top_logprobs[0].values())
    assert 0.3 < total <= 1.000001
