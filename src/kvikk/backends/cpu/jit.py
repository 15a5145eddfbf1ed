"""How kernels are compiled, and where their machine code is kept.

Everything compiled here goes through these decorators. Machine code lives below kvikk's cache
folder in a directory named by a digest of this room's source: numba looks only at the file a kernel
is written in, not at what that file imports, and a stale kernel must never run. Below it, each set
of instructions that the code may use has a directory.
"""

import atexit
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import config as numba_config
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from kvikk.backends.cpu.features import hold_numba_to_path
from kvikk.files.cache_folder import cache_folder

_config: Any = numba_config
hold_numba_to_path()
# The pool of threads: OpenMP forks in 2 µs, numba's own work queue in 90. tbb, which is never
# reached, may put two threads' work on one (see ``threads.join_team``).
_config.THREADING_LAYER_PRIORITY = ["omp", "workqueue", "tbb"]
_KEPT_SECONDS = 30 * 24 * 3600


def available_threads() -> int:
    """Threads in the pool: the cores this process may use."""
    return int(_config.NUMBA_NUM_THREADS)


def _source_digest() -> str:
    digest = hashlib.sha256(f"numba {numba.__version__}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


SOURCE_DIGEST = _source_digest()
_INSTRUCTIONS_DIGEST = hashlib.sha256(str(_config.CPU_FEATURES).encode()).hexdigest()[:8]


def _kernels_folder() -> Path:
    return _writable(cache_folder() / "kernels")


def kernels_are_shared() -> bool:
    """Whether other processes find what is compiled here: kvikk's folder can be written."""
    return _kernels_folder() == cache_folder() / "kernels"


@cache
def _writable(folder: Path) -> Path:
    """``folder``, or where it cannot be written one that goes with this process.

    Left to itself, numba would write beside the source, and would not know when that is stale.
    """
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return folder
    passing = mkdtemp(prefix="kvikk-kernels-")
    atexit.register(shutil.rmtree, passing, ignore_errors=True)
    return Path(passing)


def forget_old_kernels() -> None:
    """Delete kernels of other sources that nobody has loaded for a month.

    Another kvikk that runs them has them in memory, and would only compile them anew. What cannot
    be deleted stays.
    """
    folder = _kernels_folder()
    if not (folder / SOURCE_DIGEST).is_dir():
        return
    with suppress(OSError):
        os.utime(folder / SOURCE_DIGEST)
        for other in folder.iterdir():
            if other.stat().st_mtime < time.time() - _KEPT_SECONDS:
                shutil.rmtree(other, ignore_errors=True)


def forget_own_kernels() -> None:
    """Delete the kernels of this source: a file of theirs is damaged."""
    shutil.rmtree(_kernels_folder() / SOURCE_DIGEST, ignore_errors=True)


def _own_folder() -> Path:
    return _kernels_folder() / SOURCE_DIGEST / _INSTRUCTIONS_DIGEST


@contextmanager
def _kernel_cache() -> Iterator[None]:
    """Whatever is decorated inside keeps its machine code in kvikk's folder."""
    before = _config.CACHE_DIR
    _config.CACHE_DIR = str(_own_folder())
    try:
        yield
    finally:
        _config.CACHE_DIR = before


def inner(function: Callable[..., Any]) -> Any:
    """A function for other kernels to call, never Python: compiled into each of them.

    It goes without the wrappers that Python would call it by, a quarter of what compiling takes.
    """
    njit: Any = numba.njit  # whose annotation leaves two options out
    return njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(
        function
    )


def entry(parallel: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """A function that Python calls. It lets go of the interpreter while it runs."""

    def decorate(function: Callable[..., Any]) -> Any:
        with _kernel_cache():
            return numba.njit(nogil=True, error_model="numpy", parallel=parallel, cache=True)(
                function
            )

    return decorate


@contextmanager
def _alone_at(function: Callable[..., Any]) -> Iterator[None]:
    """Wait while another process compiles the same function, whose machine code is then found.

    A fleet that starts on one machine would else compile everything once a replica, all at once.
    """
    folder = _own_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{function.__qualname__}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # goes with the file, also where a process is killed
        yield


def is_kept(function: Callable[..., Any]) -> bool:
    """Whether a kernel has been compiled before: its machine code is in the cache."""
    return any(_own_folder().glob(f"*/*.{function.__qualname__}-*.nbc"))


def table_of(dtype: np.dtype[Any]) -> types.Type:
    """The type of a one-dimensional array of ``dtype``, for compiling before there is one."""
    return types.Array(numba.from_dtype(dtype), 1, "C")


def compile_kernel(function: Callable[..., Any], *arguments: types.Type) -> int:
    """The address of ``function`` compiled for these argument types, from the cache if it is there.

    A kernel is called through its address, so that the code around it is compiled once for all.
    """
    with _kernel_cache(), _alone_at(function):
        signature = types.int64(*arguments)
        compiled: Any = numba.cfunc(signature, cache=True, error_model="numpy")(function)
        return int(compiled.address)


def compile_entry(function: Any, signature: Any) -> None:
    """Compile an ``entry`` for this signature, or fetch it from the cache."""
    with _alone_at(function.py_func):
        function.compile(signature)


class CompileTime(types.Opaque):
    """The type of an argument that is nothing but its type: ``value`` is known when code is made.

    A kernel written once is compiled for one tile format, one head size, one instruction set by
    taking such an argument. At run time it is a null pointer.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        super().__init__(f"CompileTime({value!r})")


register_model(CompileTime)(models.OpaqueModel)


def pointer_call(num_integers: int, num_facts: int = 0) -> Any:
    """An intrinsic that calls a kernel: ``call(address, (integer, …))``.

    The kernel's ``num_facts`` CompileTime arguments come first and are null.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        address, integers = arguments[0], arguments[1]
        null = ir.IntType(8).as_pointer()
        word = ir.IntType(64)
        function = ir.FunctionType(word, [null] * num_facts + [word] * num_integers)
        target = builder.inttoptr(address, function.as_pointer())
        unpacked = [builder.extract_value(integers, i) for i in range(num_integers)]
        return builder.call(target, [ir.Constant(null, None)] * num_facts + unpacked)

    @intrinsic
    def call(typing_context: Any, address: Any, integers: Any) -> Any:
        return types.int64(types.int64, types.UniTuple(types.int64, num_integers)), emit

    return call
