"""The longest prefix that every group can serve.

In a layer with a window of W, a token at position p attends to p - W + 1 … p. So a hit of h blocks
of B tokens, whose first new token stands at h * B, needs of that group only the blocks that touch
the W - 1 positions before it: the last ceil((W - 1) / B) blocks, its *reach*. W = 8, B = 3, h = 4:

    block       0        1        2        3     |  4
    position    0  1  2  3  4  5  6  7  8  9 10 11 12
    needed                     <------- W-1 ------>  ^ first new token
    reach                [------ 3 blocks -------]

A group without a window needs them all.
"""

from collections.abc import Container, Sequence

# A group's index and its reach; None is a group that needs every block.
GroupIndex = tuple[Container[bytes], int | None]


def reach_blocks(window_tokens: int | None, block_size: int) -> int | None:
    """How many blocks before a block boundary the token after it can see; None is all."""
    return None if window_tokens is None else -(-(window_tokens - 1) // block_size)


def longest_prefix(
    keys: Sequence[bytes],
    max_blocks: int,
    groups: Sequence[GroupIndex],
    promised: Container[bytes] = (),
) -> int:
    """How many leading blocks can be reused in all groups at once, at most ``max_blocks``.

    ``promised`` keys count as present everywhere. One pass, O(blocks * groups): a block that a
    window group lacks rules out exactly the hits that end within that group's reach behind it, so
    the shortest hit still possible is one number for all groups, and it only grows.
    """
    longest = shortest = 0
    for block in range(max_blocks):
        key = keys[block]
        for index, reach in groups:
            if key not in index and key not in promised:
                if reach is None:
                    return longest
                shortest = max(shortest, block + 1 + reach)
        if block + 1 >= shortest:
            longest = block + 1
    return longest
