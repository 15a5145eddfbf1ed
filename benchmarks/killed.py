"""kill -9 of a replica under 100 streams: who is told, who finishes, what is forgotten.

    python benchmarks/killed.py [--model smollm2] [--replicas 3] [--streams 100]

Real engines behind ``kvikk route``, each with at most a fifth of the streams at once, so that some
wait in the router. One is killed when all its streams have begun; later it is
started again at the same address.
"""

import argparse
import asyncio
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from fleet import started
from kvikk.text.words import text_of

_START_S = 300.0


class Engine:
    """``kvikk serve`` at an address that it comes back to."""

    def __init__(self, model: str, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.id = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.id}"
        self._model = model
        self._log = folder / f"{self.port}.log"
        self.begin()

    def begin(self) -> None:
        """Start it; it is ready when its router finds it well."""
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "kvikk", "serve", self._model, "--port", str(self.port)),
                *("--threads", "1", "--kv-memory", "128MiB", "--max-context", "1024"),
            ],
            stderr=self._log.open("ab"),
        )

    def kill(self) -> None:
        """As the system does that has no memory left."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@dataclass(frozen=True)
class Found:
    """What became of the streams. Held blocks are what the router believes the killed one holds."""

    streams: int
    running_at_killed: int
    waiting: int
    told_by_an_event: int
    finished: int
    otherwise: int
    held_blocks_before: int
    held_blocks_after: int
    restarts_noticed: int
    answers_after: int


async def stream(http: httpx.AsyncClient, body: dict[str, Any], ends: dict[str, list[str]]) -> None:
    """One stream; notes at which replica it began and how it ended."""
    place = [""]
    last = ""
    async with http.stream("POST", "/v1/completions", json=body) as response:
        place[0] = response.headers["x-kvikk-replica"]
        ends.setdefault(f"begun at {place[0]}", []).append("")
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                last = line[6:]
    ended = "finished" if last == "[DONE]" else "otherwise"
    if ended == "otherwise" and "replica_failed" in last:
        ended = "told"
    ends.setdefault(ended, []).append(place[0])


async def until(condition: Callable[[], bool]) -> None:
    """Wait, without keeping the streams from going on."""
    deadline_s = time.monotonic() + _START_S
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline_s:
            raise SystemExit("it did not come to that")
        await asyncio.sleep(0.05)


async def run(options: argparse.Namespace, engines: list[Engine], router: str) -> Found:
    """All of it."""
    places = options.streams // 5
    ends: dict[str, list[str]] = {}
    victim = engines[1]
    with httpx.Client(base_url=router, timeout=60, trust_env=False) as asks:

        def of_victim(path: str) -> dict[str, Any]:
            found = asks.get(path, headers={"authorization": "Bearer a"}).json()["replicas"]
            return next(one for one in found if one["id"] == victim.id)

        def usable() -> int:
            return int(asks.get("/healthz").json()["usable"])

        await until(lambda: usable() == len(engines))
        model = asks.get("/v1/models").json()["data"][0]["id"]
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=router, timeout=_START_S, limits=limits, trust_env=False
        ) as http:
            tasks = []
            for number in range(options.streams):
                body = {
                    "model": model,
                    "prompt": text_of(120, "killed", number),
                    "max_tokens": options.tokens,
                    "ignore_eos": True,
                    "stream": True,
                }
                tasks.append(asyncio.create_task(stream(http, body, ends)))

            def running(engine: Engine) -> int:
                begun = len(ends.get(f"begun at {engine.id}", ()))
                return begun - ends.get("finished", []).count(engine.id)

            await until(lambda: running(victim) >= places)
            killed_with = running(victim)
            before = of_victim("/v1/kvikk/fleet")["held_blocks"]
            waiting = sum(not task.done() for task in tasks) - sum(map(running, engines))
            victim.kill()
            await asyncio.gather(*tasks)
        after = of_victim("/v1/kvikk/fleet")["held_blocks"]
        victim.begin()
        await until(lambda: usable() == len(engines))
        restarts = of_victim("/v1/kvikk/replicas")["restarts"]
        body = {"model": model, "prompt": "one", "max_tokens": 1}
        answers = [asks.post("/v1/completions", json=body) for _ in range(9)]
    told = ends.get("told", [])
    assert set(told) <= {victim.id}, "only who was at the killed one may be cut off"
    return Found(
        options.streams,
        killed_with,
        waiting,
        len(told),
        len(ends.get("finished", ())),
        len(ends.get("otherwise", ())),
        before,
        after,
        restarts,
        sum(answer.status_code == 200 for answer in answers),
    )


def main() -> None:
    """Print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        engines = []
        for _ in range(options.replicas):
            engines.append(Engine(options.model, Path(folder)))
            stack.callback(engines[-1].kill)
        places = str(options.streams // 5)
        arguments = ["route", "--port", "0", "--admin-key", "a", "--replica-concurrency", places]
        arguments += ["--policy", "least_requests", "--health-interval", "0.2"]
        arguments += [f"--queue-timeout={_START_S}", "--capacity-tokens", "100000"]
        for engine in engines:
            arguments += ["--replica", engine.url]
        router = stack.enter_context(started(arguments))
        found = asyncio.run(run(options, engines, router.url))
    if options.json:
        print(json.dumps(asdict(found)))
        return
    print(f"{found.streams} streams before {options.replicas} replicas, one killed with kill -9")
    for name, value in (
        ("running at the killed one", found.running_at_killed),
        ("  told by an error event", found.told_by_an_event),
        ("not begun yet", found.waiting),
        ("finished with [DONE]", found.finished),
        ("ended otherwise", found.otherwise),
        ("blocks believed to be there", found.held_blocks_before),
        ("  after it was killed", found.held_blocks_after),
        ("restarts noticed", found.restarts_noticed),
        ("answers then, of nine", found.answers_after),
    ):
        print(f"{name:27} {value:4}")


if __name__ == "__main__":
    main()
