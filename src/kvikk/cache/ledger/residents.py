"""What is in the prefix index right now, by more than its key: tokens, owner, other names.

The index itself answers one question, is this key here. The ledger asks three more: which cached
block begins like this one, who computed it, and whether the same tokens are here under another root
key. To answer that, a block's tokens from position zero on have a *bare key*, a chain of the same
kind whose root is nothing.
"""

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvikk.cache.ledger.roots import Root

_TOKEN_BYTES = 4


@dataclass(slots=True)
class _Resident:
    parent: bytes  # the parent's key; the root key in front
    tokens: bytes  # see ``sortable``
    bare_key: bytes
    root: Root
    sequence: int
    groups: int  # which groups have it, a bit each


class Residents:
    """Follows the index of every group; a block is resident while all of them have it."""

    def __init__(self, num_groups: int) -> None:
        self._all_groups = (1 << num_groups) - 1
        self._blocks: dict[bytes, _Resident] = {}
        self._children: dict[bytes, list[bytes]] = {}  # tokens of a parent's children, sorted
        self._sequences: dict[tuple[bytes, bytes], int] = {}  # by parent and tokens
        self._roots: dict[bytes, tuple[Root, ...]] = {}  # by bare key
        self._num_under: Counter[bytes] = Counter()  # resident blocks by root key, none of 0

    def __contains__(self, key: bytes) -> bool:
        block = self._blocks.get(key)
        return block is not None and block.groups == self._all_groups

    def store(
        self,
        key: bytes,
        group: int,
        parent: bytes,
        tokens: bytes,
        bare_key: bytes,
        root: Root,
        sequence: int,
    ) -> bool:
        """One more group has this block; whether it is the first one."""
        block = self._blocks.get(key)
        is_first = block is None
        if block is None:
            block = _Resident(parent, tokens, bare_key, root, sequence, 0)
            self._blocks[key] = block
        block.groups |= 1 << group
        if block.groups == self._all_groups:
            block.sequence = sequence
            insort(self._children.setdefault(parent, []), tokens)
            self._sequences[parent, tokens] = sequence
            self._roots[bare_key] = (*self._roots.get(bare_key, ()), root)
            self._num_under[root.key] += 1
        return is_first

    def remove(self, key: bytes, group: int) -> bool:
        """One group has it no more; whether it was resident until now."""
        block = self._blocks[key]
        was_resident = block.groups == self._all_groups
        block.groups &= ~(1 << group)
        if not block.groups:
            del self._blocks[key]
        if was_resident:
            children = self._children[block.parent]
            del children[bisect_left(children, block.tokens)]
            if not children:
                del self._children[block.parent]
            del self._sequences[block.parent, block.tokens]
            self._num_under[block.root.key] -= 1
            if not self._num_under[block.root.key]:
                del self._num_under[block.root.key]
            others = tuple(
                root for root in self._roots[block.bare_key] if root.key != block.root.key
            )
            if others:
                self._roots[block.bare_key] = others
            else:
                del self._roots[block.bare_key]
        return was_resident

    def clear(self) -> list[bytes]:
        """Forget everything; the keys of what any group had."""
        keys = list(self._blocks)
        for table in (self._blocks, self._children, self._sequences, self._roots, self._num_under):
            table.clear()
        return keys

    def sequence(self, key: bytes) -> int | None:
        """Who computed a block; None for one that windows have passed and no group has any more."""
        block = self._blocks.get(key)
        return None if block is None else block.sequence

    def roots(self, bare_key: bytes) -> tuple[Root, ...]:
        """Under which root keys these tokens are resident."""
        return self._roots.get(bare_key, ())

    def have_other_roots(self, root: Root) -> bool:
        """Whether anything is resident under another root key than this one."""
        return len(self._num_under) > (root.key in self._num_under)

    def longest_common(self, parent: bytes, tokens: bytes) -> tuple[int, int]:
        """How many tokens the most similar child of ``parent`` shares with these, and whose it is.

        Sorted, what shares the longest beginning with ``tokens`` stands right beside its place.
        """
        children = self._children.get(parent, ())
        place = bisect_left(children, tokens)
        best, owner = 0, -1
        for child in children[max(0, place - 1) : place + 1]:
            shared = _common_bytes(child, tokens)
            if shared > best:
                best, owner = shared, self._sequences[parent, child]
        return best // _TOKEN_BYTES, owner


def sortable(tokens: NDArray[np.uint32]) -> bytes:
    """Tokens as big-endian bytes, which sort as the tokens do."""
    return tokens.astype(">u4").tobytes()


def _common_bytes(a: bytes, b: bytes) -> int:
    for index, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return index
    return min(len(a), len(b))
