"""An oracle that keeps everything and looks through all of it for each token.

It knows the rules and nothing of fingerprints, tables or runs: what is in the index it reads off
the pools after every operation, what was there before it has written down, and whether tokens were
seen before it finds by comparing them one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvikk.cache.ledger.records import Cause
from kvikk.cache.ledger.roots import Root
from kvikk.cache.manager import CacheManager

# A block by what it is: its root, and all tokens from position zero to its end.
Name = tuple[Root, tuple[int, ...]]


@dataclass
class Seen:
    """A sequence that computed something."""

    root: Root
    tokens: list[int]
    blocks: set[int]  # numbers of the blocks it published first


class History:
    def __init__(self, manager: CacheManager) -> None:
        self.manager = manager
        self.size = manager.block_size
        self.names: dict[bytes, Name] = {}
        self.resident: set[Name] = set()  # in every group's index
        self.announced: set[Name] = set()  # in some group's
        self.lost: dict[Name, Cause] = {}
        self.seen: dict[int, Seen] = {}

    def name(self, root: Root, tokens: Sequence[int], keys: Sequence[bytes]) -> None:
        for block, key in enumerate(keys):
            self.names[key] = (root, tuple(tokens[: (block + 1) * self.size]))

    def look(self, because: Cause, sequence: int | None = None) -> None:
        """See what is in every group's index now; what is not there any more went ``because``."""
        indices = [{self.names[key] for key in pool.index} for pool in self.manager._pools]
        now = set.intersection(*indices)
        for name in self.resident - now:
            self.lost[name] = because
        if because is Cause.EXPIRED:  # a reset takes what evictions have left
            self.lost.update(dict.fromkeys(self.announced - set.union(*indices), because))
        if sequence is not None:
            for _, tokens in set.union(*indices) - self.announced:
                self.seen[sequence].blocks.add(len(tokens) // self.size - 1)
        self.resident, self.announced = now, set.union(*indices)

    def causes(
        self, sequence: int, prompt: list[int], root: Root, hit: int, computing: set[Name]
    ) -> list[set[Cause]]:
        """For each token what the ledger may say of it."""
        size = self.size
        reach = (len(prompt) - 1) // size * size
        result: list[set[Cause]] = []
        for position in range(len(prompt)):
            if position < hit:
                result.append({Cause.HIT_DEVICE})
            elif position >= reach:
                result.append({Cause.TAIL})
            elif position < hit + self.shared_beginning(prompt, root, hit):
                result.append({Cause.PARTIAL})
            else:
                block = position // size
                if (root, tuple(prompt[: (block + 1) * size])) in self.resident:
                    result.append(set())  # as the block before it
                else:
                    result.append(self.missing(sequence, prompt, root, position, computing))
        for position, causes in enumerate(result):
            if not causes:
                result[position] = result[position // size * size - 1]
        return result

    def missing(
        self, sequence: int, prompt: list[int], root: Root, position: int, computing: set[Name]
    ) -> set[Cause]:
        tokens = tuple(prompt[: (position // self.size + 1) * self.size])
        if (root, tokens) in computing:
            return {Cause.IN_FLIGHT}
        if (root, tokens) in self.lost:
            return {self.lost[root, tokens]}
        others = [other for other, theirs in self.resident if theirs == tokens and other != root]
        if any(other.salt == root.salt for other in others):
            return {Cause.CHANGED}
        if others:
            return {Cause.ISOLATED}
        return self.moved(sequence, prompt, root, position)

    def moved(self, sequence: int, prompt: list[int], root: Root, position: int) -> set[Cause]:
        """Sure where a whole block of another covers it, possible where a run reaches to it."""
        possible = {Cause.NEW}
        for number, seen in self.seen.items():
            if number == sequence or seen.root != root:
                continue
            for block in seen.blocks:
                there = seen.tokens[block * self.size : (block + 1) * self.size]
                for start in range(max(0, position - 2 * self.size), position + self.size + 1):
                    if prompt[start : start + self.size] != there:
                        continue
                    if start <= position < start + self.size:
                        return {Cause.MOVED}
                    low, high = sorted((position, start if position < start else start + self.size))
                    shift = block * self.size - start
                    stretch = seen.tokens[max(0, low + shift) : high + 1 + shift]
                    if low + shift >= 0 and prompt[low : high + 1] == stretch:
                        possible.add(Cause.MOVED)
        return possible

    def shared_beginning(self, prompt: list[int], root: Root, hit: int) -> int:
        """How many tokens of the first missed block some cached block begins with as well."""
        block = prompt[hit : hit + self.size]
        best = 0
        for other, tokens in self.resident:
            if other == root and list(tokens[: -self.size]) == prompt[:hit]:
                common = 0
                for ours, theirs in zip(block, tokens[-self.size :], strict=False):
                    if ours != theirs:
                        break
                    common += 1
                best = max(best, common)
        return best if best < self.size else 0
