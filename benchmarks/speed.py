"""Tokens a second beside llama.cpp on the same file: ``make bench``.

    LLAMA_CPP_PYTHON=path/to/python   an interpreter with llama-cpp-python
    YARDSTICK=path/to/yardstick.py    a script that prints one JSON line of speeds
    python benchmarks/speed.py [--model smollm2] [--threads N] [--rounds 5]

Engines take turns within a round, since a machine's speed drifts; medians over the rounds, and the
ratio to the other engine. Prints a Markdown table.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np

from kvikk.backends.base import Batch, Plan
from kvikk.backends.cpu.backend import CpuBackend
from kvikk.files.sources import resolve
from kvikk.models.load import load_decoder
from kvikk.shapes.shape import cache_groups

Speeds = dict[str, float]
CONTEXT_TOKENS = 2048
BLOCK_TOKENS = 32


class Kvikk:
    """Our engine's backend, with one sequence whose blocks lie in no order."""

    def __init__(self, model: str, threads: int) -> None:
        decoder = load_decoder(resolve(model))
        self._backend = CpuBackend(threads)
        groups = cache_groups(decoder.shape)
        num_blocks = CONTEXT_TOKENS // BLOCK_TOKENS
        counts = (num_blocks,) * len(groups)
        plan = Plan(groups, counts, BLOCK_TOKENS, "bf16", 512, 1, CONTEXT_TOKENS)
        self._backend.load(decoder, plan)
        generator = np.random.default_rng(0)
        order = generator.permutation(num_blocks).astype(np.int32)[None]
        self._tables = (order,) * len(groups)
        self._tokens = generator.integers(100, 40_000, CONTEXT_TOKENS).astype(np.int32)

    def _run(self, start: int, count: int) -> None:
        rows = np.arange(count, dtype=np.int32)
        batch = Batch(
            self._tokens[start : start + count], rows + start, rows * 0, self._tables, rows[-1:]
        )
        self._backend.forward(batch)

    def round(self) -> Speeds:
        """A prompt of 512 tokens, then 32 tokens at contexts of 64 and 1,024."""
        start_s = time.perf_counter()
        self._run(0, 512)
        speeds = {"prefill 512": 512 / (time.perf_counter() - start_s)}
        self._run(512, 512)
        for context in (64, 1024):
            start_s = time.perf_counter()
            for position in range(context, context + 32):
                self._run(position, 1)
            speeds[f"decode at {context}"] = 32 / (time.perf_counter() - start_s)
        return speeds


def llama_cpp(python: str, model: str, threads: int) -> tuple[str, Callable[[], Speeds]]:
    """llama.cpp in a process of its own: its name, and what does a round."""
    script = str(Path(__file__).with_name("llama_cpp_peer.py"))
    told = subprocess.run([python, script, "version"], capture_output=True, text=True, check=True)
    process = subprocess.Popen(
        [python, script, "speed", str(resolve(model).path), str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def one_round() -> Speeds:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("round\n")
        process.stdin.flush()
        speeds: Speeds = json.loads(process.stdout.readline())
        return speeds

    return f"llama.cpp (llama-cpp-python {told.stdout.strip()})", one_round


def yardstick(script: str, model: str) -> Speeds:
    """One run of the yardstick, in its own words turned to ours."""
    done = subprocess.run(
        [sys.executable, script, str(resolve(model).path)],
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    return {
        "prefill 512": told["prefill_512_tokens_per_s"],
        "decode at 64": told["decode_at_64_tokens_per_s"],
        "decode at 1024": told["decode_at_1024_tokens_per_s"],
    }


def main() -> None:
    """Measure in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    engines: dict[str, Callable[[], Speeds]] = {
        f"kvikk {version('kvikk')}": Kvikk(arguments.model, arguments.threads).round
    }
    python = os.environ.get("LLAMA_CPP_PYTHON")
    if python:
        name, one_round = llama_cpp(python, arguments.model, arguments.threads)
        engines[name] = one_round
    script = os.environ.get("YARDSTICK")
    if script:
        engines["yardstick"] = lambda: yardstick(script, arguments.model)

    seen: dict[str, list[Speeds]] = {name: [] for name in engines}
    for number in range(arguments.rounds + 1):
        print(f"round {number} of {arguments.rounds}", file=sys.stderr)
        for name, one_round in engines.items():
            speeds = one_round()
            if number > 0:  # the first warms up
                seen[name].append(speeds)

    print(
        f"{arguments.model}, {arguments.threads} threads, {platform.processor() or 'CPU'}, "
        f"median of {arguments.rounds} rounds (lowest to highest), tokens a second\n"
    )
    columns = list(next(iter(seen.values()))[0])
    print("| engine | " + " | ".join(columns) + " |")
    print("|---|" + "---|" * len(columns))
    ours = {column: median(one[column] for one in next(iter(seen.values()))) for column in columns}
    for index, (name, rounds) in enumerate(seen.items()):
        cells = []
        for column in columns:
            values = [one[column] for one in rounds]
            cell = f"{median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"
            if index > 0:
                cell += f", kvikk {ours[column] / median(values):.2f}x"
            cells.append(cell)
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
