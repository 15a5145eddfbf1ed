"""Where everything of a loaded model lies: planned from its description, then filled in.

The plan alone answers how much memory a model takes; loading takes exactly that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.cpu.facts import Product
from kvikk.backends.cpu.memory import Region
from kvikk.backends.cpu.packing import pack
from kvikk.backends.cpu.tiles import TILE_COLUMNS, TILE_ROWS, TILES, DenseTile, Tile
from kvikk.errors import ModelError
from kvikk.models.decoder import Attention, Decoder, DecoderLayer, FeedForward, Matrix

# Products are handed to threads in so many chunks each, of at most so many bytes. Fewer and larger
# ones read faster; more of them wait less for a thread that was interrupted.
_CHUNKS_PER_THREAD = 2
_CHUNK_BYTES = 512 * 1024


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
class LayerProducts:
    """A layer's four phases of products, each sharing its inputs."""

    query_key_value: tuple[PlacedProduct, ...]
    attention_output: tuple[PlacedProduct, ...]
    gate_up: tuple[PlacedProduct, ...]
    down: tuple[PlacedProduct, ...]

    def __iter__(self) -> Iterator[tuple[PlacedProduct, ...]]:
        return iter((self.query_key_value, self.attention_output, self.gate_up, self.down))

    @property
    def gate_up_are_separate(self) -> bool:
        """Whether gate and up have different types, so that no kernel does both."""
        return len(self.gate_up) > 1


class WeightLayout:
    """The weights of a decoder as tiles, and its vectors."""

    def __init__(self, decoder: Decoder) -> None:
        self.region = Region()
        self.layers = tuple(self._layer(layer) for layer in decoder.layers)
        tile = _tile(decoder.head)
        parts = 1 if isinstance(tile, DenseTile) else 2
        self.head = self._place((decoder.head,), Product(tile, parts=parts), 0)
        self.embedding = self.head
        if decoder.embedding.tensor is not decoder.head.tensor:
            (self.embedding,) = self._stack((decoder.embedding,))
        self._vectors: dict[int, tuple[int, NDArray[np.float32]]] = {}
        for layer in decoder.layers:
            attention = layer.attention
            for vector in (
                layer.attention_norm,
                layer.attention_post_norm,
                layer.feed_forward_norm,
                layer.feed_forward_post_norm,
                attention.query_norm,
                attention.key_norm,
            ):
                self._place_vector(vector)
        self._place_vector(decoder.final_norm)

    def products(self) -> Iterator[tuple[PlacedProduct, ...]]:
        """All phases in the order of a step: four a layer, then the head."""
        for layer in self.layers:
            yield from layer
        yield (self.head,)

    def vector_address(self, vector: NDArray[np.float32] | None) -> int:
        """Where a norm's weights lie; 0 where there are none."""
        return 0 if vector is None else self.region.address(self._vectors[id(vector)][0])

    def fill(self) -> None:
        """Take the memory and lay everything out."""
        self.region.allocate()
        for phase in self.products():
            for product in phase:
                product.fill(self.region)
        if self.embedding is not self.head:
            self.embedding.fill(self.region)
        for offset, vector in self._vectors.values():
            self.region.bytes_at(offset, vector.nbytes).view(np.float32)[:] = vector

    def _layer(self, layer: DecoderLayer) -> LayerProducts:
        attention, network = layer.attention, layer.feed_forward
        _check_attention(attention)
        return LayerProducts(
            self._stack((attention.query, attention.key, attention.value)),
            self._stack((attention.output,)),
            self._gate_up(network),
            self._stack((network.down,)),
        )

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
        if _tile(gate) == _tile(up):
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

    def _place_vector(self, vector: NDArray[np.float32] | None) -> None:
        if vector is not None and id(vector) not in self._vectors:
            # Norms run over whole registers; the zeros behind a vector keep padding at zero.
            offset = self.region.place(padded(len(vector), TILE_COLUMNS) * 4)
            self._vectors[id(vector)] = (offset, vector)


def _tile(matrix: Matrix) -> Tile:
    tile = TILES.get(matrix.tensor.dtype)
    if tile is None:
        raise ModelError(
            f"tensor {matrix.tensor.name!r} has type {matrix.tensor.dtype}; the CPU backend runs "
            f"{', '.join(TILES)}"
        )
    return tile


def _check_attention(attention: Attention) -> None:
    if attention.head_dim % 32 or not 32 <= attention.head_dim <= 256:
        raise ModelError(
            f"attention heads of {attention.head_dim}: the CPU backend runs multiples of 32, "
            "up to 256"
        )
    if attention.num_heads % attention.num_kv_heads:
        raise ModelError(
            f"{attention.num_heads} query heads cannot share {attention.num_kv_heads} KV heads"
        )
