"""A real fleet of SmolLM2, and a client that counts what it sends."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

BLOCK_SIZE = 16
LEAST, MOST = 2, 3
FILE = """
ray: {address}
port: {port}
proxies: head
model: smollm2
replicas:
  min: {least}
  max: {most}
  per_node: 1
  cpus: 0
  waiting_tokens: 300
  window: 1
  upscale_delay: 0
  downscale_delay: 1
engine:
  threads: 1
  kv_memory: 256MiB
  block_size: {block_size}
keys:
  tenants: [key-of-a, $KEY_OF_B]
  operator: key-of-operator
  tenant_requests: 8
drain: 1
"""


@dataclass
class Answer:
    """A streamed answer: what came, in pieces, and whether it came to its end."""

    replica: str = ""
    request_id: str = ""
    pieces: list[bytes] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    is_whole: bool = False


class LiveFleet:
    """The fleet's address, its nodes, and the number of tokens that were sent there."""

    def __init__(self, url: str, cluster: Any) -> None:
        self.url = url
        self.cluster = cluster
        self.sent_tokens = 0
        self.sent_requests = 0
        self._lock = threading.Lock()
        self.http = self.client("key-of-operator")

    def client(self, key: str) -> httpx.Client:
        return httpx.Client(
            base_url=self.url, headers={"authorization": f"Bearer {key}"}, timeout=120
        )

    def body(self, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        with self._lock:
            self.sent_tokens += len(prompt)
            self.sent_requests += 1
        return {
            "model": "smollm2",
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }

    def complete(self, prompt: list[int], max_tokens: int = 4, **body: Any) -> httpx.Response:
        response = self.http.post("/v1/completions", json=self.body(prompt, max_tokens) | body)
        assert response.status_code == 200, response.text
        return response

    def stream(
        self,
        prompt: list[int],
        max_tokens: int,
        on_piece: Callable[[Answer], bool] = lambda answer: True,
    ) -> Answer:
        """A streamed answer; left where ``on_piece`` says False."""
        answer = Answer()
        asked = self.body(prompt, max_tokens)
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
        with self.http.stream("POST", "/v1/completions", json=asked) as response:
            assert response.status_code == 200, response.read()
            answer.replica = response.headers["x-kvikk-replica"]
            answer.request_id = response.headers["request-id"]
            for piece in response.iter_raw():
                answer.pieces.append(piece)
                if not on_piece(answer):
                    return answer
        for line in b"".join(answer.pieces).split(b"\n\n"):
            if line == b"data: [DONE]":
                answer.is_whole = True
            elif line:
                event = json.loads(line.removeprefix(b"data: "))
                answer.usage = event.get("usage") or answer.usage
                answer.error = event.get("error")
        return answer

    def status(self) -> dict[str, Any]:
        response = self.http.get("/v1/kvikk/fleet")
        assert response.status_code == 200, response.text
        return response.json()

    def replica(self, name: str) -> dict[str, Any]:
        return next(one for one in self.status()["replicas"] if one["id"] == name)

    def num_replicas(self) -> int:
        return len(self.status()["replicas"])

    def wait_for(self, condition: Callable[[], Any], timeout_s: float = 120) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"still not so: {json.dumps(self.status())}"
            time.sleep(0.05)
        return found

    def wait_until_heard(self) -> None:
        """The index, once it has what the engines hold."""
        self.wait_for(
            lambda: all(
                one["held_blocks"] == one["engine"]["cached_blocks"]
                for one in self.status()["replicas"]
            )
        )

    def wait_until_settled(self) -> dict[str, Any]:
        """The ledger, once every attempt that was made is in it."""
        return self.wait_for(
            lambda: (ledger := self.status()["ledger"])["open_attempts"] == 0 and ledger
        )


@contextmanager
def start(port: int, file: Path) -> Iterator[LiveFleet]:
    """Three nodes, and a fleet on them that `kvikk fleet` starts and ends."""
    from ray.cluster_utils import Cluster

    # CPUs are but numbers to Ray: the ingress finds one on the head alone, engines need none.
    memory = {"object_store_memory": 80 << 20}
    head = {"num_cpus": 1, "include_dashboard": False, **memory}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            cluster.add_node(wait=False, num_cpus=0, **memory)
        cluster.wait_for_nodes()
        text = FILE.format(
            address=cluster.address, port=port, least=LEAST, most=MOST, block_size=BLOCK_SIZE
        )
        file.write_text(text)
        assert "listening on" in kvikk("fleet", "up", str(file), KEY_OF_B="key-of-b").stderr
        live = LiveFleet(f"http://127.0.0.1:{port}", cluster)
        live.wait_for(lambda: live.http.get("/health").status_code == 200)
        live.wait_for(lambda: live.num_replicas() == LEAST)
        yield live
        kvikk("fleet", "down", "--address", cluster.address)
    finally:
        cluster.shutdown()


def kvikk(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """One command, which succeeds."""
    done = subprocess.run(
        [sys.executable, "-m", "kvikk", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done
