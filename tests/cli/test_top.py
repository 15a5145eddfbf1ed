"""``kvikk top`` against a real server, once, as JSON, and on a terminal with keys."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from kvikk.cli.top_view import screen
from kvikk.engine.options import EngineOptions
from kvikk.errors import RequestError
from kvikk.server.options import ServerOptions
from kvikk.wire.live import LiveView
from kvikk.wire.reading import JsonValue
from tests.server.live import LiveServer, start

WIDTH = 78
ENGINE = EngineOptions(threads=1, kv_memory_bytes=64 << 20, max_context_tokens=512)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """Two turns have been served: the second one reused three of the first one's blocks."""
    with start(ServerOptions(ENGINE, port=0)) as live:
        for prompt in ([5] * 100, [5] * 100 + [6] * 60):
            body = {"model": "smollm2", "prompt": prompt, "max_tokens": 1}
            assert live.post("/v1/completions", body).status_code == 200
        live.wait_until_idle()
        yield live


def top(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvikk", "top", *arguments]
    environment = os.environ | {"COLUMNS": str(WIDTH)}
    return subprocess.run(command, capture_output=True, check=False, text=True, env=environment)


def test_json_is_what_the_server_says(server: LiveServer) -> None:
    done = top(server.url, "--json")
    assert done.returncode == 0, done.stderr
    found, cache = json.loads(done.stdout), server.cache()
    assert found["blocks"]["cached"] == cache["cached_blocks"] > 0
    assert found["blocks"]["empty"] == cache["empty_blocks"]
    assert sum(found["blocks"].values()) == cache["total_blocks"]
    assert found["by_cause"] == server.get("/v1/kvikk/ledger").json()["by_cause"]
    newest, oldest = found["requests"]
    assert (newest["cached_tokens"], newest["prompt_tokens"]) == (96, 160)
    assert newest["conversation"] == oldest["id"]
    assert found["engine"]["running_requests"] == 0


def test_without_a_terminal_it_prints_once(server: LiveServer) -> None:
    done = top(server.url)
    assert done.returncode == 0, done.stderr
    assert "tokens/s" in done.stdout
    cached = server.cache()["cached_blocks"]
    assert f"{cached} cached" in done.stdout
    assert "96/160" in done.stdout
    assert "attainable" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= WIDTH


def test_on_a_terminal_it_draws_until_q(server: LiveServer) -> None:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "kvikk", "top", server.url]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown, asked = b"", False
    deadline = time.monotonic() + 60
    try:
        while process.poll() is None or select.select([controller], [], [], 0)[0]:
            assert time.monotonic() < deadline, shown
            if select.select([controller], [], [], 0.1)[0]:
                try:
                    shown += os.read(controller, 1 << 16)
                except OSError:  # the other end is closed
                    break
            if b"96/160" in shown and not asked:
                os.write(controller, b"q")
                asked = True
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
        os.close(controller)
    assert b"tokens/s" in shown


def test_what_is_no_such_server_is_one_line_and_status_2(server: LiveServer) -> None:
    for arguments, word in (
        (("http://127.0.0.1:9",), "cannot be reached"),
        ((f"{server.url}/nowhere",), "no such route"),
        (("nonsense",), "nonsense"),
    ):
        done = top(*arguments)
        assert done.returncode == 2
        assert done.stdout == ""
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert word in done.stderr


def event(at_s: float, generated: int, runs: list[object], total: int = 100_000) -> JsonValue:
    engine = dict.fromkeys(
        ("running_requests", "waiting_requests", "preemptions", "computed_tokens"), 0
    )
    return JsonValue(
        {
            "at": at_s,
            "requests": [],
            "engine": engine | {"generated_tokens": generated, "block_size": 32},
            "groups": [{"window_tokens": None, "total_blocks": total, "runs": runs}],
        }
    )


def test_a_large_pool_is_drawn_coarser_and_speed_is_of_the_last_seconds() -> None:
    view = LiveView()
    view.hear(event(0.0, 0, [[0, 100_000, "empty"]]))
    view.hear(event(10.0, 900, [[5, 6, "live"], [99_000, 100_000, "cached"]]))
    view.hear(event(12.0, 1000, [[5, 6, "shared"]]))
    assert view.blocks == {"empty": 98_999, "cached": 1000, "live": 0, "shared": 1}
    assert view.tokens_per_s == 50
    ledger = {"rates": {}, "prompt_tokens": 0, "by_cause": {}}
    shown = screen("m", "http://host", view, ledger, WIDTH, 24).plain.splitlines()
    assert len(shown) <= 24
    assert max(map(len, shown)) <= WIDTH
    # One shared block among a hundred thousand is seen in both the map and the legend.
    assert sum(line.count("█") for line in shown) == 2


@pytest.mark.parametrize("run", [[0, 9, "live"], [0, 1, "asleep"], [-1, 2, "live"], [0, 1]])
def test_an_event_that_makes_no_sense_names_its_place(run: list[object]) -> None:
    with pytest.raises(RequestError, match=r"groups\[0\].runs\[0\]"):
        LiveView().hear(event(0.0, 0, [run], total=4))
