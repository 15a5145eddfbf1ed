"""The likeliest token of each row of logits, found while they are still in a core's cache.

Who has multiplied a chunk of the head looks at its results at once, and the largest of all chunks
and threads is the greedy choice. A row of a large vocabulary takes longer to read once more from
memory than to look at here.

A candidate is one integer, so that the larger one is the better one:

    bits 63 … 32    the logit's bits, in the order of the numbers
    bits 31 … 0     2**31 - 1 less the token, as of equal logits the lowest token is chosen
"""

import numpy as np

from kvikk.backends.cpu.jit import inner
from kvikk.backends.cpu.raw import bits_of_float, float32s, int32s, int64s

# What is said of a row from which nothing can be chosen: ``sampling`` finds out why.
UNUSABLE = -1
_NOTHING = np.int64(-(2**63))
_NOT_A_NUMBER = np.int64(2**63 - 1)
_LAST_TOKEN = np.int64(2**31 - 1)
_INFINITY = np.int32(0x7F800000)
_MINUS_INFINITY = np.int32(~0x7F800000)


@inner
def _ordered(value):
    """An integer that is larger for a larger number; beyond infinity's for what is none."""
    bits = np.int32(bits_of_float(value + np.float32(0)))  # of two zeros neither is larger
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@inner
def forget_candidates(candidates, num_rows):
    """Begin with no candidate in any row."""
    rows = int64s(candidates, num_rows)
    for row in range(num_rows):
        rows[row] = _NOTHING


@inner
def note_candidates(candidates, logits, row_bytes, first_row, end_row, first_token, end_token):
    """Look at tokens ``first_token … end_token - 1`` of some rows of ``logits``."""
    best = int64s(candidates, end_row)
    for row in range(first_row, end_row):
        values = float32s(logits + row * row_bytes + first_token * 4, end_token - first_token)
        largest, smallest = _MINUS_INFINITY, _INFINITY
        for index in range(len(values)):
            order = _ordered(values[index])
            largest, smallest = max(largest, order), min(smallest, order)
        if smallest < _MINUS_INFINITY:
            best[row] = _NOT_A_NUMBER
        elif np.int64(largest) >= best[row] >> 32:
            index = 0
            while _ordered(values[index]) != largest:
                index += 1
            own = np.int64(largest) << 32 | (_LAST_TOKEN - (first_token + index))
            best[row] = max(best[row], own)


@inner
def choose_greedily(candidates, thread_bytes, num_threads, num_rows, choices):
    """Each row's choice, an int32 at ``choices``, from the candidates of all threads."""
    chosen = int32s(choices, num_rows)
    for row in range(num_rows):
        best = _NOTHING
        for thread in range(num_threads):
            best = max(best, int64s(candidates + thread * thread_bytes, num_rows)[row])
        order = best >> 32
        is_finite = order > _MINUS_INFINITY and order < _INFINITY
        chosen[row] = _LAST_TOKEN - (best & 0xFFFFFFFF) if is_finite else UNUSABLE
