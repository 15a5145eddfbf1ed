"""Our router beside others, each on one core, in front of the same replicas that cost nothing.

    python benchmarks/router.py [--routers NAME …] [--seconds 2] [--prompts 1000000] [--keep]

Four stub replicas and the load generator share the other core. For each router: one client with
small and with large prompts (time to the first byte, less what it is without a router), 64 clients
likewise (requests a second, CPU time a request), 64 streams of 50 events 20 ms apart, and streams
as fast as they go (events a second). CPU time is of the whole process tree. ``--prompts`` sends so
many distinct prompts and looks at the memory meanwhile: three minutes a million for ours on an idle
machine. All the rest takes less than five minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

import results
from router_contestants import CONTESTANTS, Contestant, running
from router_table import router_table
from servers import free_port

HERE = Path(__file__).parent
ROUTER_CORE, LOAD_CORE = 0, 1
REPLICAS = 4
SMALL_BYTES, LARGE_BYTES = 1300, 47_000
CLIENTS = 64
STREAM_TOKENS = 50
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

SCENARIOS: Mapping[str, dict[str, Any]] = {
    "one, small": {"clients": 1, "prompt_bytes": SMALL_BYTES},
    "one, large": {"clients": 1, "prompt_bytes": LARGE_BYTES},
    "one, stream": {
        "clients": 1,
        "prompt_bytes": SMALL_BYTES,
        "stream_tokens": 5,
        "interval_ms": 1,
    },
    "many, small": {"clients": CLIENTS, "prompt_bytes": SMALL_BYTES},
    "many, large": {"clients": CLIENTS, "prompt_bytes": LARGE_BYTES},
    "streams": {
        "clients": CLIENTS,
        "prompt_bytes": SMALL_BYTES,
        "stream_tokens": STREAM_TOKENS,
        "interval_ms": 20,
    },
    "fast streams": {
        "clients": CLIENTS,
        "prompt_bytes": SMALL_BYTES,
        "stream_tokens": STREAM_TOKENS,
        "interval_ms": 0,
    },
}


def load(port: int, seconds: float, seed: int, **scenario: Any) -> dict[str, Any]:
    """One run of the load generator."""
    run = {"port": port, "seconds": seconds, "seed": seed, **scenario}
    done = subprocess.run(
        ["taskset", "-c", str(LOAD_CORE), sys.executable, HERE / "router_load.py", json.dumps(run)],
        capture_output=True,
        text=True,
        check=True,
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


@contextmanager
def replicas() -> Iterator[list[str]]:
    """Four stubs; yields their URLs."""
    with ExitStack() as stack:
        urls = []
        for _ in range(REPLICAS):
            port = free_port()
            process = subprocess.Popen(
                [
                    "taskset",
                    "-c",
                    str(LOAD_CORE),
                    sys.executable,
                    HERE / "router_stub.py",
                    str(port),
                ]
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            urls.append(f"http://127.0.0.1:{port}")
        for url in urls:
            _wait_for(url)
        yield urls


def measure(contestant: Contestant, urls: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one router."""
    ports = free_port(), free_port()
    with running(contestant, urls, ports, ROUTER_CORE) as process_id:
        load(ports[0], 0.3, 1, **SCENARIOS["many, small"])  # connections, caches, compilers
        figures: dict[str, Any] = {"version": contestant.version()}
        for number, (name, scenario) in enumerate(SCENARIOS.items()):
            before_s = _cpu_s(process_id)
            run = load(ports[0], options.seconds, number + 2, **scenario)
            figures[name] = _summary(run, _cpu_s(process_id) - before_s)
        if options.prompts:
            figures["memory"] = _grow(ports[0], process_id, options.prompts)
        return figures


def _summary(run: dict[str, Any], cpu_s: float) -> dict[str, Any]:
    count = run["requests"]
    if not count:
        return {"requests": 0, "failures": run["failures"]}
    return {
        "requests": count,
        "failures": run["failures"],
        "first_byte_p50_us": 1e6 * run["first_p50_s"],
        "first_byte_p99_us": 1e6 * run["first_p99_s"],
        "requests_per_s": count / run["seconds"],
        "chunks_per_s": run["chunks"] / run["seconds"],
        "cpu_ms_per_request": 1e3 * cpu_s / count,
    }


def _grow(port: int, process_id: int, prompts: int) -> list[dict[str, float]]:
    """Resident memory of the process tree as ever more distinct prompts have been seen."""
    seen, points = 0, [{"prompts": 0.0, "mib": _resident_bytes(process_id) / 2**20}]
    for tenth in range(10):
        run = load(
            port,
            600,
            100 + tenth,
            clients=CLIENTS,
            prompt_bytes=SMALL_BYTES,
            requests=prompts // 10,
        )
        seen += run["requests"]
        points.append({"prompts": float(seen), "mib": _resident_bytes(process_id) / 2**20})
        _tell(f"  {seen:,} prompts: {points[-1]['mib']:.0f} MiB")
    return points


def main() -> None:
    """Measure one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--routers", nargs="*", default=list(CONTESTANTS), choices=CONTESTANTS)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    parser.add_argument("--prompts", type=int, default=0, help="distinct prompts to see memory by")
    parser.add_argument("--keep", action="store_true", help="put the figures into results/")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    entries: dict[str, Any] = {}
    with replicas() as urls:
        port = int(urls[0].rpartition(":")[2])
        entries["none"] = {
            name: _summary(load(port, options.seconds, number, **scenario), 0.0)
            for number, (name, scenario) in enumerate(SCENARIOS.items())
        }
        for name in options.routers:
            contestant = CONTESTANTS[name]
            if not contestant.is_installed:
                _tell(f"{name}: not installed")
                continue
            started_s = time.monotonic()
            try:
                entries[name] = measure(contestant, urls, options)
            except RuntimeError as error:
                _tell(f"{name}: did not come up\n{error}")
                continue
            _tell(f"{name}: {time.monotonic() - started_s:.0f} s")
    if options.keep:
        told = results.conditions(1)
        results.add("router", {name: {**told, **one} for name, one in entries.items()})
    print(json.dumps(entries) if options.json else router_table(entries))


def _tree(process_id: int) -> list[int]:
    """A process and all that it started."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found, rest = [], [process_id]
    while rest:
        found.append(rest.pop())
        rest += children.get(found[-1], [])
    return found


def _cpu_s(process_id: int) -> float:
    """CPU time of a process tree's threads so far, as the scheduler counts it."""
    spent_ns = 0
    for one in _tree(process_id):
        for thread in Path(f"/proc/{one}/task").iterdir():
            spent_ns += int((thread / "schedstat").read_text().split()[0])
    return spent_ns / 1e9


def _resident_bytes(process_id: int) -> int:
    pages = (Path(f"/proc/{one}/statm").read_text().split()[1] for one in _tree(process_id))
    return sum(map(int, pages)) * _PAGE_BYTES


def _wait_for(url: str) -> None:
    for _ in range(100):
        try:
            httpx.get(f"{url}/health", trust_env=False)
            return
        except httpx.TransportError:
            time.sleep(0.05)
    sys.exit(f"{url} did not come up")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
