"""Routers to be measured: how each is started in front of the same replicas."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from kvikk.router.compiled import is_current
from places import python_of

START_TIMEOUT_S = 90.0


@dataclass(frozen=True)
class Contestant:
    """A router: its package, its environment below the peers' home, and its command line.

    ``arguments`` may hold ``{port}``, ``{port2}``, ``{urls}`` (all of the replicas) and ``{file}``,
    a configuration that is written for it.
    """

    name: str
    package: str
    environment: str | None
    program: str
    arguments: str

    @property
    def is_installed(self) -> bool:
        """Whether it can be started."""
        python = python_of(self.environment)
        return python is not None and python.with_name(self.program).exists()

    def version(self) -> str:
        """The package's version; of ours also whether it runs compiled, as users' do."""
        python = python_of(self.environment)
        assert python is not None
        code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
        done = subprocess.run(
            [python, "-c", code, self.package], capture_output=True, text=True, check=True
        )
        how = "" if self.package != "kvikk" else ", compiled" if is_current() else ", not compiled"
        return f"{self.package} {done.stdout.strip()}{how}"

    def command(self, port: int, port2: int, urls: Sequence[str], file: Path) -> list[str]:
        """What is run."""
        python = python_of(self.environment)
        assert python is not None
        words: list[str] = []
        for word in self.arguments.split():
            if word == "{urls}":
                words += urls
            elif word == "{replicas}":
                words += [part for url in urls for part in ("--replica", url)]
            else:
                values = {"port": port, "port2": port2, "file": file}
                words.append(word.format(**values))
        return [str(python.with_name(self.program)), *words]


# Every feature on: keys are checked, every request is logged.
_OURS = (
    "route --port {port} --api-key sk-none --replica-key sk-none --tenant-concurrency 100000 "
    "--access-log /dev/null {replicas}"
)
_SGLANG = (
    "launch --host 127.0.0.1 --port {port} --prometheus-port {port2} --log-level warn "
    "--worker-urls {urls}"
)
_VLLM = (
    "--host 127.0.0.1 --port {port} --prometheus-port {port2} --log-level warning "
    "--worker-urls {urls}"
)
_VARIABLES = {
    "TOKIO_WORKER_THREADS": "1",
    "LITELLM_LOG": "ERROR",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}
CONTESTANTS = {
    one.name: one
    for one in (
        Contestant("kvikk, round robin", "kvikk", None, "kvikk", f"{_OURS} --policy round_robin"),
        Contestant("kvikk, default", "kvikk", None, "kvikk", _OURS),
        Contestant(
            "sglang-router, round robin",
            "sglang-router",
            "sglang_router",
            "sglang-router",
            f"{_SGLANG} --policy round_robin",
        ),
        Contestant(
            "sglang-router, cache-aware",
            "sglang-router",
            "sglang_router",
            "sglang-router",
            f"{_SGLANG} --policy cache_aware",
        ),
        Contestant(
            "vllm-router, round robin",
            "vllm-router",
            "vllm_router",
            "vllm-router",
            f"{_VLLM} --policy round_robin",
        ),
        Contestant(
            "vllm-router, cache-aware",
            "vllm-router",
            "vllm_router",
            "vllm-router",
            f"{_VLLM} --policy cache_aware",
        ),
        Contestant(
            "LiteLLM",
            "litellm",
            "litellm",
            "litellm",
            "--host 127.0.0.1 --port {port} --config {file}",
        ),
    )
}


def _litellm_config(urls: Sequence[str]) -> str:
    """JSON, which is YAML: the replicas as one model, no database, no log lines."""
    models = [
        {
            "model_name": "stub",
            "litellm_params": {
                "model": "openai/stub",
                "api_base": f"{url}/v1",
                "api_key": "sk-none",
            },
        }
        for url in urls
    ]
    return json.dumps({"model_list": models, "litellm_settings": {"num_retries": 0}})


@contextmanager
def running(
    contestant: Contestant, urls: Sequence[str], ports: tuple[int, int], core: int
) -> Iterator[int]:
    """Start a router on one core; yields its process id and ends it behind the block.

    Raises RuntimeError, with the end of its log, if it does not answer.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(_litellm_config(urls))
        command = ["taskset", "-c", str(core), *contestant.command(*ports, urls, file)]
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **_VARIABLES},
            )
            try:
                if not _answers(process, ports[0]):
                    log.seek(0)
                    raise RuntimeError("".join(log.readlines()[-15:]))
                yield process.pid
            finally:
                for signal in ("TERM", "KILL"):
                    subprocess.run(
                        ["kill", f"-{signal}", "--", f"-{process.pid}"], capture_output=True
                    )
                    try:
                        process.wait(5)
                        break
                    except subprocess.TimeoutExpired:
                        continue


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    body = {"model": "stub", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    headers = {"authorization": "Bearer sk-none"}
    deadline_s = time.monotonic() + START_TIMEOUT_S
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    while process.poll() is None and time.monotonic() < deadline_s:
        try:
            answer = httpx.post(url, json=body, headers=headers, timeout=5, trust_env=False)
            if answer.is_success:
                return True
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    return False
