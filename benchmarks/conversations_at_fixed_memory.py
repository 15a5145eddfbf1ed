"""How many conversations of mixed length the same memory holds at once, and what that is worth.

    python benchmarks/conversations_at_fixed_memory.py [--memory-mib 128] [--conversations 64]
        [--price-per-hour 1.0] [--kv-dtypes bf16 int8 int4] [--json]

The same conversations, all there from the start, run to their ends in so much memory for keys and
values: first as many at once as slabs for the longest possible context would allow (so many slabs
fit: computed), then in paged blocks of each type, as many as there is room for. Nothing is shared
and nothing guessed. "at once" is the mean and the most while some still wait (or all run, where all
fit); "waste" is the part of the slots in use that hold no token: of slabs all that is not filled,
of blocks the unfilled ends. Tokens are those of answers; the time of prefill is in it.
"""

import argparse
import json
import os
import random
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version

import numpy as np

import results
from kvikk import __version__
from kvikk.engine.llm import LLM
from kvikk.engine.requests import Generation, Request
from kvikk.files.sources import resolve
from kvikk.models.load import load_decoder
from kvikk.shapes.cost import cache_cost
from kvikk.shapes.dtypes import as_kvikk_keeps, kv_dtypes
from tables import fixed_memory_table

CONTEXT_TOKENS = 2048
STEP_TOKENS = 256
# Prompt and answer, by how many of ten are so: questions, chats, documents.
MIX = ((3, 64, 48), (3, 192, 64), (2, 512, 64), (1, 1024, 96), (1, 1536, 48))


@dataclass
class Run:
    """One way to spend the memory."""

    name: str
    limit: int  # conversations at once, whatever fits
    slab_tokens: int | None = None  # what each takes; None: as many blocks as it needs
    at_once: list[int] = field(default_factory=list)  # a step, while some wait
    waste: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    token_ms: list[float] = field(default_factory=list)  # a conversation: between its tokens
    preemptions: int = 0


def conversations(count: int) -> list[tuple[list[int], int]]:
    """Prompts and the lengths of their answers, shuffled, always the same."""
    rng = random.Random(0)
    kinds = [(prompt, answer) for times, prompt, answer in MIX for _ in range(times)]
    chosen = [kinds[index % len(kinds)] for index in range(count)]
    rng.shuffle(chosen)
    return [
        (rng.choices(range(1_000, 40_000), k=int(prompt * rng.uniform(0.7, 1.3))), answer)
        for prompt, answer in chosen
    ]


def measure(run: Run, kv_dtype: str, memory_bytes: int, count: int) -> None:
    """Run all conversations to their ends."""
    llm = LLM(
        "smollm2",
        kv_dtype=kv_dtype,
        kv_memory_bytes=memory_bytes,
        max_context_tokens=CONTEXT_TOKENS,
        prefix_caching=False,
        speculation=False,
        step_tokens=STEP_TOKENS,
        max_running=min(run.limit, STEP_TOKENS),
        ledger_memory_bytes=None,
    )
    engine = llm.loaded.engine
    todo = conversations(count)
    for number, (prompt, answer) in enumerate(todo):
        generation = Generation(max_tokens=answer, ignore_eos=True)
        engine.add(Request(str(number), tuple(prompt), generation))
    first_s: dict[str, float] = {}
    counts: dict[str, int] = {}
    started_s = time.perf_counter()
    while engine.has_work:
        outputs = engine.step()
        now_s = time.perf_counter()
        for output in outputs:
            first_s.setdefault(output.request_id, now_s)
            counts[output.request_id] = counts.get(output.request_id, 0) + len(output.token_ids)
            if output.finish_reason is not None:
                passed_s = now_s - first_s[output.request_id]
                run.token_ms.append(1e3 * passed_s / max(1, counts[output.request_id] - 1))
        stats = engine.stats()
        is_full = stats.waiting_requests > 0 or stats.running_requests == count
        if is_full and stats.running_requests:
            run.at_once.append(stats.running_requests)
            found = [engine.find(str(number)) for number in range(count)]
            held = sum(one.num_computed for one in found if one is not None and one.is_running)
            slots = stats.groups[0].live_blocks * stats.block_size
            if run.slab_tokens is not None:
                slots = stats.running_requests * run.slab_tokens
            run.waste.append(1 - held / slots)
    run.seconds = time.perf_counter() - started_s
    run.tokens = sum(counts.values())
    run.preemptions = engine.stats().preemptions


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memory-mib", type=int, default=128)
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--price-per-hour", type=float, default=1.0)
    parser.add_argument("--kv-dtypes", nargs="+", default=["bf16", "int8", "int4"])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    memory_bytes = arguments.memory_mib << 20
    shape = load_decoder(resolve("smollm2")).shape
    slab_bytes = CONTEXT_TOKENS * cache_cost(shape, kv_dtypes("bf16")).bytes_per_token
    slabs = int(memory_bytes // slab_bytes)
    if not slabs:
        sys.exit(f"{arguments.memory_mib} MiB hold no slab of {slab_bytes / (1 << 20):.0f} MiB")
    runs = [(Run(f"slabs of {CONTEXT_TOKENS:,} tokens, bf16", slabs, CONTEXT_TOKENS), "bf16")]
    runs += [(Run(f"blocks, {name}", STEP_TOKENS), name) for name in arguments.kv_dtypes]
    told = []
    for run, name in runs:
        print(run.name, file=sys.stderr)
        measure(run, name, memory_bytes, arguments.conversations)
        told.append(
            {
                "name": run.name,
                "bytes_per_token": cache_cost(
                    shape, as_kvikk_keeps(kv_dtypes(name))
                ).bytes_per_token,
                "at_once_mean": float(np.mean(run.at_once)),
                "at_once_most": max(run.at_once),
                "waste": float(np.mean(run.waste)),
                "tokens": run.tokens,
                "seconds": run.seconds,
                "token_ms": float(np.mean(run.token_ms)),
                "preemptions": run.preemptions,
            }
        )
    entry = {
        **results.conditions(len(os.sched_getaffinity(0))),
        "versions": f"kvikk {__version__}, numba {version('numba')}",
        "conversations": arguments.conversations,
        "memory_mib": arguments.memory_mib,
        "price_per_hour": arguments.price_per_hour,
        "runs": told,
    }
    print(json.dumps(entry) if arguments.json else fixed_memory_table(entry))


if __name__ == "__main__":
    main()
