"""Greedy choices for half of the head's arithmetic.

The head multiplies its inputs in two parts, int8 values and what they left over (see ``panels``).
Where nobody wants more of a row of logits than its largest, the first part alone says which few
tokens it may be: what is left over is small, and by Cauchy and Schwarz no logit moves further than

    |Σ w * rest|  <=  norm of the token's weights * norm of what is left over

So the tile with the largest rough logit is multiplied again first, in both parts, with the bits of
the whole product, and then those that may still reach above what it has:

    rough logits, tile by tile    [ ·  · ][   |  ][ ·    ][ | ·  ][  ··  ]
    exact largest of the first    ────────────┴───────────────────────────   the choice is no less
    largest and bound, of others                            │
    multiplied again                      [exact ]        [exact ]

Tiles are looked at in spans of four, whose largest are noted while a core has them at hand.

What stays rough in a row is below the choice, so its largest logit is the right one in any case.
"""

import numpy as np
from numba import int64

from kvikk.backends.cpu.greedy import (
    NOTHING,
    UNUSABLE,
    choice_of,
    largest_of,
    note_candidates,
    number_of,
    order_of,
)
from kvikk.backends.cpu.jit import entry, inner, pointer_call
from kvikk.backends.cpu.panels import LANE_SCALE_BYTES, LANE_SCALES, quantize_rest
from kvikk.backends.cpu.raw import (
    float32s,
    float64s,
    float_of_half,
    int8s,
    int32s,
    records,
    uint8s,
    uint16s,
)
from kvikk.backends.cpu.records import JOB, MODEL
from kvikk.backends.cpu.rows import tile_integer
from kvikk.backends.cpu.threads import share
from kvikk.backends.cpu.tiles import TILE_ROWS

_multiply = pointer_call(10, num_facts=1)
_quantize = pointer_call(5)
# Fewer rows wait for the weights themselves.
FEWEST_ROWS = 5
# Row tiles of a span; threads take whole spans.
SPAN_TILES = 4
# Of a span: by what the norms of what is left over, and of the inputs, bound its logits' change.
SPAN_BOUNDS = 2
# Of a float16: all of them set, it is infinite or no number.
_EXPONENT = np.uint16(0x7C00)
# Lanes of a token that is kept by itself: both parts.
_LANES = 2


def apart_bytes(width: int) -> tuple[int, int]:
    """What one token's inputs in two parts take: integers, scales."""
    return _LANES * width, _LANES * width // 32 * LANE_SCALE_BYTES


@inner
def put_apart(model, row, place, width):
    """One token's inputs in both parts, as a panel of its own."""
    groups = width // 32
    integers = model.apart_integers + place * _LANES * width
    scales = model.apart_scales + place * _LANES * groups * LANE_SCALE_BYTES
    _quantize(model.quantize, (row, groups, integers, scales, np.int64(_LANES)))
    quantize_rest(row, groups, integers, scales, _LANES)


@inner
def num_spans(row_tiles):
    """Spans of so many row tiles; the last may be shorter."""
    return (row_tiles + SPAN_TILES - 1) // SPAN_TILES


def bounds_bytes(row_tiles: int) -> int:
    """What ``find_bounds`` writes: each span's, then the largest of all spans."""
    return 8 * SPAN_BOUNDS * (int(num_spans.py_func(row_tiles)) + 1)


@inner
def note_tops(job, first_row, end_row, first_tile, last_tile, vocabulary):
    """The largest of each span's logits in some rows, as ``greedy`` orders them."""
    first, end = first_tile // SPAN_TILES, num_spans(last_tile)
    spans = num_spans(job.row_tiles)
    for row in range(first_row, end_row):
        tops = int32s(job.tops + row * spans * 4, end)
        for span in range(first, end):
            token = span * SPAN_TILES * TILE_ROWS
            count = min(vocabulary - token, SPAN_TILES * TILE_ROWS)
            logits = job.outputs + row * job.output_bytes + 4 * token
            tops[span] = largest_of(float32s(logits, count))


@inner
def _norms(integers, scales, groups):
    """Of one token's inputs, and of what the first part left over: float64."""
    inputs, rest = np.float64(0), np.float64(0)
    for group in range(groups):
        lanes = int8s(integers + 32 * _LANES * group, 64)
        own = float32s(scales + LANE_SCALE_BYTES * _LANES * group, 2 * LANE_SCALES)
        first, second = np.int32(0), np.int32(0)
        for i in range(32):
            first += np.int32(lanes[i]) * np.int32(lanes[i])
            second += np.int32(lanes[32 + i]) * np.int32(lanes[32 + i])
        inputs += np.float64(own[0]) * np.float64(own[0]) * first
        rest += np.float64(own[LANE_SCALES]) * np.float64(own[LANE_SCALES]) * second
    return np.sqrt(inputs) + np.sqrt(rest), np.sqrt(rest)


