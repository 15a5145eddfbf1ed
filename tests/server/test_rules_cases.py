"""Public reports of missed prompt caches, asked of a server that goes by the provider's rules.

Each case has the usage that was reported or follows from the provider's documentation: where it has
tokens read or written, so has the server, and where it has none, so has the server none.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from kvikk.engine.loading import load_engine
from kvikk.server.app import create_app
from kvikk.server.options import ServerOptions
from tests.server.tiny import tiny_engine, words, write_tiny_model

CASES = Path(__file__).parents[1] / "audit" / "data" / "cases"
_PLACEHOLDER = re.compile(r"\{\{(\w+):([^:}]+):([^}]+)\}\}")
ROUTES = {
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "chat_completions": "/v1/chat/completions",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@contextmanager
def served(folder: Path, rules: str, **options) -> Iterator[TestClient]:
    """The whole application, in this process: a server a case would take longer than the cases."""
    clock = folder / "clock"
    clock.write_text("0")
    engine = tiny_engine(folder)
    server_options = ServerOptions(engine, rules=rules, clock=clock, **options)
    with TestClient(create_app(load_engine(engine), server_options)) as client:
        yield client


def load(name: str) -> dict[str, Any]:
    (file,) = CASES.glob(f"{name}-*.json")
    return filled(json.loads(file.read_text()))


def filled(value: Any) -> Any:
    """A case with its placeholders filled: a word a token, and pictures as what they are called."""
    if isinstance(value, dict):
        return {name: filled(member) for name, member in value.items()}
    if isinstance(value, list):
        return [filled(member) for member in value]
    if not isinstance(value, str):
        return value
    return _PLACEHOLDER.sub(
        lambda found: words(found[2], int(found[3])) if found[1] == "pad" else found[2], value
    )


def replay(folder: Path, case: dict[str, Any], model: str | None = None) -> list[dict]:
    """Each request's usage, or its error; at the case's times."""
    told = []
    model = model or case["requests"][0]["model"]
    provider = "deepseek" if case["provider"] == "deepseek" else case["provider"].split()[0]
    with served(folder, f"{provider}:{model}") as client:
        for index, request in enumerate(case["requests"]):
            known = case["timeline"][index]
            (folder / "clock").write_text(str(known["at_s"]))
            body = {**request, "model": "tiny"}
            limit = {"responses": "max_output_tokens"}.get(case["api"], "max_tokens")
            body[limit] = 1
            body.pop("tool_choice", None)  # the model has no token that could end a call
            told.append(client.post(ROUTES[case["api"]], json=body).json())
    return told


def read_and_written(usage: dict) -> tuple[bool, bool]:
    details = usage.get("input_tokens_details") or usage.get("prompt_tokens_details") or {}
    read = usage.get("cache_read_input_tokens", details.get("cached_tokens", 0))
    read += usage.get("prompt_cache_hit_tokens", 0)
    written = usage.get("cache_creation_input_tokens", details.get("cache_write_tokens", 0))
    return read > 0, written > 0


@pytest.mark.parametrize(
    "name",
    [
        "01",  # a clock at the head of the system prompt
        "02",  # the same with minutes, and a hit in between
        "05",  # tools in another order
        "07",  # one more tool
        "08",  # a marked head below the model's minimum
        "10",  # a turn that is replayed in another form
        "11",  # ids of calls made anew
        "17",  # effort changed
        "19",  # another type of answer is another tool
        "22",  # an old result taken out
        "26",  # the only marker is on what changes
        "31",  # twelve parallel calls are two positions
        "32",  # a marked prefix under the model's minimum
        "37",  # explicit mode without a marker
        "38",  # the same message, grown
        "41",  # a fresh key for every request
        "47",  # a common prefix is seen by the second and read by the third
    ],
)
def test_a_case_is_read_and_written_as_it_was_reported(folder, name):
    case = load(name)
    told = replay(folder, case)
    expected = [read_and_written(known["usage"]) for known in case["timeline"]]
    assert [read_and_written(answer["usage"]) for answer in told] == expected, told


def test_a_change_of_thinking_loses_the_messages_as_documented(folder):
    # The report saw all of it lost, on one model; documented is the messages' part.
    first, second = (answer["usage"] for answer in replay(folder, load("16")))
    assert read_and_written(first) == (False, True)
    assert 5000 < second["cache_read_input_tokens"] < 5200
    assert second["cache_creation_input_tokens"] > 900


def test_another_lifetime_reads_the_entry_and_writes_the_rest_as_documented(folder):
    # The report saw a second write of everything; no document says that lifetimes do not share.
    first, second = (answer["usage"] for answer in replay(folder, load("34")))
    assert first["cache_creation"]["ephemeral_1h_input_tokens"] == 0
    assert second["cache_read_input_tokens"] == first["cache_creation_input_tokens"]
    written = second["cache_creation"]
    assert written["ephemeral_5m_input_tokens"] == 0 < written["ephemeral_1h_input_tokens"]


def test_below_one_models_minimum_is_above_anothers(folder):
    case = load("32")
    usages = [answer["usage"] for answer in replay(folder, case, "claude-sonnet-4-5")]
    assert [read_and_written(usage) for usage in usages] == [(False, True), (True, False)]


@pytest.mark.parametrize(
    ("name", "says"), [("28", "at most 4 blocks"), ("29", "must not come after")]
)
def test_what_the_provider_refuses_is_refused(folder, name, says):
    (answer,) = replay(folder, load(name))
    assert answer["type"] == "error"
    assert says in answer["error"]["message"]


@pytest.mark.parametrize(
    ("markers", "says"),
    [
        ([""] * 5, "at most 4 blocks with cache_control, found 5"),
        (["", "1h"], "must not come after"),
        (["5m", "5m", "1h"], "must not come after"),
        (["10m"], "a ttl of '10m'"),
        (["1h", "1h", "5m", ""], None),
    ],
)
def test_markers_in_chat_completions_are_held_to_the_same_rules(folder, markers, says):
    def part(index: int, ttl: str) -> dict[str, Any]:
        control = {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}
        return {"type": "text", "text": words(index, 20), "cache_control": control}

    parts = [part(index, ttl) for index, ttl in enumerate(markers)]
    body = {"model": "tiny", "messages": [{"role": "user", "content": parts}], "max_tokens": 1}
    with served(folder, "openrouter:anthropic/claude-opus-5") as client:
        response = client.post(ROUTES["chat_completions"], json=body)
    if says is None:
        assert response.status_code == 200
        return
    assert response.status_code == 400
    error = response.json()["error"]
    assert says in error["message"]
    assert error["param"].startswith("messages[0].content[")
    assert error["param"].endswith("cache_control")


@pytest.mark.parametrize("is_same_message", [True, False])
def test_a_block_is_found_again_whether_or_not_its_message_goes_on(folder, is_same_message):
    def marked(text: str) -> dict[str, Any]:
        return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}

    start, more = marked(words("grows", 900)), marked("go on")
    contents = [[start, more]] if is_same_message else [[start], [more]]
    with served(folder, "anthropic:claude-opus-5") as client:
        reads = [
            client.post(
                ROUTES["messages"],
                json={
                    "model": "tiny",
                    "messages": [{"role": "user", "content": content} for content in turns],
                    "max_tokens": 1,
                },
            ).json()["usage"]["cache_read_input_tokens"]
            for turns in ([[start]], contents)
        ]
    assert reads[0] == 0
    assert reads[1] >= 900


@pytest.mark.parametrize(("blocks", "is_found"), [(18, True), (19, False)])
def test_an_entry_is_found_twenty_positions_back_and_not_further(folder, blocks, is_found):
    def marked(text: str) -> list[dict[str, Any]]:
        return [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]

    start = words("start", 900)
    first = [{"role": "user", "content": marked(start)}]
    between = [{"type": "text", "text": words(index, 5)} for index in range(blocks)]
    second = [
        {"role": "user", "content": start},
        {"role": "assistant", "content": between},
        {"role": "user", "content": marked("go on")},
    ]
    with served(folder, "anthropic:claude-opus-5") as client:
        reads = [
            client.post(
                ROUTES["messages"], json={"model": "tiny", "messages": messages, "max_tokens": 1}
            ).json()["usage"]["cache_read_input_tokens"]
            for messages in (first, second)
        ]
    assert reads == [0, reads[1]]
    assert (reads[1] > 0) == is_found


def test_deepseek_reads_a_turns_answer_from_the_next_turn_on(folder):
    messages = [{"role": "user", "content": words("question", 300)}]
    with served(folder, "deepseek:deepseek-v4-flash") as client:
        told = []
        for _ in range(2):
            body = {"model": "tiny", "messages": messages, "max_tokens": 200, "temperature": 0}
            answer = client.post(
                ROUTES["chat_completions"], json=body | {"ignore_eos": True}
            ).json()
            told.append(answer["usage"])
            messages.append(answer["choices"][0]["message"])
            messages.append({"role": "user", "content": words("more", 10)})
    assert read_and_written(told[0]) == (False, False)
    # The prompt's end alone would be some 300 tokens.
    assert told[1]["prompt_tokens_details"]["cached_tokens"] > 300 + 100
