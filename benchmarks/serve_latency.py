"""What Ray Serve adds: a fleet beside a bare server of the same model, and what its processes take.

    kvikk serve smollm2 --port 8001 --threads 1 &
    kvikk fleet up FLEET.yaml &
    python benchmarks/serve_latency.py --fleet http://127.0.0.1:8000 --bare http://127.0.0.1:8001

Requests of 200 cached prompt tokens, answered by one token or streamed as 32, go to both by turns,
one at a time. Memory is each process's share (PSS, in MiB): pages that several map count in parts.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import httpx

PROMPT = [1 + place * 7 % 997 for place in range(200)]


def ask(client: httpx.Client, num_tokens: int) -> float:
    """Seconds for one streamed answer of so many tokens."""
    body = {
        "model": "smollm2",
        "prompt": PROMPT,
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": num_tokens > 1,
    }
    began_s = time.perf_counter()
    response = client.post("/v1/completions", json=body)
    response.raise_for_status()
    return time.perf_counter() - began_s


def memory_mib() -> dict[str, list[float]]:
    """By kind of process: what each of Ray's takes."""
    kinds = {
        "engines": b"kvikk:engines",
        "ingress": b"kvikk:ingress",
        "proxy": b"ProxyActor",
        "controller": b"ServeController",
        "raylet": b"raylet/raylet",
        "gcs": b"gcs_server",
        "agents": b"agent",
    }
    found: dict[str, list[float]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            rollup = (process / "smaps_rollup").read_text()
        except OSError:
            continue
        kind = next((name for name, mark in kinds.items() if mark in command), None)
        if kind is not None and b"ray" in command:
            kib = next(line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:"))
            found.setdefault(kind, []).append(round(int(kib) / 1024, 1))
    return found


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleet", required=True)
    parser.add_argument("--bare", required=True)
    parser.add_argument("--key", default="none")
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    headers = {"authorization": f"Bearer {options.key}"}
    urls = {"bare": options.bare, "fleet": options.fleet}
    clients = {
        name: httpx.Client(base_url=url, headers=headers, timeout=60) for name, url in urls.items()
    }
    shown = {}
    for num_tokens in (1, 32):
        times_s: dict[str, list[float]] = {name: [] for name in clients}
        for number in range(options.rounds + 3):
            for name, client in clients.items():
                took_s = ask(client, num_tokens)
                if number >= 3:
                    times_s[name].append(took_s)
        shown[f"{num_tokens} tokens"] = {
            name: {
                "median_ms": round(1000 * statistics.median(times), 2),
                "least_ms": round(1000 * min(times), 2),
            }
            for name, times in times_s.items()
        }
    print(json.dumps({"latency": shown, "pss_mib": memory_mib()}, indent=1))


if __name__ == "__main__":
    main()
