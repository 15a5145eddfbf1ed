"""What products fetch meanwhile is what the next attention reads."""

from ctypes import c_int64

import numpy as np
import pytest
from numba import njit

from kvikk.backends.cpu.backend import CpuBackend
from kvikk.backends.cpu.fetching import (
    FETCHES_BYTES,
    MAX_STRETCHES,
    STRETCH_BYTES,
    choose_fetches,
    list_stretches,
)
from kvikk.backends.cpu.threads import share
from tests.backends.driver import DrivenSequence, Driver, Piece
from tests.backends.random_decoders import Shape, random_decoder

RNG = np.random.default_rng(3)
LENGTHS = (5, 31, 32, 70, 200, 333, 64, 1)


def driver_of(windows: tuple[int | None, ...], block_size: int, capacity: int = 1 << 12) -> Driver:
    shape = Shape(hidden_size=64, num_heads=6, num_kv_heads=2, windows=windows)
    return Driver(CpuBackend(2), random_decoder(shape), capacity, block_size, "bf16")


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
def choose(model, layers, groups, jobs, index, first, last, fetches, team):  # type: ignore[no-untyped-def]
    """What kernels call, as Python can call it."""
    choose_fetches(model[0], layers, groups, jobs[index], first, last, 1, fetches, team)


@pytest.mark.parametrize("lengths", [LENGTHS, (600,) * 12])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_thread_fetches_what_its_own_sequences_will_read(
    num_threads: int, lengths: tuple[int, ...]
) -> None:
    driver = driver_of((None, None), 32, 1 << 13)
    sequences = sequences_of(driver, lengths)
    driver.run([Piece(sequence, [7]) for sequence in sequences])
    tables = driver.backend._tables  # type: ignore[attr-defined]
    all_stretches = fetched(driver, 0)
    per_layer = driver.plan.groups[0].block_bytes(32, "bf16") // 2
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
                    *(tables.model, tables.layers, tables.groups, tables.jobs),
                    *(index, tile, tile + 1, own.ctypes.data, (thread, num_threads)),
                )
                assert own[0] == tables.layers[layer]["keys"]
                first = (own[1] - tables.groups[0]["stretches"]) // 8
                seen[thread] += all_stretches[first : first + own[2]]
        for thread in range(num_threads):
            expected: list[int] = []
            for sequence in sequences[slice(*share.py_func(len(lengths), thread, num_threads))]:
                for block in sequence.block_tables[0]:
                    start = block * per_layer * 2
                    expected += range(start, start + per_layer, STRETCH_BYTES)
            assert seen[thread] == expected


def test_of_what_is_too_much_each_sequence_has_its_share() -> None:
    driver = driver_of((None,), 32, 1 << 13)
    sequences = sequences_of(driver, (1_000, 500, *(250,) * 6))
    # As if a block took more: rather than megabytes of keys and values.
    groups = driver.backend._tables.groups  # type: ignore[attr-defined]
    groups[0]["layer_bytes"] *= 600
    positions = np.array([len(sequence.tokens) - 1 for sequence in sequences], np.int32)
    rows = np.arange(len(sequences), dtype=np.int32)
    tables = np.full((len(sequences), 40), -1, np.int32)
    for row, sequence in enumerate(sequences):
        tables[row, : len(sequence.block_tables[0])] = sequence.block_tables[0]
    groups[0]["tables"], groups[0]["table_columns"] = tables.ctypes.data, tables.shape[1]
    run_list(groups, positions, rows, 32)
    per_block = -(-int(groups[0]["layer_bytes"]) // STRETCH_BYTES)
    room = MAX_STRETCHES // per_block
    blocks = [len(sequence.block_tables[0]) for sequence in sequences]
    assert sum(blocks) > room
    starts = np.ctypeslib.as_array(
        (c_int64 * (len(rows) + 1)).from_address(int(groups[0]["stretch_starts"]))
    )
    expected = [count * room // sum(blocks) * per_block for count in blocks]
    assert np.diff(starts).tolist() == expected


@njit
def run_list(groups, positions, sequences, block_size):  # type: ignore[no-untyped-def]
    """What ``prepare`` calls, as Python can call it."""
    list_stretches(groups[0], positions, sequences, block_size)
