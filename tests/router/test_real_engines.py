"""A router before real engines that tell what they hold: the benchmark, small, and its edges."""

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

_FILE = Path(__file__).parents[2] / "benchmarks" / "fleet.py"
_SPEC = importlib.util.spec_from_file_location("fleet_benchmark", _FILE)
fleet_benchmark = importlib.util.module_from_spec(_SPEC)
sys.modules["fleet_benchmark"] = fleet_benchmark
_SPEC.loader.exec_module(fleet_benchmark)

OPTIONS = argparse.Namespace(
    model="smollm2",
    replicas=2,
    routers=1,
    deaf=False,
    conversations=3,
    turns=3,
    concurrency=1,
    system_words=70,
    answer_tokens=2,
    kv_memory_mib=60,
    seed=1,
)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list]:
    with fleet_benchmark.engines(OPTIONS, tmp_path_factory.mktemp("events")) as started:
        yield started


@pytest.mark.parametrize("shares_system", [False, True])
def test_the_default_finds_every_turn_and_predicts_each_hit(
    engines: list, shares_system: bool
) -> None:
    row = fleet_benchmark.run(OPTIONS, engines, "weighted", shares_system)
    assert row.found_share == 1
    assert row.agreement == 1
    assert row.reused_share == pytest.approx(row.infinite)


def test_round_robin_loses_turns_that_the_books_say_were_elsewhere(engines: list) -> None:
    row = fleet_benchmark.run(OPTIONS, engines, "round_robin", False)
    assert row.found_share < 1
    assert row.reused_share < row.perfect_placement
    assert row.agreement == 1


def wait_for(condition) -> None:
    deadline_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_cache_that_was_cleared_is_believed_empty_at_once(engines: list) -> None:
    arguments = fleet_benchmark.router_arguments("smollm2", "weighted", engines)
    with (
        fleet_benchmark.started(arguments) as router,
        httpx.Client(base_url=router.url, timeout=60, trust_env=False) as http,
    ):

        def held() -> int:
            return sum(one["held_blocks"] for one in http.get("/v1/kvikk/fleet").json()["replicas"])

        def ask() -> httpx.Response:
            words = "one " * 100
            messages = [{"role": "user", "content": words}]
            body = {"model": "smollm2", "messages": messages, "max_tokens": 1}
            return http.post("/v1/chat/completions", json=body)

        wait_for(lambda: http.get("/healthz").json()["usable"] == 2)
        for one in engines:
            httpx.post(f"{one.url}/v1/kvikk/cache/reset", trust_env=False, timeout=60)
        wait_for(lambda: held() == 0)
        assert "hit=0" in ask().headers["x-kvikk-route"]
        wait_for(lambda: held() >= 4)
        assert "reason=prefix; hit=128" in ask().headers["x-kvikk-route"]
        for one in engines:
            httpx.post(f"{one.url}/v1/kvikk/cache/reset", trust_env=False, timeout=60)
        wait_for(lambda: held() == 0)
        assert "hit=0" in ask().headers["x-kvikk-route"]


def test_what_replicas_held_before_the_router_came_is_known(engines: list) -> None:
    """It asks for what was published before it was there."""
    engine = engines[0]
    body = {"model": "smollm2", "prompt": list(range(1000, 1100)), "max_tokens": 1}
    httpx.post(f"{engine.url}/v1/completions", json=body, timeout=60, trust_env=False)
    arguments = fleet_benchmark.router_arguments("smollm2", "weighted", engines)
    with fleet_benchmark.started(arguments) as router:
        wait_for(lambda: httpx.get(f"{router.url}/healthz", timeout=60).json()["usable"] == 2)
        held = f"{router.url}/v1/kvikk/fleet"
        wait_for(lambda: httpx.get(held, timeout=60).json()["replicas"][0]["held_blocks"] >= 3)
        reply = httpx.post(f"{router.url}/v1/completions", json=body, timeout=60, trust_env=False)
        assert "hit=96" in reply.headers["x-kvikk-route"]
        assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 96


def test_watching_sees_what_replicas_hold_and_compute_twice(engines: list) -> None:
    for one in engines:
        httpx.post(f"{one.url}/v1/kvikk/cache/reset", trust_env=False, timeout=60)
    body = {"model": "smollm2", "prompt": list(range(2000, 2100)), "max_tokens": 1}
    for one in engines:
        httpx.post(f"{one.url}/v1/completions", json=body, timeout=60, trust_env=False)
    names = [f"{one.url}={one.events}" for one in engines]
    command = [sys.executable, "-m", "kvikk", "watch", *names, "--json", "--seconds", "6"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    first, second = seen["replicas"]
    assert (first["held_blocks"], second["held_blocks"]) == (3, 3)
    assert (seen["distinct_blocks"], seen["shared_blocks"]) == (3, 3)
    assert first["scattered_blocks"] + second["scattered_blocks"] >= 3
    assert first["problem"] == second["problem"] == ""
    assert first["query_tokens"] >= 100
    assert seen["hit_rate"] > 0


@pytest.mark.parametrize("url", ["a:8000", "http://a:8000=5557"])
def test_watching_nothing_is_one_line_and_status_2(url: str) -> None:
    command = [sys.executable, "-m", "kvikk", "watch", url]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("kvikk: ")
    assert done.stderr.count("\n") == 1
