"""The three steps of attention over one piece, in plain form, and which form a kernel is made of.

Each is called with a ``RowTile`` known at compile time and picks its form by that tile's path.
"""

from typing import Any

import numpy as np
from numba.extending import overload

from kvikk.backends.cpu import attention_avx512 as avx512
from kvikk.backends.cpu.facts import (
    tile_elements_per_word,
    tile_head_dim,
    tile_rows,
)
from kvikk.backends.cpu.jit import inner
from kvikk.backends.cpu.raw import bits_of_float, float32s, float_of_bits, int64s, uint16s, uint32s

_SLOTS = 16
_PIECE_SLOTS = 256


def tile_scores(tile, queries, addresses, num_sub_blocks, value_offset, scores):
    """Scores ``[rows][256]`` of the tile's query rows against the keys of some sub-blocks.

    ``addresses`` lists where the sub-blocks' keys lie (and four more to be fetched); the values lie
    ``value_offset`` behind them.
    """
    raise NotImplementedError("compiled code only")


def softmax_row(tile, scores, num_sub_blocks, low, high, weights, seen):
    """From one row's scores to its weights 2**(score - largest), zero outside slots [low, high).

    ``seen`` gets the largest score and the sum of the weights as they were stored.
    """
    raise NotImplementedError("compiled code only")


def tile_values(tile, addresses, num_sub_blocks, value_offset, weights, totals):
    """Weighted sums of values ``[rows][head_dim]``."""
    raise NotImplementedError("compiled code only")


@inner
def bfloat_of_float(value):
    """The bfloat16 nearest to a finite ``value``, halves to even, as its 16 bits."""
    bits = bits_of_float(value)
    odd = np.uint32((bits >> np.uint32(16)) & np.uint32(1))
    return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@inner
def float_of_bfloat(bits):
    """The float32 equal to a bfloat16 given as its 16 bits."""
    return float_of_bits(np.uint32(np.uint32(bits) << np.uint32(16)))


@inner
def _dot_words(total, a, b, elements):
    """``total`` plus the dot product of the one or two numbers in each word."""
    if elements == 1:
        return total + float_of_bits(a) * float_of_bits(b)
    upper = np.uint32(0xFFFF0000)
    low_a, low_b = np.uint32(a << np.uint32(16)), np.uint32(b << np.uint32(16))
    total += float_of_bits(np.uint32(a & upper)) * float_of_bits(np.uint32(b & upper))
    return total + float_of_bits(low_a) * float_of_bits(low_b)


@inner
def tile_scores_plain(tile, queries, addresses, num_sub_blocks, value_offset, scores):  # noqa: D103
    elements = tile_elements_per_word(tile)
    words = tile_head_dim(tile) // elements
    for sub_block in range(num_sub_blocks):
        keys = uint32s(int64s(addresses, num_sub_blocks)[sub_block], words * _SLOTS)
        for row in range(tile_rows(tile)):
            query = uint32s(queries + row * words * 4, words)
            out = float32s(scores + (row * _PIECE_SLOTS + sub_block * _SLOTS) * 4, _SLOTS)
            for slot in range(_SLOTS):
                out[slot] = 0
            for word in range(words):
                for slot in range(_SLOTS):
                    out[slot] = _dot_words(
                        out[slot], keys[word * _SLOTS + slot], query[word], elements
                    )


@inner
def softmax_row_plain(tile, scores, num_sub_blocks, low, high, weights, seen):  # noqa: D103
    elements = tile_elements_per_word(tile)
    num_slots = num_sub_blocks * _SLOTS
    low, high = max(low, 0), min(high, num_slots)
    inputs = float32s(scores, num_slots)
    stored = uint32s(weights, num_slots // elements)
    for i in range(len(stored)):
        stored[i] = 0
    halves = uint16s(weights, num_slots)
    largest = np.float32(-1e30)
    for slot in range(low, high):
        largest = max(largest, inputs[slot])
    lanes = np.zeros(_SLOTS, np.float32)
    for slot in range(low, high):
        weight = np.exp2(inputs[slot] - largest)
        if elements == 2:
            halves[slot] = bfloat_of_float(weight)
            weight = float_of_bfloat(halves[slot])
        else:
            stored[slot] = bits_of_float(weight)
        lanes[slot % _SLOTS] += weight
    distance = _SLOTS // 2
    while distance > 0:
        for lane in range(distance):
            lanes[lane] += lanes[lane + distance]
        distance //= 2
    result = float32s(seen, 2)
    result[0], result[1] = largest, lanes[0]


@inner
def tile_values_plain(tile, addresses, num_sub_blocks, value_offset, weights, totals):  # noqa: D103
    elements, head_dim = tile_elements_per_word(tile), tile_head_dim(tile)
    units = _SLOTS // elements
    for row in range(tile_rows(tile)):
        total = float32s(totals + row * head_dim * 4, head_dim)
        for i in range(head_dim):
            total[i] = 0
        row_weights = uint32s(weights + row * _PIECE_SLOTS * 4, num_sub_blocks * units)
        for sub_block in range(num_sub_blocks):
            start = int64s(addresses, num_sub_blocks)[sub_block] + value_offset
            values = uint32s(start, units * head_dim)
            for unit in range(units):
                weight = row_weights[sub_block * units + unit]
                for i in range(head_dim):
                    total[i] = _dot_words(total[i], values[unit * head_dim + i], weight, elements)


def _choose(step: Any, plain: Any, fast: Any) -> None:
    """Make compiled calls of ``step`` run the form that its tile's path names."""

    @overload(step)
    def choose(tile, *arguments):
        chosen = fast if tile.value.path == "avx512" else plain
        return lambda tile, *arguments: chosen(tile, *arguments)


_choose(tile_scores, tile_scores_plain, avx512.tile_scores)
_choose(softmax_row, softmax_row_plain, avx512.softmax_row)
_choose(tile_values, tile_values_plain, avx512.tile_values)
