"""Routers and stub replicas as real processes, and what tests ask them."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.ports import free_port

ADMIN_KEY = "the-admins-own-key"
PATIENCE_S = 60  # with what takes a moment, on a machine that has much else to do


def wait_for(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"still not so after {timeout_s} s"
        time.sleep(0.01)


async def until(condition: Callable[[], object]) -> None:
    """``wait_for`` where other things go on meanwhile."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


class StubReplica:
    """A stub that can be killed and started again at the same address."""

    def __init__(self, name: str, models: str = "stub", certificate: Path | None = None) -> None:
        self.name = name
        self.port = free_port()
        self.scheme = "https" if certificate else "http"
        self._arguments = ["--name", name, "--models", models, "--port", str(self.port)]
        if certificate:
            self._arguments += ["--certificate", str(certificate)]
        self.url = f"{self.scheme}://127.0.0.1:{self.port}"
        self.id = f"127.0.0.1:{self.port}"
        self._http = httpx.Client(
            base_url=self.url, timeout=PATIENCE_S, trust_env=False, verify=certificate is None
        )
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("stub.py")), *self._arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def state(self) -> dict:
        return self._http.get("/stub/state").json()

    def set(self, **fields: object) -> None:
        self._http.post("/stub/set", json=fields)

    def release(self, count: int = 1) -> None:
        """Let what is held go on."""
        self.set(released=count)

    def forget(self) -> None:
        self._http.post("/stub/forget")

    def close(self) -> None:
        self._http.close()
        self.kill()


@dataclass(frozen=True)
class LiveRouter:
    url: str
    port: int
    process: subprocess.Popen[str]
    http: httpx.Client

    def post(self, stub: dict | None = None, path: str = "/v1/chat/completions", **options):
        """A request whose replica shall do as ``stub`` says."""
        body = {"model": "stub", **options.pop("body", {})}
        if stub is not None:
            body["stub"] = stub
        return self.http.post(path, json=body, **options)

    def replicas(self) -> dict[str, dict]:
        found = self.admin("GET", "").json()["replicas"]
        return {one["id"]: one for one in found}

    def admin(self, method: str, path: str, **options: object) -> httpx.Response:
        return self.http.request(
            method,
            f"/v1/kvikk/replicas{path}",
            headers={"authorization": f"Bearer {ADMIN_KEY}"},
            **options,
        )

    def metric(self, name: str, label: str = "") -> float:
        lines = self.http.get(
            "/metrics", headers={"authorization": f"Bearer {ADMIN_KEY}"}
        ).text.splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if re.match(rf"{name}[{{ ]", line) and label in line
        )

    def is_idle(self) -> bool:
        """Whether no load is left anywhere."""
        return all(
            one["running_requests"] == one["running_tokens"] == one["waiting_tokens"] == 0
            for one in self.replicas().values()
        )

    def wait_until_well(self, count: int) -> None:
        wait_for(lambda: sum(one["eligible"] for one in self.replicas().values()) == count)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def raw(self, data: bytes) -> bytes:
        """What comes back for these bytes until the router closes."""
        with self.connect() as connection:
            connection.sendall(data)
            got = b""
            while piece := connection.recv(1 << 16):
                got += piece
            return got


@contextmanager
def router(
    replicas: Sequence[StubReplica] = (),
    *arguments: str,
    wait: bool = True,
    admin_key: str | None = ADMIN_KEY,
) -> Iterator[LiveRouter]:
    """``kvikk route`` before these replicas, with fast checks."""
    command = [sys.executable, "-m", "kvikk", "route", "--port", "0"]
    if admin_key is not None:
        command += ["--admin-key", admin_key]
    for replica in replicas:
        command += ["--replica", replica.url]
    process = subprocess.Popen(
        [*command, "--health-interval", "0.1", *arguments], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        log = []
        for line in process.stderr:
            log.append(line)
            if found := re.match(r"listening on (http://\S+:(\d+))", line):
                break
        else:
            raise AssertionError(f"the router did not start: {''.join(log)}")
        with httpx.Client(base_url=found[1], timeout=PATIENCE_S, trust_env=False) as http:
            live = LiveRouter(found[1], int(found[2]), process, http)
            if wait:
                live.wait_until_well(len(replicas))
            yield live
    finally:
        # Twice, so that nothing is waited for; two of one kind can be taken for one.
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        try:
            _, rest = process.communicate(timeout=PATIENCE_S)
            assert "Traceback" not in rest, rest
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise


def read_answer(connection: socket.socket) -> bytes:
    """One answer that has a length, however its bytes come."""
    got = b""
    while not (found := re.search(rb"(?i)content-length: (\d+).*?\r\n\r\n", got, re.DOTALL)) or len(
        got
    ) < found.end() + int(found[1]):
        piece = connection.recv(1 << 16)
        assert piece, got
        got += piece
    return got


def running(replicas: Sequence[StubReplica]) -> int:
    """How many requests they have."""
    return sum(one.state()["running"] for one in replicas)


@contextmanager
def stubs(count: int, **options) -> Iterator[list[StubReplica]]:
    with ExitStack() as stack:
        started = [StubReplica(f"stub-{index}", **options) for index in range(count)]
        for stub in started:
            stack.callback(stub.close)
        yield started


def events(text: str) -> list:
    """The data of each server-sent event; ``[DONE]`` stays a word."""
    data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    return [one if one == "[DONE]" else json.loads(one) for one in data]
