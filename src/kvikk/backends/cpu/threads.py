"""What threads need to walk through a step together: counters, and a barrier that spins.

A step has some 300 phases of a few microseconds each. A barrier of atomics costs a tenth of a
microsecond; putting threads to sleep between phases would cost more than the phases.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kvikk.backends.cpu.jit import inner

_WORD = ir.IntType(64)
# Spins before a waiting thread offers its core to somebody else: some 50 µs. On an idle machine no
# barrier waits so long; on a shared one, waiting longer for a thread that does not run costs far
# more (a tenfold of decoding speed, beside one other busy engine).
_SPINS_BEFORE_YIELD = 2048


@intrinsic
def atomic_add(typing_context: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at ``address``; returns what was there before."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        pointer = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), emit


@intrinsic
def atomic_load(typing_context: Any, address: Any) -> Any:
    """The int64 at ``address``, and with it all that was written before it was."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        pointer = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), emit


@intrinsic
def _pause(typing_context: Any) -> Any:
    """Tell the core that this is a spin loop."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        machine = builder.module.triple.split("-")[0]
        nothing = ir.FunctionType(ir.VoidType(), [])
        if machine == "x86_64":
            pause = cgutils.get_or_insert_function(builder.module, nothing, "llvm.x86.sse2.pause")
            builder.call(pause, [])
        elif machine in ("aarch64", "arm64"):
            builder.asm(nothing, "isb", "", [], side_effect=True)
        return ir.Constant(_WORD, 0)

    return types.int64(), emit


@intrinsic
def _yield(typing_context: Any) -> Any:
    """Let another thread have this core."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        integer = ir.IntType(32)
        sched_yield = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(integer, []), "sched_yield"
        )
        return builder.zext(builder.call(sched_yield, []), _WORD)

    return types.int64(), emit


@inner
def wait_for_all(counter, arrivals):
    """Arrive at the barrier and wait until ``arrivals`` threads have, in all since the start."""
    atomic_add(counter, 1)
    spins = 0
    while atomic_load(counter) < arrivals:
        spins += 1
        if spins % _SPINS_BEFORE_YIELD == 0:
            _yield()
        else:
            _pause()
