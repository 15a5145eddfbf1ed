"""``kvikk pin`` against a running server: keep, list, let go, and one line for what cannot be."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvikk.engine.options import EngineOptions
from kvikk.server.options import ServerOptions
from tests.server.live import LiveServer, start

MODEL = "tiny"
TEXT = "The harbour lies still at dawn, and boats come home with the night's catch. " * 12


@pytest.fixture(scope="module")
def live(tiny_model: Path) -> Iterator[LiveServer]:
    engine = EngineOptions(
        str(tiny_model), "reference", kv_memory_bytes=2 << 20, max_context_tokens=512
    )
    with start(ServerOptions(engine, port=0, api_keys=("key",))) as server:
        yield server


def pin(live: LiveServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvikk", "pin", "--url", live.url, "--api-key", "key"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


def ask(live: LiveServer, text: str) -> str:
    body = {"model": MODEL, "prompt": text, "max_tokens": 2}
    response = live.post("/v1/completions", body, headers={"Authorization": "Bearer key"})
    return response.json()["id"]


def test_a_pin_is_kept_listed_and_let_go(live: LiveServer) -> None:
    assert pin(live).stdout == "0 pins; together they may take 25% of the cache\n"
    name = ask(live, TEXT)
    done = pin(live, name, "--tokens", "70")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "pin 1: 64 tokens in 2 blocks"
    listed = json.loads(pin(live, "--json").stdout)
    assert listed == {"pins": [{"pin": 1, "tokens": 64, "blocks": 2}], "most_share": 0.25}
    assert pin(live, "--remove", "1").stdout == "0 pins; together they may take 25% of the cache\n"


def test_what_cannot_be_pinned_is_one_line(live: LiveServer) -> None:
    name = ask(live, TEXT)
    headers = {"Authorization": "Bearer key"}
    refused = {
        (name, "--remove", "1"): "choose one: a request to pin, or a pin to --remove",
        ("nobody",): "no request 'nobody' is known any more",
        ("--remove", "77"): "77",
        ("--tokens", "4"): "name the request as well",
    }
    assert live.post("/v1/kvikk/cache/reset", headers=headers).json()["complete"]
    refused[name,] = "nothing of that prompt is in the cache now"
    for arguments, said in refused.items():
        done = pin(live, *arguments)
        assert done.returncode == 2, done
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert done.stdout == ""
