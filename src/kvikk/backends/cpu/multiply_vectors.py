"""Matrix products in vector instructions: a tile of 16 rows times some tokens, in registers.

One running sum of 16 rows a token. For each group of 32 inputs the tile's integers are spread to
eight registers once; each token then costs eight byte dot products, whose second operand is four of
its inputs in every lane, and two or three float operations:

    sum += (scale * s) * Σ integer * q      exact in 32 bits before it is scaled
    sum += minimum * (s * Σ q)              or  -zero_point * scale  for a minimum

Where registers have 8 lanes, a tile is done in two halves, each with its own eight registers.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kvikk.backends.cpu.dots import dot_bytes, floats_of_bfloats
from kvikk.backends.cpu.facts import (
    Product,
    product_input_bytes,
    product_parts,
    product_row_tile_bytes,
)
from kvikk.backends.cpu.fetching import STRETCH_BYTES, fetches_at
from kvikk.backends.cpu.panels import LANE_SCALE_BYTES, panel_size
from kvikk.backends.cpu.tiles import DenseTile, IntegerTile, Tile
from kvikk.backends.cpu.vectors import Float, Int, Loop, Short, Vectors, Word64

# How far ahead of its use a weight is asked for: memory answers in about 100 ns.
_PREFETCH_BYTES = 2048
# Panels of fewer tokens are done before a stretch would have come.
_FETCHING_TOKENS = 8
# A running sum of as many rows as a register has lanes, for each token.
Sums = list[ir.Value]


@dataclass(frozen=True)
class Panel:
    """Where the inputs of some neighbours in a panel of ``size`` lanes lie; see ``panels``.

    The first ``num_tokens`` of them are tokens.
    """

    size: ir.Value
    num_tokens: ir.Value
    num_groups: ir.Value
    inputs: ir.Value
    scales: ir.Value


@dataclass(frozen=True)
class Fetches:
    """What to ask memory for in between; see ``fetching``."""

    base: ir.Value
    stretches: ir.Value
    count: ir.Value

    def fetch(self, v: Vectors, index: ir.Value) -> None:
        """Stretch ``index``, if there are so many."""
        with v.builder.if_then(v.builder.icmp_signed("<", index, self.count)):
            distance = v.load(Word64, v.add(self.stretches, v.times(index, 8)))
            for line in range(0, STRETCH_BYTES, 64):
                v.prefetch(v.add(self.base, distance), line)


def _words(v: Vectors, tile: IntegerTile, address: ir.Value) -> list[ir.Value]:
    """The tile's integers as eight registers of bytes: word 0 … 7 of as many rows as fit."""
    builder = v.builder
    kind = v.lanes_of(Int)
    if tile.bits == 8:
        return [v.load(kind, address, 64 * word) for word in range(8)]
    packed = [v.load(kind, address, 64 * word) for word in range(4)]
    nibble = v.words(0x0F0F0F0F)
    words = [builder.and_(x, nibble) for x in packed]
    words += [builder.and_(builder.lshr(x, v.words(4)), nibble) for x in packed]
    extra_bits = tile.bits - 4
    words_per_register = 8 // extra_bits if extra_bits else 0
    for word in range(8 if extra_bits else 0):
        register, place = divmod(word, words_per_register)
        upper = v.load(kind, address, tile.extra_bits_offset + 64 * register)
        shift = 4 - extra_bits * place  # from bit ``extra_bits * place`` of each byte to bit 4
        if shift >= 0:
            upper = builder.shl(upper, v.words(shift))
        else:
            upper = builder.lshr(upper, v.words(-shift))
        mask = v.words(0x10101010 if extra_bits == 1 else 0x30303030)
        words[word] = builder.or_(words[word], builder.and_(upper, mask))
    return words


