"""A small vocabulary for vector code: what the AVX-512 kernels are written in.

A kernel here is a Python function that emits LLVM instructions, once, when it is compiled. Python's
loops and lists unroll; ``Loop`` is a loop that runs. A register holds 16 lanes of 32 bits;
addresses are integers and offsets are bytes, known at once (int) or at run time (a value).

    Words    16 lanes of 32 bits, taken as integers
    Floats   16 lanes of float32

The two instructions that matter multiply and add within a lane:

    dot_bytes(sum, a, b)      sum[lane] += Σ a[lane][i] * b[lane][i],  i = 0 … 3   unsigned x signed
    dot_bfloats(sum, a, b)    sum[lane] += Σ a[lane][i] * b[lane][i],  i = 0, 1    bfloat16
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils

LANES = 16
REGISTER_BYTES = 64

Byte, Short, Int, Word64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
Float = ir.FloatType()


class _BFloat16(ir.Type):  # type: ignore[misc]
    """LLVM's ``bfloat``, which llvmlite has no name for."""

    intrinsic_name = "bf16"

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat16)

    def __hash__(self) -> int:
        return hash(_BFloat16)


Words = ir.VectorType(Int, LANES)
Floats = ir.VectorType(Float, LANES)
Halves = ir.VectorType(ir.HalfType(), LANES)
Shorts = ir.VectorType(Short, LANES)
Bytes16 = ir.VectorType(Byte, LANES)
_BYTES = ir.VectorType(Byte, REGISTER_BYTES)
_BFLOATS = ir.VectorType(_BFloat16(), 2 * LANES)


