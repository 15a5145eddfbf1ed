"""The audit, which sees only a log, beside a server that knows what it read: real sessions."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvikk.audit.auditor import Auditor
from kvikk.audit.exchange import make_exchange
from kvikk.server.options import ServerOptions
from tests.server.live import LiveServer, start
from tests.server.tiny import tiny_engine, write_tiny_model

SESSIONS = sorted((Path(__file__).parents[1] / "data" / "agent_text").glob("*.jsonl"))
RULES = "openai:gpt-4.1"
BLOCK_TOKENS = 32


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = write_tiny_model(tmp_path_factory.mktemp("model"))
    clock = folder / "clock"
    clock.write_text("0")
    options = ServerOptions(tiny_engine(folder), port=0, rules=RULES, clock=clock)
    with start(options) as running:
        yield running


def conversation(texts: list[str]) -> Iterator[list[dict[str, Any]]]:
    """A session's texts as messages: what continues an earlier text is a further turn."""
    messages: list[dict[str, Any]] = []
    before = ""
    for text in filter(str.strip, texts):
        if messages and text.startswith(before):
            said = text[len(before) :].strip() or "Go on."
            messages = [
                *messages,
                {"role": "assistant", "content": said},
                {"role": "user", "content": "Go on."},
            ]
        else:
            system = {"role": "system", "content": "You are an agent. " * 90}
            messages = [system, {"role": "user", "content": text}]
        before = text
        yield messages


def test_what_the_rules_would_read_is_what_the_server_read(server: LiveServer) -> None:
    auditor = Auditor()
    provider, _, model = RULES.partition(":")
    differences, index = [], 0
    for file in SESSIONS:
        rows = sorted(map(json.loads, file.open()), key=lambda row: row["timestamp"])
        for messages in conversation([row["input"] for row in rows]):
            body = {"model": "tiny", "messages": messages, "max_tokens": 1}
            usage = server.post("/v1/chat/completions", body).json()["usage"]
            exchange = make_exchange(
                index,
                {**body, "model": model},
                provider=provider,
                at_s=2.0 * index,
                first_byte_s=2.0 * index + 0.5,
                usage={"prompt_tokens": usage["prompt_tokens"], "completion_tokens": 1},
            )
            assert exchange is not None
            index += 1
            account = auditor.feed(exchange).account
            assert account.input_tokens == usage["prompt_tokens"]
            differences.append(account.read - usage["prompt_tokens_details"]["cached_tokens"])
    assert index > 30
    same = sum(abs(difference) < BLOCK_TOKENS for difference in differences)
    assert same >= 0.95 * index, differences
