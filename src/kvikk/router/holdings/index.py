"""One index for all replicas: block key → a mask with a bit for each replica that holds the block.

Asked for a prompt, it says how far each replica holds it. Every ``stride``-th block's masks are
ANDed from the root on: a replica's bit that is gone stays gone, and its hit ends within the stride
before. Only there are the blocks between looked at, one by one. Stride 4, eleven blocks:

    block            0  1  2  3   4  5  6  7   8  9  10
    looked at                abc            b
    ANDed so far             abc            b
    walked                        ac ac a           b  b b        a: 7 blocks, b: 11, c: 6

The loops run at C speed over pieces of the prompt, and stop when nobody is left. A stride is sound
since an engine never evicts a block before those behind it: who has the last has all.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate, repeat
from operator import and_

Key = Hashable

# Long enough for the loops in C to pay, short enough to stop soon after the last hit.
_PIECE = 64


class PrefixIndex:
    """Masks by key; no key without a holder. A ``slot`` is a replica's bit.

    ``stride`` is 1 where replicas may lose blocks from the middle of a chain.
    """

    def __init__(self, stride: int = 8) -> None:
        self._stride = stride
        self._masks: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._masks)

    def holders(self, key: Key) -> int:
        """The mask of who holds this block."""
        return self._masks.get(key, 0)

    def num_shared(self) -> int:
        """How many blocks more than one replica holds. O(blocks)."""
        return sum(mask & (mask - 1) > 0 for mask in self._masks.values())

    def hit_blocks(self, keys: Sequence[Key], num_slots: int) -> list[int]:
        """For each slot, how many of a prompt's leading blocks that replica holds.

        One pass over the prompt whatever the number of replicas, and none beyond the longest hit.
        """
        hits = [0] * num_slots
        get, stride = self._masks.get, self._stride
        left = get(keys[0], 0) if keys else 0
        looked_at = keys[stride - 1 :: stride]
        for start in range(0, len(looked_at), _PIECE):
            if not left:
                return hits
            piece = looked_at[start : start + _PIECE]
            masks = list(accumulate(map(get, piece, repeat(0)), and_, initial=left))
            place, left = 0, masks[-1]
            while masks[place] != left:
                held = masks[place]
                place = _first_below(masks, held, place)
                first_block = (start + place - 1) * stride
                self._walk(keys, first_block, held & ~masks[place], hits)
        self._walk(keys, len(looked_at) * stride, left, hits)
        return hits

    def add(self, slot: int, keys: Iterable[Key]) -> None:
        """The replica holds these blocks."""
        masks, bit = self._masks, 1 << slot
        for key in keys:
            masks[key] = masks.get(key, 0) | bit

    def remove(self, slot: int, keys: Iterable[Key]) -> None:
        """The replica does not hold these blocks, or no more."""
        masks, bit = self._masks, 1 << slot
        for key in keys:
            mask = masks.get(key, 0)
            if mask & bit:
                if mask == bit:
                    del masks[key]
                else:
                    masks[key] = mask ^ bit

    def _walk(self, keys: Sequence[Key], block: int, mask: int, hits: list[int]) -> None:
        """Note where within the stride from ``block`` on each bit of ``mask`` goes, or its end."""
        for key in keys[block : block + self._stride]:
            if not mask:
                return
            held = mask & self._masks.get(key, 0)
            _mark(mask ^ held, block, hits)
            mask = held
            block += 1
        _mark(mask, block, hits)


def _first_below(masks: list[int], mask: int, low: int) -> int:
    """The first place behind ``low`` below ``mask``: masks only lose bits, so they fall."""
    high = len(masks) - 1
    while low < high:
        middle = (low + high) // 2
        if masks[middle] < mask:
            high = middle
        else:
            low = middle + 1
    return low


def _mark(mask: int, blocks: int, hits: list[int]) -> None:
    while mask:
        bit = mask & -mask
        hits[bit.bit_length() - 1] = blocks
        mask ^= bit
