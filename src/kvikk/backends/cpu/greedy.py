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
from kvikk.backends.cpu.raw import bits_of_float, float32s, float_of_bits, int32s, int64s

# What is said of a row from which nothing can be chosen: ``sampling`` finds out why.
UNUSABLE = -1
NOTHING = np.int64(-(2**63))
_NOT_A_NUMBER = np.int64(2**63 - 1)
_LAST_TOKEN = np.int64(2**31 - 1)
_INFINITY = np.int32(0x7F800000)
_NO_NUMBER = np.int32(0x7FFFFFFF)
_MINUS_INFINITY = np.int32(~0x7F800000)


@inner
def order_of(value):
    """An integer that is larger for a larger number; beyond infinity's for what is none."""
    bits = np.int32(bits_of_float(value + np.float32(0)))  # of two zeros neither is larger
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@inner
def number_of(order):
    """The number that ``order_of`` made this integer of."""
    return float_of_bits(np.uint32(order ^ ((order >> np.int32(31)) & np.int32(0x7FFFFFFF))))


@inner
def largest_of(values):
    """The largest of some numbers, in order; the last of all integers if one is none."""
    largest, smallest = _MINUS_INFINITY, _INFINITY
    for index in range(len(values)):
        order = order_of(values[index])
        largest, smallest = max(largest, order), min(smallest, order)
    return _NO_NUMBER if smallest < _MINUS_INFINITY else largest


@inner
def forget_candidates(candidates, num_rows):
    """Begin with no candidate in any row."""
    rows = int64s(candidates, num_rows)
    for row in range(num_rows):
        rows[row] = NOTHING


@inner
def note_candidates(candidates, logits, row_bytes, first_row, end_row, first_token, end_token):
    """Look at tokens ``first_token … end_token - 1`` of some rows of ``logits``."""
    best = int64s(candidates, end_row)
    for row in range(first_row, end_row):
        values = float32s(logits + row * row_bytes + first_token * 4, end_token - first_token)
        largest = largest_of(values)
        if largest == _NO_NUMBER:
            best[row] = _NOT_A_NUMBER
        elif np.int64(largest) >= best[row] >> 32:
            index = 0
            while order_of(values[index]) != largest:
                index += 1
            own = np.int64(largest) << 32 | (_LAST_TOKEN - (first_token + index))
            best[row] = max(best[row], own)


@inner
def choose_greedily(candidates, thread_bytes, num_threads, num_rows, choices):
    """Each row's choice, an int32 at ``choices``, from the candidates of all threads."""
    chosen = int32s(choices, num_rows)
    for row in range(num_rows):
        best = NOTHING
        for thread in range(num_threads):
            best = max(best, int64s(candidates + thread * thread_bytes, num_rows)[row])
        chosen[row] = choice_of(best)


@inner
def choice_of(candidate):
    """The token of a row's best candidate, or that there is none."""
    order = candidate >> 32
    is_finite = order > _MINUS_INFINITY and order < _INFINITY
    return np.int64(_LAST_TOKEN - (candidate & 0xFFFFFFFF) if is_finite else UNUSABLE)
