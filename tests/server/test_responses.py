"""OpenAI's Responses, as the official client and as plain bodies see them."""

import json
from collections.abc import Iterator

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from kvikk.engine.options import EngineOptions
from kvikk.server.options import ServerOptions
from tests.server.formats import anthropic_client
from tests.server.live import LiveServer, start

BASE = {"model": "smollm2", "input": "Hello", "max_output_tokens": 4, "temperature": 0}
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
LONG = "You are the guide of a small museum of ships, and answer in one short sentence. " * 4


@pytest.fixture(scope="module")
def two_tenants() -> Iterator[LiveServer]:
    engine = EngineOptions(threads=1, kv_memory_bytes=128 << 20, max_context_tokens=1024)
    with start(ServerOptions(engine, port=0, api_keys=("key-of-ada", "key-of-bob"))) as live:
        yield live


def test_a_response_is_the_clients_own(idle_server: LiveServer) -> None:
    response = idle_server.client().responses.create(
        **BASE,
        instructions="Be brief.",
        metadata={"a": "b"},
        prompt_cache_key="k",
        prompt_cache_retention="24h",
        prompt_cache_options={"mode": "explicit"},
        extra_body={"ignore_eos": True},
    )
    Response.model_validate(response.model_dump(), strict=True)
    assert response.id.startswith("resp_")
    assert (response.status, response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert response.usage.output_tokens == 4
    assert (response.instructions, response.metadata) == ("Be brief.", {"a": "b"})
    assert (response.prompt_cache_key, response.prompt_cache_retention) == ("k", "24h")
    assert (response.prompt_cache_options.mode, response.prompt_cache_options.ttl) == (
        "explicit",
        "30m",
    )
    assert response.prompt_cache_diagnostics is None


def test_a_streams_events_are_numbered_and_build_up_the_response(idle_server: LiveServer) -> None:
    adapter = TypeAdapter(ResponseStreamEvent)
    body = BASE | {"stream": True, "ignore_eos": True}
    with idle_server.http.stream("POST", "/v1/responses", json=body) as response:
        lines = list(response.iter_lines())
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    for event in data:
        adapter.validate_python(event)
    assert [event["sequence_number"] for event in data] == list(range(len(data)))
    assert names == [event["type"] for event in data]
    before = ["created", "in_progress", "output_item.added", "content_part.added"]
    after = ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert names[:4] == [f"response.{name}" for name in before]
    assert names[-4:] == [f"response.{name}" for name in after]
    assert set(names[4:-4]) == {"response.output_text.delta"}
    text = "".join(event["delta"] for event in data[4:-4])
    assert text == data[-4]["text"] == data[-1]["response"]["output"][0]["content"][0]["text"]
    assert data[-1]["response"]["output"] == [data[-2]["item"]]
    kept = idle_server.get(f"/v1/responses/{data[-1]['response']['id']}").json()
    assert kept == data[-1]["response"]


def test_a_response_goes_on_from_an_earlier_one_as_if_all_had_been_sent(
    idle_server: LiveServer,
) -> None:
    client = idle_server.client()
    fields = {"model": "smollm2", "instructions": LONG, "max_output_tokens": 8, "temperature": 0}
    first = client.responses.create(**fields, input="Which ship is the oldest?")
    second = client.responses.create(**fields, input="Why?", previous_response_id=first.id)
    third = client.responses.create(**fields, input="How?", previous_response_id=second.id)
    said = [
        {"role": "user", "content": "Which ship is the oldest?"},
        *[item.model_dump() for item in first.output],
        {"role": "user", "content": "Why?"},
        *[item.model_dump() for item in second.output],
        {"role": "user", "content": "How?"},
    ]
    at_once = client.responses.create(**fields, input=said, store=False)
    assert at_once.output_text == third.output_text
    assert at_once.usage.input_tokens == third.usage.input_tokens > second.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens // 32 * 32
    count = client.responses.input_tokens.count(
        model="smollm2", instructions=LONG, input="How?", previous_response_id=second.id
    )
    assert count.input_tokens == third.usage.input_tokens


def test_what_is_not_stored_or_was_deleted_is_not_found(idle_server: LiveServer) -> None:
    client = idle_server.client()
    unstored = client.responses.create(**BASE, store=False)
    stored = client.responses.create(**BASE)
    assert client.responses.retrieve(stored.id) == stored
    client.responses.delete(stored.id)
    for response in (unstored, stored):
        with pytest.raises(openai.NotFoundError, match="no response 'resp_"):
            client.responses.retrieve(response.id)
        with pytest.raises(openai.BadRequestError) as refusal:
            client.responses.create(**BASE, previous_response_id=response.id)
        assert refusal.value.code == "previous_response_not_found"
        assert refusal.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(stored.id)


def test_a_key_may_come_in_either_vendors_header_and_its_lack_is_told_in_each_ones_words(
    two_tenants: LiveServer,
) -> None:
    told = two_tenants.post("/v1/messages", {})
    assert told.status_code == 401
    assert (told.json()["type"], told.json()["error"]["type"]) == ("error", "authentication_error")
    told = two_tenants.http.get("/v1/models", headers={"x-api-key": "key-of-eve"})
    assert told.status_code == 401
    assert told.json()["error"]["code"] == "invalid_api_key"
    for header in ({"x-api-key": "key-of-ada"}, {"authorization": "Bearer key-of-ada"}):
        assert two_tenants.http.get("/v1/models", headers=header).status_code == 200


def test_no_tenant_finds_what_another_stored(two_tenants: LiveServer) -> None:
    ada, bob = (two_tenants.client(f"key-of-{name}") for name in ("ada", "bob"))
    response = ada.responses.create(**BASE)
    assert ada.responses.retrieve(response.id).id == response.id
    for call in (bob.responses.retrieve, bob.responses.delete):
        with pytest.raises(openai.NotFoundError):
            call(response.id)
    with pytest.raises(openai.BadRequestError, match="no response"):
        bob.responses.create(**BASE, previous_response_id=response.id)
    compared = bob.responses.create(
        **BASE, prompt_cache_options={"comparison_response_id": response.id}
    )
    assert compared.prompt_cache_diagnostics.type == "comparison_response_not_found"
    fields = {
        "model": "smollm2",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    message = anthropic_client(two_tenants, "key-of-ada").messages.create(**fields)
    other = anthropic_client(two_tenants, "key-of-bob").messages.create(
        **fields, diagnostics={"previous_message_id": message.id}
    )
    assert other.diagnostics.cache_miss_reason.type == "previous_message_not_found"


@pytest.mark.parametrize(
    ("fields", "parameter", "message"),
    [
        ({"input": None}, "input", "expected a string or a list of items"),
        ({"input": []}, "input", "is empty"),
        ({"input": [5]}, "input[0]", "expected an object"),
        ({"input": [{"role": "king", "content": ""}]}, "input[0].role", "expected one of user"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type", "is not supported here"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "send the item"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "cannot see an image",
        ),
        ({"instructions": 5}, "instructions", "expected a string"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "type 'function'"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "two tools are called 'weather'"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tools": [WEATHER], "tool_choice": "x"}, "tool_choice", "expected none, auto"),
        ({"truncation": "auto"}, "truncation", "not supported"),
        ({"background": True}, "background", "not supported"),
        ({"conversation": "conv_1"}, "conversation", "not supported"),
        ({"store": "no"}, "store", "expected true or false"),
        ({"metadata": []}, "metadata", "expected an object"),
        ({"text": 5}, "text", "expected an object"),
        ({"reasoning": 5}, "reasoning", "expected an object"),
        ({"previous_response_id": 5}, "previous_response_id", "expected a string"),
        ({"prompt_cache_options": {"ttl": "1y"}}, "prompt_cache_options.ttl", "one of 30m, 12h"),
        ({"stream": True, "temperature": 9}, "temperature", "from 0 to 2"),
    ],
)
def test_what_makes_no_sense_is_named(
    fields: dict, parameter: str, message: str, server: LiveServer
) -> None:
    response = server.post("/v1/responses", BASE | fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == parameter
    assert message in error["message"]
    assert "\n" not in error["message"]
