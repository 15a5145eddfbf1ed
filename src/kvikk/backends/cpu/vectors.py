"""A small vocabulary for vector code: what the fast kernels are written in.

A kernel here is a Python function that emits LLVM instructions, once, when it is compiled. Python's
loops and lists unroll; ``Loop`` is a loop that runs. A register holds ``Vectors.lanes`` lanes of 32
bits, as many as the CPU's registers do: 16 of AVX-512, 8 of AVX2, 4 of SSE and Neon. Tiles, panels
and blocks come in sixteens, which are one register or ``Vectors.parts`` of them. Addresses are
integers and offsets are bytes, known at once (int) or at run time (a value).

The two products within a lane that everything here is made of are in ``dots``.
"""

import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from llvmlite import ir
from numba.core import cgutils

from kvikk.backends.cpu.features import feature_names

SIXTEEN = 16

Byte, Short, Int, Word64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
Float, Half = ir.FloatType(), ir.HalfType()


# 1 and three terms for 2**f on [-1/2, 1/2], of least relative error (1.02e-4).
_THREE_TERMS = [1.0, 0.69328293, 0.24221096, 0.05500893]


def _taylor_terms(count: int) -> list[float]:
    """1 and ``count`` more coefficients of 2**f: ln(2)**i / i!."""
    coefficients = [1.0]
    for power in range(1, count + 1):
        coefficients.append(coefficients[-1] * math.log(2) / power)
    return coefficients


class _BFloat16(ir.Type):  # type: ignore[misc]
    """LLVM's ``bfloat``, which llvmlite has no name for."""

    intrinsic_name = "bf16"

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat16)

    def __hash__(self) -> int:
        return hash(_BFloat16)


BFloat = _BFloat16()


def compiled_features(context: Any) -> frozenset[str]:
    """What the code being compiled may use, in LLVM's words: ``avx2``, ``avx512vnni``."""
    triple, _, features = context.codegen().magic_tuple()
    return feature_names(triple, features)


def _registers(features: frozenset[str]) -> tuple[int, int]:
    """Lanes of a register, and how many registers there are."""
    if "avx512f" in features:
        return 16, 32
    if "avx2" in features:
        return 8, 16
    return 4, 32 if "neon" in features else 16


