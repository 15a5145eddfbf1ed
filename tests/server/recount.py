"""A second opinion on a ledger log: a small program that knows the rules and nothing else of kvikk.

It reads the lines (with text, for token ids), plays a cache of ``num_blocks`` blocks under LRU for
requests that ran one after another, each for one token, and counts every cause by itself.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Recount:
    """Tokens by cause. ``moved`` or ``new`` is sure of some tokens and open for others."""

    tokens: Counter[str] = field(default_factory=Counter)
    surely_moved: int = 0
    possibly_moved: int = 0


def recount(lines: Iterable[dict[str, Any]], num_blocks: int) -> Recount:
    result = Recount()
    cached: OrderedDict[str, tuple[str, tuple[int, ...]]] = OrderedDict()  # oldest use first
    seen: set[str] = set()
    prompts: list[list[int]] = []
    places: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for line in lines:
        size, prompt, keys = line["block_size"], line["token_ids"], line["block_keys"]
        assert len(prompt) == line["prompt_tokens"]
        reach = (len(prompt) - 1) // size
        parents = ["", *keys]
        blocks = [tuple(prompt[i * size : (i + 1) * size]) for i in range(len(keys))]
        hits = 0
        while hits < reach and keys[hits] in cached:
            hits += 1
        in_use = keys[:hits]
        for key in in_use:
            del cached[key]
        take(cached, num_blocks, len(in_use) + 1)
        result.tokens["hit.device"] += hits * size
        result.tokens["tail"] += len(prompt) - max(hits, reach) * size
        partial = 0
        if hits < reach:
            children = [tokens for parent, tokens in cached.values() if parent == parents[hits]]
            partial = max((common(blocks[hits], tokens) for tokens in children), default=0)
            result.tokens["partial"] += partial
        sure, possible = seen_elsewhere(prompt, size, prompts, places)
        for block in range(hits, reach):
            start = block * size + (partial if block == hits else 0)
            stop = (block + 1) * size
            if keys[block] in seen:
                result.tokens["evicted"] += stop - start
            else:
                result.tokens["moved or new"] += stop - start
                result.surely_moved += len(sure.intersection(range(start, stop)))
                result.possibly_moved += len(possible.intersection(range(start, stop)))
        take(cached, num_blocks, -(-len(prompt) // size))
        # Given back from the deepest block on.
        for block in reversed(range(len(keys))):
            cached[keys[block]] = (parents[block], blocks[block])
        seen.update(keys)
        prompts.append(prompt)
        for block, tokens in enumerate(blocks):
            places.setdefault(tokens, []).append((len(prompts) - 1, block * size))
    return result


def take(cached: OrderedDict[str, Any], num_blocks: int, in_use: int) -> None:
    """Let what was used longest ago go, until ``in_use`` blocks have room beside the cached."""
    while len(cached) + in_use > num_blocks:
        cached.popitem(last=False)


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    for index, (one, other) in enumerate(zip(a, b, strict=True)):
        if one != other:
            return index
    return len(a)


def seen_elsewhere(
    prompt: list[int],
    size: int,
    prompts: list[list[int]],
    places: dict[tuple[int, ...], list[tuple[int, int]]],
) -> tuple[set[int], set[int]]:
    """Positions inside a whole earlier block, and those that such a run may reach to."""
    sure: set[int] = set()
    possible: set[int] = set()
    for start in range(len(prompt) - size + 1):
        for number, seen_at in places.get(tuple(prompt[start : start + size]), ()):
            sure.update(range(start, start + size))
            there, shift = prompts[number], seen_at - start
            first, last = start, start + size
            while (
                first > max(0, -shift, start - size)
                and prompt[first - 1] == there[first - 1 + shift]
            ):
                first -= 1
            while (
                last < min(len(prompt), len(there) - shift, start + 2 * size)
                and prompt[last] == there[last + shift]
            ):
                last += 1
            possible.update(range(first, last))
    return sure, possible
