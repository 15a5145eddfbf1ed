"""What the books hold on to when prompts never come again: the process's memory, prompt by prompt.

    python benchmarks/ledger_memory.py [--prompts 1000000] [--tokens 128] [--memory-mib 96]

Every prompt is new, in a pool that keeps the last few hundred of them. Printed is how much the
process has grown since the first prompt, beside the limit that was given (the pool's own blocks and
the what-ifs come on top, and are stated too).
"""

import argparse
import random
import resource
import time

from kvikk.backends.base import Plan
from kvikk.cache.manager import CacheManager
from kvikk.cache.records import GroupSpec
from kvikk.engine.books import Books
from kvikk.shapes.shape import CacheGroup
from ledger import BLOCK_SIZE, admit

POOL_BLOCKS = 4096
# As docs/ledger.md states them.
BYTES_A_CACHED_BLOCK = 900
WHAT_IF_MIB = 40


def main() -> None:
    """Feed prompts and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=128, help="a prompt")
    parser.add_argument("--memory-mib", type=int, default=96, help="--ledger-memory")
    arguments = parser.parse_args()
    plan = Plan((CacheGroup((0,), 1, 1, None),), (POOL_BLOCKS,), BLOCK_SIZE, "bf16", 256, 64, 2**17)
    books = Books(
        plan,
        model_digest=b"",
        numerics="",
        tokenizer=None,
        block_bytes=(0,),
        step_tokens=256,
        eviction="duel",
        memory_bytes=arguments.memory_mib << 20,
    )
    manager = CacheManager([GroupSpec(POOL_BLOCKS)], BLOCK_SIZE, on_event=books.hear)
    generator = random.Random(0)
    first_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started_s = time.perf_counter()
    print(f"{'prompts':>10} {'grown, MiB':>10}")
    for number in range(arguments.prompts):
        data = generator.randbytes(2 * arguments.tokens)
        prompt = [int.from_bytes(data[at : at + 2], "little") for at in range(0, len(data), 2)]
        admit(books, manager, number, prompt)
        if (number + 1) % max(1, arguments.prompts // 10) == 0:
            grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - first_kib
            print(f"{number + 1:10,} {grown_kib / 2**10:10.1f}", flush=True)
    pool = POOL_BLOCKS * BYTES_A_CACHED_BLOCK / 2**20
    print(
        f"limit: {arguments.memory_mib} MiB, {pool:.1f} MiB for a pool of {POOL_BLOCKS:,} and "
        f"{WHAT_IF_MIB} MiB for the what-ifs"
    )
    print(f"{time.perf_counter() - started_s:.0f} s, books balanced at every prompt")


if __name__ == "__main__":
    main()
