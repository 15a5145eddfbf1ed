"""One index for all replicas: block key → a mask with a bit for each replica that holds the block.

Asked for a prompt, it says how far each replica holds it. Every ``stride``-th block's masks are
ANDed from the root on: a replica's bit that is gone stays gone, and its hit ends within the stride
before, where it is searched for by halves. Stride 4, eleven blocks:

    block            0  1  2  3   4  5  6  7   8  9  10
    looked at                abc            b
    ANDed so far             abc            b
    searched                      c  a  .         b  b        a: 6 blocks, b: 11, c: 5

The loops run at C speed over pieces of the prompt, and stop when nobody is left. A stride is sound
since an engine never evicts a block before those behind it: who has the last has all.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate, compress, count, repeat
from operator import and_, ne, or_

Key = Hashable

# Long enough for the loops in C to pay, short enough to stop soon after the last hit.
_PIECE = 64


class PrefixIndex:
    """Masks by key; no key without a holder. A ``slot`` is a replica's bit.

    ``stride`` is 1 where replicas may lose blocks from the middle of a chain.
    """

    def __init__(self, stride: int = 16) -> None:
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
            if masks[-1] != left:
                for place in compress(count(), map(ne, masks, masks[1:])):
                    low = (start + place) * stride
                    gone = masks[place] ^ masks[place + 1]
                    self._search(keys, low, low + stride - 1, gone, hits)
                left = masks[-1]
        self._search(keys, len(looked_at) * stride, len(keys), left, hits)
        return hits

    def add(self, slot: int, keys: Sequence[Key]) -> None:
        """The replica holds these blocks, each named once."""
        masks = self._masks
        held = map(masks.get, keys, repeat(0))
        masks.update(zip(keys, map(or_, held, repeat(1 << slot)), strict=True))

    def remove(self, slot: int, keys: Iterable[Key]) -> None:
        """The replica does not hold these blocks, or no more."""
        masks, bit = self._masks, 1 << slot
        for key in keys:
            mask = masks.get(key, 0)
            if mask == bit:
                del masks[key]
            elif mask & bit:
                masks[key] = mask ^ bit

    def _search(self, keys: Sequence[Key], low: int, high: int, mask: int, hits: list[int]) -> None:
        """Note how many blocks each of ``mask`` holds: ``low`` at least, ``high`` at most."""
        get = self._masks.get
        while low < high:
            middle = (low + high) // 2
            held = mask & get(keys[middle], 0)
            if held == mask:
                low = middle + 1
            else:
                if held:
                    self._search(keys, middle + 1, high, held, hits)
                mask, high = mask ^ held, middle
        while mask:
            bit = mask & -mask
            hits[bit.bit_length() - 1] = low
            mask ^= bit
