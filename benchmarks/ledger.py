"""What keeping books costs: throughput with and without them, and one long prompt's admission.

    python benchmarks/ledger.py [--model smollm2] [--threads N] [--rounds 5] [--json]

Two engines that differ in nothing else take turns at the same requests: conversations that share a
system prompt, many at once, in a pool that is too small to keep them all. The fastest round of each
counts: whatever else the machine does only adds. The other figure is what a prompt of 32,000 tokens
takes, once tokenised, to be accounted for: never seen, all of it cached, and all of it moved by a
clock in front.
"""

import argparse
import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count

from kvikk import LLM
from kvikk.backends.base import Plan
from kvikk.cache.keys import KeyChain
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import GroupSpec
from kvikk.engine.books import Books
from kvikk.engine.requests import Generation, Request
from kvikk.shapes.shape import CacheGroup

SYSTEM_TOKENS = 256
TURN_TOKENS = 48
ANSWER_TOKENS = 32
CONVERSATIONS = 16
TURNS = 4
KV_MEMORY_BYTES = 96 << 20

LONG_PROMPT_TOKENS = 32_000
BLOCK_SIZE = 32


@dataclass(frozen=True)
class Throughput:
    """Seconds of each round, in turns, and what the fastest say."""

    with_books_s: list[float]
    without_s: list[float]
    prompt_tokens: int
    answer_tokens: int
    cost: float  # share of the time that the books take


def serve(llm: LLM, texts: Sequence[Sequence[int]], ids: "count[int]") -> float:
    """Seconds for all conversations, turn by turn, all at once."""
    engine = llm.loaded.engine
    engine.reset_cache()
    generation = Generation(max_tokens=ANSWER_TOKENS, ignore_eos=True)
    prompts = [list(texts[0]) for _ in range(CONVERSATIONS)]
    started_s = time.perf_counter()
    for turn in range(TURNS):
        running: dict[str, list[int]] = {}
        for number, prompt in enumerate(prompts):
            prompt += texts[1 + turn * CONVERSATIONS + number]
            request = Request(str(next(ids)), tuple(prompt), generation)
            running[request.id] = prompt
            engine.add(request)
        while engine.has_work:
            for output in engine.step():
                running[output.request_id] += output.token_ids
    return time.perf_counter() - started_s


def throughput(model: str, threads: int, rounds: int) -> Throughput:
    """Both engines in turns; a first round is to warm up."""
    engines = [
        LLM(model, threads=threads, kv_memory_bytes=KV_MEMORY_BYTES, **books)
        for books in ({}, {"ledger_memory_bytes": None})
    ]
    seconds: tuple[list[float], list[float]] = ([], [])
    generator, ids = random.Random(0), count()
    for number in range(rounds + 1):
        lengths = [SYSTEM_TOKENS, *[TURN_TOKENS] * (TURNS * CONVERSATIONS)]
        texts = [generator.choices(range(1_000, 40_000), k=length) for length in lengths]
        both = list(zip(engines, seconds, strict=True))
        for llm, seen in both if number % 2 else reversed(both):
            passed_s = serve(llm, texts, ids)
            if number:
                seen.append(passed_s)
    stats = engines[0].loaded.engine.stats()
    kept = 1 - min(seconds[1]) / min(seconds[0])
    per_round = rounds + 1
    return Throughput(
        *seconds, stats.prompt_tokens // per_round, stats.generated_tokens // per_round, kept
    )


def admissions(rounds: int) -> dict[str, float]:
    """Milliseconds to account for a long prompt, the fastest of the rounds."""
    num_blocks = 4 * LONG_PROMPT_TOKENS // BLOCK_SIZE
    plan = Plan((CacheGroup((0,), 1, 1, None),), (num_blocks,), BLOCK_SIZE, "bf16", 256, 64, 2**17)
    fastest: dict[str, float] = {}
    generator = random.Random(1)
    for _ in range(rounds):
        books = Books(
            plan,
            model_digest=b"",
            numerics="",
            tokenizer=None,
            block_bytes=(0,),
            step_tokens=256,
            eviction="duel",
        )
        manager = CacheManager([GroupSpec(num_blocks)], BLOCK_SIZE, on_event=books.hear)
        text = generator.choices(range(1_000, 40_000), k=LONG_PROMPT_TOKENS)
        for number, (name, prompt) in enumerate(
            {"new": text, "cached": text, "moved": [7, 8, 9, *text[3:]]}.items()
        ):
            passed_ms = 1e3 * admit(books, manager, number, prompt)
            fastest[name] = min(passed_ms, fastest.get(name, passed_ms))
    return fastest


def admit(books: Books, manager: CacheManager, number: int, prompt: Sequence[int]) -> float:
    """Seconds that the books take for a prompt; then it is computed and ends."""
    chain = KeyChain(books.root(b"").key, BLOCK_SIZE, prompt)
    match = manager.match(chain.keys, len(prompt))
    manager.allocate(number, match, len(prompt) - match.num_tokens)
    started_s = time.perf_counter()
    books.admit(
        Request(str(number), prompt),
        number,
        prompt,
        chain.keys,
        hit_tokens=match.num_tokens,
        waited_for=None,
        computing=lambda key: manager.computing(key, besides=number),
    )
    passed_s = time.perf_counter() - started_s
    manager.commit(number, len(prompt), chain.keys)
    manager.free(number)
    books.end(number, chain)
    return passed_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    arguments = parser.parse_args()
    served = throughput(arguments.model, arguments.threads, arguments.rounds)
    admitted_ms = admissions(arguments.rounds)
    if arguments.json:
        print(json.dumps({"throughput": asdict(served), "admission_ms": admitted_ms}))
        return
    tokens = served.prompt_tokens + served.answer_tokens
    for name, seconds in (("with", served.with_books_s), ("without", served.without_s)):
        print(f"{tokens / min(seconds):8,.0f} tokens a second {name} books")
    print(f"{served.cost:8.2%} of the time goes into them")
    for name, passed_ms in admitted_ms.items():
        print(f"{passed_ms:8.1f} ms to account for {LONG_PROMPT_TOKENS:,} tokens, all {name}")


if __name__ == "__main__":
    main()
