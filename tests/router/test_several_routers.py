"""Real engines behind one router and behind two: what a key keeps, and what routers agree on."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.router.test_real_engines import fleet_benchmark, wait_for

REPLICAS = 3


@pytest.fixture(scope="module")
def options(tiny_model: Path) -> argparse.Namespace:
    return argparse.Namespace(
        model=str(tiny_model),
        replicas=REPLICAS,
        routers=2,
        deaf=False,
        conversations=4,
        turns=4,
        concurrency=1,
        system_words=70,
        answer_tokens=2,
        kv_memory_mib=60,
        seed=1,
    )


@pytest.fixture(scope="module")
def engines(options: argparse.Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    with fleet_benchmark.engines(options, tmp_path_factory.mktemp("events")) as started:
        yield started


@pytest.fixture(scope="module")
def deaf_routers(options: argparse.Namespace, engines: list) -> Iterator[list[httpx.Client]]:
    """Two that take turns, and know nothing of each other."""
    with ExitStack() as stack:
        routers = []
        for _ in range(2):
            arguments = fleet_benchmark.router_arguments(
                options.model, "round_robin", engines, True
            )
            url = stack.enter_context(fleet_benchmark.started(arguments)).url
            http = stack.enter_context(httpx.Client(base_url=url, timeout=60, trust_env=False))
            wait_for(lambda http=http: http.get("/healthz").json()["usable"] == REPLICAS)
            routers.append(http)
        yield routers


def test_the_probe_finds_equal_prompts_scattered_without_a_key_and_together_with_one(
    deaf_routers: list[httpx.Client],
) -> None:
    url = str(deaf_routers[0].base_url).rstrip("/") + "/v1"
    command = [sys.executable, "-m", "kvikk", "probe", "routing", "--base-url", url]
    done = subprocess.run([*command, "--words", "100", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # Each replica has to compute it once.
    assert found["without_key"]["hits"] == 8 - REPLICAS
    assert found["with_key"]["hits"] == found["with_key"]["of"] == 7


def test_a_key_has_the_same_home_from_both_routers_and_moves_from_both_alike(
    deaf_routers: list[httpx.Client],
) -> None:
    model = deaf_routers[0].get("/v1/models").json()["data"][0]["id"]

    def ask(http: httpx.Client, number: int) -> str:
        body = {"model": model, "prompt": "one two", "max_tokens": 1}
        headers = {"x-session-id": f"session {number}"}
        reply = http.post("/v1/completions", json=body, headers=headers)
        assert "; reason=key; " in reply.headers["x-kvikk-route"]
        return reply.headers["x-kvikk-replica"]

    homes = [[ask(http, number) for number in range(40)] for http in deaf_routers]
    assert homes[0] == homes[1]
    assert len(set(homes[0])) == REPLICAS


@pytest.mark.parametrize(("policy", "is_deaf"), [("weighted", False), ("consistent_hash", True)])
def test_conversations_that_go_by_two_routers_in_turn_find_every_turn_as_by_one(
    options: argparse.Namespace, engines: list, policy: str, is_deaf: bool
) -> None:
    """Either they hear the same, or they need not."""
    options.deaf = is_deaf
    row = fleet_benchmark.run(options, engines, policy, False)
    assert row.routers == 2
    assert row.found_share == 1
