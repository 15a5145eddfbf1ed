"""A load generator for routers: prepared requests, raw connections, one answer at a time each.

    python benchmarks/router_load.py '{"port": …, "clients": …, "seconds": …, …}'

Prints one JSON object: requests, failures, seconds, chunks, and the median and the 99th percentile
of the seconds to an answer's first byte.
"""

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import uvloop

_SHARED = 0.6  # of each prompt, with one in sixteen of the others
_FAMILIES = 16
_WORDS = ("ship", "water", "north", "winter", "sail", "harbour", "rope", "storm", "island", "crew")


@dataclass
class Run:
    """What is asked for, and what came of it."""

    port: int
    clients: int
    seconds: float
    prompt_bytes: int
    stream_tokens: int = 0
    interval_ms: int = 20
    requests: int = 0  # 0: as many as fit into the time
    seed: int = 0
    first_s: list[float] = field(default_factory=list)
    answered: int = 0
    chunks: int = 0
    sent: int = 0
    failures: int = 0
    ends_s: float = 0.0


class Prompts:
    """Requests as bytes, no two with the same prompt."""

    def __init__(self, run: Run) -> None:
        chance = random.Random(run.seed)
        words = [chance.choice(_WORDS) for _ in range(run.prompt_bytes // 5)]
        text = " ".join(words)
        shared = int(run.prompt_bytes * _SHARED)
        self._heads = [f"{index:04d} {text[index : index + shared]}" for index in range(_FAMILIES)]
        self._rest = text[: run.prompt_bytes - shared - 20]
        self._count = run.seed * 1_000_000_000
        self._end = (
            f'"}}],"max_tokens":{run.stream_tokens or 16}'
            f',"stream":{"true" if run.stream_tokens else "false"}}}'
        )
        self._extra = f"x-interval-ms: {run.interval_ms}\r\n" if run.stream_tokens else ""

    def next(self) -> bytes:
        """Another request."""
        self._count += 1
        body = (
            '{"model":"stub","messages":[{"role":"user","content":"'
            f"{self._heads[self._count % _FAMILIES]} {self._count:012d} {self._rest}{self._end}"
        )
        return (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n"
            "User-Agent: router_load/1\r\nAuthorization: Bearer sk-none\r\n"
            f"Content-Type: application/json\r\n{self._extra}Content-Length: {len(body)}\r\n\r\n"
            f"{body}"
        ).encode()


class Client(asyncio.Protocol):
    """One connection, which asks again as soon as it has its answer."""

    def __init__(self, run: Run, prompts: Prompts, done: "asyncio.Future[None]") -> None:
        self._run = run
        self._prompts = prompts
        self._done = done
        self._tail = b""
        self._is_first = True
        self._started_s = 0.0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self.transport = cast(asyncio.Transport, transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        """Look for the first byte of the body and for the end."""
        run = self._run
        if run.stream_tokens:
            run.chunks += data.count(b"data: {")
        tail = self._tail + data[-64:]
        if self._is_first and (b"data: " in data or b"}" in data):
            self._is_first = False
            run.first_s.append(time.perf_counter() - self._started_s)
            if not data.startswith(b"HTTP/1.1 200") and not self._tail.startswith(b"HTTP/1.1 200"):
                run.failures += 1
        if tail.endswith((b"0\r\n\r\n", b'total_tokens":304}}')) or (
            not run.stream_tokens and tail.endswith(b"}") and b"Content-Length" in data
        ):
            run.answered += 1
            self._ask()
        else:
            self._tail = data[:64] if self._is_first else tail[-64:]

    def connection_lost(self, exc: Exception | None) -> None:
        """The router has hung up, or we have."""
        if not self._done.done():
            self._done.set_result(None)

    def _ask(self) -> None:
        run = self._run
        now_s = time.perf_counter()
        if now_s > run.ends_s or (run.requests and run.sent >= run.requests):
            self.transport.close()
            return
        run.sent += 1
        self._tail, self._is_first = b"", True
        request = self._prompts.next()
        self._started_s = time.perf_counter()
        self.transport.write(request)


async def load(run: Run) -> dict[str, Any]:
    """Put the router under load, and say how it went."""
    loop = asyncio.get_running_loop()
    prompts = Prompts(run)
    ended = []
    started_s = time.perf_counter()
    run.ends_s = started_s + run.seconds
    for index in range(run.clients):
        done = loop.create_future()
        ended.append(done)
        await loop.create_connection(partial(Client, run, prompts, done), "127.0.0.1", run.port)
        if run.stream_tokens and index % 8 == 7:
            await asyncio.sleep(0.001)  # streams in step would come as bursts
    # A router that never ends an answer shall not hold everything up.
    await asyncio.wait(ended, timeout=run.seconds + 5)
    return {
        "requests": run.answered,
        "failures": run.failures + sum(not done.done() for done in ended),
        "seconds": time.perf_counter() - started_s,
        "chunks": run.chunks,
        "first_p50_s": _percentile(run.first_s, 50),
        "first_p99_s": _percentile(run.first_s, 99),
    }


def _percentile(values: list[float], percent: int) -> float:
    """0 if there are no values."""
    return sorted(values)[len(values) * percent // 100] if values else 0.0


if __name__ == "__main__":
    print(json.dumps(uvloop.run(load(Run(**json.loads(sys.argv[1]))))))
