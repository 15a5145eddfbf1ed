"""The kernels that a decoder needs, compiled or fetched from the cache."""

from collections.abc import Callable
from dataclasses import dataclass

from numba import types

from kvikk.backends.cpu.attention import attend
from kvikk.backends.cpu.facts import Product, row_tiles
from kvikk.backends.cpu.jit import CompileTime, compile_kernel
from kvikk.backends.cpu.layout import WeightLayout
from kvikk.backends.cpu.multiply_avx512 import multiply_avx512
from kvikk.backends.cpu.multiply_plain import multiply_plain
from kvikk.backends.cpu.panels import quantize_plain, sum_of_squares_plain
from kvikk.backends.cpu.panels_avx512 import quantize_avx512, sum_of_squares_avx512
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
    products = {product.product: None for phase in weights.products() for product in phase}
    shapes = {_head_shape(layer.attention): None for layer in decoder.layers}
    total, done = 2 + len(products) + len(shapes), 0

    def compiled(name: str, function: Callable[..., object], *arguments: types.Type) -> int:
        nonlocal done
        progress(name, done, total)
        done += 1
        return compile_kernel(function, *arguments)

    integers = [types.int64] * 9
    kernels = Kernels(
        compiled("quantise", quantize_avx512 if fast else quantize_plain, *integers[:5]),
        compiled("norm", sum_of_squares_avx512 if fast else sum_of_squares_plain, *integers[:3]),
        {
            product: compiled(
                f"product with {product.tile}",
                multiply_avx512 if fast else multiply_plain,
                CompileTime(product),
                *integers,
            )
            for product in products
        },
        {
            shape: compiled(
                f"attention over heads of {shape[0]}",
                attend,
                *(CompileTime(tile) for tile in row_tiles(path, kv_dtype, *shape)),
                *integers[:7],
            )
            for shape in shapes
        },
    )
    progress("done", total, total)
    return kernels
