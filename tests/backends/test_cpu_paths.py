"""Every code path that this CPU can run keeps what the best one promises, in its instructions."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvikk.backends.cpu.features import process_path, runnable_paths

ROOT = Path(__file__).parents[2]
# What a kernel of each path must not contain, and what its products of bytes are made of.
AVX512 = r"%zmm|\{%k[1-7]\}|%[xy]mm(1[6-9]|2\d|3[01])\b|\tvpdpbusd"
BF16 = r"\tv\w*bf16\w*\t"
AVX = r"%[yz]mm|\tv\w+\t%xmm"
FORBIDDEN = {
    "avx512": r"(?!)",
    "avx512vnni": BF16,
    "avx2": rf"{AVX512}|{BF16}",
    "portable": AVX,
    "plain": AVX,
}
CHARACTERISTIC = {
    "avx512": r"\tvdpbf16ps\t.*%zmm",
    "avx512vnni": r"\tvpdpbusd\t.*%zmm",
    "avx2": r"\tvpmaddubsw\t.*%ymm",
    "portable": r"\tpmaddubsw\t",
    "plain": r"\tmulps\t",
}


def run_as(path: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=os.environ | {"KVIKK_CPU": path} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("path", runnable_paths())
def test_kernels_have_the_instructions_of_their_path_and_no_others(path: str) -> None:
    assembly = run_as(path, "tests.backends.assembly")
    found = re.search(rf"^.*({FORBIDDEN[path]}).*$", assembly, re.MULTILINE)
    assert found is None, found and found[0]
    assert re.search(CHARACTERISTIC[path], assembly)


def test_avx_vnni_is_used_where_the_cpu_has_it() -> None:
    features = "+ssse3,+sse4.2,+avx2,+fma,+f16c,+avxvnni"
    assembly = run_as("avx2", "tests.backends.assembly", NUMBA_CPU_FEATURES=features)
    assert re.search(r"\{vex\}\tvpdpbusd\t.*%ymm", assembly)
    assert "pmaddubsw" not in assembly


@pytest.mark.parametrize("path", [path for path in runnable_paths() if path != process_path()])
def test_the_other_paths_pass_the_same_tests(path: str) -> None:
    near = "test_cpu_backend.py::test_logits_are_near_the_references_for_every_tensor_type"
    tests = [
        "test_cpu_bits.py::test_random_models_give_the_same_bits[bf16]",
        f"{near}[Q5_0 Q5_0 Q8_0 Q4_K Q5_0 Q5_0 Q6_K Q8_0]",
        f"{near}[F16 Q8_0 BF16 F16 BF16 Q4_0 F32 F16]",
    ]
    if path in ("avx2", "portable"):  # the others' registers are those tested in-process
        tests.append("test_cpu_kernels.py::test_integer_sums_are_equal_in_all_forms")
        same = "test_kv_types.py::test_logits_are_those_of_the_reference_with_the_same_rounding"
        tests.append(same)
    run_as(path, "pytest", "-q", *(f"tests/backends/{test}" for test in tests))
