"""Streams in which an event brings several tokens: guesses come true where a prompt repeats."""

import pytest

CODE = (
    "def area(width, height):\n    return width * height\n\n"
    "def volume(width, height, depth):\n    return width * height * depth\n\n"
)
BODY = {"model": "smollm2", "prompt": CODE * 3, "temperature": 0}


def whole(client, **fields):
    answer = client.completions.create(**BODY | fields)
    return answer.choices[0].text, answer.choices[0].finish_reason, answer.usage


def streamed(client, **fields):
    """Text, reason, usage, and how many events had text."""
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.completions.create(**BODY | stream | fields))
    choices = [chunk.choices[0] for chunk in chunks[:-1]]
    assert [choice.finish_reason for choice in choices[:-1]] == [None] * (len(choices) - 1)
    texts = [choice.text for choice in choices if choice.text]
    return "".join(texts), choices[-1].finish_reason, chunks[-1].usage, len(texts)


@pytest.fixture
def client(idle_server):
    client = idle_server.client()
    client.completions.create(**BODY, max_tokens=1)  # all others have the same to reuse
    return client


def test_a_stream_with_several_tokens_an_event_is_the_whole_answer(client, idle_server):
    accepted = idle_server.metric("vllm:spec_decode_num_accepted_tokens_total")
    text, reason, usage = whole(client, max_tokens=60)
    assert idle_server.metric("vllm:spec_decode_num_accepted_tokens_total") > accepted
    *got, num_events = streamed(client, max_tokens=60)
    assert got == [text, reason, usage]
    assert usage.completion_tokens == 60
    assert num_events < 45


def test_any_limit_is_kept_to_the_token(client):
    longest, _, _ = whole(client, max_tokens=24)
    for max_tokens in range(1, 24):
        text, reason, usage, _ = streamed(client, max_tokens=max_tokens)
        assert (reason, usage.completion_tokens) == ("length", max_tokens)
        assert longest.startswith(text)


@pytest.mark.parametrize("start", range(0, 60, 7))
def test_a_stop_string_cuts_an_event_where_it_stands(client, start):
    longest, _, _ = whole(client, max_tokens=40)
    stop = longest[start : start + 5]
    text, reason, usage = whole(client, max_tokens=40, stop=stop)
    assert (text, reason) == (longest[: longest.index(stop)], "stop")
    *got, _ = streamed(client, max_tokens=40, stop=stop)
    assert got == [text, reason, usage]


def test_a_drawn_stream_is_the_whole_drawn_answer(client):
    fields = {"max_tokens": 60, "temperature": 0.8, "seed": 11}
    *got, _ = streamed(client, **fields)
    assert got == list(whole(client, **fields))
