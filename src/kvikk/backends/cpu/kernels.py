"""All that a decoder needs compiled, made or fetched from the cache."""

from collections.abc import Callable
from dataclasses import dataclass
from pickle import UnpicklingError

from numba import types

from kvikk.backends.cpu.attention_plain import (
    tile_join_plain,
    tile_scores_plain,
    tile_values_plain,
)
from kvikk.backends.cpu.attention_vectors import (
    tile_join_vectors,
    tile_scores_vectors,
    tile_values_vectors,
)
from kvikk.backends.cpu.batch import PREPARE_TYPES, prepare
from kvikk.backends.cpu.beside import walk_compiled_beside
from kvikk.backends.cpu.codes_plain import store_codes
from kvikk.backends.cpu.facts import Product, RowTile, row_tiles
from kvikk.backends.cpu.jit import (
    CompileTime,
    compile_entry,
    compile_kernel,
    forget_old_kernels,
    forget_own_kernels,
)
from kvikk.backends.cpu.layout import WeightLayout
from kvikk.backends.cpu.mixture import run_mixture
from kvikk.backends.cpu.multiply_plain import multiply_plain
from kvikk.backends.cpu.multiply_vectors import multiply_vectors
from kvikk.backends.cpu.packing import (
    PACK_INTEGERS_TYPES,
    PACK_NUMBERS_TYPES,
    pack_integers,
    pack_numbers,
)
from kvikk.backends.cpu.panels import (
    quantize_panel_plain,
    quantize_plain,
    sum_of_squares_plain,
)
from kvikk.backends.cpu.panels_vectors import (
    quantize_panel_vectors,
    quantize_vectors,
    sum_of_squares_vectors,
)
from kvikk.backends.cpu.rough import BOUNDS_TYPES, find_bounds, settle
from kvikk.backends.cpu.step import STEP_TYPES, WALK_TYPES, run_step, walk
from kvikk.backends.cpu.tiles import DenseTile
from kvikk.models.decoder import Decoder

# Told before each kernel: what it is, how many are done, of how many.
CompileProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Kernels:
    """Addresses of compiled kernels."""

    quantize: int
    quantize_panel: int
    sum_of_squares: int
    products: dict[Product, int]
    scores: dict[RowTile, int]
    values: dict[RowTile, int]
    join: dict[RowTile, int]
    store_codes: dict[RowTile, int]
    mixture: int  # 0 where there are no experts
    settle: int  # 0 where there is no rough head
    walk: int


@dataclass(frozen=True)
class Forms:
    """The functions of a code path; see ``features``."""

    quantize: Callable[..., object]
    quantize_panel: Callable[..., object]
    sum_of_squares: Callable[..., object]
    multiply: Callable[..., object]
    scores: Callable[..., object]
    values: Callable[..., object]
    join: Callable[..., object]


_VECTOR_FORMS = Forms(
    quantize_vectors,
    quantize_panel_vectors,
    sum_of_squares_vectors,
    multiply_vectors,
    tile_scores_vectors,
    tile_values_vectors,
    tile_join_vectors,
)
_PLAIN_FORMS = Forms(
    quantize_plain,
    quantize_panel_plain,
    sum_of_squares_plain,
    multiply_plain,
    tile_scores_plain,
    tile_values_plain,
    tile_join_plain,
)


def forms_of(path: str) -> Forms:
    """The functions that a code path runs."""
    return _PLAIN_FORMS if path == "plain" else _VECTOR_FORMS


def compile_kernels(
    decoder: Decoder,
    weights: WeightLayout,
    kv_dtype: str,
    path: str,
    progress: CompileProgress = lambda name, done, total: None,
) -> Kernels:
    """All kernels of a decoder on one code path, each once."""
    try:
        kernels = _fetch_or_compile(decoder, weights, kv_dtype, path, progress)
    except (EOFError, UnpicklingError):  # a cached file was cut short, as by a loss of power
        forget_own_kernels()
        kernels = _fetch_or_compile(decoder, weights, kv_dtype, path, progress)
    forget_old_kernels()
    return kernels


def _fetch_or_compile(
    decoder: Decoder, weights: WeightLayout, kv_dtype: str, path: str, progress: CompileProgress
) -> Kernels:
    forms = forms_of(path)
    products = dict.fromkeys(product.product for product in weights.all_products())
    tiles: dict[RowTile, None] = {}
    # Stored by a kernel of their own; one for the rows of a narrow tile serves a wide one too.
    coded: dict[RowTile, None] = {}
    for layer in decoder.layers:
        attention = layer.attention
        num_queries = attention.num_heads // attention.num_kv_heads
        wide, narrow = row_tiles(kv_dtype, attention.head_dim, num_queries)
        tiles |= dict.fromkeys((wide, narrow))
        coded |= dict.fromkeys((narrow,) if narrow.is_coded else ())
    is_dense = {isinstance(product.tile, DenseTile) for product in products}
    has_rough_head = weights.rough_head is not None
    total = (
        5
        + bool(weights.mixtures)
        + 2 * has_rough_head
        + len(products)
        + 3 * len(tiles)
        + len(coded)
        + len(is_dense)
    )
    done = 0

    def announce(name: str) -> None:
        nonlocal done
        progress(name, done, total)
        done += 1

    def compiled(name: str, function: Callable[..., object], *arguments: types.Type) -> int:
        announce(name)
        return compile_kernel(function, *arguments)

    def compiled_walk(wait: Callable[[], object]) -> int:
        announce("a step")
        wait()
        return compile_kernel(walk, *WALK_TYPES)

    integers = [types.int64] * 10

    def for_tiles(
        name: str, function: Callable[..., object], num_integers: int
    ) -> dict[RowTile, int]:
        return {
            tile: compiled(f"{name}, {tile}", function, CompileTime(tile), *integers[:num_integers])
            for tile in tiles
        }

    with walk_compiled_beside() as wait_for_walk:
        for dense in is_dense:
            announce("packing")
            if dense:
                compile_entry(pack_numbers, PACK_NUMBERS_TYPES)
            else:
                compile_entry(pack_integers, PACK_INTEGERS_TYPES)
        if has_rough_head:
            announce("bounds")
            compile_entry(find_bounds, BOUNDS_TYPES)
        announce("batches")
        compile_entry(prepare, PREPARE_TYPES)
        compile_entry(run_step, STEP_TYPES)
        kernels = Kernels(
            quantize=compiled("quantised inputs", forms.quantize, *integers[:5]),
            quantize_panel=compiled(
                "quantised panels of inputs", forms.quantize_panel, *integers[:4]
            ),
            sum_of_squares=compiled("norms", forms.sum_of_squares, *integers[:3]),
            products={
                product: compiled(
                    f"products, {product.tile}", forms.multiply, CompileTime(product), *integers
                )
                for product in products
            },
            scores=for_tiles("scores", forms.scores, 5),
            values=for_tiles("values", forms.values, 7),
            join=for_tiles("joins", forms.join, 4),
            store_codes={
                tile: compiled(f"stores, {tile}", store_codes, CompileTime(tile), *integers[:5])
                for tile in coded
            },
            mixture=(compiled("experts", run_mixture, *integers[:6]) if weights.mixtures else 0),
            settle=compiled("choices", settle, *integers[:4]) if has_rough_head else 0,
            walk=compiled_walk(wait_for_walk),
        )
    progress("done", total, total)
    return kernels