def _with_integer_tile(
    v: Vectors,
    product: Product,
    tile: IntegerTile,
    address: ir.Value,
    part: int,
    lanes: ir.Value,
    scales: ir.Value,
    sums: Sums,
) -> Sums:
    """``sums`` and what one tile adds to them: part ``part`` of its rows times each token.

    ``lanes`` and ``scales`` are the addresses of the first token's integers and of its scales.
    """
    builder = v.builder
    words = _words(v, tile, v.add(address, 4 * v.lanes * part))

    def halves(offset: int) -> ir.Value:
        numbers = v.load(v.lanes_of(Short), address, offset + 2 * v.lanes * part)
        return v.floats_of_halves(numbers)

    row_scales = [halves(tile.scales_offset + 32 * i) for i in range(tile.num_scales)]
    if tile.has_minimum:
        minima = [halves(tile.minima_offset + 32 * i) for i in range(tile.num_scales)]
    else:
        minima = [v.multiply(x, v.floats(-float(tile.zero_point))) for x in row_scales]
    words_per_scale = 8 // tile.num_scales
    results = []
    for token, total in enumerate(sums):
        own_lanes = range(product.parts * token, product.parts * (token + 1))
        own_scales = LANE_SCALE_BYTES * own_lanes[-1]
        scale = v.splat_load(Float, scales, own_scales)
        for i, row_scale in enumerate(row_scales):
            own = range(i * words_per_scale, (i + 1) * words_per_scale)
            dots = []
            for lane in own_lanes:
                four_inputs = [v.splat_load(Int, lanes, 32 * lane + 4 * word) for word in own]
                own_words = [words[word] for word in own]
                dots.append(dot_bytes(v, own_words, four_inputs, tile.largest))
            dot = dots[0]
            if product.parts == 2:
                dot = builder.add(builder.shl(dot, v.words(8)), dots[1])
            number = builder.sitofp(dot, v.lanes_of(Float))
            total = v.multiply_add(number, v.multiply(row_scale, scale), total)
        for i, minimum in enumerate(minima):
            place = own_scales + 4 * (1 if tile.num_scales == 1 else 2 + i)
            total = v.multiply_add(minimum, v.splat_load(Float, scales, place), total)
        results.append(total)
    return results


def _integer_sums(
    v: Vectors,
    product: Product,
    tile: IntegerTile,
    lanes_used: int,
    weights: ir.Value,
    panel: Panel,
    fetches: Fetches,
) -> list[Sums]:
    """The sums of each part of 16 rows, for the tokens of ``lanes_used`` lanes."""
    tokens = lanes_used // product.parts
    with Loop(v, panel.num_groups, [v.floats(0.0)] * (v.parts * tokens)) as loop:
        address = v.add(weights, v.times(loop.index, tile.num_bytes))
        place = v.times(loop.index, panel.size)
        lanes = v.add(panel.inputs, v.times(place, 32))
        scales = v.add(panel.scales, v.times(place, LANE_SCALE_BYTES))
        for offset in range(0, tile.num_bytes, 64):
            v.prefetch(address, _PREFETCH_BYTES + offset)
        if lanes_used >= _FETCHING_TOKENS:
            fetches.fetch(v, loop.index)
        for part in range(v.parts):
            sums = slice(part * tokens, (part + 1) * tokens)
            loop.carried[sums] = _with_integer_tile(
                v, product, tile, address, part, lanes, scales, loop.carried[sums]
            )
    return [loop.carried[part * tokens : (part + 1) * tokens] for part in range(v.parts)]


def _dense_sums(
    v: Vectors, tile: DenseTile, tokens: int, weights: ir.Value, panel: Panel
) -> list[Sums]:
    """The same for dense tiles and float32 inputs ``[tokens][columns]``: one fma a column."""
    row_bytes = v.times(panel.num_groups, 128)
    rows = [
        v.add(panel.inputs, v.times(row_bytes, _at_most_last(v, token, panel.num_tokens)))
        for token in range(tokens)
    ]
    column_bytes = 16 * tile.element_bytes
    with Loop(v, panel.num_groups, [v.floats(0.0)] * (v.parts * tokens)) as loop:
        address = v.add(weights, v.times(loop.index, tile.num_bytes))
        for column in range(32):
            place = column * column_bytes
            if place % 64 == 0:
                v.prefetch(address, _PREFETCH_BYTES + place)
            columns = [
                _dense_weights(v, tile, address, place + v.lanes * part * tile.element_bytes)
                for part in range(v.parts)
            ]
            for token in range(tokens):
                offset = v.add(v.times(loop.index, 128), 4 * column)
                value = v.splat_load(Float, rows[token], offset)
                for part, weight in enumerate(columns):
                    total = loop.carried[part * tokens + token]
                    loop.carried[part * tokens + token] = v.multiply_add(weight, value, total)
    return [loop.carried[part * tokens : (part + 1) * tokens] for part in range(v.parts)]


def _at_most_last(v: Vectors, index: int, count: ir.Value) -> ir.Value:
    """``index``, or ``count - 1`` if that is less."""
    is_inside = v.builder.icmp_signed("<", v.integer(index), count)
    return v.builder.select(is_inside, v.integer(index), v.add(count, -1))


def _dense_weights(v: Vectors, tile: DenseTile, address: ir.Value, offset: int) -> ir.Value:
    """A register of a dense tile, as floats."""
    if tile.dtype == "F32":
        return v.load(v.lanes_of(Float), address, offset)
    bits = v.load(v.lanes_of(Short), address, offset)
    return v.floats_of_halves(bits) if tile.dtype == "F16" else floats_of_bfloats(v, bits)


