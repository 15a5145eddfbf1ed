"""A body's pieces: in rendering order, as sent, with markers beside them; nothing refused."""

from typing import Any

import pytest

from kvikk.wire.segments import Marker
from kvikk.wire.segments_any import APIS, guess_api, segments

_MESSAGES: dict[str, Any] = {
    "model": "claude-opus-5",
    "messages": [
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "a", "input": {}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]},
    ],
    "system": [
        {"type": "text", "text": "Rules", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    ],
    "tools": [{"name": "a", "input_schema": {"z": 1, "b": 2}}],
}


_PLAIN_CLAUDE: dict[str, Any] = {
    "model": "vendor/claude-opus-5",
    "messages": [{"role": "user", "content": "x"}],
}


def test_tools_come_first_then_instructions_then_messages() -> None:
    found = segments("messages", _MESSAGES)
    assert [piece.path for piece in found] == [
        "$.tools[0]",
        "$.system[0].text",
        "$.messages[0].content",
        "$.messages[1].content[0]",
        "$.messages[2].content[0]",
    ]
    assert [piece.section for piece in found[:3]] == ["tools", "system", "messages"]
    assert [piece.kind for piece in found[3:]] == ["tool_use", "tool_result"]
    assert all(piece.ends_message for piece in found[1:])


def test_keys_stay_in_the_order_of_the_body() -> None:
    assert segments("messages", _MESSAGES)[0].text == '{"name":"a","input_schema":{"z":1,"b":2}}'


def test_a_marker_is_beside_the_text_and_not_in_it() -> None:
    marked, tools = segments("messages", _MESSAGES)[1], segments("messages", _MESSAGES)[0]
    assert (marked.text, marked.marker) == ("Rules", Marker("$.system[0].cache_control", "1h"))
    assert tools.marker is None


def test_a_cache_point_marks_the_block_in_front_of_it() -> None:
    body = {"system": [{"text": "Rules"}, {"cachePoint": {"type": "default"}}, {"text": "More"}]}
    found = segments("converse", {**body, "messages": []})
    assert [(piece.path, piece.marker) for piece in found] == [
        ("$.system[0].text", Marker("$.system[1].cachePoint")),
        ("$.system[2].text", None),
    ]


def test_a_marker_of_the_whole_request_is_on_its_last_piece() -> None:
    found = segments("messages", {**_MESSAGES, "cache_control": {"type": "ephemeral"}})
    assert found[-1].marker == Marker("$.cache_control")


def test_a_string_is_one_text() -> None:
    one = segments("chat_completions", {"messages": [{"role": "user", "content": "x"}]})
    parts = [{"type": "text", "text": "x"}]
    other = segments("chat_completions", {"messages": [{"role": "user", "content": parts}]})
    assert [(p.kind, p.role, p.text) for p in one] == [(p.kind, p.role, p.text) for p in other]


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("messages", _MESSAGES),
        ("messages", {"messages": [], "system": "Rules"}),
        ("messages", {**_PLAIN_CLAUDE, "max_tokens": 9}),
        ("chat_completions", _PLAIN_CLAUDE),
        ("chat_completions", {**_PLAIN_CLAUDE, "max_tokens": 9, "model": "gpt-5.6"}),
        ("chat_completions", {"messages": [{"role": "system", "content": "x"}]}),
        ("responses", {"model": "m", "input": "x"}),
        ("generate_content", {"contents": []}),
        ("converse", {"messages": [{"role": "user", "content": [{"text": "x"}]}]}),
        (None, {"level": "info"}),
    ],
)
def test_an_api_is_known_by_its_body(api: str | None, body: dict[str, Any]) -> None:
    assert guess_api(body) == api


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("odd", [None, 7, "x", [], [None], [[]], [{"content": 5}], {"parts": 1}])
def test_nothing_is_refused(api: Any, odd: Any) -> None:
    names = ("messages", "input", "contents", "system", "tools", "instructions", "toolConfig")
    segments(api, dict.fromkeys(names, odd))
