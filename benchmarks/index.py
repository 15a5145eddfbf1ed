"""How long it takes to ask what 64 replicas hold of 32,000 tokens: as they tell, and as learned.

    python benchmarks/index.py [--blocks 1000] [--replicas 64] [--rounds 60]

Keys are new objects in every round, as they are when a prompt has just been hashed; beside the
prompt's blocks there are half a million others.
"""

import argparse
import os
import random
import time
from collections.abc import Callable
from typing import TypeVar

from kvikk.cli.columns import columns
from kvikk.router.holdings.index import PrefixIndex
from kvikk.router.holdings.keys import joined
from kvikk.router.holdings.tree import PrefixTree, TreeCache

OTHERS_PER_REPLICA = 8000
OTHER_PROMPT_BLOCKS = 40
_Asked = TypeVar("_Asked")


def main() -> None:
    """Ask about prompts that lie in several ways, and print the least and the middle time."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blocks", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    chance, count = random.Random(1), options.replicas
    index, tree = PrefixIndex(), PrefixTree()
    caches = [TreeCache(tree, slot, 1 << 20) for slot in range(count)]

    def hold(slot: int, keys: list[bytes]) -> None:
        index.add(slot, keys)
        caches[slot].use(joined(keys))

    for slot in range(count):
        for _ in range(OTHERS_PER_REPLICA // OTHER_PROMPT_BLOCKS):
            hold(slot, [os.urandom(32) for _ in range(OTHER_PROMPT_BLOCKS)])
    cases = {
        "nobody holds it": [0] * count,
        "one holds all, all hold a quarter": [options.blocks, *[options.blocks // 4] * (count - 1)],
        "all hold all": [options.blocks] * count,
        "each holds another length": [chance.randrange(options.blocks) for _ in range(count)],
    }
    rows = [("prompt", "told, least", "median", "learned, least", "median")]
    for name, lengths in cases.items():
        keys = [os.urandom(32) for _ in range(options.blocks)]
        for slot, length in enumerate(lengths):
            hold(slot, keys[:length])
        told = _times(index.hit_blocks, list, keys, lengths, options.rounds)
        learned = _times(tree.hit_blocks, joined, keys, lengths, options.rounds)
        rows.append((name, *told, *learned))
    print(columns(rows, right=(1, 2, 3, 4)))


def _times(
    ask: Callable[[_Asked, int], list[int]],
    form: Callable[[list[bytes]], _Asked],
    keys: list[bytes],
    lengths: list[int],
    rounds: int,
) -> tuple[str, str]:
    """The least and the middle one."""
    times_s = []
    for _ in range(rounds):
        asked = form([bytes(bytearray(key)) for key in keys])
        started_s = time.perf_counter()
        hits = ask(asked, len(lengths))
        times_s.append(time.perf_counter() - started_s)
        assert hits == lengths
    times_s.sort()
    return f"{1e6 * times_s[0]:.0f} µs", f"{1e6 * times_s[rounds // 2]:.0f} µs"


if __name__ == "__main__":
    main()
