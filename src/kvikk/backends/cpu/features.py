"""Which code path this CPU can run, and which one shall be run."""

import os

import llvmlite.binding as llvm

from kvikk.errors import ModelError

PATHS = ("avx512", "portable")


def choose_path() -> str:
    """``avx512`` where there are VNNI and BF16 instructions for 512 bits, else ``portable``.

    ``KVIKK_CPU=portable`` asks for less than the CPU has. Raises ModelError for a path that is not
    one or that this CPU cannot run.
    """
    features = llvm.get_host_cpu_features()
    needed = ("avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16")
    able = "avx512" if all(features.get(name, False) for name in needed) else "portable"
    asked = os.environ.get("KVIKK_CPU") or able
    if asked not in PATHS or (asked == "avx512" and able != "avx512"):
        raise ModelError(
            f"KVIKK_CPU={asked}: this CPU can run {able}; choose one of {', '.join(PATHS)} "
            "or leave it unset"
        )
    return asked
