"""Where everything of a loaded model lies: planned from its description, then filled in.

The plan alone answers how much memory a model takes; loading takes exactly that.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from kvikk.backends.cpu.facts import Product
from kvikk.backends.cpu.jit import available_threads
from kvikk.backends.cpu.memory import Region
from kvikk.backends.cpu.packing import pack
from kvikk.backends.cpu.rough import SPAN_BOUNDS, bounds_bytes, find_bounds, num_spans
from kvikk.backends.cpu.tiles import TILE_COLUMNS, TILE_ROWS, TILES, DenseTile, IntegerTile, Tile
from kvikk.errors import ModelError
from kvikk.models.decoder import (
    Attention,
    Decoder,
    DecoderLayer,
    FeedForward,
    FloatVector,
    Matrix,
    Mixture,
    Norm,
)

# Products are handed to threads in so many chunks each, of at most so many bytes. Fewer and larger
# ones read faster; more of them wait less for a thread that was interrupted.
_CHUNKS_PER_THREAD = 2
_CHUNK_BYTES = 512 * 1024
# Spans of the head's rows whose bounds a thread finds at a time.
_SPANS_AT_ONCE = 64
# Activations that a product of gate and up applies itself.
_PRODUCTS_ACTIVATIONS = ("silu", "gelu_tanh")


def padded(count: int, multiple: int) -> int:
    """``count`` rounded up."""
    return ceil(count / multiple) * multiple


@dataclass(frozen=True)
class PlacedProduct:
    """Matrices that one kernel multiplies by: one after another, or gate and up in turn.

    ``weights`` is where the tiles lie among the weights; outputs begin at ``output_row``.
    """

    matrices: tuple[Matrix, ...]
    product: Product
    weights: int
    output_row: int

    @property
    def groups(self) -> int:
        """Groups of 32 inputs."""
        return ceil(self.matrices[0].columns / TILE_COLUMNS)

    @property
    def row_tiles(self) -> int:
        """Tiles of 16 outputs."""
        if self.product.activation is not None:
            return ceil(self.matrices[0].rows / TILE_ROWS)
        return sum(ceil(matrix.rows / TILE_ROWS) for matrix in self.matrices)

    @property
    def row_tile_bytes(self) -> int:
        """Bytes of the weights behind 16 outputs."""
        return self.groups * self.product.row_tile_bytes

    def chunk(self, num_threads: int) -> int:
        """Row tiles that a thread takes at a time."""
        limit = max(1, _CHUNK_BYTES // self.row_tile_bytes)
        return min(limit, ceil(self.row_tiles / (_CHUNKS_PER_THREAD * num_threads)))

    def fill(self, weights: Region) -> None:
        """Lay the matrices out as tiles."""
        gated = self.product.activation is not None
        start = weights.address(self.weights)
        tile_row_bytes = self.groups * self.product.tile.num_bytes
        stride = tile_row_bytes * (2 if gated else 1)
        for matrix in self.matrices:
            pack(matrix.tensor, matrix.row_order, start, stride)
            start += tile_row_bytes if gated else ceil(matrix.rows / TILE_ROWS) * tile_row_bytes


@dataclass(frozen=True)
class ExpertProducts:
    """The products of a layer's experts, which are all alike: one place after another."""

    gate_up: tuple[PlacedProduct, ...]  # an expert
    down: tuple[PlacedProduct, ...]

    def __iter__(self) -> Iterator[tuple[PlacedProduct, ...]]:
        return iter((self.gate_up, self.down))


@dataclass(frozen=True)
class LayerProducts:
    """A layer's four phases of products, each sharing its inputs.

    With ``experts`` the third phase is the router, and there is no fourth.
    """

    query_key_value: tuple[PlacedProduct, ...]
    attention_output: tuple[PlacedProduct, ...]
    gate_up: tuple[PlacedProduct, ...]
    down: tuple[PlacedProduct, ...]
    experts: ExpertProducts | None = None

    def __iter__(self) -> Iterator[tuple[PlacedProduct, ...]]:
        return iter((self.query_key_value, self.attention_output, self.gate_up, self.down))

    @property
    def gate_up_are_separate(self) -> bool:
        """Whether gate and up are two products, because no kernel does both."""
        return len(self.gate_up) > 1

    @property
    def is_activated(self) -> bool:
        """Whether the product of gate and up applies the activation."""
        return self.gate_up[0].product.activation is not None


