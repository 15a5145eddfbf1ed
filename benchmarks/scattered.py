"""Equal prompts behind a router: do they meet at one cache, without a key and with one?

    python benchmarks/scattered.py [--replicas 8] [--policies round_robin,least_requests,weighted]

Real engines, a router with each policy before them, and ``kvikk probe routing`` through it: the
same prompt eight times without a ``prompt_cache_key`` and another one eight times with one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from fleet import engines, router_arguments, started
from kvikk.cli.columns import columns


def probe(url: str, words: int) -> dict[str, str]:
    """Hits of how many, for both arms."""
    command = [sys.executable, "-m", "kvikk", "probe", "routing", "--base-url", f"{url}/v1"]
    command += ["--words", str(words), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    return {
        arm: f"{found[arm]['hits']} of {found[arm]['of']}" for arm in ("without_key", "with_key")
    }


def main() -> None:
    """Run all policies before the same engines."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--policies", default="round_robin,least_requests,weighted")
    parser.add_argument("--words", type=int, default=300)
    parser.add_argument("--kv-memory-mib", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder, engines(options, Path(folder)) as fleet:
        for policy in options.policies.split(","):
            arguments = router_arguments(options.model, policy, fleet, is_deaf=True)
            with started(arguments) as router:
                while httpx.get(f"{router.url}/healthz", trust_env=False).json()["usable"] < len(
                    fleet
                ):
                    time.sleep(0.05)
                rows.append({"policy": policy, **probe(router.url, options.words)})
    if options.json:
        print(json.dumps({"replicas": options.replicas, "rows": rows}))
        return
    cells = [(row["policy"], row["without_key"], row["with_key"]) for row in rows]
    print(f"{options.replicas} replicas")
    print(columns([("policy", "without a key", "with a key"), *cells], right=(1, 2)))


if __name__ == "__main__":
    main()
