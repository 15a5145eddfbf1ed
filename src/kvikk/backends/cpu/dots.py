"""Products within a lane, by the instructions that there are for them.

    dot_bytes      Σ a[lane][i] * b[lane][i] over some registers and i = 0 … 3    unsigned x signed
    dot_bfloats    sum + Σ a[lane][i] * b[lane][i] over i = 0, 1                  bfloat16

    instructions              bytes                    bfloats
    AVX-512 VNNI and BF16     one a register           one
    AVX-512 VNNI, AVX-VNNI    one a register           two fused multiply-adds
    AVX2                      pairs in 16 bits first   two fused multiply-adds
    SSE                       pairs in 16 bits first   two multiplications, two additions
    Neon                      pairs in 16 bits first   two fused multiply-adds

Sums of bytes are exact and the same in all forms. Those of bfloats are rounded differently: a code
path has one form.
"""

from collections.abc import Sequence

import llvmlite.binding as llvm
from llvmlite import ir

from kvikk.backends.cpu.vectors import BFloat, Byte, Float, Int, Short, Vectors

# The largest magnitude of a signed byte here: inputs are rounded to -127 … 127.
_LARGEST_INPUT = 127


def dot_bytes(
    v: Vectors, unsigned: Sequence[ir.Value], signed: Sequence[ir.Value], largest: int
) -> ir.Value:
    """The sum over all registers of four products a lane, exact.

    ``unsigned`` bytes are at most ``largest``, 255 or less; ``signed`` ones are -127 … 127.
    """
    if v.features & {"avx512vnni", "avxvnni"}:
        total = v.words(0)
        for a, b in zip(unsigned, signed, strict=True):
            total = _add_byte_products(v, total, a, b)
        return total
    # Two neighbouring products are added in 16 bits, which saturates: so many registers fit.
    registers_in_16_bits = 32767 // (2 * largest * _LARGEST_INPUT)
    if registers_in_16_bits == 0:
        return _dot_wide_bytes(v, unsigned, signed)
    sums = []
    for first in range(0, len(unsigned), registers_in_16_bits):
        some = slice(first, first + registers_in_16_bits)
        sums.append(_widened(v, _pair_sums(v, unsigned[some], signed[some]), 1))
    return _added(v, sums)


def dot_bfloats(v: Vectors, total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """``total + a[2i] * b[2i] + a[2i+1] * b[2i+1]``: two bfloat16 products a lane."""
    builder = v.builder
    if "avx512bf16" in v.features:
        kind = ir.VectorType(BFloat, 2 * v.lanes)
        a, b = builder.bitcast(a, kind), builder.bitcast(b, kind)
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * v.lanes}"
        return v.call(name, total.type, total, a, b)
    for number in (_odd_bfloats, _even_bfloats):
        total = v.multiply_add(number(v, a), number(v, b), total)
    return total


def bfloats_of_floats(v: Vectors, x: ir.Value) -> ir.Value:
    """Round finite floats to bfloat16, halves to even, as their 16 bits."""
    builder = v.builder
    if "avx512bf16" in v.features:
        name = f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * v.lanes}"
        return builder.bitcast(v.call(name, v.lanes_of(BFloat), x), v.lanes_of(Short))
    bits = builder.bitcast(x, v.lanes_of(Int))
    odd = builder.and_(builder.lshr(bits, v.words(16)), v.words(1))
    rounded = builder.add(builder.add(bits, v.words(0x7FFF)), odd)
    return builder.trunc(builder.lshr(rounded, v.words(16)), v.lanes_of(Short))


def floats_of_bfloats(v: Vectors, x: ir.Value) -> ir.Value:
    """Numbers given as the 16 bits of their bfloat16, as floats; exact."""
    return _even_bfloats(v, v.builder.zext(x, v.lanes_of(Int)))


