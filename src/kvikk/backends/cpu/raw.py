"""Memory by its address, seen as arrays inside kernels.

Kernels are handed addresses: of weights in a large map, of rows in a scratch buffer. These helpers
give such memory a type and a length. Nothing is checked; what may be read is settled in Python.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic

from kvikk.backends.cpu.jit import inner


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), emit


@intrinsic
def float_of_bits(typing_context: Any, bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), emit


@intrinsic
def bits_of_float(typing_context: Any, value: Any) -> Any:
    """The 32 bits of a float32."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), emit


@inner
def float_of_half(half):
    """The float32 equal to a float16 given as its 16 bits. Finite values only, subnormals exact.

    The exponent and fraction are moved to a float32's place, which makes a number 2**112 too small.
    """
    magnitude = np.uint32(half & np.uint16(0x7FFF)) << np.uint32(13)
    value = float_of_bits(magnitude) * np.float32(2.0**112)
    return -value if half & np.uint16(0x8000) else value


@inner
def float32s(address, count):
    """``count`` float32 at ``address``."""
    return carray(_pointer(address), count, np.float32)


@inner
def float64s(address, count):
    """``count`` float64 at ``address``."""
    return carray(_pointer(address), count, np.float64)


@inner
def int8s(address, count):
    """``count`` int8 at ``address``."""
    return carray(_pointer(address), count, np.int8)


@inner
def uint8s(address, count):
    """``count`` uint8 at ``address``."""
    return carray(_pointer(address), count, np.uint8)


@inner
def uint16s(address, count):
    """``count`` uint16 at ``address``."""
    return carray(_pointer(address), count, np.uint16)


@inner
def uint32s(address, count):
    """``count`` uint32 at ``address``."""
    return carray(_pointer(address), count, np.uint32)


@inner
def records(address, count, kind):
    """``count`` records at ``address``, of the record type ``kind``."""
    return carray(_pointer(address), count, kind)


@inner
def int32s(address, count):
    """``count`` int32 at ``address``."""
    return carray(_pointer(address), count, np.int32)


@inner
def int64s(address, count):
    """``count`` int64 at ``address``."""
    return carray(_pointer(address), count, np.int64)


@intrinsic
def _ask_for_line(typing_context: Any, address: Any) -> Any:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, level_2, data = (ir.Constant(word, hint) for hint in (0, 2, 1))
        address = builder.inttoptr(arguments[0], pointer)
        builder.call(prefetch, [address, read, level_2, data])
        return arguments[0]

    return types.int64(types.int64), emit


@inner
def ask_for(address, num_bytes):
    """Have some memory brought to this core, all of it at once, while the core goes on."""
    for offset in range(0, num_bytes, 64):
        _ask_for_line(address + offset)


@inner
def copy_words(source, target, count):
    """Copy ``count`` words of 32 bits.

    A slice assignment would do, and would bring code to describe its errors into every kernel.
    """
    values, copies = uint32s(source, count), uint32s(target, count)
    for i in range(count):
        copies[i] = values[i]


@inner
def clear_words(target, count):
    """Zero ``count`` words of 32 bits."""
    values = uint32s(target, count)
    for i in range(count):
        values[i] = 0
