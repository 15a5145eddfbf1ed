"""How long one question to the router's index takes: 32,000 tokens, 64 replicas.

    python benchmarks/index.py [--blocks 1000] [--replicas 64] [--rounds 60]

Keys are new objects in every round, as they are when a prompt has just been hashed; beside the
prompt's blocks the index holds half a million others.
"""

import argparse
import os
import random
import time

from kvikk.cli.columns import columns
from kvikk.router.holdings.index import PrefixIndex

OTHERS_PER_REPLICA = 8000


def main() -> None:
    """Ask about prompts that lie in several ways, and print the least and the middle time."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blocks", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    chance, count = random.Random(1), options.replicas
    index = PrefixIndex()
    for slot in range(count):
        index.add(slot, [os.urandom(32) for _ in range(OTHERS_PER_REPLICA)])
    cases = {
        "nobody holds it": [0] * count,
        "one holds all, all hold a quarter": [options.blocks, *[options.blocks // 4] * (count - 1)],
        "all hold all": [options.blocks] * count,
        "each holds another length": [chance.randrange(options.blocks) for _ in range(count)],
    }
    rows = [("prompt", "least", "median")]
    for name, lengths in cases.items():
        keys = [os.urandom(32) for _ in range(options.blocks)]
        for slot, length in enumerate(lengths):
            index.add(slot, keys[:length])
        times_s = []
        for _ in range(options.rounds):
            asked = [bytes(bytearray(key)) for key in keys]
            started_s = time.perf_counter()
            hits = index.hit_blocks(asked, count)
            times_s.append(time.perf_counter() - started_s)
            assert hits == lengths
        times_s.sort()
        rows.append(
            (name, *(f"{1e6 * at:.0f} µs" for at in (times_s[0], times_s[len(times_s) // 2])))
        )
    print(columns(rows, right=(1, 2)))


if __name__ == "__main__":
    main()