def _even_bfloats(v: Vectors, pairs: ir.Value) -> ir.Value:
    return v.builder.bitcast(v.builder.shl(pairs, v.words(16)), v.lanes_of(Float))


def _odd_bfloats(v: Vectors, pairs: ir.Value) -> ir.Value:
    return v.builder.bitcast(v.builder.and_(pairs, v.words(0xFFFF0000)), v.lanes_of(Float))


def _add_byte_products(
    v: Vectors, total: ir.Value, unsigned: ir.Value, signed: ir.Value
) -> ir.Value:
    if llvm.llvm_version_info[0] >= 22:  # the instruction's operands became bytes
        kind = ir.VectorType(Byte, 4 * v.lanes)
        unsigned, signed = v.builder.bitcast(unsigned, kind), v.builder.bitcast(signed, kind)
    name = f"llvm.x86.avx512.vpdpbusd.{32 * v.lanes}"
    return v.call(name, total.type, total, unsigned, signed)


def _pair_sums(v: Vectors, unsigned: Sequence[ir.Value], signed: Sequence[ir.Value]) -> ir.Value:
    """Sums of neighbouring products over some registers, in 16 bits: ``largest`` sees to it."""
    kind = ir.VectorType(Byte, 4 * v.lanes)
    sums = []
    for a, b in zip(unsigned, signed, strict=True):
        a, b = v.builder.bitcast(a, kind), v.builder.bitcast(b, kind)
        if "neon" in v.features:
            sums.append(_neon_pair_sums(v, a, b))
        else:
            name = {8: "avx2.pmadd.ub.sw", 4: "ssse3.pmadd.ub.sw.128"}[v.lanes]
            sums.append(v.call(f"llvm.x86.{name}", ir.VectorType(Short, 2 * v.lanes), a, b))
    return _added(v, sums)


def _neon_pair_sums(v: Vectors, a: ir.Value, b: ir.Value) -> ir.Value:
    """Products of the first and of the last eight bytes, and of all of them the pairs' sums."""
    eight = ir.VectorType(Short, 8)
    halves = []
    for first in (0, 8):
        order = ir.Constant(ir.VectorType(Int, 8), [ir.Constant(Int, first + i) for i in range(8)])
        parts = [v.builder.shuffle_vector(x, x, order) for x in (a, b)]
        halves.append(v.call("llvm.aarch64.neon.smull.v8i16", eight, *parts))
    return v.call("llvm.aarch64.neon.addp.v8i16", eight, *halves)


def _widened(v: Vectors, pairs: ir.Value, factor: int) -> ir.Value:
    """``factor`` times the sum of each lane's two numbers of 16 bits."""
    words = v.lanes_of(Int)
    if "neon" in v.features:
        total = v.call("llvm.aarch64.neon.saddlp.v4i32.v8i16", words, pairs)
        return v.builder.mul(total, v.words(factor))
    factors = ir.Constant(pairs.type, [ir.Constant(Short, factor)] * (2 * v.lanes))
    name = {8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}[v.lanes]
    return v.call(f"llvm.x86.{name}", words, pairs, factors)


def _dot_wide_bytes(
    v: Vectors, unsigned: Sequence[ir.Value], signed: Sequence[ir.Value]
) -> ir.Value:
    """Bytes of up to 255, as 16 times their upper four bits and their lower four."""
    builder, nibble = v.builder, v.words(0x0F0F0F0F)
    upper = [builder.and_(builder.lshr(x, v.words(4)), nibble) for x in unsigned]
    lower = [builder.and_(x, nibble) for x in unsigned]
    return _added(
        v,
        [
            _widened(v, _pair_sums(v, nibbles, signed), factor)
            for nibbles, factor in ((upper, 16), (lower, 1))
        ],
    )


def _added(v: Vectors, registers: Sequence[ir.Value]) -> ir.Value:
    total = registers[0]
    for register in registers[1:]:
        total = v.builder.add(total, register)
    return total
