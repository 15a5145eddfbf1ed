"""From a file's blocks to tiles.

A reader for each file type turns 32 columns of one row into unsigned integers, scales and a
minimum; one writer puts them where a tile has them.
"""

import numpy as np
from numba import boolean, int64, prange, types
from numpy.typing import NDArray

from kvikk.backends.cpu.jit import entry, inner, table_of
from kvikk.backends.cpu.raw import (
    bits_of_float,
    float_of_bits,
    float_of_half,
    uint8s,
    uint16s,
    uint32s,
)
from kvikk.backends.cpu.tiles import TILE_COLUMNS, TILES, DenseTile
from kvikk.files.quantization import BLOCK_FORMATS, IQ4_NL_NUMBERS
from kvikk.files.tensors import Tensor

# File types as numbers, for kernels.
_F32, _F16, _BF16, _Q4_0, _Q4_1, _Q5_0, _Q5_1, _Q8_0, _IQ4_NL = range(9)
_Q4_K, _Q5_K, _Q6_K, _Q2_K, _Q3_K = range(9, 14)  # those in blocks of 256
_CODES = {
    "F32": _F32,
    "F16": _F16,
    "BF16": _BF16,
    "Q4_0": _Q4_0,
    "Q4_1": _Q4_1,
    "Q5_0": _Q5_0,
    "Q5_1": _Q5_1,
    "Q8_0": _Q8_0,
    "IQ4_NL": _IQ4_NL,
    "Q2_K": _Q2_K,
    "Q3_K": _Q3_K,
    "Q4_K": _Q4_K,
    "Q5_K": _Q5_K,
    "Q6_K": _Q6_K,
}


# From zero up, as integers of a tile are.
_IQ4_NL_INTEGERS = np.array(IQ4_NL_NUMBERS, np.int16).astype(np.uint8) ^ np.uint8(0x80)


@inner
def _uint16_at(data, offset):
    return np.uint16(data[offset]) | np.uint16(np.uint16(data[offset + 1]) << np.uint16(8))


@inner
def _half_of_float(value):
    """The float16 nearest to ``value``, halves to even, as its 16 bits; finite values only."""
    bits = bits_of_float(value)
    sign = np.uint32((bits >> np.uint32(16)) & np.uint32(0x8000))
    magnitude = np.uint32(bits & np.uint32(0x7FFFFFFF))
    if magnitude < np.uint32(0x38800000):  # subnormal: a fixed point, rounded by an addition
        shifted = float_of_bits(magnitude) + np.float32(0.5)
        return np.uint16(sign | np.uint32(bits_of_float(shifted) - np.uint32(0x3F000000)))
    odd = np.uint32((magnitude >> np.uint32(13)) & np.uint32(1))
    rounded = np.uint32(magnitude + np.uint32(0xFFF) + odd - np.uint32(0x38000000))
    return np.uint16(sign | min(np.uint32(rounded >> np.uint32(13)), np.uint32(0x7C00)))


@inner
def _read_small(code, block, integers, halves):
    """One block of 32 of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 or IQ4_NL: see ``files/quantization.py``."""
    halves[0] = halves[1] = _uint16_at(block, 0)
    has_minimum = code in (_Q4_1, _Q5_1)
    halves[2] = _uint16_at(block, 2) if has_minimum else np.uint16(0)
    if code == _Q8_0:
        for i in range(32):
            integers[i] = block[2 + i] ^ np.uint8(0x80)
        return
    start = 4 if has_minimum else 2
    fifth_bits = np.uint32(0)
    if code in (_Q5_0, _Q5_1):
        fifth_bits = np.uint32(_uint16_at(block, start))
        fifth_bits |= np.uint32(np.uint32(_uint16_at(block, start + 2)) << np.uint32(16))
        start += 4
    for i in range(16):
        low, high = block[start + i] & np.uint8(15), block[start + i] >> np.uint8(4)
        integers[i] = low | np.uint8(((fifth_bits >> np.uint32(i)) & np.uint32(1)) << np.uint32(4))
        integers[16 + i] = high | np.uint8(
            ((fifth_bits >> np.uint32(16 + i)) & np.uint32(1)) << np.uint32(4)
        )
    if code == _IQ4_NL:
        for i in range(32):
            integers[i] = _IQ4_NL_INTEGERS[integers[i]]


