"""Engines over a real folder and a real Redis: restarts, kills, sleep, pins, loss of a tier."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kvikk.engine.options import EngineOptions
from kvikk.server.options import ServerOptions
from tests.cache.tiers.redis_server import RedisServer, redis_server
from tests.server import live
from tests.server.live import LiveServer

TEXT = "The harbour lies still at dawn, and boats come home with the night's catch. " * 20
OTHER = "In the mountains above, snow falls without a sound on roofs and roads and sleds. " * 20


@dataclass(frozen=True)
class Answer:
    id: str
    text: str
    spans: list[tuple[str, int]]


def ask(server: LiveServer, prompt: str, **fields: object) -> Answer:
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": 6, "temperature": 0, **fields}
    answer = server.post("/v1/completions", body).json()
    ledger = server.get(f"/v1/kvikk/requests/{answer['id']}").json()
    spans = [(span["cause"], span["stop"] - span["start"]) for span in ledger["spans"]]
    assert sum(tokens for _, tokens in spans) == answer["usage"]["prompt_tokens"]
    return Answer(answer["id"], answer["choices"][0]["text"], spans)


def causes(answer: Answer) -> list[str]:
    return [cause for cause, _ in answer.spans]


def tier(server: LiveServer, name: str) -> dict:
    return next(one for one in server.cache()["tiers"] if one["name"] == name)


def options(**tiers: object) -> ServerOptions:
    return ServerOptions(EngineOptions("smollm2", kv_memory_bytes=48 << 20, **tiers), port=0)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


def test_a_killed_engine_starts_warm_and_another_one_shares_its_redis(
    redis: RedisServer, tmp_path: Path
) -> None:
    folder = tmp_path / "disk"
    with live.start(options(disk_tier=folder, redis_tier=redis.url)) as first:
        cold = ask(first, TEXT)
        assert set(causes(cold)) <= {"new", "moved", "tail"}
        blocks = sum(tokens for _, tokens in cold.spans[:-1]) // 32
        first.wait_for(lambda: tier(first, "disk")["stored"] >= blocks)
        first.wait_for(lambda: tier(first, "redis")["stored"] >= blocks)
        assert first.metric("kvikk_tier_stored_blocks_total") >= 2 * blocks
        assert first.metric("kvikk_tier_works") == 2

        # Asleep, its blocks are in the tiers alone; the answer after is the same.
        before = first.cache()["cached_blocks"]
        slept = first.post(f"/v1/kvikk/sessions/{cold.id}/sleep").json()
        assert slept["complete"]
        assert slept["freed_blocks"] == blocks == before - first.cache()["cached_blocks"]
        listed = first.get("/v1/kvikk/sessions").json()["sessions"]
        assert [one["asleep"] for one in listed] == [True]
        woken = first.post(f"/v1/kvikk/sessions/{cold.id}/wake").json()
        assert woken["reused_tokens"] == 32 * blocks
        again = ask(first, TEXT)
        assert (again.text, causes(again)) == (cold.text, ["hit.device", "tail"])
        assert first.post("/v1/kvikk/sessions/nobody/sleep").status_code == 404

        # Pinned, it stays whatever comes; what else comes goes.
        pinned = first.post("/v1/kvikk/pins", {"request": cold.id, "tokens": 320})
        assert pinned.status_code == 201
        assert pinned.json()["tokens"] == 320
        assert first.post("/v1/kvikk/pins", {"request": "nobody"}).status_code == 404
        assert first.get("/v1/kvikk/pins").json()["pins"] == [pinned.json()]
        number = pinned.json()["pin"]
        assert first.cache()["live_blocks"] == 10
        assert first.http.delete(f"/v1/kvikk/pins/{number}").json()["removed"]
        assert first.http.delete(f"/v1/kvikk/pins/{number}").status_code == 404
        assert first.cache()["live_blocks"] == 0
        first.process.kill()
        first.process.wait()

    with live.start(options(disk_tier=folder)) as second:
        warm = ask(second, TEXT)
        assert (warm.text, causes(warm)) == (cold.text, ["hit.disk", "tail"])

    with live.start(options(redis_tier=redis.url)) as third:
        shared = ask(third, TEXT)
        assert (shared.text, causes(shared)) == (cold.text, ["hit.remote", "tail"])
        redis.client.flushall()
        assert third.post("/v1/kvikk/cache/reset").json()["complete"]
        third.wait_for(lambda: not third.cache()["emptying_tiers"])
        assert causes(ask(third, TEXT))[0] == "expired"
        redis.kill()
        other = ask(third, OTHER)
        assert set(causes(other)) <= {"new", "moved", "tail", "partial"}
        assert third.post("/v1/kvikk/cache/reset").json()["complete"]
        assert ask(third, TEXT).text == cold.text
        third.wait_for(lambda: tier(third, "redis")["trouble"] is not None)
        assert third.metric("kvikk_tier_works") == 0


def test_who_says_nothing_for_a_while_goes_to_sleep(tmp_path: Path) -> None:
    settings = replace(options(host_tier_bytes=64 << 20), sleep_after_s=0.2)
    with live.start(settings) as server:
        first = ask(server, TEXT, prompt_cache_key="harbour")
        server.wait_for(lambda: tier(server, "host")["used_blocks"] >= 10)
        server.wait_for(lambda: server.cache()["cached_blocks"] == 0)
        (session,) = server.get("/v1/kvikk/sessions").json()["sessions"]
        assert (session["session"], session["asleep"]) == ("harbour", True)
        again = ask(server, TEXT, prompt_cache_key="harbour")
        assert (again.text, causes(again)) == (first.text, ["hit.host", "tail"])
