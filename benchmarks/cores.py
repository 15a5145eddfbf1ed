"""How far apart the cores are.

A virtual machine's cores may be moved at any time, now under one cache and now under two, and a
line that one core wrote then takes five times as long to the other. Engines that share out a small
batch feel that, and a run should say what it had.
"""

import os
import threading
import time

import numpy as np
from numba import njit

from kvikk.backends.cpu.threads import atomic_load, atomic_store

_TURNS = 20_000


@njit(nogil=True)
def _answer(line, turns):
    for turn in range(turns):
        while atomic_load(line) != 2 * turn + 1:
            pass
        atomic_store(line, 2 * turn + 2)


@njit(nogil=True)
def _ask(line, turns):
    for turn in range(turns):
        atomic_store(line, 2 * turn + 1)
        while atomic_load(line) != 2 * turn + 2:
            pass


def round_trip_ns() -> float | None:
    """A cache line's way from the first core to the last and back; None where there is but one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return None
    for kernel in (_ask, _answer):
        kernel(np.zeros(8, np.int64).ctypes.data, 0)
    memory = np.zeros(16, np.int64)
    line = memory.ctypes.data + -memory.ctypes.data % 64

    def answer() -> None:
        os.sched_setaffinity(0, {cores[-1]})
        _answer(line, _TURNS)

    other = threading.Thread(target=answer)
    os.sched_setaffinity(0, {cores[0]})
    try:
        other.start()
        began = time.perf_counter()
        _ask(line, _TURNS)
        taken = time.perf_counter() - began
    finally:
        other.join()
        os.sched_setaffinity(0, cores)
    return taken / _TURNS * 1e9


if __name__ == "__main__":
    taken_ns = round_trip_ns()
    print("one core" if taken_ns is None else f"{taken_ns:.0f} ns")