@inner
def _read_q2_k(block, run, integers, halves):
    """Run ``run`` (0 … 7) of 32 columns of a Q2_K block of 256."""
    factor, minimum_factor = (
        float_of_half(_uint16_at(block, 80)),
        float_of_half(_uint16_at(block, 82)),
    )
    for half in range(2):
        both = block[2 * run + half]
        halves[half] = _half_of_float(factor * np.float32(both & np.uint8(15)))
        halves[2 + half] = _half_of_float(-minimum_factor * np.float32(both >> np.uint8(4)))
    for i in range(32):
        pairs = block[16 + 32 * (run // 4) + i]
        integers[i] = (pairs >> np.uint8(2 * (run % 4))) & np.uint8(3)


@inner
def _read_q3_k(block, run, integers, halves):
    """Run ``run`` (0 … 7) of 32 columns of a Q3_K block of 256; 8 stands for zero."""
    factor = float_of_half(_uint16_at(block, 108))
    for half in range(2):
        index = 2 * run + half
        lower = (block[96 + index % 8] >> np.uint8(4 * (index // 8))) & np.uint8(15)
        upper = (block[104 + index % 4] >> np.uint8(2 * (index // 4))) & np.uint8(3)
        scale = np.int32(lower) + (np.int32(upper) << 4) - 32
        halves[half] = _half_of_float(factor * np.float32(scale))
    for i in range(32):
        pair = (block[32 + 32 * (run // 4) + i] >> np.uint8(2 * (run % 4))) & np.uint8(3)
        third_bit = (block[i] >> np.uint8(run)) & np.uint8(1)
        integers[i] = pair + np.uint8(third_bit << np.uint8(2)) + np.uint8(4)


@inner
def _read_k(code, block, run, integers, halves):
    """Run ``run`` (0 … 7) of 32 columns of a Q4_K or Q5_K block of 256."""
    factor, minimum_factor = (
        float_of_half(_uint16_at(block, 0)),
        float_of_half(_uint16_at(block, 2)),
    )
    six_bits, low_bits = np.uint8(0x3F), np.uint8(0x0F)
    if run < 4:
        scale, minimum = block[4 + run] & six_bits, block[8 + run] & six_bits
    else:
        shared = block[8 + run]
        scale = (shared & low_bits) | ((block[run] >> np.uint8(2)) & np.uint8(0x30))
        minimum = (shared >> np.uint8(4)) | ((block[4 + run] >> np.uint8(2)) & np.uint8(0x30))
    halves[0] = halves[1] = _half_of_float(factor * np.float32(scale))
    halves[2] = _half_of_float(-minimum_factor * np.float32(minimum))
    start = (48 if code == _Q5_K else 16) + 32 * (run // 2)
    for i in range(32):
        value = (block[start + i] >> np.uint8(4 * (run % 2))) & low_bits
        if code == _Q5_K:
            value |= ((block[16 + i] >> np.uint8(run)) & np.uint8(1)) << np.uint8(4)
        integers[i] = value


@inner
def _read_q6_k(block, run, integers, halves):
    """Run ``run`` (0 … 7) of 32 columns of a Q6_K block of 256."""
    factor = float_of_half(_uint16_at(block, 208))
    for half in range(2):
        scale = np.int8(block[192 + 2 * run + half])
        halves[half] = _half_of_float(factor * np.float32(scale))
    half, quarter = run // 4, run % 4
    for i in range(32):
        low = block[64 * half + 32 * (quarter % 2) + i] >> np.uint8(4 * (quarter // 2))
        high = block[128 + 32 * half + i] >> np.uint8(2 * quarter)
        integers[i] = (low & np.uint8(15)) | ((high & np.uint8(3)) << np.uint8(4))


@inner
def _write_lane(bits, num_scales, has_minimum, tile, row, integers, halves):
    """One row's 32 integers into its lane of a tile."""
    for word in range(8):
        for byte in range(4):
            place = 4 * row + byte
            value = integers[4 * word + byte]
            if bits == 8:
                tile[64 * word + place] = value
                continue
            if word < 4:
                tile[64 * word + place] = value & np.uint8(15)
            else:
                tile[64 * (word - 4) + place] |= np.uint8((value & np.uint8(15)) << np.uint8(4))
            upper = value >> np.uint8(4)
            if bits == 5:
                tile[256 + place] |= np.uint8(upper << np.uint8(word))
            elif bits == 6:
                tile[256 + 64 * (word // 4) + place] |= np.uint8(upper << np.uint8(2 * (word % 4)))
    offset = 64 * bits + 2 * row
    for index in range(4):
        if index < num_scales or (has_minimum and 2 <= index < 2 + num_scales):
            tile[offset] = np.uint8(halves[index] & np.uint16(0xFF))
            tile[offset + 1] = np.uint8(halves[index] >> np.uint16(8))
            offset += 32


# The types of the two entries' arguments.
_INT64S = table_of(np.dtype(np.int64))
PACK_INTEGERS_TYPES = (
    *[int64] * 3,
    _INT64S,
    *[int64] * 3,
    boolean,
    types.UniTuple(int64, 3),
)
PACK_NUMBERS_TYPES = (int64, int64, _INT64S, *[int64] * 3)


@entry(parallel=True)
def pack_integers(code, data, block_bytes, row_order, groups, bits, num_scales, has_minimum, out):
    """Rows of blocks at ``data`` to tiles at ``out``: (address, bytes a row tile, bytes a tile)."""
    tiles, row_tile_bytes, tile_bytes = out
    groups_per_block = 8 if code >= _Q4_K else 1
    row_bytes = groups // groups_per_block * block_bytes
    for row_tile in prange((len(row_order) + 15) // 16):
        integers, halves = np.zeros(32, np.uint8), np.zeros(4, np.uint16)
        for lane in range(min(16, len(row_order) - 16 * row_tile)):
            row = data + row_order[16 * row_tile + lane] * row_bytes
            for group in range(groups):
                block = uint8s(row + group // groups_per_block * block_bytes, block_bytes)
                if code == _Q6_K:
                    _read_q6_k(block, group % 8, integers, halves)
                elif code == _Q2_K:
                    _read_q2_k(block, group % 8, integers, halves)
                elif code == _Q3_K:
                    _read_q3_k(block, group % 8, integers, halves)
                elif code in (_Q4_K, _Q5_K):
                    _read_k(code, block, group % 8, integers, halves)
                else:
                    _read_small(code, block, integers, halves)
                tile = uint8s(tiles + row_tile * row_tile_bytes + group * tile_bytes, tile_bytes)
                _write_lane(bits, num_scales, has_minimum, tile, lane, integers, halves)


@entry(parallel=True)
def pack_numbers(data, element_bytes, row_order, columns, tiles, row_tile_bytes):
    """Rows of 2- or 4-byte numbers at ``data`` to tiles of [32 columns][16 rows] at ``tiles``."""
    for row_tile in prange((len(row_order) + 15) // 16):
        for lane in range(min(16, len(row_order) - 16 * row_tile)):
            row = data + row_order[16 * row_tile + lane] * columns * element_bytes
            start = tiles + row_tile * row_tile_bytes
            if element_bytes == 4:
                singles, dense = uint32s(row, columns), uint32s(start, row_tile_bytes // 4)
                for column in range(columns):
                    dense[16 * column + lane] = singles[column]
            else:
                halves, dense_halves = uint16s(row, columns), uint16s(start, row_tile_bytes // 2)
                for column in range(columns):
                    dense_halves[16 * column + lane] = halves[column]


def pack(
    tensor: Tensor, row_order: NDArray[np.int64] | None, tiles: int, row_tile_bytes: int
) -> None:
    """Lay a matrix of a file out as tiles.

    Row i of the tiles is row ``row_order[i]`` of the tensor. ``tiles`` is the address of zeros; row
    tiles begin ``row_tile_bytes`` apart. Rows and columns beyond the matrix stay zero.
    """
    num_rows, num_columns = tensor.shape
    order = np.arange(num_rows) if row_order is None else np.ascontiguousarray(row_order, np.int64)
    data = np.ascontiguousarray(tensor.data)
    tile = TILES[tensor.dtype]
    if isinstance(tile, DenseTile):
        pack_numbers(
            data.ctypes.data, tile.element_bytes, order, num_columns, tiles, row_tile_bytes
        )
        return
    pack_integers(
        _CODES[tensor.dtype],
        data.ctypes.data,
        BLOCK_FORMATS[tensor.dtype].num_bytes,
        order,
        num_columns // TILE_COLUMNS,
        tile.bits,
        tile.num_scales,
        tile.has_minimum,
        (tiles, row_tile_bytes, tile.num_bytes),
    )
