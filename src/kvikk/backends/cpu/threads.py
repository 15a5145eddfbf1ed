"""What threads need to walk through a step together: counters, and a barrier that spins.

A step has some 300 phases of a few microseconds each. A barrier of atomics costs a tenth of a
microsecond; putting threads to sleep between phases would cost more than the phases.
"""

from typing import Any

import numpy as np
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
# How long the first thread of a step waits for the others, some 2 ms. One that comes later, because
# the machine is busy, is not needed; one that never comes, because the pool was given fewer threads
# than it was asked for, must not be waited for.
_SPINS_BEFORE_LEAVING = 40 * _SPINS_BEFORE_YIELD
_CLOSED = 1 << 32

# What threads meet by, each in a cache line: arrivals at barriers, who joined the step, how many.
MEETING_BYTES = 3 * 64
_JOINED, _TEAM = 64, 128


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
def atomic_store(typing_context: Any, address: Any, value: Any) -> Any:
    """Write the int64 at ``address``; whoever reads it sees what was written before it, too."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        pointer = builder.inttoptr(arguments[0], _WORD.as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", 8)
        return arguments[1]

    return types.int64(types.int64, types.int64), emit


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
def _spin(spins):
    """Wait a little, after having waited ``spins`` times."""
    if spins % _SPINS_BEFORE_YIELD == 0:
        _yield()
    else:
        _pause()


@inner
def share(count, thread, num_threads):
    """The part of ``count`` things that one thread does: first, end."""
    return count * thread // num_threads, count * (thread + 1) // num_threads


@inner
def join_team(meeting, num_threads):
    """Join a step that ``num_threads`` were asked to walk. Returns this thread's number and how
    many walk; a number of -1 says that they left without it.

    A pool may run fewer threads than it was asked for (OpenMP has settings for that), and then runs
    one's work after another's: threads that wait for each other have to know who is there. The
    first to join waits for the others, for a while, and then says how many they are.
    """
    number = atomic_add(meeting + _JOINED, 1)
    if number >= _CLOSED:
        return np.int64(-1), np.int64(0)
    spins = 1
    if number == 0:
        while atomic_load(meeting + _JOINED) < num_threads and spins < _SPINS_BEFORE_LEAVING:
            _spin(spins)
            spins += 1
        atomic_add(meeting + _TEAM, atomic_add(meeting + _JOINED, _CLOSED))
    while atomic_load(meeting + _TEAM) == 0:
        _spin(spins)
        spins += 1
    return number, atomic_load(meeting + _TEAM)


@inner
def wait_for_all(meeting, arrivals):
    """Arrive at the barrier and wait until ``arrivals`` threads have, in all since the start."""
    atomic_add(meeting, 1)
    spins = 1
    while atomic_load(meeting) < arrivals:
        _spin(spins)
        spins += 1
