"""What products fetch meanwhile is what the next attention reads."""

from ctypes import c_int64

import numpy as np
import pytest
from numba import njit

from kvikk.backends.cpu.backend import CpuBackend
from kvikk.backends.cpu.fetching import FETCHES_BYTES, STRETCH_BYTES, choose_fetches
from kvikk.backends.cpu.threads import share
from tests.backends.driver import DrivenSequence, Driver, Piece
from tests.backends.random_decoders import Shape, random_decoder

RNG = np.random.default_rng(3)
LENGTHS = (5, 31, 32, 70, 200, 333, 64, 1)


def driver_of(windows: tuple[int | None, ...], block_size: int) -> Driver:
    shape = Shape(hidden_size=64, num_heads=6, num_kv_heads=2, windows=windows)
    return Driver(CpuBackend(2), random_decoder(shape), 1 << 12, block_size, "bf16")


def sequences_of(driver: Driver, lengths: tuple[int, ...]) -> list[DrivenSequence]:
    sequences = [driver.new_sequence() for _ in lengths]
    for sequence, length in zip(sequences, lengths, strict=True):
        driver.prefill(sequence, RNG.integers(0, 101, length).tolist())
    return sequences


def fetched(driver: Driver, group: int) -> list[int]:
    """Where the stretches of the last step begin, from a layer's first byte in block 0."""
    record = driver.backend._tables.groups[group]  # type: ignore[attr-defined]
    count = int(record["num_stretches"])
    return list((c_int64 * count).from_address(int(record["stretches"])))


@pytest.mark.parametrize("block_size", [16, 32, 48])
@pytest.mark.parametrize("windows", [(None, None), (40, None)])
def test_every_block_that_a_step_reads_is_fetched_once(
    windows: tuple[int | None, ...], block_size: int
) -> None:
    driver = driver_of(windows, block_size)
    sequences = sequences_of(driver, LENGTHS)
    driver.run([Piece(sequence, [7]) for sequence in sequences])
    for group, cache_group in enumerate(driver.plan.groups):
        block_bytes = cache_group.block_bytes(block_size, "bf16")
        layer_bytes = block_bytes // len(cache_group.layers)
        expected: list[int] = []
        for sequence in sequences:
            read = range(len(sequence.tokens))[-(cache_group.window_tokens or 1 << 30) :]
            for block in dict.fromkeys(position // block_size for position in read):
                start = sequence.block_tables[group][block] * block_bytes
                expected += range(start, start + layer_bytes, STRETCH_BYTES)
        assert fetched(driver, group) == expected


def test_few_tokens_wait_for_weights_and_fetch_nothing() -> None:
    driver = driver_of((None,), 32)
    sequences = sequences_of(driver, LENGTHS[:2])
    driver.run([Piece(sequence, [7]) for sequence in sequences])
    assert fetched(driver, 0) == []


@njit
def choose(layers, groups, jobs, index, first, last, fetches, thread, num_threads):  # type: ignore[no-untyped-def]
    """What kernels call, as Python can call it."""
    choose_fetches(layers, groups, jobs[index], first, last, 1, fetches, thread, num_threads)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_thread_fetches_all_of_its_own_stretches_and_no_others(num_threads: int) -> None:
    driver = driver_of((None, None), 32)
    sequences = sequences_of(driver, LENGTHS)
    driver.run([Piece(sequence, [7]) for sequence in sequences])
    tables = driver.backend._tables  # type: ignore[attr-defined]
    total = len(fetched(driver, 0))
    for layer in range(2):
        progress = np.zeros((num_threads, FETCHES_BYTES // 8), np.int64)
        seen: list[list[int]] = [[] for _ in range(num_threads)]
        for index in np.flatnonzero(tables.jobs["fetching_work"]):
            if tables.jobs[index]["fetched_layer"] != layer:
                continue
            for tile in range(tables.jobs[index]["row_tiles"]):
                thread = tile % num_threads
                own = progress[thread]
                choose(
                    *(tables.layers, tables.groups, tables.jobs, index, tile, tile + 1),
                    *(own.ctypes.data, thread, num_threads),
                )
                assert own[0] == tables.layers[layer]["keys"]
                first = (own[1] - tables.groups[0]["stretches"]) // 8
                seen[thread] += range(first, first + own[2])
        shares = [share.py_func(total, thread, num_threads) for thread in range(num_threads)]
        assert seen == [list(range(*own_share)) for own_share in shares]
