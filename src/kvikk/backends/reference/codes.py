"""Keys and values as they are stored: each head's vector becomes a row of bytes, alone.

    f32     the elements
    bf16    the elements, rounded to nearest
    int8    the elements over the scale as whole numbers    | scale
    fp8     the same as floats of 8 bits (e4m3)             | scale
    int4    two elements a byte, 0 … 15                     | scale and minimum for each 32 elements

A vector's bytes depend on nothing but its elements, whoever is stored beside it: that is what keeps
a prompt's bits the same however it is cut. Scales are bfloat16, and what is stored was divided by
the scale as it was rounded, so that rounding it costs nothing.

Elements i and 16 + i of 32 share a byte of int4, i in the lower half. e4m3: OCP's 8-bit floating
point specification, 1.0; finite numbers up to 448, no infinity.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

LARGEST_INT8 = 127
LARGEST_E4M3 = 448
LARGEST_INT4 = 15
INT4_GROUP = 32


@dataclass(frozen=True)
class Code:
    """How vectors ``[n, elements]`` become bytes ``[n, row bytes]`` and back."""

    encode: Callable[[Floats], Bytes]
    decode: Callable[[Bytes], Floats]


def rounded_to_bf16(x: Floats) -> NDArray[np.uint16]:
    """The bfloat16 nearest to each finite number, ties to even: the upper half of a float32."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _of_bf16(stored: NDArray[np.uint16]) -> Floats:
    return (stored.astype(np.uint32) << 16).view(np.float32)


def _as_bytes(x: NDArray[np.generic]) -> Bytes:
    return np.ascontiguousarray(x).view(np.uint8)


def _inverse(scale: Floats) -> Floats:
    """1 / scale, and 0 where there is nothing to scale."""
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)


def _with_scale(largest: int, codes: Callable[[Floats], Bytes]) -> Callable[[Floats], Bytes]:
    """An encoding by ``codes`` of elements scaled to -largest … largest."""

    def encode(x: Floats) -> Bytes:
        scale = rounded_to_bf16(np.abs(x).max(axis=-1, keepdims=True) / np.float32(largest))
        scaled = np.clip(x * _inverse(_of_bf16(scale)), -largest, largest)
        return np.concatenate([codes(scaled), _as_bytes(scale)], axis=-1)

    return encode


def _without_scale(numbers: Callable[[Bytes], Floats]) -> Callable[[Bytes], Floats]:
    def decode(stored: Bytes) -> Floats:
        scale = _of_bf16(np.ascontiguousarray(stored[:, -2:]).view(np.uint16))
        return numbers(stored[:, :-2]) * scale

    return decode


def _int8_codes(scaled: Floats) -> Bytes:
    return np.rint(scaled).astype(np.int8).view(np.uint8)


def _int8_numbers(codes: Bytes) -> Floats:
    return codes.view(np.int8).astype(np.float32)


def _e4m3_codes(scaled: Floats) -> Bytes:
    """The nearest float of 8 bits, ties to even: sign, 4 bits of exponent, 3 of fraction.

    Below 2**-6 they are multiples of 2**-9; eight of those are the smallest that is not so, and
    have its code.
    """
    bits = scaled.view(np.uint32)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + (magnitude >> 20 & 1)) >> 20) - (120 << 3)
    small = np.rint(np.abs(scaled) * np.float32(512)).astype(np.uint32)
    codes = np.where(np.abs(scaled) < np.float32(2**-6), small, normal)
    signed: Bytes = (codes | bits >> 24 & 0x80).astype(np.uint8)
    return signed


def _e4m3_numbers(codes: Bytes) -> Floats:
    # To a float16's place, whose exponent counts from 15 where e4m3's does from 7.
    halves = (codes.astype(np.uint16) & 0x80) << 8 | (codes.astype(np.uint16) & 0x7F) << 7
    return halves.view(np.float16).astype(np.float32) * np.float32(256)


def _encode_int4(x: Floats) -> Bytes:
    groups = x.reshape(len(x), -1, INT4_GROUP)
    minimum = rounded_to_bf16(groups.min(axis=-1, keepdims=True))
    spread = groups.max(axis=-1, keepdims=True) - _of_bf16(minimum)
    scale = rounded_to_bf16(spread / np.float32(LARGEST_INT4))
    scaled = (groups - _of_bf16(minimum)) * _inverse(_of_bf16(scale))
    codes = np.clip(np.rint(scaled), 0, LARGEST_INT4).astype(np.uint8)
    packed = (codes[..., :16] | codes[..., 16:] << 4).reshape(len(x), -1)
    scales = np.concatenate([scale, minimum], axis=-1).reshape(len(x), -1)
    return np.concatenate([packed, _as_bytes(scales)], axis=-1)


def _decode_int4(stored: Bytes) -> Floats:
    num_rows, row_bytes = stored.shape
    num_groups = row_bytes // 20
    packed = stored[:, : 16 * num_groups].reshape(num_rows, num_groups, 16)
    codes = np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.float32)
    scales = np.ascontiguousarray(stored[:, 16 * num_groups :]).view(np.uint16)
    pairs = _of_bf16(scales).reshape(num_rows, num_groups, 2)
    return (codes * pairs[..., :1] + pairs[..., 1:]).reshape(num_rows, -1)


CODES = {
    "f32": Code(_as_bytes, lambda stored: stored.view(np.float32)),
    "bf16": Code(
        lambda x: _as_bytes(rounded_to_bf16(x)), lambda stored: _of_bf16(stored.view(np.uint16))
    ),
    "int8": Code(_with_scale(LARGEST_INT8, _int8_codes), _without_scale(_int8_numbers)),
    "fp8": Code(_with_scale(LARGEST_E4M3, _e4m3_codes), _without_scale(_e4m3_numbers)),
    "int4": Code(_encode_int4, _decode_int4),
}
