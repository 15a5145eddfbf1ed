"""What a token costs as contexts, batches and prompts grow.

    python benchmarks/growth.py [--models smollm2 …] [--only context batch prompt] [--keep]

Our engine alone, greedy, without speculation, nothing reused. All sizes take turns within a round;
figures are medians over the rounds with their spread.
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count

import results
from cores import round_trip_ns
from kvikk.engine.llm import LLM
from kvikk.engine.requests import Generation, Request
from models import MODELS_OF_THE_COMPARISON, form_of
from tables import growth_tables

CONTEXTS = (1, 16, 64, 256, 1024, 2048, 4096, 8000)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
PROMPTS = (1, 16, 64, 128, 512, 1024, 2048, 4096, 8000)
DECODED_TOKENS = 32
BATCH_PROMPT_TOKENS = 64
KV_MEMORY_BYTES = 2 << 30


class Growth:
    """One engine, and milliseconds of it."""

    def __init__(self, model: str, threads: int) -> None:
        llm = LLM(
            str(form_of(model, "gguf")),
            threads=threads,
            kv_memory_bytes=KV_MEMORY_BYTES,
            speculation=False,
        )
        self._engine = llm.loaded.engine
        self._ids = count()
        self._random = random.Random(0)

    def context(self, num_tokens: int) -> float:
        """A decoded token of one stream, behind a context of ``num_tokens``."""
        return self._decode(1, num_tokens)

    def batch(self, streams: int) -> float:
        """A step that brings each of ``streams`` a token, behind some 64 tokens of context."""
        return self._decode(streams, BATCH_PROMPT_TOKENS)

    def prompt(self, num_tokens: int) -> float:
        """A prompt's first token."""
        self._begin(1, num_tokens, 1)
        started_s = time.perf_counter()
        self._finish()
        return 1e3 * (time.perf_counter() - started_s)

    def _decode(self, streams: int, context: int) -> float:
        # The first streams answer while the last prompts are computed, at least four a step.
        ids = self._begin(streams, context, streams + DECODED_TOKENS)
        while ids:
            ids -= {output.request_id for output in self._engine.step()}
        started_s = time.perf_counter()
        for _ in range(DECODED_TOKENS - 1):
            self._engine.step()
        passed_s = time.perf_counter() - started_s
        self._finish()
        return 1e3 * passed_s / (DECODED_TOKENS - 1)

    def _begin(self, streams: int, prompt_tokens: int, new_tokens: int) -> set[str]:
        self._engine.reset_cache()
        generation = Generation(max_tokens=new_tokens, ignore_eos=True)
        ids = set()
        for _ in range(streams):
            token_ids = self._random.choices(range(1_000, 40_000), k=prompt_tokens)
            request = Request(str(next(self._ids)), token_ids, generation)
            self._engine.add(request)
            ids.add(request.id)
        return ids

    def _finish(self) -> None:
        while self._engine.has_work:
            self._engine.step()


def rows(
    sizes: Sequence[int], one: Callable[[int], float], rounds: int, title: str
) -> dict[str, list[float]]:
    """Milliseconds by size. The first round is to warm up."""
    seen: dict[str, list[float]] = {str(size): [] for size in sizes}
    for number in range(rounds + 1):
        print(f"{title}: round {number} of {rounds}", file=sys.stderr, flush=True)
        for size in sizes:
            value = one(size)
            if number:
                seen[str(size)].append(value)
    return seen


def main() -> None:
    """Measure and print the tables."""
    kinds = {"context": CONTEXTS, "batch": BATCHES, "prompt": PROMPTS}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = list(MODELS_OF_THE_COMPARISON)
    parser.add_argument("--models", nargs="+", default=["smollm2"], choices=known)
    parser.add_argument("--only", nargs="+", default=list(kinds), choices=list(kinds))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true", help="entries instead of tables")
    parser.add_argument("--keep", action="store_true", help="put them among the results")
    arguments = parser.parse_args()
    entries: results.Entries = {}
    for model in arguments.models:
        growth = Growth(model, arguments.threads)
        for kind in arguments.only:
            title = f"{model}, {kind}"
            measured = rows(kinds[kind], getattr(growth, kind), arguments.rounds, title)
            about = {
                **results.conditions(arguments.threads),
                "round_trips_ns": [round_trip_ns()],
            }
            entries[title] = {**about, "ms": measured}
            if arguments.keep:
                results.add("growth", {title: entries[title]})
    print(json.dumps(entries, indent=1) if arguments.json else growth_tables(entries))


if __name__ == "__main__":
    main()
