"""``kvikk why`` tells a request's story from a running server, and says plainly when it cannot."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kvikk.cli.why import bar
from kvikk.engine.options import EngineOptions
from kvikk.server.options import ServerOptions
from kvikk.wire.ledger import LedgerSpan
from tests.server.live import LiveServer, start

RULES = " ".join(
    f"Rule {number}: answer question {number} in one sentence." for number in range(40)
)


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    engine = EngineOptions(threads=1, kv_memory_bytes=64 << 20, max_context_tokens=1024)
    with start(ServerOptions(engine, port=0)) as server:
        yield server


def why(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvikk", "why", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_last_request_is_told_in_plain_words(live: LiveServer) -> None:
    assert why("--last", "--url", live.url).stderr.endswith("has served no request yet\n")
    ids = []
    for clock in ("9:59:58", "10:00:07"):
        messages = [
            {"role": "system", "content": f"It is {clock}. {RULES}"},
            {"role": "user", "content": "What is a bicycle?"},
        ]
        body = {"model": "smollm2", "messages": messages, "max_tokens": 1}
        ids.append(live.post("/v1/chat/completions", body).json()["id"])
    told = why("--last", "--url", live.url)
    assert told.returncode == 0, told.stderr
    text = " ".join(told.stdout.split())
    assert ids[1] in text
    assert "reused 0 of" in text
    assert f"in request {ids[0]}, behind a different beginning" in text
    assert '"10:00:07" against "9:59:58", a time in the system message' in text
    assert "→ move the clock below what stays the same" in text
    assert "≈" * 50 in told.stdout
    first = why(ids[0], "--json", "--url", live.url)
    record = live.get(f"/v1/kvikk/requests/{ids[0]}").json()
    assert json.loads(first.stdout) == record


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "choose one request: its id, or --last"),
        (("cmpl-1", "--last"), "choose one request: its id, or --last"),
        (("no/such", "--url", "LIVE"), "answered 404: "),
        (("cmpl-1", "--url", "http://127.0.0.1:9"), "cannot be reached"),
        (("cmpl-1", "--url", "nonsense"), "cannot be reached"),
        (("cmpl-1", "--url", "LIVE", "--api-key", "kéy"), "cannot be used"),
    ],
)
def test_what_cannot_be_told_is_one_line(
    arguments: tuple[str, ...], line: str, live: LiveServer
) -> None:
    done = why(*(live.url if word == "LIVE" else word for word in arguments))
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


def test_each_cell_of_the_bar_shows_what_has_most_of_its_tokens() -> None:
    spans = [LedgerSpan(0, 64, "hit.device"), LedgerSpan(64, 67, "new"), LedgerSpan(67, 80, "tail")]
    assert bar(spans, 80, 10).plain == "████████··"
    assert bar(spans, 80, 80).plain == "█" * 64 + "░" * 3 + "·" * 13
    assert bar(spans, 80, 200).plain == bar(spans, 80, 80).plain


def test_generate_shows_its_ledger() -> None:
    command = [sys.executable, "-m", "kvikk", "generate", "Hi", "--max-tokens", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert sum(answer["ledger"].values()) == answer["prompt_tokens"]
    assert sum(span["stop"] - span["start"] for span in answer["spans"]) == answer["prompt_tokens"]