class WeightLayout:
    """The weights of a decoder as tiles, and its vectors."""

    def __init__(self, decoder: Decoder) -> None:
        self.region = Region()
        self._are_layer_norms = decoder.final_norm.bias is not None
        self._position_bytes = 4 * padded(decoder.hidden_size, TILE_COLUMNS)
        self.layers = tuple(self._layer(layer) for layer in decoder.layers)
        tile = _tile(decoder.head)
        parts = 1 if isinstance(tile, DenseTile) else 2
        self.head = self._place((decoder.head,), Product(tile, parts=parts), 0)
        # The same weights with the first part of their inputs alone: see ``rough``.
        self.rough_head: PlacedProduct | None = None
        if isinstance(tile, IntegerTile):
            self.rough_head = replace(self.head, product=Product(tile))
            self._bounds_at = self.region.place(bounds_bytes(self.head.row_tiles))
        self.embedding = self.head
        if decoder.embedding.tensor is not decoder.head.tensor:
            (self.embedding,) = self._stack((decoder.embedding,))
        self._vectors: dict[int, _Vector] = {}
        for layer in decoder.layers:
            self._place_layer_vectors(layer)
        self._place_norm(decoder.final_norm, TILE_COLUMNS)
        self._positions = decoder.position_embedding
        if self._positions is not None:
            self._positions_at = self.region.place(self._positions.rows * self._position_bytes)

    def products(self) -> Iterator[tuple[PlacedProduct, ...]]:
        """All phases in the order of a step: four a layer, then the head, and the rough one."""
        for layer in self.layers:
            yield from layer
        yield (self.head,)
        if self.rough_head is not None:
            yield (self.rough_head,)

    @property
    def mixtures(self) -> tuple[ExpertProducts, ...]:
        """The experts' products of the layers that have some."""
        return tuple(layer.experts for layer in self.layers if layer.experts is not None)

    def all_products(self) -> Iterator[PlacedProduct]:
        """Every product, the experts' too."""
        for phase in self.products():
            yield from phase
        for experts in self.mixtures:
            for products in experts:
                yield from products

    def norm_address(self, norm: Norm | None) -> int:
        """Where a norm's weights lie, then its bias; 0 where there is no norm."""
        return 0 if norm is None else self._vector_address(norm)

    def bias_address(self, *matrices: Matrix) -> int:
        """Where the biases of a phase's matrices lie, in their order; 0 where none has one."""
        return self._vector_address(matrices[0]) if _have_bias(matrices) else 0

    @property
    def position_embedding_address(self) -> int:
        """Where the positions' rows lie, float32 and padded; 0 where positions are not learned."""
        return 0 if self._positions is None else self.region.address(self._positions_at)

    def fill(self) -> None:
        """Take the memory and lay everything out."""
        self.region.allocate()
        for product in {product.weights: product for product in self.all_products()}.values():
            product.fill(self.region)
        self._find_bounds()
        if self.embedding is not self.head:
            self.embedding.fill(self.region)
        for vector in self._vectors.values():
            vector.fill(self.region)
        if self._positions is not None:
            rows = self._positions.float32()
            room = self.region.bytes_at(self._positions_at, len(rows) * self._position_bytes)
            room.view(np.float32).reshape(len(rows), -1)[:, : rows.shape[1]] = rows

    @property
    def bounds_address(self) -> int:
        """Where the bounds of the head's row tiles lie; 0 where there is no rough head."""
        return 0 if self.rough_head is None else self.region.address(self._bounds_at)

    @property
    def bounds_hold(self) -> bool:
        """Whether they are numbers: a file's scales may be damaged."""
        if self.rough_head is None:
            return False
        bounds = self.region.bytes_at(self._bounds_at, bounds_bytes(self.head.row_tiles))
        return bool(np.isfinite(bounds.view(np.float64)).all())

    def _find_bounds(self) -> None:
        """What ``rough`` needs to know of the head's weights, by as many threads as there are."""
        head, tile = self.head, self.head.product.tile
        if not isinstance(tile, IntegerTile):
            return
        bounds = self.region.bytes_at(self._bounds_at, bounds_bytes(head.row_tiles))
        weights, kind = self.region.address(head.weights), (tile.bits, tile.num_scales)
        spans = int(num_spans.py_func(head.row_tiles))

        def find(first: int) -> None:
            end = min(first + _SPANS_AT_ONCE, spans)
            arguments = (weights, head.row_tiles, head.groups, *kind, int(tile.has_minimum))
            find_bounds(*arguments, tile.num_bytes, first, end, bounds.ctypes.data)

        with ThreadPoolExecutor(available_threads()) as pool:
            list(pool.map(find, range(0, spans, _SPANS_AT_ONCE)))
        table = bounds.view(np.float64).reshape(-1, SPAN_BOUNDS)
        table[-1] = table[:-1].max(axis=0)

    def _layer(self, layer: DecoderLayer) -> LayerProducts:
        attention, network = layer.attention, layer.feed_forward
        _check_attention(attention)
        query_key_value = self._stack((attention.query, attention.key, attention.value))
        output = self._stack((attention.output,))
        if isinstance(network, Mixture):
            router = self._stack((network.router,))
            return LayerProducts(query_key_value, output, router, (), self._experts(network))
        return LayerProducts(
            query_key_value, output, self._gate_up(network), self._stack((network.down,))
        )

    def _experts(self, mixture: Mixture) -> ExpertProducts:
        gate_ups = [self._gate_up(expert) for expert in mixture.experts]
        downs = [self._stack((expert.down,)) for expert in mixture.experts]
        kinds = {tuple(one.product for one in products) for products in gate_ups}
        if len(kinds) > 1 or len({down.product for (down,) in downs}) > 1:
            raise ModelError("the CPU backend runs experts that are all of the same tensor types")
        if any(len(products) > 1 or not products[0].product.activation for products in gate_ups):
            raise ModelError(
                "the CPU backend runs experts whose gate and up are of one tensor type, without "
                f"biases, with one of the activations {', '.join(_PRODUCTS_ACTIVATIONS)}"
            )
        return ExpertProducts(tuple(one for (one,) in gate_ups), tuple(one for (one,) in downs))

    def _stack(self, matrices: Sequence[Matrix]) -> tuple[PlacedProduct, ...]:
        """Matrices with the same inputs: neighbours of one tile format become one product."""
        placed: list[PlacedProduct] = []
        row = 0
        together: list[Matrix] = []
        for index, matrix in enumerate(matrices):
            together.append(matrix)
            following = matrices[index + 1] if index + 1 < len(matrices) else None
            if following is None or _tile(following) != _tile(matrix):
                placed.append(self._place(tuple(together), Product(_tile(matrix)), row))
                row += sum(padded(one.rows, TILE_ROWS) for one in together)
                together = []
        return tuple(placed)

    def _gate_up(self, network: FeedForward) -> tuple[PlacedProduct, ...]:
        gate, up = network.gate, network.up
        if gate is None:
            return self._stack((up,))
        if (
            _tile(gate) == _tile(up)
            and network.activation in _PRODUCTS_ACTIVATIONS
            and not _have_bias((gate, up))
        ):
            product = Product(_tile(gate), network.activation)
            return (self._place((gate, up), product, 0),)
        return (
            self._place((gate,), Product(_tile(gate)), 0),
            self._place((up,), Product(_tile(up)), 0),
        )

    def _place(
        self, matrices: tuple[Matrix, ...], product: Product, output_row: int
    ) -> PlacedProduct:
        placed = PlacedProduct(matrices, product, self.region.num_bytes, output_row)
        self.region.place(placed.row_tiles * placed.row_tile_bytes)
        return placed

    def _place_layer_vectors(self, layer: DecoderLayer) -> None:
        attention, network = layer.attention, layer.feed_forward
        for norm in (
            layer.attention_norm,
            layer.attention_post_norm,
            layer.feed_forward_norm,
            layer.feed_forward_post_norm,
        ):
            self._place_norm(norm, TILE_COLUMNS)
        # Heads are whole registers and lie side by side.
        self._place_norm(attention.query_norm, TILE_ROWS)
        self._place_norm(attention.key_norm, TILE_ROWS)
        self._place_biases((attention.query, attention.key, attention.value), TILE_ROWS)
        self._place_biases((attention.output,), TILE_COLUMNS)
        self._place_biases(feed_forward_inputs(network), TILE_COLUMNS)
        if not isinstance(network, Mixture):
            self._place_biases((network.down,), TILE_COLUMNS)

    def _place_norm(self, norm: Norm | None, multiple: int) -> None:
        if norm is not None:
            if (norm.bias is not None) != self._are_layer_norms:
                raise ModelError("the CPU backend runs RMS norms or LayerNorms, not both in one")
            parts = [norm.weight, *([] if norm.bias is None else [norm.bias])]
            self._place_vector(norm, parts, multiple)

    def _place_biases(self, matrices: Sequence[Matrix], multiple: int) -> None:
        if _have_bias(matrices):
            parts = [np.zeros(m.rows, np.float32) if m.bias is None else m.bias for m in matrices]
            self._place_vector(matrices[0], parts, multiple)

    def _place_vector(self, owner: object, parts: Sequence[FloatVector], multiple: int) -> None:
        if id(owner) not in self._vectors:
            # Rows run over whole registers; the zeros behind a part keep padding at zero.
            num_bytes = 4 * sum(padded(len(part), multiple) for part in parts)
            self._vectors[id(owner)] = _Vector(self.region.place(num_bytes), tuple(parts), multiple)

    def _vector_address(self, owner: object) -> int:
        return self.region.address(self._vectors[id(owner)].offset)


