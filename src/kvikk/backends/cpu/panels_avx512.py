"""The AVX-512 form of ``panels``: a group of 32 inputs is two registers."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kvikk.backends.cpu.vectors import Bytes16, Float, Floats, Loop, Vectors, Words


@intrinsic
def _quantize(
    typing_context: Any, values: Any, num_groups: Any, integers: Any, scales: Any, tokens: Any
) -> Any:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        v = Vectors(builder)
        values, num_groups, integers, scales, tokens = arguments
        plane_bytes = v.times(tokens, 4)
        with Loop(v, num_groups, []) as loop:
            inputs = [v.load(Floats, v.add(values, v.times(loop.index, 128)), i) for i in (0, 64)]
            largest = v.largest(v.maximum(*map(v.absolute, inputs)))
            zero = ir.Constant(Float, 0.0)
            inverse = builder.select(
                builder.fcmp_ordered(">", largest, zero),
                builder.fdiv(ir.Constant(Float, 127.0), largest),
                zero,
            )
            quantized = [
                builder.fptosi(v.rounded(v.multiply(x, v.splat(inverse))), Words) for x in inputs
            ]
            lane = v.add(integers, v.times(v.times(loop.index, tokens), 32))
            for half, integer in enumerate(quantized):
                v.store(builder.trunc(integer, Bytes16), lane, 16 * half)
            scale = builder.fmul(largest, ir.Constant(Float, 1 / 127))
            first, last = (v.sum(integer) for integer in quantized)
            plane = v.add(scales, v.times(v.times(loop.index, tokens), 16))
            v.store(scale, plane)
            for total in (builder.add(first, last), first, last):
                plane = v.add(plane, plane_bytes)
                v.store(builder.fmul(scale, builder.sitofp(total, Float)), plane)
        return v.integer(0)

    return types.int64(*[types.int64] * 5), emit


@intrinsic
def _sum_of_squares(typing_context: Any, values: Any, num_registers: Any, result: Any) -> Any:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        v = Vectors(builder)
        values, num_registers, result = arguments
        with Loop(v, num_registers, [v.floats(0.0)]) as loop:
            x = v.load(Floats, values, v.times(loop.index, 64))
            loop.carried = [v.multiply_add(x, x, loop.carried[0])]
        v.store(v.sum(loop.carried[0]), result)
        return v.integer(0)

    return types.int64(types.int64, types.int64, types.int64), emit


def quantize_avx512(values, num_groups, integers, scales, panel_tokens):
    """The twin of ``quantize_plain``: the same integers, scales and sums."""
    return _quantize(values, num_groups, integers, scales, panel_tokens)


def sum_of_squares_avx512(values, num_registers, result):
    """The twin of ``sum_of_squares_plain``; each square is added without rounding it first."""
    return _sum_of_squares(values, num_registers, result)
