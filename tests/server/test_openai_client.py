"""What the official client sees, streaming and not."""

import json

import openai
import pytest

MESSAGES = [{"role": "user", "content": "Write one sentence about the sea, with an emoji."}]


def stream_chat(client, **fields):
    stream = client.chat.completions.create(
        model="smollm2", stream=True, stream_options={"include_usage": True}, **fields
    )
    chunks = list(stream)
    choices = [chunk.choices[0] for chunk in chunks[:-1]]
    assert all(chunk.id == chunks[0].id for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert choices[0].delta.role == "assistant"
    assert [choice.finish_reason for choice in choices[:-1]] == [None] * (len(choices) - 1)
    text = "".join(choice.delta.content or "" for choice in choices)
    return text, choices[-1].finish_reason, chunks[-1].usage


def test_a_chat_streamed_and_whole_is_the_same_answer_and_the_same_usage(idle_server):
    client = idle_server.client()
    fields = {"messages": MESSAGES, "max_tokens": 40, "temperature": 0}
    whole = client.chat.completions.create(model="smollm2", **fields)
    assert whole.id.startswith("chatcmpl-")
    assert whole._request_id == whole.id
    assert whole.choices[0].message.role == "assistant"
    assert whole.usage.prompt_tokens_details.cached_tokens == 0
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    # Once more, so that both have the same to reuse.
    again = client.chat.completions.create(model="smollm2", **fields)
    text, reason, usage = stream_chat(client, **fields)
    assert text == whole.choices[0].message.content == again.choices[0].message.content
    assert reason == whole.choices[0].finish_reason
    assert usage == again.usage
    expected = (whole.usage.prompt_tokens - 1) // 32 * 32
    assert usage.prompt_tokens_details.cached_tokens == expected > 0


def test_a_completion_streamed_and_whole_is_the_same(idle_server):
    client = idle_server.client()
    fields = {"model": "smollm2", "prompt": "The sea is", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**fields)
    assert whole.id.startswith("cmpl-")
    assert whole.usage.completion_tokens == 12
    assert whole.choices[0].finish_reason == "length"
    chunks = list(
        client.completions.create(stream=True, stream_options={"include_usage": True}, **fields)
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage  # 3 tokens: nothing to reuse in either
    without_usage = list(client.completions.create(stream=True, **fields))
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in without_usage)


def test_a_prompt_as_token_ids_is_the_same_prompt(idle_server, smollm2_tokenizer):
    client = idle_server.client()
    prompt = "Once upon a time"
    answers = [
        client.completions.create(model="smollm2", prompt=form, max_tokens=8, temperature=0)
        for form in (
            prompt,
            smollm2_tokenizer.encode(prompt),
            [prompt],
            [smollm2_tokenizer.encode(prompt)],
        )
    ]
    assert len({answer.choices[0].text for answer in answers}) == 1
    assert {answer.usage.prompt_tokens for answer in answers} == {
        len(smollm2_tokenizer.encode(prompt))
    }


def test_a_seed_repeats_an_answer_and_another_seed_gives_another(idle_server):
    client = idle_server.client()

    def sample(seed):
        answer = client.chat.completions.create(
            model="smollm2", messages=MESSAGES, max_tokens=24, temperature=1.5, seed=seed
        )
        return answer.choices[0].message.content

    assert sample(7) == sample(7) != sample(8)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_before_its_stop_string(stream, idle_server):
    client = idle_server.client()
    fields = {"model": "smollm2", "prompt": "1, 2, 3, 4,", "max_tokens": 60, "temperature": 0}
    unstopped = client.completions.create(**fields).choices[0].text
    stop = unstopped[9:12]  # across tokens, somewhere inside
    expected = unstopped[: unstopped.index(stop)]
    answer = client.completions.create(stop=["never seen", stop], stream=stream, **fields)
    chunks = list(answer) if stream else [answer]
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_whole_block_of_salt_keeps_caches_apart(idle_server):
    client = idle_server.client()

    def cached_tokens(salt):
        body = {"cache_salt": salt} if salt else {}
        answer = client.completions.create(
            model="smollm2", prompt="word " * 80, max_tokens=1, extra_body=body
        )
        return answer.usage.prompt_tokens_details.cached_tokens

    assert [cached_tokens(salt) for salt in (None, "a", "b", "a", None)] == [0, 0, 0, 64, 64]


def test_salts_that_only_json_can_hold_are_kept_apart_too(idle_server):
    def cached_tokens(salt):
        body = {"model": "smollm2", "prompt": "word " * 80, "max_tokens": 1, "cache_salt": salt}
        response = idle_server.post(
            "/v1/completions",
            content=json.dumps(body),
            headers={"content-type": "application/json"},
        )
        return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached_tokens(salt) for salt in ("?", "\ufffd", "\ud800", "\ud801")] == [0] * 4
    assert cached_tokens("\ud801") == 64


def test_a_developer_is_what_templates_call_the_system(idle_server):
    client = idle_server.client()

    def answer(role):
        messages = [{"role": role, "content": "Answer in French."}, *MESSAGES]
        return client.chat.completions.create(
            model="smollm2", messages=messages, max_tokens=8, temperature=0
        )

    developer, system, user = answer("developer"), answer("system"), answer("user")
    assert developer.choices[0].message == system.choices[0].message
    assert developer.usage.prompt_tokens == system.usage.prompt_tokens != user.usage.prompt_tokens


def test_models_are_listed_and_found(server):
    client = server.client()
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").owned_by == "kvikk"
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-5' here; this server has 'smoll"):
        client.models.retrieve("gpt-5")


def test_errors_are_the_clients_own_exceptions(server):
    chat = server.client().chat.completions
    with pytest.raises(openai.NotFoundError) as unknown:
        chat.create(model="gpt-5", messages=MESSAGES)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as too_long:
        chat.create(model="smollm2", messages=[{"role": "user", "content": "word " * 3000}])
    assert too_long.value.code == "context_length_exceeded"
    assert too_long.value.param == "messages"
    assert "limit is 2048" in str(too_long.value)
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\]\.content") as misplaced:
        chat.create(model="smollm2", messages=[{"role": "user", "content": 1}], stream=True)
    assert misplaced.value.param == "messages[0].content"
    with pytest.raises(openai.BadRequestError, match="audio: is not supported"):
        chat.create(model="smollm2", messages=MESSAGES, extra_body={"audio": {"voice": "x"}})
