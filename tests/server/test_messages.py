"""Anthropic's Messages, as the official client and as plain bodies see them."""

import json

import anthropic
import pytest
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.server.formats import anthropic_client
from tests.server.live import LiveServer

HELLO = [{"role": "user", "content": "Hello"}]
BASE = {"model": "smollm2", "max_tokens": 4, "messages": HELLO}
ONE_HOUR = {"type": "ephemeral", "ttl": "1h"}
FIVE_MINUTES = {"type": "ephemeral"}


def text(said: str, control: dict | None = None) -> dict:
    block = {"type": "text", "text": said}
    return block if control is None else block | {"cache_control": control}


def post(server: LiveServer, **fields: object):
    return server.post("/v1/messages", BASE | fields)


def test_a_message_is_the_clients_own(idle_server: LiveServer) -> None:
    message = anthropic_client(idle_server).messages.create(
        **BASE, system=[text("Be brief.", ONE_HOUR), text("Be kind.", FIVE_MINUTES)]
    )
    assert message.id.startswith("msg_")
    assert message._request_id == message.id
    assert (message.role, message.stop_reason, message.stop_sequence) == (
        "assistant",
        "max_tokens",
        None,
    )
    assert message.usage.output_tokens == 4
    assert message.diagnostics is None


def test_a_streams_events_come_in_their_order_and_by_their_names(idle_server: LiveServer) -> None:
    adapter = TypeAdapter(RawMessageStreamEvent)
    with idle_server.http.stream("POST", "/v1/messages", json=BASE | {"stream": True}) as response:
        lines = list(response.iter_lines())
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert names == [event["type"] for event in data]
    middle = ["content_block_delta"] * (len(names) - 6)
    start = ["message_start", "ping", "content_block_start"]
    assert names == [*start, *middle, "content_block_stop", "message_delta", "message_stop"]
    for event in data:
        if event["type"] != "ping":
            adapter.validate_python(event)
    assert data[0]["message"]["usage"]["output_tokens"] == 0
    assert data[-2]["usage"] == data[0]["message"]["usage"] | {"output_tokens": 4}


def test_a_string_is_one_block_and_markers_are_no_part_of_the_prompt(
    idle_server: LiveServer,
) -> None:
    marked = [text("Hello", ONE_HOUR)]
    counts = {
        post(idle_server, system=system, messages=[{"role": "user", "content": content}]).json()[
            "usage"
        ]["input_tokens"]
        for system in ("Be brief.", [text("Be brief.", ONE_HOUR)])
        for content in ("Hello", [text("Hello")], marked)
    }
    assert len(counts) == 1


def test_tokens_are_counted_as_an_answer_counts_them(idle_server: LiveServer) -> None:
    client = anthropic_client(idle_server)
    tools = [{"name": "weather", "input_schema": {"type": "object"}}]
    prompt = {"model": "smollm2", "system": "Be brief.", "messages": HELLO, "tools": tools}
    counted = client.messages.count_tokens(**prompt).input_tokens
    message = client.messages.create(**prompt, max_tokens=1)
    assert client.messages.count_tokens(**prompt).input_tokens == counted
    usage = message.usage
    assert counted == usage.input_tokens + usage.cache_creation_input_tokens > 0
    (latest,) = idle_server.get("/v1/kvikk/requests?limit=1").json()["requests"]
    assert latest["id"] == message.id  # what is counted is not asked


def test_an_answer_goes_on_from_what_the_assistant_began(idle_server: LiveServer) -> None:
    def answer(*messages: dict) -> str:
        fields = {"messages": list(messages), "temperature": 0, "max_tokens": 8}
        return post(idle_server, **fields).json()["content"][0]["text"]

    begun = answer(*HELLO)[:12].rstrip()
    assert (begun + answer(*HELLO, {"role": "assistant", "content": begun})).startswith(begun)
    refused = post(idle_server, messages=[*HELLO, {"role": "assistant", "content": "I am "}])
    assert refused.status_code == 400
    assert "must not end in white space" in refused.json()["error"]["message"]


def test_a_stop_sequence_is_told_and_no_part_of_the_text(idle_server: LiveServer) -> None:
    fields = {"temperature": 0, "max_tokens": 30}
    whole = post(idle_server, **fields).json()["content"][0]["text"]
    stop = whole[8:11]
    for stream in (False, True):
        stopped = {"stop_sequences": ["never seen", stop], "stream": stream, **fields}
        response = post(idle_server, **stopped)
        if stream:
            events = [
                json.loads(line.removeprefix("data: "))
                for line in response.text.splitlines()
                if line.startswith("data: ")
            ]
            ended = events[-2]["delta"]
            text = "".join(event.get("delta", {}).get("text", "") for event in events)
        else:
            ended = response.json()
            text = ended["content"][0]["text"]
        assert text == whole[: whole.index(stop)]
        assert (ended["stop_reason"], ended["stop_sequence"]) == ("stop_sequence", stop)


