"""Real engines behind the router: one is killed, one is left in the middle of an answer."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.ports import free_port
from tests.router.live import LiveRouter, router, wait_for


class Engine:
    """``kvikk serve`` at an address that it comes back to."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.id = f"127.0.0.1:{self.port}"
        self.begin()

    def begin(self) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "kvikk", "serve", "smollm2", "--port", str(self.port)),
                *("--threads", "1", "--kv-memory", "60MiB", "--max-context", "1024"),
            ],
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def running(self) -> int:
        cache = httpx.get(f"{self.url}/v1/kvikk/cache", trust_env=False, timeout=60).json()
        return cache["live_blocks"]


@pytest.fixture(scope="module")
def engines() -> Iterator[list[Engine]]:
    started = [Engine(), Engine()]
    yield started
    for engine in started:
        engine.kill()


@pytest.fixture(scope="module")
def live(engines: list[Engine]) -> Iterator[LiveRouter]:
    with router(engines, wait=False) as running:
        wait_for(lambda: running.http.get("/healthz").json()["usable"] == 2, 250)
        yield running


def held(live: LiveRouter) -> dict[str, int]:
    fleet = live.http.get("/v1/kvikk/fleet").json()
    return {one["id"]: one["held_blocks"] for one in fleet["replicas"]}


def test_a_turn_finds_the_one_before_and_both_name_the_same_replica(live: LiveRouter):
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    messages = [{"role": "user", "content": "Tell me about ships. " * 12}]
    ask = client.chat.completions.with_raw_response.create
    first = ask(model="smollm2", messages=messages, max_tokens=4, temperature=0)
    answer = first.parse().choices[0].message
    messages += [{"role": "assistant", "content": answer.content}]
    messages += [{"role": "user", "content": "And boats?"}]
    second = ask(model="smollm2", messages=messages, max_tokens=4, temperature=0)
    assert second.headers["x-kvikk-replica"] == first.headers["x-kvikk-replica"]
    assert second.parse().usage.prompt_tokens_details.cached_tokens > 0
    assert "x-kvikk-ledger" in second.headers  # the replica's own headers are kept
    assert second.headers["x-request-id"] == second.parse().id


def test_a_client_that_leaves_frees_the_engines_blocks(live: LiveRouter, engines: list[Engine]):
    body = {"model": "smollm2", "prompt": "One", "max_tokens": 900, "ignore_eos": True}
    with live.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        text = response.iter_text()
        next(text)
        wait_for(lambda: sum(one.running() for one in engines) > 0)
    wait_for(lambda: sum(one.running() for one in engines) == 0)
    with pytest.raises(httpx.ReadTimeout):
        live.http.post("/v1/completions", json=body, timeout=0.5)
    wait_for(lambda: sum(one.running() for one in engines) == 0)
    wait_for(live.is_idle)


def test_a_killed_engine_is_forgotten_and_known_again_when_it_is_back(
    live: LiveRouter, engines: list[Engine]
):
    """Streams that it had begun end with an error; what it held is not believed any more."""
    client = openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)

    async def answer(started: asyncio.Event) -> tuple[str, str]:
        stream = await client.completions.with_raw_response.create(
            model="smollm2",
            prompt="Count: one, two,",
            max_tokens=120,  # so many that nobody has ended when the last one begins
            stream=True,
            extra_body={"ignore_eos": True},
        )
        replica, text = stream.headers["x-kvikk-replica"], ""
        try:
            async for event in stream.parse():
                text += event.choices[0].text
                started.set()
        except openai.APIError as error:
            return replica, str(error)
        return replica, "whole"

    victim = engines[0]

    async def run() -> list[tuple[str, str]]:
        started = [asyncio.Event() for _ in range(12)]
        tasks = [asyncio.ensure_future(answer(one)) for one in started]
        await asyncio.gather(*(one.wait() for one in started))
        victim.kill()
        return await asyncio.gather(*tasks)

    answers = asyncio.run(run())
    assert {replica for replica, _ in answers} == {one.id for one in engines}
    for replica, end in answers:
        if replica == victim.id:
            assert "the answer broke off: the replica closed the connection" in end
        else:
            assert end == "whole"
    wait_for(lambda: held(live)[victim.id] == 0)
    assert held(live)[engines[1].id] > 0
    restarts = live.replicas()[victim.id]["restarts"]
    victim.begin()
    wait_for(lambda: live.http.get("/healthz").json()["usable"] == 2, 250)
    assert live.replicas()[victim.id]["restarts"] == restarts + 1
    assert held(live)[victim.id] == 0
