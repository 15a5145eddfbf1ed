"""Which code path this process runs, and what instructions that leaves to its kernels.

    path         what it takes                             compiled without
    avx512       AVX-512 with VNNI and BF16
    avx512vnni   AVX-512 with VNNI                         AVX512_BF16
    avx2         AVX2, FMA, F16C                           AVX-512, AMX
    portable     SSE4.1, or Neon: registers of 128 bits    AVX and all that stands on it
    plain        nothing; kernels in plain numba           AVX and all that stands on it

The best path that the CPU can run is run, or the one that ``KVIKK_CPU`` asks for. A process has one
path: all that numba compiles in it, kernels and the walk around them, is held to its instructions,
on a CPU that has more too. So a run that is masked down is what a lesser CPU would run, tuned for
this one.
"""

import os
from contextlib import suppress
from typing import Any

import llvmlite.binding as llvm
from numba.core import config as numba_config
from numba.core.codegen import get_host_cpu_features
from numba.core.registry import cpu_target

from kvikk.errors import ModelError

_config: Any = numba_config

# A path can be run where all of one of these are present.
_NEEDED: dict[str, list[set[str]]] = {
    "avx512": [{"avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16"}],
    "avx512vnni": [{"avx512f", "avx512bw", "avx512vl", "avx512vnni"}],
    "avx2": [{"avx2", "fma", "f16c"}],
    "portable": [{"sse4.1"}, {"neon"}],
    "plain": [set()],
}
# How the names of instruction sets begin that a path leaves out.
_AVX = ("avx", "amx", "fma", "f16c", "xop", "vaes", "vpclmulqdq", "sha512", "sm3", "sm4")
_LEFT_OUT: dict[str, tuple[str, ...]] = {
    "avx512": (),
    "avx512vnni": ("avx512bf16", "avx512fp16", "avx10", "amx"),
    "avx2": ("avx512", "avx10", "amx"),
    "portable": _AVX,
    "plain": _AVX,
}
PATHS = tuple(_NEEDED)

# As LLVM writes them: "+avx2,-avx512f,…". NUMBA_CPU_FEATURES counts as what the CPU has.
_host_features: str = (
    get_host_cpu_features() if _config.CPU_FEATURES is None else _config.CPU_FEATURES
)


def feature_names(triple: str, features: str) -> frozenset[str]:
    """The names of what is there. Every Arm of 64 bits has Neon, whether it is said or not."""
    names = {name[1:] for name in features.split(",") if name.startswith("+")}
    return frozenset(names | ({"neon"} if triple.startswith(("aarch64", "arm64")) else set()))


def runnable_paths() -> tuple[str, ...]:
    """The paths that this CPU can run, the best one first."""
    present = feature_names(llvm.get_process_triple(), _host_features)
    return tuple(path for path in PATHS if any(needed <= present for needed in _NEEDED[path]))


def choose_path() -> str:
    """The best path, or what ``KVIKK_CPU`` asks for.

    Raises ModelError for a path that is not one or that this CPU cannot run.
    """
    able = runnable_paths()
    asked = os.environ.get("KVIKK_CPU") or able[0]
    if asked not in able:
        raise ModelError(
            f"KVIKK_CPU={asked}: this CPU can run {', '.join(able)}; "
            "choose one of them or leave it unset"
        )
    return asked


def features_of(path: str) -> str:
    """This CPU's features as LLVM writes them, without what ``path`` leaves out."""
    return ",".join(
        f"-{name[1:]}" if name[1:].startswith(_LEFT_OUT[path]) else name
        for name in _host_features.split(",")
    )


def hold_numba_to_path() -> None:
    """Tell numba which instructions it may use. It listens until it compiles for the first time.

    A path that cannot be run changes nothing here: that is told when a backend is made.
    """
    with suppress(ModelError):
        _config.CPU_FEATURES = features_of(choose_path())


def process_path() -> str:
    """The path of this process.

    Raises ModelError where ``choose_path`` does, and if numba has settled on other instructions.
    """
    path = choose_path()
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    if features != features_of(path):
        raise ModelError(
            f"the CPU path {path} was asked for after numba had settled on other instructions; "
            "set KVIKK_CPU before Python starts, and import kvikk.backends.cpu.backend before "
            "other code that uses numba"
        )
    return path