class Vectors:
    """Emits vector instructions at one place of one function."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    # Numbers and addresses.

    def integer(self, value: int) -> ir.Value:
        """A 64-bit constant."""
        return ir.Constant(Word64, value)

    def add(self, address: ir.Value, offset: ir.Value | int) -> ir.Value:
        """``address + offset``."""
        return self.builder.add(address, self._word(offset))

    def times(self, value: ir.Value, factor: ir.Value | int) -> ir.Value:
        """``value * factor``, 64-bit integers."""
        return self.builder.mul(value, self._word(factor))

    def load(self, kind: ir.Type, address: ir.Value, offset: ir.Value | int = 0) -> ir.Value:
        """A value or register of ``kind`` at ``address + offset``, however aligned."""
        pointer = self.builder.inttoptr(self.add(address, offset), kind.as_pointer())
        return self.builder.load(pointer, align=1)

    def store(self, value: ir.Value, address: ir.Value, offset: ir.Value | int = 0) -> None:
        """Write ``value`` to ``address + offset``, however aligned."""
        pointer = self.builder.inttoptr(self.add(address, offset), value.type.as_pointer())
        self.builder.store(value, pointer, align=1)

    def prefetch(self, address: ir.Value, offset: ir.Value | int = 0) -> None:
        """Ask for the cache line at ``address + offset`` to be brought into L2."""
        pointer = self.builder.inttoptr(self.add(address, offset), Byte.as_pointer())
        read, level_2, data = 0, 2, 1
        hints = [ir.Constant(Int, hint) for hint in (read, level_2, data)]
        self._call("llvm.prefetch.p0", ir.VoidType(), pointer, *hints)

    # Registers from numbers.

    def words(self, value: int) -> ir.Value:
        """The same integer in every lane."""
        return ir.Constant(Words, [ir.Constant(Int, value)] * LANES)

    def floats(self, value: float) -> ir.Value:
        """The same float in every lane."""
        return ir.Constant(Floats, [ir.Constant(Float, value)] * LANES)

    def splat(self, scalar: ir.Value) -> ir.Value:
        """A scalar in every lane; with a load before it, part of the instruction that uses it."""
        kind = ir.VectorType(scalar.type, LANES)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(Int, 0))
        zeros = ir.Constant(Words, [ir.Constant(Int, 0)] * LANES)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def splat_load(self, kind: ir.Type, address: ir.Value, offset: ir.Value | int = 0) -> ir.Value:
        """The scalar at ``address + offset`` in every lane."""
        return self.splat(self.load(kind, address, offset))

    # Arithmetic. Nothing is reordered: the order of a sum is the order it is written in.

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """``a * b + c``, rounded once."""
        return self._call("llvm.fma.v16f32", Floats, a, b, c)

    def multiply(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """``a * b``."""
        return self.builder.fmul(a, b)

    def maximum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The larger, lane by lane."""
        return self._call("llvm.maxnum.v16f32", Floats, a, b)

    def minimum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The smaller, lane by lane."""
        return self._call("llvm.minnum.v16f32", Floats, a, b)

    def absolute(self, a: ir.Value) -> ir.Value:
        """``|a|``."""
        return self._call("llvm.fabs.v16f32", Floats, a)

    def rounded(self, a: ir.Value) -> ir.Value:
        """The nearest integers as floats, halves to even."""
        return self._call("llvm.rint.v16f32", Floats, a)

    def dot_bytes(self, total: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
        """``total + Σ unsigned[4i … 4i+3] * signed[4i … 4i+3]``: four products a lane, exact."""
        name = "llvm.x86.avx512.vpdpbusd.512"
        if llvm.llvm_version_info[0] >= 22:  # its operands became bytes
            unsigned = self.builder.bitcast(unsigned, _BYTES)
            signed = self.builder.bitcast(signed, _BYTES)
        return self._call(name, Words, total, unsigned, signed)

    def dot_bfloats(self, total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """``total + a[2i] * b[2i] + a[2i+1] * b[2i+1]``: two bfloat16 products a lane."""
        a, b = self.builder.bitcast(a, _BFLOATS), self.builder.bitcast(b, _BFLOATS)
        return self._call("llvm.x86.avx512bf16.dpbf16ps.512", Floats, total, a, b)

    def exp2(self, x: ir.Value) -> ir.Value:
        """2 to the power of x, within 2e-7, for x up to 127; x below -126 gives 2**-126.

        x = n + f with n whole: 2**f by its Taylor series on [-1/2, 1/2], 2**n added to the
        exponent.
        """
        x = self.maximum(x, self.floats(-126.0))
        whole = self.rounded(x)
        fraction = self.builder.fsub(x, whole)
        ln2 = 0.6931471805599453
        coefficient, coefficients = 1.0, [1.0]
        for power in range(1, 7):
            coefficient *= ln2 / power
            coefficients.append(coefficient)
        result = self.floats(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.multiply_add(result, fraction, self.floats(coefficient))
        exponent = self.builder.shl(self.builder.fptosi(whole, Words), self.words(23))
        bits = self.builder.add(self.builder.bitcast(result, Words), exponent)
        return self.builder.bitcast(bits, Floats)

    def bfloats(self, x: ir.Value) -> ir.Value:
        """Round to bfloat16, halves to even: ``Shorts``."""
        kind = ir.VectorType(_BFloat16(), LANES)
        return self.builder.bitcast(
            self._call("llvm.x86.avx512bf16.cvtneps2bf16.512", kind, x), Shorts
        )

    def floats_of_bfloats(self, x: ir.Value) -> ir.Value:
        """``Shorts`` that hold bfloat16, as floats; exact."""
        wide = self.builder.zext(x, Words)
        return self.builder.bitcast(self.builder.shl(wide, self.words(16)), Floats)

    # Across the lanes, in a fixed order: halves, quarters, eighths, pairs.

    def sum(self, x: ir.Value) -> ir.Value:
        """The sum of all lanes."""
        return self._fold(x, self.builder.fadd if x.type == Floats else self.builder.add)

    def largest(self, x: ir.Value) -> ir.Value:
        """The largest lane."""
        return self._fold(x, self.maximum)

    def _fold(self, x: ir.Value, join: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
        undefined = ir.Constant(x.type, ir.Undefined)
        for distance in (8, 4, 2, 1):
            order = [ir.Constant(Int, (lane + distance) % LANES) for lane in range(LANES)]
            x = join(x, self.builder.shuffle_vector(x, undefined, ir.Constant(Words, order)))
        return self.builder.extract_element(x, ir.Constant(Int, 0))

    def _word(self, value: ir.Value | int) -> ir.Value:
        return self.integer(value) if isinstance(value, int) else value

    def _call(self, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, arguments)


class Loop:
    """A loop that runs: ``count`` times (at least once), carrying registers from turn to turn.

    with Loop(vectors, count, [zero, zero]) as loop:
        … loop.index, loop.carried …
        loop.carried = [new, new]
    after it, loop.carried is what the last turn left.
    """

    def __init__(self, vectors: Vectors, count: ir.Value, initial: Sequence[ir.Value]) -> None:
        self._builder = vectors.builder
        self._count = count
        self._initial = list(initial)

    def __enter__(self) -> Self:
        builder = self._builder
        before = builder.block
        self._body = builder.append_basic_block("loop")
        self._after = builder.append_basic_block("after")
        builder.branch(self._body)
        builder.position_at_end(self._body)
        self.index = builder.phi(Word64)
        self.index.add_incoming(ir.Constant(Word64, 0), before)
        self._phis = [builder.phi(value.type) for value in self._initial]
        for phi, value in zip(self._phis, self._initial, strict=True):
            phi.add_incoming(value, before)
        self.carried: list[ir.Value] = list(self._phis)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            return
        builder = self._builder
        following = builder.add(self.index, ir.Constant(Word64, 1))
        last = builder.block
        self.index.add_incoming(following, last)
        for phi, value in zip(self._phis, self.carried, strict=True):
            phi.add_incoming(value, last)
        builder.cbranch(builder.icmp_signed("<", following, self._count), self._body, self._after)
        builder.position_at_end(self._after)
