"""Which fields of a body a provider's cache compares, under one name in all APIs."""

import pytest

from kvikk.wire.key_parameters import key_parameters
from kvikk.wire.segments_any import segments

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("api", "fields", "found"),
    [
        ("chat_completions", {"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ("responses", {"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ("messages", {"output_config": {"effort": "low"}}, {"effort": "low"}),
        ("chat_completions", {"verbosity": "high"}, {"verbosity": "high"}),
        ("responses", {"text": {"verbosity": "high"}}, {"verbosity": "high"}),
        ("messages", {"thinking": {"type": "disabled"}}, {"thinking": '{"type":"disabled"}'}),
        ("chat_completions", {"parallel_tool_calls": False}, {"parallel_tool_calls": "false"}),
        ("messages", {"tools": [{"type": "web_search_20250305"}]}, {"web_search": "true"}),
        ("chat_completions", {"temperature": 0.5, "stream": True, "seed": 3, "user": "u"}, {}),
    ],
)
def test_a_field_has_its_name_wherever_an_api_has_it(api, fields, found):
    body = {"model": "m", "messages": MESSAGES, "input": "hello", **fields}
    assert key_parameters(body, segments(api, body)) == found


def test_a_schema_is_compared_as_sent_keys_in_their_order():
    one = {"response_format": {"type": "json_schema", "json_schema": {"a": 1, "b": 2}}}
    other = {"response_format": {"type": "json_schema", "json_schema": {"b": 2, "a": 1}}}
    named = [key_parameters(body, []) for body in (one, other)]
    assert named[0]["text_format"] != named[1]["text_format"]


def test_a_picture_anywhere_counts_as_pictures():
    part = {"type": "image", "source": {"type": "base64", "data": "x"}}
    body = {"messages": [{"role": "user", "content": [part]}]}
    assert key_parameters(body, segments("messages", body)) == {"images": "true"}
