"""How long our server takes to start, and how much memory it takes.

    python benchmarks/footprint.py [--models smollm2 …] [--only start memory] [--keep]

A start is from the command to the first token over HTTP: once in an empty home, where kernels are
compiled, then several times with them there. Memory is the server's resident size when it has
answered once, and when every block of its cache has been written, beside what the engine planned.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

import results
from kvikk.backends.base import Plan
from kvikk.backends.cpu.backend import CpuBackend
from kvikk.files.sources import resolve
from kvikk.models.load import load_decoder
from kvikk.shapes.shape import cache_groups
from models import MODELS_OF_THE_COMPARISON, form_of
from servers import KINDS, running
from tables import footprint_tables

STARTS = 5
# A cache that is filled in seconds.
SERVER = replace(
    KINDS["kvikk"],
    arguments="serve {model} --port {port} --threads {threads} --kv-memory 512MiB --no-speculation",
)


def starts(model: str, threads: int) -> dict[str, Any]:
    """Seconds from the command to the first token."""
    with tempfile.TemporaryDirectory() as home:
        kind = replace(SERVER, variables={"KVIKK_HOME": home})
        seconds = []
        for _ in range(STARTS + 1):
            started_s = time.monotonic()
            with running(kind, model, threads=threads, slots=1, context=0) as server:
                _complete(server.base_url, "Once upon a time", 1)
                seconds.append(time.monotonic() - started_s)
    return {"first_s": seconds[0], "later_s": seconds[1:]}


def memory(model: str, threads: int) -> dict[str, Any]:
    """Bytes: planned by part, and resident by moment."""
    with running(SERVER, model, threads=threads, slots=1, context=0) as server:
        _complete(server.base_url, "Once upon a time", 1)
        at_rest = resident_bytes(server.process_id)
        rng = random.Random(0)
        cache_url = f"{server.base_url}/kvikk/cache"
        while (cache := httpx.get(cache_url).json())["empty_blocks"]:
            before = cache["empty_blocks"]
            size = 31 * cache["block_size"]
            _complete(server.base_url, rng.choices(range(1_000, 40_000), k=size), 1)
            if httpx.get(cache_url).json()["empty_blocks"] == before:
                break
        under_load = resident_bytes(server.process_id)
    return {
        "planned": planned_bytes(model, cache),
        "at_rest": at_rest,
        "under_load": under_load,
        "total_blocks": cache["total_blocks"],
        "empty_blocks": cache["empty_blocks"],
    }


def planned_bytes(model: str, cache: dict[str, Any]) -> dict[str, int]:
    """What the backend says it takes for as many blocks as the server has."""
    decoder = load_decoder(resolve(str(form_of(model, "gguf"))))
    groups = cache_groups(decoder.shape)
    counts = tuple(group["total_blocks"] for group in cache["groups"])
    plan = Plan(groups, counts, cache["block_size"], "bf16", 256, 64, decoder.context_tokens)
    use = CpuBackend().memory_use(decoder, plan)
    return {
        "weights": use.weight_bytes,
        "activations": use.activation_bytes,
        "blocks": sum(n * size for n, size in zip(counts, use.block_bytes, strict=True)),
    }


def resident_bytes(process_id: int) -> dict[str, int]:
    """A process's own pages, and those of mapped files, which the system can take back."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    own, mapped = (1024 * int(fields[name].split()[0]) for name in ("RssAnon", "RssFile"))
    return {"own": own, "mapped": mapped}


def _complete(base_url: str, prompt: str | list[int], max_tokens: int) -> None:
    body = {"model": _model_of(base_url), "prompt": prompt, "max_tokens": max_tokens}
    httpx.post(f"{base_url}/completions", json=body, timeout=300).raise_for_status()


def _model_of(base_url: str) -> str:
    return str(httpx.get(f"{base_url}/models").json()["data"][0]["id"])


def main() -> None:
    """Measure and print the tables."""
    kinds = {"start": starts, "memory": memory}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = list(MODELS_OF_THE_COMPARISON)
    parser.add_argument("--models", nargs="+", default=["smollm2"], choices=known)
    parser.add_argument("--only", nargs="+", default=list(kinds), choices=list(kinds))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true", help="entries instead of tables")
    parser.add_argument("--keep", action="store_true", help="put them among the results")
    arguments = parser.parse_args()
    entries: results.Entries = {}
    for model in arguments.models:
        for kind in arguments.only:
            title = f"{model}, {kind}"
            print(title, file=sys.stderr, flush=True)
            measured = kinds[kind](model, arguments.threads)
            entries[title] = {**results.conditions(arguments.threads), **measured}
            if arguments.keep:
                results.add("footprint", {title: entries[title]})
    print(json.dumps(entries, indent=1) if arguments.json else footprint_tables(entries))


if __name__ == "__main__":
    main()