def test_models_are_listed_for_whoever_asks(server: LiveServer) -> None:
    client = anthropic_client(server)
    assert [(model.id, model.type) for model in client.models.list()] == [("smollm2", "model")]
    assert client.models.retrieve("smollm2").display_name == "smollm2"
    assert [model.object for model in server.client().models.list()] == ["model"]
    with pytest.raises(anthropic.NotFoundError, match="this server has 'smollm2'"):
        client.models.retrieve("claude-opus-5")


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"max_tokens": None}, "max_tokens: is missing"),
        ({"max_tokens": 0}, "max_tokens: must be at least 1"),
        ({"messages": []}, "messages: is empty"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0].role: expected one of"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content: expected a string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].type: this model reads text only",
        ),
        ({"system": 3}, "system: expected a string or a list of text blocks"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name: a tool's name"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type: only tools of"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: asks for a call"),
        ({"tool_choice": {"type": "must"}}, "tool_choice.type: expected one of auto"),
        ({"thinking": {"type": "hard"}}, "thinking.type: expected one of enabled"),
        ({"mcp_servers": [{}]}, "mcp_servers: is not supported"),
        ({"stop_sequences": [""]}, "stop_sequences[0]: a stop string has"),
        ({"diagnostics": 5}, "diagnostics: expected an object"),
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "t", "name": "a", "input": {}}] * 2,
                    },
                ]
            },
            "messages: 2 tool_use blocks have the id 't'",
        ),
        # The rules of cache_control.
        (
            {"system": [text("a", FIVE_MINUTES)] * 4, "cache_control": FIVE_MINUTES},
            "cache_control: at most 4 blocks may have cache_control, and this is one of 5",
        ),
        (
            {"system": [text("a", FIVE_MINUTES), text("b", ONE_HOUR)]},
            "system[1].cache_control.ttl: '1h' must not come after the '5m' of system[0]",
        ),
        (
            {"system": [text("a", FIVE_MINUTES)], "cache_control": ONE_HOUR},
            "cache_control.ttl: '1h' must not come after the '5m' of system[0].cache_control",
        ),
        (
            {
                "tools": [
                    {"name": "ls", "input_schema": {}, "cache_control": FIVE_MINUTES},
                ],
                "messages": [{"role": "user", "content": [text("a", ONE_HOUR)]}],
            },
            "messages[0].content[0].cache_control.ttl: '1h' must not come after",
        ),
        ({"system": [text("", FIVE_MINUTES)]}, "system[0].cache_control: cannot be set on an empt"),
        ({"system": [text("a", {"type": "eternal"})]}, "system[0].cache_control.type: expected"),
        (
            {"system": [text("a", ONE_HOUR | {"ttl": "2h"})]},
            "system[0].cache_control.ttl: expected '5m' or '1h', not '2h'",
        ),
        (
            {
                "messages": [
                    *HELLO,
                    {
                        "role": "assistant",
                        "content": [
                            {
                                "type": "thinking",
                                "thinking": "hm",
                                "signature": "",
                                "cache_control": FIVE_MINUTES,
                            }
                        ],
                    },
                ]
            },
            "messages[1].content[0].cache_control: cannot be set on thinking",
        ),
    ],
)
def test_what_makes_no_sense_is_one_line_in_the_vendors_shape(
    fields: dict, place: str, server: LiveServer
) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        response = server.post(path, BASE | fields)
        if response.status_code == 200:
            assert path.endswith("count_tokens")  # it does not read how to answer
            continue
        assert response.status_code == 400
        body = response.json()
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
        assert body["error"]["message"].startswith(place)
        assert "\n" not in body["error"]["message"]


def test_other_errors_have_the_vendors_shape_too(server: LiveServer) -> None:
    client = anthropic_client(server)
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(**BASE | {"model": "claude-opus-5"})
    assert unknown.value.body["error"]["type"] == "not_found_error"
    assert unknown.value.body["request_id"] == unknown.value.request_id
    assert unknown.value.request_id == unknown.value.response.headers["x-request-id"]
    long = [{"role": "user", "content": "word " * 3000}]
    with pytest.raises(anthropic.BadRequestError, match="limit is 2048"):
        client.messages.create(**BASE | {"messages": long})
    for response, status, kind in (
        (server.get("/v1/messages"), 405, "invalid_request_error"),
        (server.post("/v1/messages/nothing"), 404, "not_found_error"),
        (server.http.post("/v1/messages", content=b"{"), 400, "invalid_request_error"),
        (server.http.post("/v1/messages", content=b" " * (5 << 20)), 413, "request_too_large"),
    ):
        assert response.status_code == status
        assert response.json()["error"]["type"] == kind