@inner
def _settle_row(model, job, row):
    """The choice of one row; its tiles that may hold it become exact."""
    width, outputs = 32 * job.groups, job.outputs + row * job.output_bytes
    integers = model.apart_integers + row * _LANES * width
    scales = model.apart_scales + row * _LANES * job.groups * LANE_SCALE_BYTES
    spans = num_spans(job.row_tiles)
    tops = int32s(model.tops + row * spans * 4, spans)
    largest, first = tops[0], 0
    for span in range(spans):
        largest = max(largest, tops[span])
    if not np.float64(number_of(largest)) < np.inf:  # or no number
        return np.int64(UNUSABLE)
    while tops[first] != largest:
        first += 1
    first *= SPAN_TILES
    while _top_of(model, outputs, first) != largest:
        first += 1
    # What is likeliest roughly is looked at first: the choice is no less.
    best = np.empty(1, np.int64)
    best[0] = NOTHING
    floor = _make_exact(model, job, first, integers, scales, outputs, best)
    size, rest = _norms(integers, scales, job.groups)
    # Most spans are below what the largest bound of all lets them reach.
    reach = floor - _bound(model, spans, size, rest)
    limit = order_of(np.float32(reach - abs(reach) * 1e-6))
    for span in range(spans):
        if tops[span] < limit:
            continue
        bound = _bound(model, span, size, rest)
        for tile in range(span * SPAN_TILES, min((span + 1) * SPAN_TILES, job.row_tiles)):
            top = np.float64(number_of(_top_of(model, outputs, tile)))
            if tile != first and not top + bound < floor:
                floor = _make_exact(model, job, tile, integers, scales, outputs, best)
    return choice_of(best[0])


@inner
def _top_of(model, outputs, tile):
    """The largest of a tile's logits, in order."""
    count = min(model.vocabulary_size - tile * TILE_ROWS, TILE_ROWS)
    return largest_of(float32s(outputs + tile * TILE_ROWS * 4, count))


@inner
def _make_exact(model, job, tile, integers, scales, outputs, best):
    """One tile's logits of one row, in both parts; the largest that was exact so far."""
    _multiply(
        job.multiply,
        (
            job.weights,
            job.groups,
            tile,
            tile + 1,
            integers,
            scales,
            np.int64(_LANES),
            outputs,
            job.output_bytes,
            np.int64(0),
        ),
    )
    first_token = tile * TILE_ROWS
    end_token = min(first_token + TILE_ROWS, model.vocabulary_size)
    note_candidates(best.ctypes.data, outputs, job.output_bytes, 0, 1, first_token, end_token)
    return np.float64(number_of(np.int32(best[0] >> 32)))


@inner
def _bound(model, span, size, rest):
    """How far a span's logits move at most; of all spans, behind the last."""
    own = float64s(model.bounds + 8 * SPAN_BOUNDS * span, SPAN_BOUNDS)
    return own[0] * rest + own[1] * size


def settle(model_at, num_rows, thread, num_threads):
    """Each row's choice, an int32 at the model's ``choices``, from its rough logits."""
    model = records(model_at, 1, MODEL)[0]
    job = records(model.head_job, 1, JOB)[0]
    choices = int32s(model.choices, num_rows)
    first, end = share(num_rows, thread, num_threads)
    for row in range(first, end):
        choices[row] = _settle_row(model, job, row)
    return np.int64(0)


@inner
def _row_norms(tile, bits, num_scales, has_minimum, tile_bytes, squares, spreads):
    """Add a tile's part to its rows' squared norms, and to what those are at most."""
    largest = (1 << bits) - 1
    words = 8 // num_scales
    data, halves = uint8s(tile, tile_bytes), uint16s(tile + 64 * bits, 64)
    for part in range(num_scales):
        for row in range(16):
            own, least_own = halves[16 * part + row], np.uint16(0)
            scale = np.float64(float_of_half(own))
            least = -scale * (1 << (bits - 1))
            if has_minimum:
                least_own = halves[16 * (num_scales + part) + row]
                least = np.float64(float_of_half(least_own))
            if (own & _EXPONENT) == _EXPONENT or (least_own & _EXPONENT) == _EXPONENT:
                spreads[row] = np.inf  # a damaged file's
            total, total_squares = 0, 0
            for word in range(part * words, (part + 1) * words):
                for byte in range(4):
                    integer = tile_integer(data, bits, word, 4 * row + byte)
                    total += integer
                    total_squares += integer * integer
            count = 4 * words
            squares[row] += scale * scale * total_squares
            squares[row] += least * (2 * scale * total + count * least)
            spreads[row] += count * (abs(scale) * largest + abs(least)) ** 2


BOUNDS_TYPES = (int64,) * 10


@entry()
def find_bounds(
    tiles, row_tiles, groups, bits, num_scales, has_minimum, tile_bytes, first_span, end_span, out
):
    """By what the norms of left-over and of inputs bound the logits of some spans, to ``out``.

    The first is the largest norm of a row of weights. The second covers what rounding adds, in both
    products: up to 8 operations a group, on numbers that a row's largest integers bound.
    """
    rounding = (4 * groups + 8) * 2.0**-22
    bounds = float64s(out, SPAN_BOUNDS * end_span)
    squares, spreads = np.empty(16), np.empty(16)
    for span in range(first_span, end_span):
        norm, spread = 0.0, 0.0
        for row_tile in range(span * SPAN_TILES, min((span + 1) * SPAN_TILES, row_tiles)):
            for row in range(16):
                squares[row] = spreads[row] = 0.0
            for group in range(groups):
                tile = tiles + (row_tile * groups + group) * tile_bytes
                _row_norms(tile, bits, num_scales, has_minimum, tile_bytes, squares, spreads)
            for row in range(16):
                norm, spread = max(norm, squares[row]), max(spread, spreads[row])
        bounds[SPAN_BOUNDS * span] = np.sqrt(norm) * (1 + 1e-9)
        bounds[SPAN_BOUNDS * span + 1] = np.sqrt(spread) * rounding