@dataclass(frozen=True)
class _Vector:
    """Float32 vectors that lie one after another, each padded to a multiple of elements."""

    offset: int
    parts: tuple[FloatVector, ...]
    multiple: int

    def fill(self, region: Region) -> None:
        offset = self.offset
        for part in self.parts:
            region.bytes_at(offset, 4 * len(part)).view(np.float32)[:] = part
            offset += 4 * padded(len(part), self.multiple)


def feed_forward_inputs(network: FeedForward | Mixture) -> tuple[Matrix, ...]:
    """The matrices that a feed-forward network's inputs are multiplied by; a mixture's router."""
    if isinstance(network, Mixture):
        return (network.router,)
    return (network.up,) if network.gate is None else (network.gate, network.up)


def _have_bias(matrices: Sequence[Matrix]) -> bool:
    return any(matrix.bias is not None for matrix in matrices)


def _tile(matrix: Matrix) -> Tile:
    tile = TILES.get(matrix.tensor.dtype)
    if tile is None:
        raise ModelError(
            f"tensor {matrix.tensor.name!r} has type {matrix.tensor.dtype}; the CPU backend runs "
            f"{', '.join(TILES)}"
        )
    return tile


def _check_attention(attention: Attention) -> None:
    if attention.head_dim % TILE_ROWS or not 32 <= attention.head_dim <= 256:
        raise ModelError(
            f"attention heads of {attention.head_dim}: the CPU backend runs multiples of "
            f"{TILE_ROWS}, 32 to 256"
        )
    if attention.num_heads * attention.head_dim % TILE_COLUMNS:
        raise ModelError(
            f"{attention.num_heads} attention heads of {attention.head_dim}: the CPU backend runs "
            f"heads that make a multiple of {TILE_COLUMNS} together"
        )
    if attention.num_heads % attention.num_kv_heads:
        raise ModelError(
            f"{attention.num_heads} query heads cannot share {attention.num_kv_heads} KV heads"
        )
