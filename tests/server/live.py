"""A real server in a process of its own, and what tests ask it."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import openai

from kvikk.engine.options import EngineOptions
from kvikk.server.options import ServerOptions

PATIENCE_S = 60  # with what takes a moment, on a machine that has much else to do


@dataclass(frozen=True)
class LiveServer:
    url: str
    process: subprocess.Popen[str]
    http: httpx.Client

    def client(self, api_key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0)

    def get(self, path: str) -> httpx.Response:
        return self.http.get(path)

    def post(self, path: str, body: object = None, **options: object) -> httpx.Response:
        content = {} if body is None else {"json": body}
        return self.http.post(path, **content, **options)

    def cache(self) -> dict:
        return self.get("/v1/kvikk/cache").json()

    def metric(self, name: str, headers: dict[str, str] | None = None) -> float:
        """The sum of a metric over its labels."""
        lines = self.http.get("/metrics", headers=headers).text.splitlines()
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[{{ ]", line)
        )

    def wait_for(self, condition, timeout_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"still not so after {timeout_s} s"
            time.sleep(0.02)

    def wait_until_idle(self) -> None:
        self.wait_for(lambda: self.cache()["live_blocks"] == 0)

    def leave(self, path: str, body: object) -> None:
        """Ask, and go without an answer once the engine is at work."""
        host, port = self.url.removeprefix("http://").split(":")
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head.encode() + content)
            self.wait_for(lambda: self.cache()["live_blocks"] > 0)


def start(options: ServerOptions) -> AbstractContextManager[LiveServer]:
    """Run a server on a free port until the block ends."""
    return start_command(__name__, json.dumps(asdict(options), default=str))


@contextmanager
def start_command(module: str, *arguments: str, **environment: str) -> Iterator[LiveServer]:
    """The same, of a module that serves when it is run."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        log = []
        for line in process.stderr:
            log.append(line)
            if found := re.match(r"listening on (http://\S+)", line):
                break
        else:
            raise AssertionError(f"the server did not start: {''.join(log)}")
        with httpx.Client(base_url=found[1], timeout=2 * PATIENCE_S) as http:
            yield LiveServer(found[1], process, http)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def main(text: str) -> None:
    """Run a server that also tells how many tasks its event loop has."""
    from kvikk.engine.loading import load_engine
    from kvikk.server import serve
    from kvikk.server.app import create_app

    fields = json.loads(text)
    engine_fields = fields.pop("engine")
    if engine_fields["chat_template"] is not None:
        engine_fields["chat_template"] = Path(engine_fields["chat_template"])
    if engine_fields["disk_tier"] is not None:
        engine_fields["disk_tier"] = Path(engine_fields["disk_tier"])
    engine = EngineOptions(**engine_fields)
    fields["api_keys"] = tuple(fields["api_keys"])
    for name in ("access_log", "ledger_log", "rules_file", "price_map", "clock"):
        if fields[name] is not None:
            fields[name] = Path(fields[name])
    options = ServerOptions(engine=engine, **fields)

    def create_app_with_probe(loaded, options):
        app = create_app(loaded, options)

        @app.get("/test/tasks")
        async def tasks():
            return len(asyncio.all_tasks())

        return app

    serve.create_app, serve.load_engine = create_app_with_probe, load_engine
    serve.run_server(options)


if __name__ == "__main__":
    main(sys.argv[1])
