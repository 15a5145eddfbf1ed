"""Tensor types as they lie in a file, and how to turn them into float32.

A tensor is a row of blocks. A block holds a fixed number of elements in a fixed number of bytes:
scales first or last, then small integers packed into nibbles and single bits. The layouts are
ggml's (``ggml-common.h``); every formula here is a pure function from blocks ``[n, num_bytes]`` to
values ``[n, num_elements]``, and gives the same bits as ggml's own float arithmetic.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from kvikk.files.tensors import Tensor

Blocks = NDArray[np.uint8]
Values = NDArray[np.float32]


def _float32(blocks: Blocks) -> Values:
    return blocks.view("<f4").astype(np.float32, copy=False)


def _float16(blocks: Blocks) -> Values:
    return blocks.view("<f2").astype(np.float32)


def _bfloat16(blocks: Blocks) -> Values:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _nibbles(packed: Blocks) -> Blocks:
    """``[..., n]`` bytes to ``[..., 2n]``: all low halves, then all high halves."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=-1)


def _bits(packed: Blocks) -> Blocks:
    """``[..., n]`` bytes to ``[..., 8n]`` bits, lowest first."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def _q8_0(blocks: Blocks) -> Values:
    # scale f16 | 32 x int8
    return _float16(blocks[:, :2].copy()) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(blocks: Blocks) -> Values:
    # scale f16 | 32 nibbles, offset by 8
    values = _nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8)
    return _float16(blocks[:, :2].copy()) * values.astype(np.float32)


def _q4_1(blocks: Blocks) -> Values:
    # scale f16 | minimum f16 | 32 nibbles
    scale_minimum = _float16(blocks[:, :4].copy())
    return scale_minimum[:, :1] * _nibbles(blocks[:, 4:]).astype(np.float32) + scale_minimum[:, 1:]


def _q5_0(blocks: Blocks) -> Values:
    # scale f16 | 32 fifth bits | 32 nibbles, together offset by 16
    values = _nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4
    values = values.view(np.int8) - np.int8(16)
    return _float16(blocks[:, :2].copy()) * values.astype(np.float32)


def _q5_1(blocks: Blocks) -> Values:
    # scale f16 | minimum f16 | 32 fifth bits | 32 nibbles
    scale_minimum = _float16(blocks[:, :4].copy())
    values = _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4
    return scale_minimum[:, :1] * values.astype(np.float32) + scale_minimum[:, 1:]


# What a nibble of IQ4_NL stands for: closer together near zero.
IQ4_NL_NUMBERS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _iq4_nl(blocks: Blocks) -> Values:
    # scale f16 | 32 nibbles
    numbers = np.array(IQ4_NL_NUMBERS, np.float32)
    return _float16(blocks[:, :2].copy()) * numbers[_nibbles(blocks[:, 2:])]


def _pairs(packed: Blocks) -> Blocks:
    """``[n, 64]`` bytes to ``[n, 16, 16]`` numbers of two bits.

    Of the bytes' two halves, each 32 bytes: first all lowest pairs of bits, then the next …
    """
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    pairs: Blocks = packed.reshape(-1, 2, 1, 32) >> shifts & np.uint8(3)
    return pairs.reshape(-1, 16, 16)


def _q2_k(blocks: Blocks) -> Values:
    # 16 scales, minima in their upper halves | 64 bytes of pairs of bits | 2 factors f16
    factors = _float16(blocks[:, 80:].copy())
    scales = factors[:, :1] * (blocks[:, :16] & 0x0F).astype(np.float32)
    minima = factors[:, 1:] * (blocks[:, :16] >> 4).astype(np.float32)
    values = _pairs(blocks[:, 16:80]).astype(np.float32)
    return (scales[..., None] * values - minima[..., None]).reshape(-1, 256)


def _q3_k(blocks: Blocks) -> Values:
    # 32 bytes of third bits | 64 bytes of pairs of bits | 16 scales of 6 bits | factor f16
    third_bits = _bits(blocks[:, :32]).reshape(-1, 32, 8).transpose(0, 2, 1).reshape(-1, 16, 16)
    values = (_pairs(blocks[:, 32:96]) | third_bits << 2).view(np.int8) - np.int8(4)
    # Scales 0 … 7 and 8 … 15 share eight bytes; all their upper bits lie in the last four.
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    upper = (blocks[:, None, 104:108] >> shifts & 3).reshape(-1, 16)
    scales = (_nibbles(blocks[:, 96:104]) | upper << 4).view(np.int8) - np.int8(32)
    factors = _float16(blocks[:, 108:].copy()) * scales.astype(np.float32)
    return (factors[..., None] * values.astype(np.float32)).reshape(-1, 256)


def _k_scales(blocks: Blocks) -> tuple[Values, Values]:
    """Scales and minima ``[n, 8]`` of a Q4_K or Q5_K block: 2 x f16, then 16 numbers of 6 bits.

    Twelve bytes hold eight scales and eight minima. Numbers 0 … 3 have a byte each; numbers 4 … 7
    have a nibble each in the last four bytes and borrow the top two bits of the first eight:

        bytes 0 … 3    [ high bits of scale 4 … 7 | scale 0 … 3 ]
        bytes 4 … 7    [ high bits of minimum 4 … 7 | minimum 0 … 3 ]
        bytes 8 … 11   [ low bits of minimum 4 … 7 | low bits of scale 4 … 7 ]
    """
    factors = _float16(blocks[:, :4].copy())
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 0x3F, (third & 0x0F) | (first >> 2 & 0x30)], axis=1)
    minima = np.concatenate([second & 0x3F, (third >> 4) | (second >> 2 & 0x30)], axis=1)
    return factors[:, :1] * scales.astype(np.float32), factors[:, 1:] * minima.astype(np.float32)


def _q4_k(blocks: Blocks) -> Values:
    # factors and scales (16 bytes) | 8 runs of 32 nibbles, two runs to 32 bytes
    scales, minima = _k_scales(blocks)
    values = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return (scales[..., None] * values.astype(np.float32) - minima[..., None]).reshape(-1, 256)


def _q5_k(blocks: Blocks) -> Values:
    # as Q4_K, with 32 bytes of fifth bits between: bit r of byte i belongs to element i of run r
    scales, minima = _k_scales(blocks)
    fifth_bits = _bits(blocks[:, 16:48]).reshape(-1, 32, 8).transpose(0, 2, 1)
    values = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | fifth_bits << 4
    return (scales[..., None] * values.astype(np.float32) - minima[..., None]).reshape(-1, 256)


def _q6_k(blocks: Blocks) -> Values:
    # 128 bytes of nibbles | 64 bytes of 2-bit parts | 16 scales int8 | factor f16; offset by 32
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 0x03
    values = (low | high << 4).view(np.int8) - np.int8(32)
    scales = _float16(blocks[:, 208:].copy()) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scales[..., None] * values.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256)


@dataclass(frozen=True)
class BlockFormat:
    """One tensor type: ``num_elements`` values lie in ``num_bytes`` bytes."""

    num_elements: int
    num_bytes: int
    values: Callable[[Blocks], Values]


BLOCK_FORMATS: dict[str, BlockFormat] = {
    "F32": BlockFormat(1, 4, _float32),
    "F16": BlockFormat(1, 2, _float16),
    "BF16": BlockFormat(1, 2, _bfloat16),
    "Q8_0": BlockFormat(32, 34, _q8_0),
    "Q4_0": BlockFormat(32, 18, _q4_0),
    "Q4_1": BlockFormat(32, 20, _q4_1),
    "Q5_0": BlockFormat(32, 22, _q5_0),
    "Q5_1": BlockFormat(32, 24, _q5_1),
    "IQ4_NL": BlockFormat(32, 18, _iq4_nl),
    "Q2_K": BlockFormat(256, 84, _q2_k),
    "Q3_K": BlockFormat(256, 110, _q3_k),
    "Q4_K": BlockFormat(256, 144, _q4_k),
    "Q5_K": BlockFormat(256, 176, _q5_k),
    "Q6_K": BlockFormat(256, 210, _q6_k),
}

# Elements dequantised at a time: the intermediate arrays of one piece stay in the CPU's cache.
_PIECE_ELEMENTS = 1 << 16


def num_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of ``shape``; ValueError if its rows are not whole blocks."""
    block = BLOCK_FORMATS[dtype]
    row_elements = shape[-1] if shape else 1
    if row_elements % block.num_elements:
        raise ValueError(
            f"rows of {row_elements} elements are not whole blocks of {block.num_elements}"
        )
    return prod(shape) // block.num_elements * block.num_bytes


def dequantize(tensor: Tensor) -> NDArray[np.float32]:
    """All values of ``tensor``, float32 of its shape; a fresh array."""
    return _dequantize_bytes(tensor.dtype, tensor.data).reshape(tensor.shape)


def dequantize_rows(tensor: Tensor, rows: NDArray[np.integer]) -> NDArray[np.float32]:
    """Some rows of a matrix, float32 ``[len(rows), columns]``, without touching the others."""
    num_rows, num_columns = tensor.shape
    selected = tensor.data.reshape(num_rows, -1)[rows]
    return _dequantize_bytes(tensor.dtype, selected.reshape(-1)).reshape(len(rows), num_columns)


def _dequantize_bytes(dtype: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    block = BLOCK_FORMATS[dtype]
    blocks = data.reshape(-1, block.num_bytes)
    values = np.empty((len(blocks), block.num_elements), np.float32)
    step = _PIECE_ELEMENTS // block.num_elements
    for start in range(0, len(blocks), step):
        piece = slice(start, start + step)
        values[piece] = block.values(blocks[piece])
    return values
