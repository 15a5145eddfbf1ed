"""The forms of ``panels`` in vector instructions: a group of 32 inputs is two sixteens.

A whole panel is quantised a group at a time, as many tokens together as a register has lanes. Of
sixteen tokens in registers of sixteen:

    inputs       16 x two registers, a token's each      ── largest of both ──▸  16 registers
    largest      lanes 2i and 2i + 1 joined, four times, until lane i is token i: one register,
                 one division
    integers     two tokens to a register of bytes: eight stores, side by side
    sums         four bytes to a lane, lanes joined twice: Σ of halves, two to a token
    scales       four registers, interleaved twice: four side by side of each token
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kvikk.backends.cpu.dots import dot_bytes
from kvikk.backends.cpu.panels import LANE_SCALE_BYTES, PANEL_TOKENS
from kvikk.backends.cpu.vectors import Byte, Float, Int, Loop, Vectors, Word64


def _steps_per_unit(v: Vectors, largest: ir.Value) -> ir.Value:
    """``127 / largest``, a number or a register of them; 0 where that is 0."""
    constant = v.floats if largest.type == v.lanes_of(Float) else lambda x: ir.Constant(Float, x)
    inverse = v.builder.fdiv(constant(127.0), largest)
    is_positive = v.builder.fcmp_ordered(">", largest, constant(0.0))
    return v.builder.select(is_positive, inverse, constant(0.0))


@intrinsic
def _quantize(
    typing_context: Any, values: Any, num_groups: Any, integers: Any, scales: Any, tokens: Any
) -> Any:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        v = Vectors(context, builder)
        values, num_groups, integers, scales, tokens = arguments
        with Loop(v, num_groups, []) as loop:
            group = v.add(values, v.times(loop.index, 128))
            registers = range(2 * v.parts)
            inputs = [v.load(v.lanes_of(Float), group, 4 * v.lanes * i) for i in registers]
            magnitudes = [v.magnitude(x) for x in inputs]
            halves = zip(magnitudes[: v.parts], magnitudes[v.parts :], strict=True)
            largest = builder.bitcast(v.largest([v.larger(a, b) for a, b in halves]), Float)
            steps = v.splat(_steps_per_unit(v, largest))
            quantized = [
                builder.fptosi(v.rounded(v.multiply(x, steps)), v.lanes_of(Int)) for x in inputs
            ]
            lane = v.add(integers, v.times(v.times(loop.index, tokens), 32))
            for i, integer in enumerate(quantized):
                v.store(builder.trunc(integer, v.lanes_of(Byte)), lane, v.lanes * i)
            scale = builder.fmul(largest, ir.Constant(Float, 1 / 127))
            first, last = v.sum(quantized[: v.parts]), v.sum(quantized[v.parts :])
            own = v.add(scales, v.times(v.times(loop.index, tokens), LANE_SCALE_BYTES))
            v.store(scale, own)
            for i, total in enumerate((builder.add(first, last), first, last), 1):
                v.store(builder.fmul(scale, builder.sitofp(total, Float)), own, 4 * i)
        return v.integer(0)

    return types.int64(*[types.int64] * 5), emit


def _low_bytes(v: Vectors, words: Sequence[ir.Value]) -> ir.Value:
    """The lowest byte of each lane of four registers, as one register of bytes."""
    count = 4 * v.lanes
    a, b, c, d = (v.builder.bitcast(register, ir.VectorType(Byte, count)) for register in words)
    twice = [4 * i % (2 * count) for i in range(count)]
    first_half_of_each = [i if i < count // 2 else count // 2 + i for i in range(count)]
    low = v.shuffle(v.shuffle(a, b, twice), v.shuffle(c, d, twice), first_half_of_each)
    return v.builder.bitcast(low, v.lanes_of(Int))


def _largest_of_each(v: Vectors, groups: Sequence[ir.Value]) -> ir.Value:
    """A register of each token's largest magnitude in its group."""
    maxima = []
    for group in groups:
        loads = (v.load(v.lanes_of(Float), group, place) for place in range(0, 128, 4 * v.lanes))
        maxima.append(reduce(v.larger, map(v.magnitude, loads)))
    while len(maxima) > 1:
        maxima = v.paired(maxima, v.larger)
    return v.builder.bitcast(maxima[0], v.lanes_of(Float))


