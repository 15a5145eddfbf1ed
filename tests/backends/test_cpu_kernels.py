"""Each fast kernel against its plain twin, and both against numpy."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from numba import njit, types
from numpy.typing import NDArray

from kvikk.backends.cpu.facts import Product
from kvikk.backends.cpu.features import choose_path
from kvikk.backends.cpu.jit import CompileTime, compile_kernel
from kvikk.backends.cpu.multiply_plain import multiply_plain
from kvikk.backends.cpu.multiply_vectors import multiply_vectors
from kvikk.backends.cpu.packing import pack
from kvikk.backends.cpu.panels import (
    MAX_UNUSED_LANES,
    panel_of,
    panel_size,
    quantize_panel_plain,
    quantize_plain,
    quantize_rest,
    sum_of_squares_plain,
)
from kvikk.backends.cpu.panels_vectors import (
    quantize_panel_vectors,
    quantize_vectors,
    sum_of_squares_vectors,
)
from kvikk.backends.cpu.tiles import TILES, DenseTile
from kvikk.files.quantization import dequantize
from kvikk.files.tensors import Tensor
from tests.backends.random_decoders import random_tensor

# The forms that this CPU can run.
FAST = choose_path() != "plain"
MULTIPLY = [multiply_plain, *([multiply_vectors] if FAST else [])]
QUANTIZE = [quantize_plain, *([quantize_vectors] if FAST else [])]
QUANTIZE_PANEL = [quantize_panel_plain, *([quantize_panel_vectors] if FAST else [])]
SUM_OF_SQUARES = [sum_of_squares_plain, *([sum_of_squares_vectors] if FAST else [])]
Floats = NDArray[np.float32]
NOTHING_FETCHED = 0


def callable_kernel(
    function: Callable[..., object], num_integers: int, *facts: object
) -> Callable[..., int]:
    """A kernel to be called from here: null for each fact, then integers."""
    arguments = [CompileTime(fact) for fact in facts] + [types.int64] * num_integers
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))
    kernel = kind(compile_kernel(function, *arguments))
    return lambda *integers: kernel(*[0] * len(facts), *integers)


def quantized(values: Floats, quantize: Callable[..., object]) -> tuple[NDArray[np.int8], Floats]:
    """Rows of ``values`` as panels: integers and scales as kernels read them."""
    kernel = callable_kernel(quantize, 5)
    num_tokens, columns = values.shape
    groups = columns // 32
    num_lanes = num_tokens + MAX_UNUSED_LANES
    # What lies in unused lanes is nobody's.
    integers = np.full(num_lanes * columns, 99, np.int8)
    scales = np.full(num_lanes * groups * 4, np.nan, np.float32)
    for token in range(num_tokens):
        first, size = panel(token, num_tokens)
        kernel(
            values[token].ctypes.data,
            groups,
            integers.ctypes.data + first * columns + 32 * (token - first),
            scales.ctypes.data + 16 * (first * groups + token - first),
            size,
        )
    return integers, scales


def inputs_of_panels(integers: NDArray[np.int8], scales: Floats, num_tokens: int) -> Floats:
    """What panels stand for, ``[tokens, columns]``, read by their description."""
    columns = len(integers) // (num_tokens + MAX_UNUSED_LANES)
    groups = columns // 32
    rows = []
    first = 0
    while first < num_tokens:
        size = panel_size.py_func(num_tokens - first)
        panel = integers[first * columns : (first + size) * columns].reshape(groups, size, 32)
        lane_scales = scales[first * groups * 4 : (first + size) * groups * 4].reshape(
            groups, size, 4
        )
        rows.append((panel * lane_scales[:, :, :1]).transpose(1, 0, 2).reshape(size, columns))
        first += size
    return np.concatenate(rows)[:num_tokens]


def packed(tensor: Tensor, gated_with: Tensor | None = None) -> NDArray[np.uint8]:
    tile = TILES[tensor.dtype]
    rows, columns = tensor.shape
    parts = 1 if gated_with is None else 2
    groups = -(-columns // 32)
    tiles = np.zeros((-(-rows // 16), parts, groups, tile.num_bytes), np.uint8)
    for index, one in enumerate([tensor] if gated_with is None else [tensor, gated_with]):
        pack(one, None, tiles[0, index].ctypes.data, parts * groups * tile.num_bytes)
    return tiles


def multiplied(
    multiply: Callable[..., object],
    product: Product,
    tiles: NDArray[np.uint8],
    integers: NDArray[np.int8],
    scales: Floats,
    dense: Floats,
) -> Floats:
    kernel = callable_kernel(multiply, 10, product)
    row_tiles, groups, num_tokens = len(tiles), tiles.shape[2], len(dense)
    results = np.full((num_tokens, 16 * row_tiles), np.nan, np.float32)
    inputs = dense if isinstance(product.tile, DenseTile) else integers
    kernel(
        tiles.ctypes.data,
        groups,
        0,
        row_tiles,
        inputs.ctypes.data,
        scales.ctypes.data,
        num_tokens,
        results.ctypes.data,
        64 * row_tiles,
        NOTHING_FETCHED,
    )
    return results


@njit
def panel(token, num_tokens):  # type: ignore[no-untyped-def]
    """What kernels call, as Python can call it."""
    return panel_of(token, num_tokens)


@pytest.mark.parametrize("num_tokens", range(1, 34))
def test_panels_cover_every_token_once(num_tokens: int) -> None:
    covered: list[tuple[int, int]] = []
    first = 0
    while first < num_tokens:
        size = panel_size.py_func(num_tokens - first)
        covered += [(first, size)] * size
        first += size
    assert len(covered) <= num_tokens + MAX_UNUSED_LANES
    expected = [panel(token, num_tokens) for token in range(num_tokens)]
    assert covered[:num_tokens] == expected


@pytest.mark.parametrize(("num_tokens", "sizes"), [(3, [4]), (7, [8]), (5, [4, 1]), (30, [16, 16])])
def test_a_lane_is_wasted_where_that_saves_a_panel(num_tokens: int, sizes: list[int]) -> None:
    panels = {panel(token, num_tokens) for token in range(num_tokens)}
    assert [size for _, size in sorted(panels)] == sizes


def test_quantised_inputs_are_within_half_a_step_and_equal_in_all_forms() -> None:
    values = np.random.default_rng(0).normal(size=(27, 96)).astype(np.float32)
    values[3, 32:64] = 0
    forms = [quantized(values, form) for form in QUANTIZE]
    for integers, scales in forms:
        restored = inputs_of_panels(integers, scales, len(values))
        steps = np.abs(values.reshape(27, 3, 32)).max(axis=2, keepdims=True) / 127
        errors = np.abs(restored - values).reshape(27, 3, 32)
        assert np.all(errors <= 0.5001 * steps)
        np.testing.assert_array_equal(integers, forms[0][0])
        np.testing.assert_array_equal(scales, forms[0][1])


@pytest.mark.parametrize("form", QUANTIZE_PANEL)
def test_a_panel_quantised_at_once_has_the_bits_of_its_rows(form: Callable[..., object]) -> None:
    values = np.random.default_rng(0).normal(size=(16, 160)).astype(np.float32)
    values *= np.float32(10) ** np.arange(-8, 8, dtype=np.float32)[:, None]
    values[5, 32:64], values[9] = 0, np.arange(160) % 2 - 0.5  # halves of a step are rounded alike
    expected_integers, expected_scales = quantized(values, QUANTIZE[-1])
    rows = np.array([row.ctypes.data for row in values])
    integers, scales = np.zeros(16 * 160, np.int8), np.zeros(16 * 5 * 4, np.float32)
    callable_kernel(form, 4)(rows.ctypes.data, 5, integers.ctypes.data, scales.ctypes.data)
    np.testing.assert_array_equal(integers, expected_integers[: len(integers)])
    np.testing.assert_array_equal(scales, expected_scales[: len(scales)])


@pytest.mark.parametrize("form", SUM_OF_SQUARES)
def test_sums_of_squares_are_right(form: Callable[..., object]) -> None:
    values = np.random.default_rng(0).normal(size=576).astype(np.float32)
    result = np.zeros(1, np.float32)
    callable_kernel(form, 3)(values.ctypes.data, 36, result.ctypes.data)
    np.testing.assert_allclose(result[0], np.sum(values.astype(float) ** 2), rtol=1e-6)


@pytest.mark.parametrize("dtype", TILES)
def test_products_are_those_of_the_dequantised_matrix(dtype: str) -> None:
    rng = np.random.default_rng(1)
    matrix = random_tensor(dtype, 40, 512, rng)
    inputs = rng.normal(size=(27, 512)).astype(np.float32)
    integers, scales = quantized(inputs, QUANTIZE[-1])
    product = Product(TILES[dtype])
    if not isinstance(product.tile, DenseTile):
        inputs = inputs_of_panels(integers, scales, len(inputs))
    expected = inputs.astype(float) @ dequantize(matrix).astype(float).T
    # Scales of scales are rounded to float16 in tiles, everything else is exact.
    rounding = 2**-11 if dtype.endswith("_K") else 1e-6
    tolerance = rounding * np.abs(inputs).sum(axis=1).max() * np.abs(dequantize(matrix)).max() / 8
    for form in MULTIPLY:
        results = multiplied(form, product, packed(matrix), integers, scales, inputs)
        np.testing.assert_allclose(results[:, :40], expected, rtol=0, atol=tolerance)
        assert not results[:, 40:].any()


@pytest.mark.parametrize("dtype", [name for name in TILES if name not in ("F32", "F16", "BF16")])
def test_integer_sums_are_equal_in_all_forms(dtype: str) -> None:
    # With all scales 1 and no minimum every product is a whole number: nothing may be rounded.
    rng = np.random.default_rng(2)
    tile = TILES[dtype]
    tiles = packed(random_tensor(dtype, 32, 512, rng))
    tiles[..., tile.scales_offset :].view(np.float16)[:] = 1
    if tile.has_minimum:
        tiles[..., tile.minima_offset :].view(np.float16)[:] = -8
    integers = rng.integers(-127, 128, (19 + MAX_UNUSED_LANES) * 512, np.int8)
    scales = np.ones((19 + MAX_UNUSED_LANES) * 64, np.float32)
    dense = np.empty((19, 512), np.float32)
    forms = [multiplied(form, Product(tile), tiles, integers, scales, dense) for form in MULTIPLY]
    assert np.all(forms[0] == np.rint(forms[0]))
    for results in forms[1:]:
        np.testing.assert_array_equal(results, forms[0])


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_products_are_activation_of_gate_times_up(activation: str) -> None:
    rng = np.random.default_rng(3)
    gate, up = random_tensor("Q4_1", 32, 64, rng), random_tensor("Q4_1", 32, 64, rng)
    inputs = rng.normal(size=(5, 64)).astype(np.float32)
    inputs[4] *= 1000  # far out on both sides of the activation
    integers, scales = quantized(inputs, QUANTIZE[-1])
    exact = inputs_of_panels(integers, scales, len(inputs)).astype(float)
    gates, ups = (exact @ dequantize(one).astype(float).T for one in (gate, up))
    with np.errstate(over="ignore"):
        if activation == "silu":
            expected = gates / (1 + np.exp(-gates)) * ups
        else:
            inner = np.sqrt(2 / np.pi) * (gates + 0.044715 * gates**3)
            expected = 0.5 * gates * (1 + np.tanh(inner)) * ups
    for form in MULTIPLY:
        product = Product(TILES["Q4_1"], activation)
        results = multiplied(form, product, packed(gate, up), integers, scales, inputs)
        np.testing.assert_allclose(results, expected, rtol=1e-4, atol=1e-4 * np.abs(ups).max())


@pytest.mark.parametrize("dtype", ["Q8_0", "Q6_K", "Q4_1", "Q2_K"])
def test_inputs_in_two_lanes_are_multiplied_as_one_of_sixteen_bits(dtype: str) -> None:
    rng = np.random.default_rng(4)
    matrix = random_tensor(dtype, 16, 256, rng)
    inputs = rng.normal(size=(5, 256)).astype(np.float32)
    inputs[3, 32:64] = 0
    integers, scales = quantized(np.repeat(inputs, 2, axis=0), QUANTIZE[-1])
    for token in range(5):
        first, size = panel(2 * token, 10)
        lane = 2 * token - first
        with_rest(
            inputs[token].ctypes.data,
            8,
            integers.ctypes.data + first * 256 + 32 * lane,
            scales.ctypes.data + 16 * (first * 8 + lane),
            size,
        )
    lanes = inputs_of_panels(integers, scales, 10).astype(float)
    restored = lanes[::2] + lanes[1::2]
    steps = np.abs(inputs.reshape(5, 8, 32)).max(axis=2, keepdims=True) / 127
    assert np.all(np.abs(restored - inputs).reshape(5, 8, 32) <= steps * (1 / 256 + 1e-6))
    expected = restored @ dequantize(matrix).astype(float).T
    tolerance = (2**-11 if dtype.endswith("_K") else 1e-6) * np.abs(expected).max()
    product = Product(TILES[dtype], parts=2)
    results = [
        multiplied(form, product, packed(matrix), integers, scales, np.empty((10, 256), np.float32))
        for form in MULTIPLY
    ]
    for one in results:
        np.testing.assert_allclose(one[:5], expected, rtol=0, atol=4 * tolerance)


@njit
def with_rest(values, num_groups, integers, scales, panel_tokens):  # type: ignore[no-untyped-def]
    """What kernels call, as Python can call it."""
    quantize_rest(values, num_groups, integers, scales, panel_tokens)
