"""Matrix products in plain numba: for every CPU, and what the fast forms are tested against.

A tile is spread to one float32 a weight, ``[32 columns][16 rows]``, once, and then multiplied by
every token: sixteen rows side by side, so that a compiler finds the vectors by itself. Integers
stay exact that way: 32 products of at most 255 * 127 stay below 2**24.
"""

import numpy as np

from kvikk.backends.cpu.facts import (
    product_bits,
    product_dense_kind,
    product_gated,
    product_has_minimum,
    product_input_bytes,
    product_num_scales,
    product_parts,
    product_row_tile_bytes,
    product_tile_bytes,
)
from kvikk.backends.cpu.jit import inner
from kvikk.backends.cpu.panels import LANE_SCALE_BYTES, LANE_SCALES, panel_of
from kvikk.backends.cpu.raw import (
    float32s,
    float_of_bits,
    float_of_half,
    int8s,
    uint8s,
    uint16s,
)


@inner
def _spread_integers(product, address, weights, scales, minima):
    """A tile's integers, ``[column][row]``, and each row's scales and minima, ``[part][row]``."""
    bits, num_scales = product_bits(product), product_num_scales(product)
    data = uint8s(address, product_tile_bytes(product))
    for word in range(8):
        for byte in range(4):
            for row in range(16):
                place = 4 * row + byte
                if bits == 8:
                    integer = np.int32(data[64 * word + place])
                else:
                    integer = np.int32(data[64 * (word % 4) + place] >> (4 * (word // 4))) & 15
                    if bits == 5:
                        integer |= np.int32((data[256 + place] >> word) & 1) << 4
                    elif bits == 6:
                        upper = data[256 + 64 * (word // 4) + place] >> (2 * (word % 4))
                        integer |= np.int32(upper & 3) << 4
                weights[64 * word + 16 * byte + row] = np.float32(integer)
    halves = uint16s(address + 64 * bits, 32 * num_scales)
    for i in range(16 * num_scales):
        scales[i] = float_of_half(halves[i])
        minima[i] = scales[i] * np.float32(-(1 << (bits - 1)))
    for i in range(16 * num_scales if product_has_minimum(product) != 0 else 0):
        minima[i] = float_of_half(halves[16 * num_scales + i])


@inner
def _add_columns(weights, x, sums):
    """``sums[row] += Σ weights[column][row] * x[column]`` over sixteen columns, all by address.

    A compiler unrolls the inner loop and then makes vectors of the outer one.
    """
    w, inputs, totals = float32s(weights, 256), float32s(x, 16), float32s(sums, 16)
    for row in range(16):
        total = totals[row]
        for column in range(16):
            total += w[16 * column + row] * inputs[column]
        totals[row] = total


@inner
def _add_integer_tile(product, weights, scales, minima, inputs, lane_scales, numbers, dots, sums):
    """One tile times one token, of one or two lanes, scaled as the last of them is."""
    num_scales, num_lanes = product_num_scales(product), product_parts(product)
    lane_dots = dots[16:]
    for i in range(32 * num_lanes):
        numbers[i] = np.float32(inputs[i])
    for part in range(num_scales):
        for row in range(16):
            dots[row] = 0
        for lane in range(num_lanes):
            for row in range(16):
                lane_dots[row] = 0
            for column in range(part * 32 // num_scales, (part + 1) * 32 // num_scales, 16):
                _add_columns(
                    weights.ctypes.data + 64 * column,
                    numbers.ctypes.data + 4 * (32 * lane + column),
                    lane_dots.ctypes.data,
                )
            for row in range(16):
                dots[row] = dots[row] * np.float32(256) + lane_dots[row]
        for row in range(16):
            sums[row] += dots[row] * (scales[16 * part + row] * lane_scales[0])
    for part in range(num_scales):
        input_sum = lane_scales[1 if num_scales == 1 else 2 + part]
        for row in range(16):
            sums[row] += minima[16 * part + row] * input_sum


@inner
def _integer_tile_row(product, address, groups, inputs, scales, tokens, sums):
    """A row of integer tiles times all lanes of inputs, to ``sums`` of 16 a token."""
    weights, row_scales = np.empty(512, np.float32), np.empty(32, np.float32)
    minima, dots = np.empty(32, np.float32), np.empty(32, np.float32)
    numbers = np.empty(64, np.float32)
    num_lanes = product_parts(product)
    for group in range(groups):
        tile = address + group * product_tile_bytes(product)
        _spread_integers(product, tile, weights, row_scales, minima)
        for token in range(0, tokens, num_lanes):
            first, size = panel_of(token, tokens)
            lane = token - first
            place = first * groups + group * size
            last = lane + num_lanes - 1
            _add_integer_tile(
                product,
                weights,
                row_scales,
                minima,
                int8s(inputs + 32 * (place + lane), 32 * num_lanes),
                float32s(scales + LANE_SCALE_BYTES * (place + last), LANE_SCALES),
                numbers,
                dots,
                float32s(sums.ctypes.data + 64 * (token // num_lanes), 16),
            )


@inner
def _spread_numbers(product, address, weights):
    """A dense tile as float32."""
    kind = product_dense_kind(product)
    for i in range(512):
        if kind == 0:
            weights[i] = float32s(address, 512)[i]
        elif kind == 1:
            weights[i] = float_of_half(uint16s(address, 512)[i])
        else:
            bits = np.uint32(uint16s(address, 512)[i])
            weights[i] = float_of_bits(np.uint32(bits << np.uint32(16)))


@inner
def _dense_tile_row(product, address, groups, inputs, tokens, sums):
    """A row of dense tiles times all tokens' float32 inputs."""
    weights = np.empty(512, np.float32)
    for group in range(groups):
        _spread_numbers(product, address + group * product_tile_bytes(product), weights)
        for token in range(tokens):
            for column in range(0, 32, 16):
                _add_columns(
                    weights.ctypes.data + 64 * column,
                    inputs + 128 * (groups * token + group) + 4 * column,
                    sums.ctypes.data + 64 * token,
                )


@inner
def _gate(product, gate, up):
    """``activation(gate) * up``."""
    argument = gate
    if product_gated(product) == 2:
        argument = np.float32(2 * 0.7978845608028654) * (
            gate + np.float32(0.044715) * gate * gate * gate
        )
    return gate / (np.float32(1) + np.exp(-argument)) * up


def multiply_plain(
    product,
    weights,
    groups,
    first_tile,
    last_tile,
    inputs,
    scales,
    tokens,
    outputs,
    output_bytes,
    fetches,
):
    """Row tiles ``first_tile … last_tile - 1`` times all tokens.

    ``inputs`` and ``scales`` are panels for integer tiles; for dense ones ``inputs`` are float32
    ``[tokens][32 * groups]``. Token t's 16 results of row tile i go to ``outputs + t * output_bytes
    + 64 * i``. Of a product in two parts a token is two of ``tokens``. What ``fetches`` ask for
    (see ``fetching``; 0: nothing) vector kernels fetch meanwhile.
    """
    gated = product_gated(product) != 0
    num_sums = 2 if gated else 1
    sums = np.empty(num_sums * tokens * 16, np.float32)
    ups = sums[(num_sums - 1) * tokens * 16 :]
    for tile in range(first_tile, last_tile):
        for i in range(len(sums)):
            sums[i] = 0
        for index in range(num_sums):
            address = weights + tile * groups * product_row_tile_bytes(product)
            address += index * groups * product_tile_bytes(product)
            if product_input_bytes(product) == 1:
                _integer_tile_row(
                    product, address, groups, inputs, scales, tokens, ups if index else sums
                )
            else:
                _dense_tile_row(product, address, groups, inputs, tokens, ups if index else sums)
        for token in range(tokens // product_parts(product)):
            out = float32s(outputs + token * output_bytes + 64 * tile, 16)
            for row in range(16):
                value = sums[16 * token + row]
                out[row] = _gate(product, value, ups[16 * token + row]) if gated else value
    return np.int64(0)
