"""Matrix products in plain numba: for every CPU, and what the fast forms are tested against.

A tile is spread to one byte a weight once, and then multiplied by every token: sixteen rows side by
side, sums in the same order as in ``multiply_avx512``.
"""

import numpy as np

from kvikk.backends.cpu.facts import (
    product_bits,
    product_dense_kind,
    product_gated,
    product_has_minimum,
    product_input_bytes,
    product_num_scales,
    product_row_tile_bytes,
    product_tile_bytes,
)
from kvikk.backends.cpu.jit import inner
from kvikk.backends.cpu.panels import panel_of
from kvikk.backends.cpu.raw import (
    float32s,
    float_of_bits,
    float_of_half,
    int8s,
    uint8s,
    uint16s,
)


@inner
def _spread(product, address, integers, scales, minima):
    """A tile's integers, ``[word][row][byte]``, and each row's scales and minima, ``[part][row]``."""
    bits, num_scales = product_bits(product), product_num_scales(product)
    data = uint8s(address, product_tile_bytes(product))
    if bits == 8:
        integers[:] = data[:512]
    else:
        for i in range(256):
            integers[i], integers[256 + i] = data[i] & np.uint8(15), data[i] >> np.uint8(4)
        for i in range(512 if bits > 4 else 0):
            word, place = i // 64, i % 64
            if bits == 5:
                upper = (data[256 + place] >> np.uint8(word)) & np.uint8(1)
            else:
                upper = data[256 + 64 * (word // 4) + place] >> np.uint8(2 * (word % 4))
                upper &= np.uint8(3)
            integers[i] |= np.uint8(upper << np.uint8(4))
    halves = uint16s(address + 64 * bits, 16 * (num_scales + 1))
    for i in range(16 * num_scales):
        scales[i] = float_of_half(halves[i])
        minima[i] = scales[i] * np.float32(-(1 << (bits - 1)))
    for row in range(16 if product_has_minimum(product) != 0 else 0):
        minima[row] = float_of_half(halves[16 + row])


@inner
def _add_integer_tile(product, integers, scales, minima, inputs, planes, panel_tokens, sums):
    """One tile times one token. See ``panels`` for the planes."""
    num_scales = product_num_scales(product)
    dots = np.zeros(16, np.int32)
    for part in range(num_scales):
        dots[:] = 0
        for word in range(part * 8 // num_scales, (part + 1) * 8 // num_scales):
            for row in range(16):
                for byte in range(4):
                    weight = np.int32(integers[64 * word + 4 * row + byte])
                    dots[row] += weight * np.int32(inputs[4 * word + byte])
        for row in range(16):
            sums[row] += np.float32(dots[row]) * (scales[16 * part + row] * planes[0])
    for part in range(num_scales):
        input_sum = planes[panel_tokens * (1 if num_scales == 1 else 2 + part)]
        for row in range(16):
            sums[row] += minima[16 * part + row] * input_sum


@inner
def _integer_tile_row(product, weights, groups, inputs, scales, tokens, sums):
    """A row of integer tiles times all tokens, to ``sums`` [tokens, 16]."""
    integers, row_scales = np.empty(512, np.uint8), np.empty(32, np.float32)
    minima = np.empty(32, np.float32)
    for group in range(groups):
        _spread(
            product, weights + group * product_tile_bytes(product), integers, row_scales, minima
        )
        for token in range(tokens):
            first, size = panel_of(token, tokens)
            lane = token - first
            place = first * groups + group * size
            token_inputs = int8s(inputs + 32 * (place + lane), 32)
            planes = float32s(scales + 16 * place + 4 * lane, 4 * size)
            _add_integer_tile(
                product, integers, row_scales, minima, token_inputs, planes, size, sums[token]
            )


@inner
def _dense_tile_row(product, weights, groups, inputs, tokens, sums):
    """A row of dense tiles times all tokens' float32 inputs."""
    kind = product_dense_kind(product)
    row = np.empty(16, np.float32)
    for column in range(32 * groups):
        if kind == 0:
            row[:] = float32s(weights + 64 * column, 16)
        else:
            halves = uint16s(weights + 32 * column, 16)
            for i in range(16):
                if kind == 1:
                    row[i] = float_of_half(halves[i])
                else:
                    row[i] = float_of_bits(np.uint32(np.uint32(halves[i]) << np.uint32(16)))
        for token in range(tokens):
            value = float32s(inputs + (32 * groups * token + column) * 4, 1)[0]
            for i in range(16):
                sums[token, i] += row[i] * value


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
    product, weights, groups, first_tile, last_tile, inputs, scales, tokens, outputs, output_bytes
):
    """Row tiles ``first_tile … last_tile - 1`` times all tokens.

    ``inputs`` and ``scales`` are panels for integer tiles; for dense ones ``inputs`` are float32
    ``[tokens][32 * groups]``. Token t's 16 results of row tile i go to ``outputs + t * output_bytes +
    64 * i``.
    """
    num_parts = 2 if product_gated(product) != 0 else 1
    sums = np.empty((num_parts, tokens, 16), np.float32)
    for tile in range(first_tile, last_tile):
        sums[:] = 0
        for part in range(num_parts):
            address = weights + tile * groups * product_row_tile_bytes(product)
            address += part * groups * product_tile_bytes(product)
            if product_input_bytes(product) == 1:
                _integer_tile_row(product, address, groups, inputs, scales, tokens, sums[part])
            else:
                _dense_tile_row(product, address, groups, inputs, tokens, sums[part])
        for token in range(tokens):
            out = float32s(outputs + token * output_bytes + 64 * tile, 16)
            for row in range(16):
                if num_parts == 2:
                    out[row] = _gate(product, sums[0, token, row], sums[1, token, row])
                else:
                    out[row] = sums[0, token, row]
    return np.int64(0)
