"""How kernels are compiled, and where their machine code is kept.

Everything compiled here goes through these decorators. Machine code lives below kvikk's cache folder
in a directory named by a digest of this room's source: numba looks only at the file a kernel is
written in, not at what that file imports, and a stale kernel must never run.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import config
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from kvikk.files.cache_folder import cache_folder

# The pool of threads: OpenMP forks in 2 µs, numba's own work queue in 90. tbb is never reached: it may put two
# threads' work on one, and a spin barrier between them would wait for ever.
config.THREADING_LAYER_PRIORITY = ["omp", "workqueue", "tbb"]


def _source_digest() -> str:
    digest = hashlib.sha256(f"numba {numba.__version__}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


SOURCE_DIGEST = _source_digest()


@contextmanager
def _kernel_cache() -> Iterator[None]:
    """Whatever is decorated inside keeps its machine code in kvikk's folder."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(cache_folder() / "kernels" / SOURCE_DIGEST)
    try:
        yield
    finally:
        config.CACHE_DIR = before


def inner(function: Callable[..., Any]) -> Any:
    """A function for other kernels to call: compiled into each of them."""
    return numba.njit(nogil=True, error_model="numpy")(function)


def entry(*signatures: Any, parallel: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """A function that Python calls. It lets go of the interpreter while it runs."""

    def decorate(function: Callable[..., Any]) -> Any:
        with _kernel_cache():
            return numba.njit(
                *signatures, nogil=True, error_model="numpy", parallel=parallel, cache=True
            )(function)

    return decorate


def compile_kernel(function: Callable[..., Any], *arguments: types.Type) -> int:
    """The address of ``function`` compiled for these argument types, from the cache if it is there.

    A kernel is called through its address, so that the code around it is compiled once for all.
    """
    with _kernel_cache():
        signature = types.int64(*arguments)
        return int(numba.cfunc(signature, cache=True, error_model="numpy")(function).address)


class CompileTime(types.Opaque):  # type: ignore[misc]
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
