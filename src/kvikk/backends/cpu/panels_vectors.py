"""The form of ``panels`` in vector instructions: a group of 32 inputs is two sixteens."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kvikk.backends.cpu.vectors import Byte, Float, Int, Loop, Vectors


@intrinsic
def _quantize(
    typing_context: Any, values: Any, num_groups: Any, integers: Any, scales: Any, tokens: Any
) -> Any:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        v = Vectors(context, builder)
        values, num_groups, integers, scales, tokens = arguments
        plane_bytes = v.times(tokens, 4)
        with Loop(v, num_groups, []) as loop:
            group = v.add(values, v.times(loop.index, 128))
            registers = range(2 * v.parts)
            inputs = [v.load(v.lanes_of(Float), group, 4 * v.lanes * i) for i in registers]
            magnitudes = [v.absolute(x) for x in inputs]
            halves = zip(magnitudes[: v.parts], magnitudes[v.parts :], strict=True)
            largest = v.largest([v.maximum(a, b) for a, b in halves])
            zero = ir.Constant(Float, 0.0)
            inverse = builder.select(
                builder.fcmp_ordered(">", largest, zero),
                builder.fdiv(ir.Constant(Float, 127.0), largest),
                zero,
            )
            quantized = [
                builder.fptosi(v.rounded(v.multiply(x, v.splat(inverse))), v.lanes_of(Int))
                for x in inputs
            ]
            lane = v.add(integers, v.times(v.times(loop.index, tokens), 32))
            for i, integer in enumerate(quantized):
                v.store(builder.trunc(integer, v.lanes_of(Byte)), lane, v.lanes * i)
            scale = builder.fmul(largest, ir.Constant(Float, 1 / 127))
            first, last = v.sum(quantized[: v.parts]), v.sum(quantized[v.parts :])
            plane = v.add(scales, v.times(v.times(loop.index, tokens), 16))
            v.store(scale, plane)
            for total in (builder.add(first, last), first, last):
                plane = v.add(plane, plane_bytes)
                v.store(builder.fmul(scale, builder.sitofp(total, Float)), plane)
        return v.integer(0)

    return types.int64(*[types.int64] * 5), emit


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


def sum_of_squares_vectors(values, num_sixteens, result):
    """The twin of ``sum_of_squares_plain``; each square is added without rounding it first."""
    return _sum_of_squares(values, num_sixteens, result)