def _integers_of_each(
    v: Vectors, groups: Sequence[ir.Value], steps: ir.Value, out: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Write the integers to ``out``; registers of their sums, each token's first and second half's.

    Token i's steps lie at ``steps + 4 * i``.
    """
    words = []
    for token, group in enumerate(groups):
        factor = v.splat_load(Float, steps, 4 * token)
        inputs = (v.load(v.lanes_of(Float), group, place) for place in range(0, 128, 4 * v.lanes))
        words += [v.nearest(v.multiply(x, factor)) for x in inputs]
    sums = []
    for first in range(0, len(words), 4):
        integers = _low_bytes(v, words[first : first + 4])
        v.store(integers, out, v.lanes * first)
        sums.append(dot_bytes(v, [v.words(0x01010101)], [integers], 1))
    while len(sums) > 2:
        sums = v.paired(sums, v.builder.add)
    return v.evens_and_odds(*sums)


@intrinsic
def _quantize_panel(
    typing_context: Any, rows: Any, num_groups: Any, integers: Any, scales: Any
) -> Any:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        v = Vectors(context, builder)
        rows, num_groups, integers, scales = arguments
        kept_steps = builder.ptrtoint(cgutils.alloca_once(builder, v.lanes_of(Float)), Word64)
        with Loop(v, num_groups, []) as loop:
            panel = v.add(integers, v.times(loop.index, 32 * PANEL_TOKENS))
            panel_scales = v.add(scales, v.times(loop.index, LANE_SCALE_BYTES * PANEL_TOKENS))
            for first in range(0, PANEL_TOKENS, v.lanes):
                groups = [
                    v.add(v.load(Word64, rows, 8 * token), v.times(loop.index, 128))
                    for token in range(first, first + v.lanes)
                ]
                largest = _largest_of_each(v, groups)
                v.store(_steps_per_unit(v, largest), kept_steps)
                halves = _integers_of_each(v, groups, kept_steps, v.add(panel, 32 * first))
                scale = v.multiply(largest, v.floats(1 / 127))
                totals = (builder.add(*halves), *halves)
                sums = [v.multiply(scale, builder.sitofp(x, v.lanes_of(Float))) for x in totals]
                evens, odds = v.interleaved(scale, sums[1]), v.interleaved(sums[0], sums[2])
                pairs = zip(evens, odds, strict=True)
                lanes = [register for pair in pairs for register in v.interleaved(*pair)]
                for i, register in enumerate(lanes):
                    v.store(register, panel_scales, LANE_SCALE_BYTES * first + 4 * v.lanes * i)
        return v.integer(0)

    return types.int64(*[types.int64] * 4), emit


@intrinsic
def _sum_of_squares(typing_context: Any, values: Any, num_sixteens: Any, result: Any) -> Any:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        v = Vectors(context, builder)
        values, num_sixteens, result = arguments
        with Loop(v, num_sixteens, [v.floats(0.0)] * v.parts) as loop:
            sixteen = v.add(values, v.times(loop.index, 64))
            for part in range(v.parts):
                x = v.load(v.lanes_of(Float), sixteen, 4 * v.lanes * part)
                loop.carried[part] = v.multiply_add(x, x, loop.carried[part])
        v.store(v.sum(loop.carried), result)
        return v.integer(0)

    return types.int64(types.int64, types.int64, types.int64), emit


def quantize_vectors(values, num_groups, integers, scales, panel_tokens):
    """The twin of ``quantize_plain``: the same integers, scales and sums."""
    return _quantize(values, num_groups, integers, scales, panel_tokens)


def quantize_panel_vectors(rows, num_groups, integers, scales):
    """The twin of ``quantize_panel_plain``."""
    return _quantize_panel(rows, num_groups, integers, scales)


def sum_of_squares_vectors(values, num_sixteens, result):
    """The twin of ``sum_of_squares_plain``; each square is added without rounding it first."""
    return _sum_of_squares(values, num_sixteens, result)
