"""The walk of a step, compiled in a process of its own while this one compiles all else.

It takes half of all compiling, and numba compiles one thing at a time in a process. The other
process leaves the machine code in the cache; whatever goes wrong there, this process finds none and
compiles it itself.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvikk.backends.cpu.jit import available_threads, is_kept, kernels_are_shared
from kvikk.backends.cpu.step import walk

_PROGRAM = """
from kvikk.backends.cpu.jit import compile_kernel
from kvikk.backends.cpu.step import WALK_TYPES, walk

compile_kernel(walk, *WALK_TYPES)
"""


@contextmanager
def walk_compiled_beside() -> Iterator[Callable[[], object]]:
    """Gives a function that waits until nobody else is at work on the walk.

    Nobody is where it has been compiled before, where there is one core, and where what another
    process compiled could not be found.
    """
    if is_kept(walk) or available_threads() == 1 or not kernels_are_shared():
        yield lambda: None
        return
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(  # noqa: S603 - this very Python, and a program of ours
        [sys.executable, "-c", _PROGRAM], stdin=nothing, stdout=nothing, stderr=nothing
    )
    try:
        yield process.wait
    finally:
        process.kill()
        process.wait()
