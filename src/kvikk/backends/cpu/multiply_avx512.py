"""Matrix products with AVX-512 VNNI: a tile of 16 rows times a panel of tokens, in registers.

One running sum of 16 rows a token. For each group of 32 inputs the tile's integers are spread to
eight registers once; each token then costs eight byte dot products, whose second operand is four of
its inputs in every lane, and two or three float operations:

    sum += (scale * s) * Σ integer * q      exact in 32 bits before it is scaled
    sum += minimum * (s * Σ q)              or  -zero_point * scale  for a minimum
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kvikk.backends.cpu.facts import (
    Product,
    product_input_bytes,
    product_parts,
    product_row_tile_bytes,
)
from kvikk.backends.cpu.panels import panel_size
from kvikk.backends.cpu.tiles import DenseTile, IntegerTile
from kvikk.backends.cpu.vectors import Float, Floats, Halves, Int, Loop, Shorts, Vectors, Words

# How far ahead of its use a weight is asked for: memory answers in about 100 ns.
_PREFETCH_BYTES = 2048


def _words(v: Vectors, tile: IntegerTile, address: ir.Value) -> list[ir.Value]:
    """The tile's integers as eight registers of bytes: word 0 … 7 of every row."""
    builder = v.builder
    if tile.bits == 8:
        return [v.load(Words, address, 64 * word) for word in range(8)]
    packed = [v.load(Words, address, 64 * word) for word in range(4)]
    nibble = v.words(0x0F0F0F0F)
    words = [builder.and_(x, nibble) for x in packed]
    words += [builder.and_(builder.lshr(x, v.words(4)), nibble) for x in packed]
    extra_bits = tile.bits - 4
    words_per_register = 8 // extra_bits if extra_bits else 0
    for word in range(8 if extra_bits else 0):
        register, place = divmod(word, words_per_register)
        upper = v.load(Words, address, tile.extra_bits_offset + 64 * register)
        shift = 4 - extra_bits * place  # from bit ``extra_bits * place`` of each byte to bit 4
        if shift >= 0:
            upper = builder.shl(upper, v.words(shift))
        else:
            upper = builder.lshr(upper, v.words(-shift))
        mask = v.words(0x10101010 if extra_bits == 1 else 0x30303030)
        words[word] = builder.or_(words[word], builder.and_(upper, mask))
    return words


def _integer_panel(
    v: Vectors,
    tile: IntegerTile,
    size: int,
    weights: ir.Value,
    num_groups: ir.Value,
    inputs: ir.Value,
    scales: ir.Value,
) -> list[ir.Value]:
    """Sums of 16 rows for each of ``size`` tokens."""
    builder = v.builder
    with Loop(v, num_groups, [v.floats(0.0)] * size) as loop:
        address = v.add(weights, v.times(loop.index, tile.num_bytes))
        lanes = v.add(inputs, v.times(loop.index, 32 * size))
        planes = v.add(scales, v.times(loop.index, 16 * size))
        for offset in range(0, tile.num_bytes, 64):
            v.prefetch(address, _PREFETCH_BYTES + offset)
        words = _words(v, tile, address)
        row_scales = [
            builder.fpext(v.load(Halves, address, tile.scales_offset + 32 * i), Floats)
            for i in range(tile.num_scales)
        ]
        if tile.has_minimum:
            minima = [builder.fpext(v.load(Halves, address, tile.minima_offset), Floats)]
        else:
            minima = [v.multiply(x, v.floats(-float(tile.zero_point))) for x in row_scales]
        words_per_scale = 8 // tile.num_scales
        for token in range(size):
            total = loop.carried[token]
            scale = v.splat_load(Float, planes, 4 * token)
            for part, row_scale in enumerate(row_scales):
                dot = v.words(0)
                for word in range(part * words_per_scale, (part + 1) * words_per_scale):
                    four_inputs = v.splat_load(Int, lanes, 32 * token + 4 * word)
                    dot = v.dot_bytes(dot, words[word], four_inputs)
                product = builder.sitofp(dot, Floats)
                total = v.multiply_add(product, v.multiply(row_scale, scale), total)
            for part, minimum in enumerate(minima):
                plane = 1 if tile.num_scales == 1 else 2 + part
                input_sum = v.splat_load(Float, planes, 4 * (plane * size + token))
                total = v.multiply_add(minimum, input_sum, total)
            loop.carried[token] = total
    return loop.carried