def _tokens_at_once(v: Vectors, tile: Tile) -> int:
    """How many tokens at most share a load of weights: a panel, or an even part of it.

    Sums of integers, one a token, and the eight words of a tile about fill the registers. Rows of
    dense inputs take an address each, of which there are fewer.
    """
    return min(8, v.num_registers // (2 * v.parts)) if isinstance(tile, DenseTile) else v.lanes


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


@intrinsic
def _tile_times_panel(
    typing_context: Any,
    product: Any,
    size: Any,
    num_tokens: Any,
    weights: Any,
    num_groups: Any,
    inputs: Any,
    scales: Any,
    outputs: Any,
    output_bytes: Any,
    fetched_base: Any,
    stretches: Any,
    num_stretches: Any,
) -> Any:
    """One row tile (or a pair, gate and up) times a panel of ``size`` lanes, to ``outputs``.

    Results of the lanes after ``num_tokens`` are written nowhere.
    """
    facts: Product = product.value
    tile = facts.tile

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        v = Vectors(context, builder)
        size, num_tokens, weights, num_groups, inputs, scales, outputs, output_bytes = arguments[
            1:9
        ]
        fetches = Fetches(*arguments[9:])

        def tile_sums(tokens: int, address: ir.Value, panel: Panel) -> list[Sums]:
            if isinstance(tile, DenseTile):
                return _dense_sums(v, tile, tokens, address, panel)
            return _integer_sums(v, facts, tile, tokens, address, panel, fetches)

        def run(tokens: int, first: ir.Value) -> None:
            """Tokens ``first`` … ``first + tokens - 1`` of the panel."""
            token_bytes = v.times(num_groups, 128) if isinstance(tile, DenseTile) else 32
            panel = Panel(
                size,
                builder.sub(num_tokens, first),
                num_groups,
                v.add(inputs, v.times(first, token_bytes)),
                v.add(scales, v.times(first, LANE_SCALE_BYTES)),
            )
            results = tile_sums(tokens, weights, panel)
            if facts.activation is not None:
                ups = tile_sums(tokens, v.add(weights, v.times(num_groups, tile.num_bytes)), panel)
                for sums, up_sums in zip(results, ups, strict=True):
                    pairs = zip(sums, up_sums, strict=True)
                    sums[:] = [_gate(v, facts.activation, gate, up) for gate, up in pairs]
            for part, sums in enumerate(results):
                row = builder.udiv(first, v.integer(facts.parts))
                out = v.add(outputs, v.times(row, output_bytes))
                num_rows = builder.udiv(panel.num_tokens, v.integer(facts.parts))
                # Unused lanes go to the last token's place, before that token does.
                for lane in reversed(range(len(sums))):
                    place = v.times(output_bytes, _at_most_last(v, lane, num_rows))
                    v.store(sums[lane], out, v.add(place, 4 * v.lanes * part))

        at_once = _tokens_at_once(v, tile)
        # Panels of a product in two parts are never single.
        for tokens in (16, 8, 4, 2, 1)[: 5 if facts.parts == 1 else 4]:
            if tokens <= at_once:
                fits = ">=" if tokens == at_once else "=="
                with builder.if_then(builder.icmp_unsigned(fits, size, v.integer(tokens))):
                    count = builder.udiv(size, v.integer(tokens))
                    with Loop(v, count, []) as loop:
                        run(tokens, v.times(loop.index, tokens))
        return v.integer(0)

    return types.int64(product, *[types.int64] * 11), emit


def multiply_vectors(
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
    """Row tiles ``first_tile … last_tile - 1`` times all tokens. See ``multiply_plain``.

    What is to be fetched is dealt out evenly to its panels.
    """
    input_bytes = 32 * groups * product_input_bytes(product)
    base, stretches, num_stretches = fetches_at(fetches)
    num_lanes, num_taken = (last_tile - first_tile) * tokens, np.int64(0)
    for tile in range(first_tile, last_tile):
        address = weights + tile * groups * product_row_tile_bytes(product)
        token = 0
        while token < tokens:
            size = panel_size(tokens - token)
            x, s = inputs + token * input_bytes, scales + token * groups * LANE_SCALE_BYTES
            out = outputs + token // product_parts(product) * output_bytes + tile * 64
            count = min(size, tokens - token)
            num_done = (tile - first_tile) * tokens + token + count
            taken, num_taken = num_taken, num_stretches * num_done // num_lanes
            _tile_times_panel(
                product,
                size,
                count,
                address,
                groups,
                x,
                s,
                out,
                output_bytes,
                base,
                stretches + taken * 8,
                num_taken - taken,
            )
            token += size
    return np.int64(0)
