"""Keys and values with scales: what is stored, what it costs, and what is computed from it."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kvikk.backends.cpu.backend import CpuBackend
from kvikk.backends.cpu.codes_plain import store_codes
from kvikk.backends.cpu.facts import RowTile
from kvikk.backends.reference.backend import ReferenceBackend
from kvikk.backends.reference.codes import CODES
from kvikk.errors import ModelError
from kvikk.shapes.cost import cache_cost
from kvikk.shapes.dtypes import KVIKK_DTYPE_NAMES, as_kvikk_keeps, kv_dtypes
from tests.backends.driver import Driver
from tests.backends.random_decoders import Shape, random_decoder
from tests.backends.test_cpu_kernels import callable_kernel

CODED = ("int8", "fp8", "int4")
# One tile serves one token and many: half of the kernels to compile.
EIGHT_TO_ONE = Shape(num_heads=8, num_kv_heads=1, head_dim=64, windows=(48, None))
Floats = NDArray[np.float32]


def vectors(num_rows: int = 400, head_dim: int = 64) -> Floats:
    """Vectors as models have them: of many sizes, with outliers, a constant one, and zeros."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(num_rows, head_dim)) * np.exp(rng.normal(size=(num_rows, 1)) * 4)
    x[::7, 3] *= 40
    x[1], x[2] = 0, -1.5
    return x.astype(np.float32)


def restored(kv_dtype: str, x: Floats) -> Floats:
    return CODES[kv_dtype].decode(CODES[kv_dtype].encode(x))


def test_eight_bit_floats_are_those_of_torch() -> None:
    # With 448 in every row the scale is 1. All halfway cases, both signs, down to nothing.
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    exact = np.sort(np.unique(codes[np.isfinite(codes)]))
    x = np.concatenate([exact, (exact[1:] + exact[:-1]) / 2, np.linspace(-448, 448, 4321)])
    x = np.concatenate([x, np.geomspace(1e-5, 448, 999)]).astype(np.float32)
    rows = np.stack([x, np.full_like(x, 448)], axis=1)
    expected = torch.from_numpy(x).to(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(restored("fp8", rows)[:, 0], expected)


def test_whole_numbers_are_within_half_a_step() -> None:
    x = vectors()
    step = np.abs(x).max(axis=1, keepdims=True) / 127
    assert np.all(np.abs(restored("int8", x) - x) <= step * (0.5 + 127 / 256))
    groups = x.reshape(-1, 32)
    spread = np.ptp(groups, axis=1, keepdims=True)
    largest = np.abs(groups).max(axis=1, keepdims=True)
    error = np.abs(restored("int4", x).reshape(-1, 32) - groups)
    assert np.all(error <= spread / 30 + (spread + largest) / 256)
    assert np.sqrt(np.mean(error**2)) < 0.3 * np.sqrt(np.mean((spread / 15) ** 2))


@pytest.mark.parametrize("kv_dtype", CODED)
def test_kernels_store_the_bytes_that_the_reference_stores(kv_dtype: str) -> None:
    head_dim, x = 64, vectors(32)
    keys, values = x[:16], x[16:]
    tile = RowTile(kv_dtype, head_dim, 1)
    row_bytes = len(CODES[kv_dtype].encode(x[:1])[0])
    stored = np.zeros((2, 16 * row_bytes), np.uint8)
    kernel = callable_kernel(store_codes, 5, tile)
    for slot in range(16):
        kernel(
            stored[0].ctypes.data,
            stored[1].ctypes.data,
            slot,
            keys[slot].ctypes.data,
            values[slot].ctypes.data,
        )
    code_bytes = tile.scales_offset // 16
    codes_of_keys = stored[0, : tile.scales_offset].reshape(code_bytes, 16).T
    codes_of_values = stored[1, : tile.scales_offset].reshape(16, code_bytes)
    for sub_block, codes, rows in (
        (stored[0], codes_of_keys, keys),
        (stored[1], codes_of_values, values),
    ):
        scales = sub_block[tile.scales_offset :].view(np.uint16).reshape(-1, 16).T
        found = np.concatenate([codes, np.ascontiguousarray(scales).view(np.uint8)], axis=1)
        np.testing.assert_array_equal(found, CODES[kv_dtype].encode(rows))


@pytest.mark.parametrize("kv_dtype", CODED)
def test_logits_are_those_of_the_reference_with_the_same_rounding(kv_dtype: str) -> None:
    decoder = random_decoder(EIGHT_TO_ONE)
    tokens = np.random.default_rng(6).integers(0, 101, 300).tolist()
    reference = ReferenceBackend()
    expected = Driver(reference, decoder, 512, kv_dtype=kv_dtype).all_logits(tokens, 101)
    found = Driver(CpuBackend(2), decoder, 512, kv_dtype=kv_dtype).all_logits(tokens, 101)
    exact = Driver(ReferenceBackend(), decoder, 512).all_logits(tokens, 101)
    # An element on the edge between two codes may fall on either side.
    assert np.abs(found - expected).max() < 0.1 * np.abs(exact - expected).max()
    assert np.sqrt(np.mean((found - expected) ** 2)) < 1e-3


@pytest.mark.parametrize("kv_dtype", KVIKK_DTYPE_NAMES)
def test_a_block_takes_what_the_size_of_a_token_says(kv_dtype: str) -> None:
    decoder = random_decoder(EIGHT_TO_ONE)
    a_token = cache_cost(decoder.shape, as_kvikk_keeps(kv_dtypes(kv_dtype))).bytes_per_token
    for backend in (ReferenceBackend(), CpuBackend(1)):
        driver = Driver(backend, decoder, 64, kv_dtype=kv_dtype)
        planned = backend.memory_use(decoder, driver.plan).block_bytes
        held = [len(backend.read(group, [0])) for group in range(len(planned))]
        assert list(planned) == held
        assert sum(held) == 32 * a_token


def test_a_type_that_nobody_keeps_is_refused_by_name() -> None:
    for backend in (ReferenceBackend(), CpuBackend(1)):
        with pytest.raises(ModelError, match="'q8_0' is not one of f32, bf16, int8, fp8, int4"):
            Driver(backend, random_decoder(EIGHT_TO_ONE), 64, kv_dtype="q8_0")