def _dense_panel(
    v: Vectors,
    tile: DenseTile,
    size: int,
    weights: ir.Value,
    num_groups: ir.Value,
    inputs: ir.Value,
) -> list[ir.Value]:
    """The same for dense tiles and float32 inputs ``[tokens][columns]``: one fma a column."""
    builder = v.builder
    column_bytes = 16 * tile.element_bytes
    row_bytes = v.times(num_groups, 128)
    rows = [v.add(inputs, v.times(row_bytes, token)) for token in range(size)]
    with Loop(v, num_groups, [v.floats(0.0)] * size) as loop:
        address = v.add(weights, v.times(loop.index, tile.num_bytes))
        for column in range(32):
            if column * column_bytes % 64 == 0:
                v.prefetch(address, _PREFETCH_BYTES + column * column_bytes)
            if tile.dtype == "F32":
                weight = v.load(Floats, address, column * column_bytes)
            elif tile.dtype == "F16":
                weight = builder.fpext(v.load(Halves, address, column * column_bytes), Floats)
            else:
                weight = v.floats_of_bfloats(v.load(Shorts, address, column * column_bytes))
            for token in range(size):
                offset = v.add(v.times(loop.index, 128), 4 * column)
                value = v.splat_load(Float, rows[token], offset)
                loop.carried[token] = v.multiply_add(weight, value, loop.carried[token])
    return loop.carried


def _gate(v: Vectors, activation: str, gate: ir.Value, up: ir.Value) -> ir.Value:
    """``activation(gate) * up``; both activations are gate times a logistic function."""
    builder = v.builder
    argument = gate
    if activation == "gelu_tanh":  # (1 + tanh u) / 2 = logistic(2u)
        cube = v.multiply(v.multiply(gate, gate), gate)
        argument = v.multiply_add(cube, v.floats(0.044715), gate)
        argument = v.multiply(argument, v.floats(2 * 0.7978845608028654))
    exponent = v.multiply(argument, v.floats(-1.4426950408889634))
    power = v.exp2(v.minimum(exponent, v.floats(126.0)))
    return v.multiply(builder.fdiv(gate, builder.fadd(power, v.floats(1.0))), up)


@intrinsic(prefer_literal=True)
def _tile_times_panel(
    typing_context: Any,
    product: Any,
    size: Any,
    weights: Any,
    num_groups: Any,
    inputs: Any,
    scales: Any,
    outputs: Any,
    output_bytes: Any,
) -> Any:
    """One row tile (or a pair, gate and up) times a panel of ``size`` tokens, to ``outputs``."""
    facts: Product = product.value
    num_tokens: int = size.literal_value

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        v = Vectors(builder)
        weights, num_groups, inputs, scales, outputs, output_bytes = arguments[2:]

        def sums(address: ir.Value) -> list[ir.Value]:
            if isinstance(facts.tile, DenseTile):
                return _dense_panel(v, facts.tile, num_tokens, address, num_groups, inputs)
            return _integer_panel(v, facts.tile, num_tokens, address, num_groups, inputs, scales)

        results = sums(weights)
        if facts.activation is not None:
            ups = sums(v.add(weights, v.times(num_groups, facts.tile.num_bytes)))
            results = [
                _gate(v, facts.activation, gate, up) for gate, up in zip(results, ups, strict=True)
            ]
        if facts.parts == 2 and num_tokens > 1:  # panels of such a product are never single
            results = [
                builder.fadd(first, second)
                for first, second in zip(results[::2], results[1::2], strict=True)
            ]
        for token, result in enumerate(results):
            v.store(result, outputs, v.times(output_bytes, token))
        return v.integer(0)

    return types.int64(product, size, *[types.int64] * 6), emit


def multiply_avx512(
    product, weights, groups, first_tile, last_tile, inputs, scales, tokens, outputs, output_bytes
):
    """Row tiles ``first_tile … last_tile - 1`` times all tokens. See ``multiply_plain``."""
    columns = 32 * groups
    input_bytes = columns * product_input_bytes(product)
    for tile in range(first_tile, last_tile):
        address = weights + tile * groups * product_row_tile_bytes(product)
        token = 0
        while token < tokens:
            size = panel_size(tokens - token)
            x, s = inputs + token * input_bytes, scales + token * groups * 16
            out = outputs + token // product_parts(product) * output_bytes + tile * 64
            if size == 16:
                _tile_times_panel(product, 16, address, groups, x, s, out, output_bytes)
            elif size == 8:
                _tile_times_panel(product, 8, address, groups, x, s, out, output_bytes)
            elif size == 4:
                _tile_times_panel(product, 4, address, groups, x, s, out, output_bytes)
            elif size == 2:
                _tile_times_panel(product, 2, address, groups, x, s, out, output_bytes)
            elif product_parts(product) == 1:
                _tile_times_panel(product, 1, address, groups, x, s, out, output_bytes)
            token += size
    return np.int64(0)
