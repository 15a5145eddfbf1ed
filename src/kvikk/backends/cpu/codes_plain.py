"""Keys and values of few bits: how a head's vector is stored, and read back in plain numba.

The bytes of a vector are those of ``backends/reference/codes.py``; where they lie differs. A
sub-block of 16 slots holds its elements, then its scales, slot beside slot:

    int8, fp8   keys      [head_dim][16 slots]                    | scales [16 slots]
                values    [16 slots][head_dim]                    | scales [16 slots]
    int4        keys      [head_dim / 32][16 bytes][16 slots]     | [head_dim / 32][2][16 slots]
                values    [16 slots][head_dim / 32][16 bytes]     | [head_dim / 32][2][16 slots]

Byte i of 32 elements of int4 holds elements i and 16 + i; scales and minima are bfloat16.
"""

import numpy as np

from kvikk.backends.cpu.facts import tile_element_bits, tile_head_dim, tile_is_float
from kvikk.backends.cpu.jit import inner
from kvikk.backends.cpu.raw import (
    bits_of_float,
    float32s,
    float_of_bits,
    float_of_half,
    uint8s,
    uint16s,
)

_SLOTS = 16
_GROUP = 32


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
def _rounded(value):
    """The nearest whole number, halves to even, of a magnitude below 2**22."""
    return (value + np.float32(12582912)) - np.float32(12582912)


@inner
def _e4m3_of_float(value):
    """The code nearest to a ``value`` of at most 448: see ``backends/reference/codes.py``."""
    bits = bits_of_float(value)
    magnitude = np.uint32(bits & np.uint32(0x7FFFFFFF))
    if magnitude < np.uint32(0x3C800000):  # 2**-6
        code = np.uint32(_rounded(float_of_bits(magnitude) * np.float32(512)))
    else:
        odd = np.uint32((magnitude >> np.uint32(20)) & np.uint32(1))
        code = np.uint32(np.uint32(magnitude + np.uint32(0x7FFFF) + odd) >> np.uint32(20))
        code = np.uint32(code - np.uint32(960))
    return np.uint8(code | np.uint32((bits >> np.uint32(24)) & np.uint32(0x80)))


@inner
def _float_of_e4m3(code):
    """2**-8 of what a code stands for: the float16 of the same bits."""
    half = np.uint16((code & np.uint16(0x80)) << np.uint16(8))
    return float_of_half(np.uint16(half | np.uint16((code & np.uint16(0x7F)) << np.uint16(7))))


@inner
def _clipped(value, low, high):
    return min(max(value, np.float32(low)), np.float32(high))


def store_codes(tile, keys, values, lane, key, value):
    """One token's key and value, float32 ``[head_dim]``, into slot ``lane`` of a sub-block.

    ``keys`` and ``values`` are where the sub-block's lie.
    """
    slots, one = np.int64(_SLOTS), np.int64(1)
    # A value's neighbours are a byte apart, a key's as many as there are slots.
    value_bytes = tile_head_dim(tile) * tile_element_bits(tile) // 8
    _store(tile, key, keys + lane, slots, keys, lane)
    _store(tile, value, values + lane * value_bytes, one, values, lane)
    return np.int64(0)


@inner
def _store(tile, source, first, stride, sub_block, lane):
    """A vector's codes from ``first`` on, ``stride`` bytes apart, and its scales."""
    head_dim, bits = tile_head_dim(tile), tile_element_bits(tile)
    inputs = float32s(source, head_dim)
    codes = uint8s(first, stride * (head_dim * bits // 8))
    num_scales = head_dim // _GROUP if bits == 4 else np.int64(1)
    scales = uint16s(sub_block + _SLOTS * head_dim * bits // 8, num_scales * 2 * _SLOTS)
    if bits == 4:
        for group in range(num_scales):
            _store_int4(
                inputs[_GROUP * group : _GROUP * group + _GROUP],
                codes[16 * group * stride :],
                stride,
                scales[2 * _SLOTS * group + lane :],
            )
        return
    largest = np.float32(0)
    for i in range(head_dim):
        largest = max(largest, abs(inputs[i]))
    most = np.float32(448) if tile_is_float(tile) else np.float32(127)
    scales[lane] = bfloat_of_float(largest / most)
    scale = float_of_bfloat(scales[lane])
    inverse = np.float32(1) / scale if scale > 0 else np.float32(0)
    for i in range(head_dim):
        scaled = _clipped(inputs[i] * inverse, -most, most)
        if tile_is_float(tile):
            codes[i * stride] = _e4m3_of_float(scaled)
        else:
            codes[i * stride] = np.uint8(np.int32(_rounded(scaled)) & np.int32(0xFF))


@inner
def _store_int4(inputs, codes, stride, scales):
    """32 elements; ``scales`` holds their scale, and their minimum 16 places on."""
    smallest = largest = inputs[0]
    for i in range(1, _GROUP):
        smallest, largest = min(smallest, inputs[i]), max(largest, inputs[i])
    scales[_SLOTS] = bfloat_of_float(smallest)
    minimum = float_of_bfloat(scales[_SLOTS])
    scales[0] = bfloat_of_float((largest - minimum) / np.float32(15))
    scale = float_of_bfloat(scales[0])
    inverse = np.float32(1) / scale if scale > 0 else np.float32(0)
    for i in range(16):
        low = _rounded(_clipped((inputs[i] - minimum) * inverse, 0, 15))
        high = _rounded(_clipped((inputs[16 + i] - minimum) * inverse, 0, 15))
        codes[i * stride] = np.uint8(np.int32(low) | (np.int32(high) << np.int32(4)))


@inner
def coded_number(tile, sub_block, element, slot, is_key):
    """One element of a key or value, read back."""
    head_dim, bits = tile_head_dim(tile), tile_element_bits(tile)
    codes = uint8s(sub_block, _SLOTS * head_dim * bits // 8)
    group, place = element // _GROUP, element
    if bits == 4:
        place = group * 16 + element % 16
    row_bytes = head_dim * bits // 8
    code = codes[place * _SLOTS + slot] if is_key else codes[slot * row_bytes + place]
    scales = uint16s(sub_block + _SLOTS * row_bytes, head_dim)
    if bits == 4:
        nibble = code >> np.uint8(4) if element % _GROUP >= 16 else code & np.uint8(15)
        first = 2 * _SLOTS * group + slot
        scale, minimum = float_of_bfloat(scales[first]), float_of_bfloat(scales[first + _SLOTS])
        return np.float32(nibble) * scale + minimum
    scale = float_of_bfloat(scales[slot])
    if tile_is_float(tile):
        return _float_of_e4m3(np.uint16(code)) * (scale * np.float32(256))
    return np.float32(np.int8(code)) * scale
