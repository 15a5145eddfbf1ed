"""Engines in processes of their own, as on different nodes, and one Redis between them over TCP."""

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from kvikk.engine.options import EngineOptions
from kvikk.server.options import ServerOptions
from tests.cache.tiers.redis_server import RedisServer, redis_server
from tests.ports import free_port
from tests.server import live
from tests.server.live import LiveServer

BLOCK = 32


@contextmanager
def shared(folder: Path) -> Iterator[tuple[RedisServer, str]]:
    """A server that other machines could reach, and its URL."""
    port = free_port()
    with redis_server(folder, "--port", str(port)) as server:
        yield server, f"redis://127.0.0.1:{port}/0"


@contextmanager
def engine(model: Path, url: str) -> Iterator[LiveServer]:
    options = EngineOptions(str(model), threads=1, kv_memory_bytes=32 << 20, redis_tier=url)
    with live.start(ServerOptions(options, port=0)) as server:
        yield server


@dataclass(frozen=True)
class Answer:
    """``choice`` has the text and each token's log-probabilities, as they came."""

    choice: dict[str, Any]
    spans: list[dict[str, Any]]

    @property
    def causes(self) -> set[str]:
        return {span["cause"] for span in self.spans}

    def tokens(self, cause: str) -> int:
        return sum(span["stop"] - span["start"] for span in self.spans if span["cause"] == cause)


def ask(server: LiveServer, prompt: list[int]) -> Answer:
    body = {"prompt": prompt, "max_tokens": 5, "ignore_eos": True, "temperature": 0, "logprobs": 5}
    response = server.post("/v1/completions", {"model": "tiny", **body})
    assert response.status_code == 200, response.text
    answer = response.json()
    spans = server.get(f"/v1/kvikk/requests/{answer['id']}").json()["spans"]
    assert sum(span["stop"] - span["start"] for span in spans) == len(prompt)
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    return Answer(answer["choices"][0], spans)


def prompt(seed: int, blocks: int = 10) -> list[int]:
    """So many full blocks that a hit can reach, and five tokens more."""
    return random.Random(seed).choices(range(1000, 20_000), k=blocks * BLOCK + 5)


def tier(server: LiveServer) -> dict[str, Any]:
    (found,) = server.cache()["tiers"]
    return found


def everything(client: redis.Redis) -> dict[bytes, bytes | None]:
    return {name: client.get(name) for name in client.scan_iter()}


@dataclass(frozen=True)
class Nodes:
    """Two engines, and the server between them."""

    server: RedisServer
    url: str
    first: LiveServer
    second: LiveServer


@pytest.fixture(scope="module")
def nodes(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with (
        shared(tmp_path_factory.mktemp("redis")) as (server, url),
        engine(tiny_model, url) as first,
        engine(tiny_model, url) as second,
    ):
        yield Nodes(server, url, first, second)


def test_a_prefix_from_another_node_is_bit_for_bit_what_computing_it_gives(nodes: Nodes) -> None:
    first, second, client = nodes.first, nodes.second, nodes.server.client
    assert first.post("/v1/kvikk/cache/reset").json()["complete"]
    first.wait_for(lambda: not first.cache()["emptying_tiers"])
    computed = ask(first, prompt(1))
    first.wait_for(lambda: client.dbsize() == 10)
    blocks = everything(client)

    fetched = ask(second, prompt(1))
    assert fetched.tokens("hit.remote") == 10 * BLOCK
    assert fetched.choice == computed.choice

    # The second computes it by itself: the same answer, and the same bytes go to the server.
    assert second.post("/v1/kvikk/cache/reset").json()["complete"]
    second.wait_for(lambda: not second.cache()["emptying_tiers"])
    assert everything(client) == {}
    alone = ask(second, prompt(1))
    assert alone.tokens("expired") == 10 * BLOCK
    assert alone.choice == computed.choice
    second.wait_for(lambda: client.dbsize() == 10)
    assert everything(client) == blocks

    # What the server forgot is computed, and booked so; what the pool has is found there.
    longer = [*prompt(1), *prompt(2)]
    first_longer = ask(first, longer)
    assert first_longer.tokens("hit.device") == 10 * BLOCK
    first.wait_for(lambda: client.dbsize() == 20)
    client.flushall()
    second_longer = ask(second, longer)
    assert second_longer.tokens("hit.device") == 10 * BLOCK
    assert second_longer.causes == {"hit.device", "new", "tail"}
    assert second_longer.choice == first_longer.choice


def test_a_server_that_hangs_or_dies_leaves_every_answer_right_and_booked_as_computed(
    nodes: Nodes, tiny_model: Path, tmp_path: Path
) -> None:
    truth = [ask(nodes.first, prompt(seed, 4)) for seed in range(200, 202)]
    nodes.first.wait_for(lambda: nodes.server.client.dbsize() >= 4 * 2)
    with shared(tmp_path) as (server, url), engine(tiny_model, url) as alone:
        for name, block in everything(nodes.server.client).items():
            server.client.set(name, block or b"")
        server.pause()
        hung = ask(alone, prompt(200, 4))
        assert hung.causes == {"new", "tail"}
        assert hung.choice == truth[0].choice
        assert tier(alone)["trouble"] is not None
        server.resume()

        # It comes back by itself: what is computed goes there again.
        before = server.client.dbsize()
        for seed in range(400, 500):
            ask(alone, prompt(seed, 4))
            if server.client.dbsize() > before:
                break
            time.sleep(0.2)
        assert server.client.dbsize() > before
        alone.wait_for(lambda: tier(alone)["trouble"] is None)

        server.kill()
        dead = ask(alone, prompt(201, 4))
        assert dead.causes == {"new", "tail"}
        assert dead.choice == truth[1].choice
        again = ask(alone, prompt(201, 4))
        assert (again.causes, again.choice) == ({"hit.device", "tail"}, dead.choice)


class SlowWire:
    """Passes connections on to a port, so many bytes a second in all on the way back."""

    def __init__(self, port: int, bytes_per_s: int) -> None:
        self._target = ("127.0.0.1", port)
        self._bytes_per_s = bytes_per_s
        self._turn = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            for source, sink, slow in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pass, args=(source, sink, slow), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, slow: bool) -> None:
        try:
            while data := source.recv(4096):
                if slow:
                    with self._turn:
                        time.sleep(len(data) / self._bytes_per_s)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, sink):
                one.close()


def test_what_is_slower_to_fetch_than_to_compute_is_computed(
    nodes: Nodes, tiny_model: Path
) -> None:
    """A wire of 100 KB/s: twenty blocks of 16 KiB take three seconds, or 640 tokens of work."""
    answers = [ask(nodes.first, prompt(seed, 20)) for seed in range(300, 303)]
    nodes.first.wait_for(lambda: nodes.server.client.dbsize() >= 60)
    wire = SlowWire(int(nodes.url.rpartition(":")[2].partition("/")[0]), 100_000)
    with engine(tiny_model, wire.url) as far:
        ask(far, prompt(399, 20))  # how fast it computes is known from now on
        # The first fetch, if latency alone allows it, says what the wire gives.
        first, *others = (ask(far, prompt(seed, 20)) for seed in range(300, 303))
        # After that it is asked and passed over ("evicted", with the tier's name), or where even
        # the asking takes longer than computing, not asked.
        assert first.causes <= {"hit.remote", "evicted", "new", "tail"}
        for other in others:
            assert other.causes <= {"evicted", "new", "tail"}
            for span in other.spans:
                assert span["cause"] != "evicted" or span["detail"]["tier"] == "redis"
        assert [one.choice for one in (first, *others)] == [one.choice for one in answers]
    wire.close()
