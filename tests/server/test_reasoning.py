"""What is thought is told apart from what is said, in each format, and counted."""

from collections.abc import Iterator
from typing import Any

import pytest

from kvikk.engine.options import EngineOptions
from kvikk.server.options import ServerOptions
from tests.server.live import LiveServer, start

# As of models that always think first: the prompt opens the reasoning.
TEMPLATE = """\
{% for message in messages %}<{{ message.role }}>{{ message.content }}
{% endfor %}{{ '' if '</think>' in messages[0].content else '<assistant><think>' }}"""
THOUGHTS, SAID = "hm, hm, hm. ", "Yes."
HELLO = [{"role": "user", "content": "Hello"}]
BODY = {
    "model": "smollm2",
    "temperature": 0,
    "structured_outputs": {"regex": f"{THOUGHTS}</think>{SAID}".replace(".", r"\.")},
}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    file = tmp_path_factory.mktemp("templates") / "thinking.jinja"
    file.write_text(TEMPLATE)
    engine = EngineOptions(
        threads=1, kv_memory_bytes=64 << 20, max_context_tokens=256, chat_template=file
    )
    with start(ServerOptions(engine, port=0)) as live:
        yield live


def post(server: LiveServer, path: str, **fields: Any) -> dict[str, Any]:
    response = server.post(path, BODY | fields)
    assert response.status_code == 200, response.text
    return response.json()


def test_thoughts_have_their_place_in_every_format(thinker: LiveServer) -> None:
    chat = post(thinker, "/v1/chat/completions", messages=HELLO)
    message = chat["choices"][0]["message"]
    assert (message["reasoning_content"].strip(), message["content"]) == (THOUGHTS.strip(), SAID)
    reasoning, said = post(thinker, "/v1/responses", input="Hello")["output"]
    assert reasoning["content"][0]["text"].strip() == THOUGHTS.strip()
    assert (reasoning["type"], said["content"][0]["text"]) == ("reasoning", SAID)
    thinking, text = post(thinker, "/v1/messages", messages=HELLO, max_tokens=200)["content"]
    assert (thinking["type"], thinking["thinking"].strip()) == ("thinking", THOUGHTS.strip())
    assert text == {"type": "text", "text": SAID}
    details = chat["usage"]["completion_tokens_details"]
    # What was said, and the end, are tokens too.
    assert 3 < details["reasoning_tokens"] <= chat["usage"]["completion_tokens"] - 2


def test_who_is_cut_short_while_thinking_said_nothing(thinker: LiveServer) -> None:
    chat = post(thinker, "/v1/chat/completions", messages=HELLO, max_tokens=3)
    assert chat["choices"][0]["message"]["content"] in (None, "")
    assert chat["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    response = post(thinker, "/v1/responses", input="Hello", max_output_tokens=3)
    assert [item["type"] for item in response["output"]] == ["reasoning"]
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
