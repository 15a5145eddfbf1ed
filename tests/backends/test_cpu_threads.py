"""Threads that walk a step together, whatever the pool gives; and what is kept of old kernels."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from kvikk.backends.cpu.backend import CpuBackend
from kvikk.backends.cpu.jit import SOURCE_DIGEST, forget_old_kernels
from kvikk.files.cache_folder import cache_folder
from tests.backends.driver import Driver
from tests.backends.random_decoders import Shape, random_decoder

TOKENS = list(range(40))


def new_driver(num_threads: int = 2) -> Driver:
    return Driver(CpuBackend(num_threads), random_decoder(Shape()), 128, kv_dtype="bf16")


def digest_of_logits() -> str:
    """Of a prompt in chunks of 7, and of single tokens."""
    driver = new_driver()
    logits = np.concatenate([driver.all_logits(TOKENS, chunk) for chunk in (7, 1)])
    return hashlib.sha256(logits.tobytes()).hexdigest()


@pytest.mark.parametrize(
    "setting",
    [
        "OMP_THREAD_LIMIT=1",
        "OMP_DYNAMIC=true",
        "NUMBA_NUM_THREADS=1",
        "NUMBA_NUM_THREADS=4",
        "NUMBA_THREADING_LAYER=workqueue",
    ],
)
def test_a_pool_of_any_kind_and_size_gives_the_same_bits(setting: str) -> None:
    expected = digest_of_logits()  # which compiles what is needed, if nobody has
    name, value = setting.split("=")
    result = subprocess.run(
        [sys.executable, "-m", "tests.backends.test_cpu_threads"],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    assert result.stdout.strip() == expected


def test_backends_in_several_threads_take_turns() -> None:
    expected = new_driver(1).all_logits(TOKENS, 3)
    drivers = [new_driver() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(5):
            for logits in pool.map(lambda driver: driver.all_logits(TOKENS, 3), drivers):
                np.testing.assert_array_equal(logits, expected)


def test_kernels_that_nobody_loaded_for_a_month_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVIKK_HOME", str(tmp_path))
    forget_old_kernels()  # nothing is there
    now, day = time.time(), 24 * 3600
    for name, age_days in ((SOURCE_DIGEST, 90), ("another", 20), ("old", 40)):
        folder = tmp_path / "kernels" / name
        (folder / "inner").mkdir(parents=True)
        os.utime(folder, (now - age_days * day,) * 2)
    forget_old_kernels()
    assert {path.name for path in (tmp_path / "kernels").iterdir()} == {SOURCE_DIGEST, "another"}
    assert (tmp_path / "kernels" / SOURCE_DIGEST).stat().st_mtime > now - day


def test_without_a_folder_to_write_kernels_are_kept_beside_no_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVIKK_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = (
        "from kvikk.backends.cpu import jit; from kvikk.backends.cpu.batch import prepare;"
        "print(prepare.stats.cache_path, jit.kernels_are_shared(), jit.is_kept(prepare.py_func))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout.startswith(str(tmp_path / "kvikk-kernels-"))
    assert result.stdout.endswith(" False False\n")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]  # and nothing stays


def test_kernels_of_a_loaded_decoder_are_kept_for_other_processes() -> None:
    new_driver()
    script = (
        "from kvikk.backends.cpu import jit; from kvikk.backends.cpu.step import walk;"
        "print(jit.kernels_are_shared(), jit.is_kept(walk))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout == "True True\n"


def test_processes_that_start_together_compile_a_kernel_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVIKK_HOME", str(tmp_path))
    script = (
        "from kvikk.backends.cpu import batch, jit;"
        "jit.compile_entry(batch.prepare, batch.PREPARE_TYPES); stats = batch.prepare.stats;"
        "print(sum(stats.cache_misses.values()), sum(stats.cache_hits.values()))"
    )
    command = [sys.executable, "-c", script]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    told = sorted(process.communicate()[0].strip() for process in started)
    assert told == ["0 1", "0 1", "1 0"]


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_kernels_cut_short_are_compiled_anew(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = digest_of_logits()
    kept = cache_folder() / "kernels" / SOURCE_DIGEST
    copied = tmp_path / "kernels" / SOURCE_DIGEST
    # Whoever compiles at this moment has files that go away.
    shutil.copytree(kept, copied, ignore=shutil.ignore_patterns("*.tmp.*"))
    monkeypatch.setenv("KVIKK_HOME", str(tmp_path))
    damaged = [path for path in copied.rglob(f"*.{suffix}") if "tile_join_" in path.name]
    assert damaged
    for path in damaged:
        path.write_bytes(b"")
    assert digest_of_logits() == expected
    joins = [path for path in copied.rglob(f"*.{suffix}") if "tile_join_" in path.name]
    assert joins
    assert all(path.stat().st_size for path in joins)


if __name__ == "__main__":
    print(digest_of_logits())