class Vectors:
    """Emits vector instructions at one place of one function.

    ``lanes`` of 32 bits are a register, ``parts`` registers are sixteen lanes, and there are
    ``num_registers`` of them.
    """

    def __init__(self, context: Any, builder: ir.IRBuilder) -> None:
        self.builder = builder
        self.features = compiled_features(context)
        self.lanes, self.num_registers = _registers(self.features)
        self.parts = SIXTEEN // self.lanes
        self._words, self._floats = self.lanes_of(Int), self.lanes_of(Float)

    def lanes_of(self, kind: ir.Type) -> ir.Type:
        """The type of as many numbers of ``kind`` as a register has lanes."""
        return ir.VectorType(kind, self.lanes)

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
        self.call("llvm.prefetch.p0", ir.VoidType(), pointer, *hints)

    # Registers from numbers.

    def words(self, value: int) -> ir.Value:
        """The same integer in every lane."""
        return ir.Constant(self._words, [ir.Constant(Int, value)] * self.lanes)

    def floats(self, value: float) -> ir.Value:
        """The same float in every lane."""
        return ir.Constant(self._floats, [ir.Constant(Float, value)] * self.lanes)

    def splat(self, scalar: ir.Value) -> ir.Value:
        """A scalar in every lane; with a load before it, part of the instruction that uses it."""
        undefined = ir.Constant(self.lanes_of(scalar.type), ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(Int, 0))
        return self.builder.shuffle_vector(first, undefined, self.words(0))

    def splat_load(self, kind: ir.Type, address: ir.Value, offset: ir.Value | int = 0) -> ir.Value:
        """The scalar at ``address + offset`` in every lane."""
        return self.splat(self.load(kind, address, offset))

    # Arithmetic. Nothing is reordered: the order of a sum is the order it is written in.

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """``a * b + c``, rounded once where there is an instruction for it, else twice."""
        if not self.features & {"fma", "neon"}:
            return self.builder.fadd(self.multiply(a, b), c)
        return self._on_floats("fma", a, b, c)

    def multiply(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """``a * b``."""
        return self.builder.fmul(a, b)

    def maximum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The larger, lane by lane."""
        return self._on_floats("maxnum", a, b)

    def minimum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The smaller, lane by lane."""
        return self._on_floats("minnum", a, b)

    def absolute(self, a: ir.Value) -> ir.Value:
        """``|a|``."""
        return self._on_floats("fabs", a)

    def magnitude(self, a: ir.Value) -> ir.Value:
        """The bits of ``|a|``, which are in order as integers where the numbers are."""
        return self.builder.bitcast(self.absolute(a), self._words)

    def larger(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The larger of unsigned integers, lane by lane."""
        return self.call(f"llvm.umax.v{self.lanes}i32", self._words, a, b)

    def rounded(self, a: ir.Value) -> ir.Value:
        """The nearest integers as floats, halves to even."""
        return self._on_floats("rint", a)

    def nearest(self, a: ir.Value) -> ir.Value:
        """The nearest integers, halves to even; of magnitudes below 2**22.

        So high above the numbers floats are the integers, and their bits count them.
        """
        shifted = self.builder.fadd(a, self.floats(1.5 * 2.0**23))
        return self.builder.bitcast(shifted, self._words)

    def exp2(self, x: ir.Value, terms: int = 6) -> ir.Value:
        """2 to the power of x, for x up to 127; less than 2**-125 below -125, 0 from -127 on.

        x = n + f with n whole: 2**f by 1 and ``terms`` more terms on [-1/2, 1/2], 2**n added to the
        exponent. Six or four terms of its Taylor series are within 2e-7 and 5e-5 of it, those three
        that stray least within 1.1e-4.
        """
        x = self.maximum(x, self.floats(-127.0))
        whole = self.rounded(x)
        fraction = self.builder.fsub(x, whole)
        coefficients = _THREE_TERMS if terms == 3 else _taylor_terms(terms)
        result = self.floats(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.multiply_add(result, fraction, self.floats(coefficient))
        exponent = self.builder.shl(self.builder.fptosi(whole, self._words), self.words(23))
        bits = self.builder.add(self.builder.bitcast(result, self._words), exponent)
        return self.builder.bitcast(bits, self._floats)

    def floats_of_halves(self, halves: ir.Value) -> ir.Value:
        """Float16 given as its 16 bits, as floats. Finite values only, subnormals exact."""
        if self.features & {"f16c", "neon"}:
            return self.builder.fpext(
                self.builder.bitcast(halves, self.lanes_of(Half)), self._floats
            )
        # To a float32's place, which makes a number 2**112 too small, and the sign back to its own.
        bits = self.builder.zext(halves, self._words)
        magnitude = self.builder.shl(self.builder.and_(bits, self.words(0x7FFF)), self.words(13))
        value = self.multiply(self.builder.bitcast(magnitude, self._floats), self.floats(2.0**112))
        sign = self.builder.shl(self.builder.and_(bits, self.words(0x8000)), self.words(16))
        return self.builder.bitcast(
            self.builder.or_(self.builder.bitcast(value, self._words), sign), self._floats
        )

    # Across sixteen lanes, in a fixed order whatever a register holds: those 8 apart, 4, 2, 1.

    def sum(self, sixteen: Sequence[ir.Value]) -> ir.Value:
        """The sum of sixteen lanes."""
        are_floats = sixteen[0].type == self._floats
        return self._fold(sixteen, self.builder.fadd if are_floats else self.builder.add)

    def largest(self, sixteen: Sequence[ir.Value]) -> ir.Value:
        """The largest of sixteen lanes, floats or unsigned integers."""
        are_floats = sixteen[0].type == self._floats
        return self._fold(sixteen, self.maximum if are_floats else self.larger)

    def paired(
        self, registers: Sequence[ir.Value], join: Callable[[ir.Value, ir.Value], ir.Value]
    ) -> list[ir.Value]:
        """Neighbouring lanes 2i and 2i + 1 joined, of registers read as one row: half as many."""
        pairs = zip(registers[::2], registers[1::2], strict=True)
        return [join(*self.evens_and_odds(a, b)) for a, b in pairs]

    def evens_and_odds(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Of two registers read as one row, the lanes with even numbers and those with odd ones."""
        evens, odds = ([2 * lane + i for lane in range(self.lanes)] for i in range(2))
        return self.shuffle(a, b, evens), self.shuffle(a, b, odds)

    def interleaved(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Lanes of two registers in turns, as two registers read as one row."""
        order = [lane + self.lanes * i for lane in range(self.lanes) for i in range(2)]
        return self.shuffle(a, b, order[: self.lanes]), self.shuffle(a, b, order[self.lanes :])

    def shuffle(self, a: ir.Value, b: ir.Value, order: Sequence[int]) -> ir.Value:
        """The elements with these numbers, of two registers read as one row."""
        places = [ir.Constant(Int, i) for i in order]
        mask = ir.Constant(ir.VectorType(Int, len(order)), places)
        return self.builder.shuffle_vector(a, b, mask)

    def _fold(
        self, sixteen: Sequence[ir.Value], join: Callable[[ir.Value, ir.Value], ir.Value]
    ) -> ir.Value:
        while len(sixteen) > 1:
            half = len(sixteen) // 2
            sixteen = [join(a, b) for a, b in zip(sixteen[:half], sixteen[half:], strict=True)]
        (x,) = sixteen
        undefined = ir.Constant(x.type, ir.Undefined)
        distance = self.lanes // 2
        while distance > 0:
            order = [(lane + distance) % self.lanes for lane in range(self.lanes)]
            places = ir.Constant(self._words, [ir.Constant(Int, place) for place in order])
            x = join(x, self.builder.shuffle_vector(x, undefined, places))
            distance //= 2
        return self.builder.extract_element(x, ir.Constant(Int, 0))

    def call(self, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        """Call one of LLVM's intrinsics by its name."""
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, arguments)

    def _word(self, value: ir.Value | int) -> ir.Value:
        return self.integer(value) if isinstance(value, int) else value

    def _on_floats(self, name: str, *arguments: ir.Value) -> ir.Value:
        return self.call(f"llvm.{name}.v{self.lanes}f32", self._floats, *arguments)


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
