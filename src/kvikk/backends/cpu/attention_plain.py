"""The three steps of attention over one piece, in plain numba.

Each is compiled for a ``RowTile``. ``attention_vectors`` has the fast forms.
"""

import numpy as np

from kvikk.backends.cpu.attention import SCORE_SLOTS, SUB_BLOCK_SLOTS
from kvikk.backends.cpu.codes_plain import bfloat_of_float, coded_number, float_of_bfloat
from kvikk.backends.cpu.facts import (
    tile_element_bits,
    tile_elements_per_word,
    tile_head_dim,
    tile_rows,
)
from kvikk.backends.cpu.jit import inner
from kvikk.backends.cpu.raw import (
    bits_of_float,
    float32s,
    float_of_bits,
    int64s,
    uint16s,
    uint32s,
)

_SLOTS = SUB_BLOCK_SLOTS


@inner
def _stored_word(tile, sub_block, word, slot, is_key):
    """The word of a key or value that is multiplied by a query's word or by a weight."""
    if tile_element_bits(tile) < 16:
        return bits_of_float(coded_number(tile, sub_block, word, slot, is_key))
    words = tile_head_dim(tile) // tile_elements_per_word(tile) if is_key else tile_head_dim(tile)
    place = word * _SLOTS + slot if is_key else slot * words + word
    return uint32s(sub_block, words * _SLOTS)[place]


@inner
def _dot_words(total, a, b, elements):
    """``total`` plus the dot product of the one or two numbers in each word."""
    if elements == 1:
        return total + float_of_bits(a) * float_of_bits(b)
    upper = np.uint32(0xFFFF0000)
    low_a, low_b = np.uint32(a << np.uint32(16)), np.uint32(b << np.uint32(16))
    total += float_of_bits(np.uint32(a & upper)) * float_of_bits(np.uint32(b & upper))
    return total + float_of_bits(low_a) * float_of_bits(low_b)


def tile_scores_plain(tile, queries, addresses, num_sub_blocks, value_offset, scores):
    """Scores ``[rows][272]`` of the tile's query rows against the keys of some sub-blocks.

    ``addresses`` lists where the sub-blocks' keys lie (and four more, to be fetched ahead by those
    who do that); the values lie ``value_offset`` behind them.
    """
    elements = tile_elements_per_word(tile)
    words = tile_head_dim(tile) // elements
    for sub_block in range(num_sub_blocks):
        keys = int64s(addresses, num_sub_blocks)[sub_block]
        for row in range(tile_rows(tile)):
            query = uint32s(queries + row * words * 4, words)
            out = float32s(scores + (row * SCORE_SLOTS + sub_block * _SLOTS) * 4, _SLOTS)
            for slot in range(_SLOTS):
                out[slot] = 0
            for word in range(words):
                for slot in range(_SLOTS):
                    key = _stored_word(tile, keys, word, slot, True)
                    out[slot] = _dot_words(out[slot], key, query[word], elements)
    return np.int64(0)


@inner
def _weigh(tile, scores, num_sub_blocks, weights, seen):
    """From scores to weights ``[rows][272]``, 2**(score - largest); a score of -inf weighs zero.

    ``seen`` gets for each row the largest score, at least -1e30, and the sum of the weights as they
    were stored.
    """
    elements = tile_elements_per_word(tile)
    num_slots = num_sub_blocks * _SLOTS
    lanes = np.empty(_SLOTS, np.float32)
    for row in range(tile_rows(tile)):
        inputs = float32s(scores + row * SCORE_SLOTS * 4, num_slots)
        halves = uint16s(weights + row * SCORE_SLOTS * 4, num_slots)
        singles = float32s(weights + row * SCORE_SLOTS * 4, num_slots)
        largest = np.float32(-1e30)
        for slot in range(num_slots):
            largest = max(largest, inputs[slot])
        for lane in range(_SLOTS):
            lanes[lane] = 0
        for slot in range(num_slots):
            weight = np.exp2(inputs[slot] - largest)
            if elements == 2:
                halves[slot] = bfloat_of_float(weight)
                weight = float_of_bfloat(halves[slot])
            else:
                singles[slot] = weight
            lanes[slot % _SLOTS] += weight
        distance = _SLOTS // 2
        while distance > 0:
            for lane in range(distance):
                lanes[lane] += lanes[lane + distance]
            distance //= 2
        result = float32s(seen + row * 8, 2)
        result[0], result[1] = largest, lanes[0]


def tile_values_plain(tile, scores, addresses, num_sub_blocks, value_offset, weights, seen, totals):
    """Weighted sums of values ``[rows][head_dim]``, and what the weights are: see ``_weigh``."""
    _weigh(tile, scores, num_sub_blocks, weights, seen)
    elements, head_dim = tile_elements_per_word(tile), tile_head_dim(tile)
    units = _SLOTS // elements
    for row in range(tile_rows(tile)):
        total = float32s(totals + row * head_dim * 4, head_dim)
        for i in range(head_dim):
            total[i] = 0
        row_weights = uint32s(weights + row * SCORE_SLOTS * 4, num_sub_blocks * units)
        for sub_block in range(num_sub_blocks):
            values = int64s(addresses, num_sub_blocks)[sub_block] + value_offset
            for unit in range(units):
                weight = row_weights[sub_block * units + unit]
                for i in range(head_dim):
                    value = _stored_word(tile, values, i, unit, False)
                    total[i] = _dot_words(total[i], value, weight, elements)
    return np.int64(0)


def tile_join_plain(tile, seen, totals, piece_seen, piece_totals):
    """Join a piece to what came before it.

    ``seen`` and ``piece_seen`` are ``[rows]`` pairs (largest score, sum of weights); ``totals`` and
    ``piece_totals`` the weighted sums of values ``[rows][head_dim]``. A piece of which a row sees
    nothing leaves it as it was.
    """
    head_dim = tile_head_dim(tile)
    for row in range(tile_rows(tile)):
        pair, piece_pair = float32s(seen + row * 8, 2), float32s(piece_seen + row * 8, 2)
        largest = max(pair[0], piece_pair[0])
        before, piece = np.exp2(pair[0] - largest), np.exp2(piece_pair[0] - largest)
        pair[0], pair[1] = largest, pair[1] * before + piece_pair[1] * piece
        total = float32s(totals + row * head_dim * 4, head_dim)
        piece_total = float32s(piece_totals + row * head_dim * 4, head_dim)
        for i in range(head_dim):
            total[i] = total[i] * before + piece_total[i] * piece
    return np.int64(0)
