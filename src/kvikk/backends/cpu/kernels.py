"""All that a decoder needs compiled, made or fetched from the cache."""

from collections.abc import Callable
from dataclasses import dataclass

from numba import types

from kvikk.backends.cpu.attention import attend
from kvikk.backends.cpu.batch import PREPARE_TYPES, prepare
from kvikk.backends.cpu.facts import Product, row_tiles
from kvikk.backends.cpu.jit import CompileTime, compile_kernel
from kvikk.backends.cpu.layout import WeightLayout
from kvikk.backends.cpu.multiply_avx512 import multiply_avx512
from kvikk.backends.cpu.multiply_plain import multiply_plain
from kvikk.backends.cpu.packing import (
    PACK_INTEGERS_TYPES,
    PACK_NUMBERS_TYPES,
    pack_integers,
    pack_numbers,
)
from kvikk.backends.cpu.panels import quantize_plain, sum_of_squares_plain
from kvikk.backends.cpu.panels_avx512 import quantize_avx512, sum_of_squares_avx512
from kvikk.backends.cpu.step import STEP_TYPES, run_step
from kvikk.backends.cpu.tiles import DenseTile
from kvikk.models.decoder import Attention, Decoder

# Told before each kernel: what it is, how many are done, of how many.
CompileProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Kernels:
    """Addresses of compiled kernels."""

    quantize: int
    sum_of_squares: int
    products: dict[Product, int]
    attentions: dict[tuple[int, int], int]

    def attention(self, attention: Attention) -> int:
        """The kernel for this layer's heads."""
        return self.attentions[_head_shape(attention)]


def _head_shape(attention: Attention) -> tuple[int, int]:
    return attention.head_dim, attention.num_heads // attention.num_kv_heads


def compile_kernels(
    decoder: Decoder,
    weights: WeightLayout,
    kv_dtype: str,
    path: str,
    progress: CompileProgress = lambda name, done, total: None,
) -> Kernels:
    """All kernels of a decoder on one code path, each once."""
    fast = path == "avx512"
    phases = [product for phase in weights.products() for product in phase]
    products = dict.fromkeys(product.product for product in phases)
    shapes = dict.fromkeys(_head_shape(layer.attention) for layer in decoder.layers)
    is_dense = {isinstance(product.tile, DenseTile) for product in products}
    total, done = 4 + len(products) + len(shapes) + len(is_dense), 0

    def announce(name: str) -> None:
        nonlocal done
        progress(name, done, total)
        done += 1

    def compiled(name: str, function: Callable[..., object], *arguments: types.Type) -> int:
        announce(name)
        return compile_kernel(function, *arguments)

    integers = [types.int64] * 9
    kernels = Kernels(
        compiled("quantised inputs", quantize_avx512 if fast else quantize_plain, *integers[:5]),
        compiled("norms", sum_of_squares_avx512 if fast else sum_of_squares_plain, *integers[:3]),
        {
            product: compiled(
                f"products, {product.tile}",
                multiply_avx512 if fast else multiply_plain,
                CompileTime(product),
                *integers,
            )
            for product in products
        },
        {
            shape: compiled(
                f"attention, heads of {shape[0]}",
                attend,
                *(CompileTime(tile) for tile in row_tiles(path, kv_dtype, *shape)),
                *integers[:7],
            )
            for shape in shapes
        },
    )
    for dense in is_dense:
        announce("packing")
        if dense:
            pack_numbers.compile(PACK_NUMBERS_TYPES)
        else:
            pack_integers.compile(PACK_INTEGERS_TYPES)
    announce("batches")
    prepare.compile(PREPARE_TYPES)
    announce("a step")
    run_step.compile(STEP_TYPES)
    progress("done", total, total)
    return kernels
