"""Adapters as tiles, and the tables and buffers that lead to them: what ``adapters`` walks along.

All of it is made when the first adapter comes; a backend without any takes nothing for them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvikk.backends.base import Batch, Plan
from kvikk.backends.cpu.adapters import add_up, bring_down
from kvikk.backends.cpu.facts import Product
from kvikk.backends.cpu.jit import CompileTime, compile_kernel
from kvikk.backends.cpu.kernels import forms_of
from kvikk.backends.cpu.layout import LayerProducts, WeightLayout, padded
from kvikk.backends.cpu.memory import Region
from kvikk.backends.cpu.products import COUNTER_BYTES
from kvikk.backends.cpu.records import (
    ADAPTER,
    ATTENTION_OUTPUT,
    BARE,
    DELTA,
    DOWN,
    GATE_UP,
    GELU_TANH,
    PHASES_PER_LAYER,
    QUERY_KEY_VALUE,
    SILU,
)
from kvikk.backends.cpu.tables import Tables
from kvikk.backends.cpu.tiles import TILE_COLUMNS, TILE_ROWS, TILES, DenseTile
from kvikk.models.adapter import Adapter, Role, matrices_by_role
from kvikk.models.adapter_options import MAX_RANK
from kvikk.models.decoder import Decoder

Table = NDArray[np.void]
# Of one phase: queries, keys and values.
_MOST_DELTAS = 3
_PHASES: dict[Role, int] = {
    "query": QUERY_KEY_VALUE,
    "key": QUERY_KEY_VALUE,
    "value": QUERY_KEY_VALUE,
    "output": ATTENTION_OUTPUT,
    "gate": GATE_UP,
    "up": GATE_UP,
    "down": DOWN,
}


@dataclass(frozen=True)
class _Results:
    """Where the results of one matrix go: the first row's, and from row to row, tile to tile."""

    outputs: int
    output_bytes: int
    tile_bytes: int = 4 * TILE_ROWS


@dataclass(frozen=True)
class _Loaded:
    """An adapter's tables and the memory that they lead to."""

    table: Table
    starts: NDArray[np.int64]
    deltas: Table
    region: Region
    changes_all_bare: bool  # the gate or the up of every layer, each of which can be had bare


class AdapterTables:
    """The adapters that a backend has, by their numbers."""

    def __init__(
        self,
        decoder: Decoder,
        weights: WeightLayout,
        plan: Plan,
        tables: Tables,
        path: str,
        num_threads: int,
    ) -> None:
        self._decoder, self._weights, self._tables = decoder, weights, tables
        self._num_layers = len(decoder.layers)
        self._path, self._num_threads = path, num_threads
        self._loaded: dict[int, _Loaded] = {}
        # An adapter's address by its number; 0 where there is none.
        self._addresses = np.zeros(1, np.int64)
        self._by_token = np.zeros(plan.max_batch_tokens, np.int64)

        self._region = Region()
        rows = plan.max_batch_tokens
        row_bytes = 4 * _MOST_DELTAS * padded(MAX_RANK, TILE_COLUMNS)
        brought_down = self._region.place((rows + num_threads) * row_bytes)
        self._bare_row_bytes = 8 * max(self._bare_rows(layer) for layer in weights.layers)
        self._bare_at = self._region.place(rows * self._bare_row_bytes)
        counters = self._region.place(self._num_layers * COUNTER_BYTES)
        self._region.allocate()
        self._counters = self._region.bytes_at(counters, self._num_layers * COUNTER_BYTES)

        compiled = self._compile()
        self._bares = self._bare_table(compiled)
        model = tables.model[0]
        model["bring_down"] = compile_kernel(bring_down, *[types.int64] * 5)
        model["add_up"] = compile_kernel(add_up, *[types.int64] * 10)
        model["multiply_dense"] = compiled(Product(TILES["F32"]))
        model["bares"] = self._bares.ctypes.data
        model["brought_down"] = self._region.address(brought_down)
        model["brought_down_bytes"], model["adapter_rows"] = row_bytes, rows

    def load(self, number: int, adapter: Adapter) -> None:
        """Lay out an adapter's matrices as tiles."""
        region = Region()
        starts = np.zeros(PHASES_PER_LAYER * self._num_layers + 2, np.int64)
        deltas = np.zeros(len(adapter.deltas), DELTA)
        by_phase = sorted(
            adapter.deltas, key=lambda key: PHASES_PER_LAYER * key[0] + _PHASES[key[1]]
        )
        tiles: list[NDArray[np.float32]] = []
        for row, (layer, role) in zip(deltas, by_phase, strict=True):
            starts[PHASES_PER_LAYER * layer + _PHASES[role] + 1 :] += 1
            delta, results = adapter.deltas[layer, role], self._results(layer, role)
            for name, matrix in (("a", delta.a), ("b", delta.b * np.float32(delta.scale))):
                tiles.append(_tiled(matrix))
                row[f"{name}_tiles"], columns, _ = tiles[-1].shape
                row[f"{name}_groups"] = columns // TILE_COLUMNS
            row["outputs"], row["output_bytes"] = results.outputs, results.output_bytes
            row["tile_bytes"] = results.tile_bytes
        offsets = [region.place(one.nbytes) for one in tiles]
        region.allocate()
        for offset, one in zip(offsets, tiles, strict=True):
            region.bytes_at(offset, one.nbytes)[:] = one.reshape(-1).view(np.uint8)
        deltas["a"] = [region.address(offset) for offset in offsets[::2]]
        deltas["b"] = [region.address(offset) for offset in offsets[1::2]]
        table = np.zeros(1, ADAPTER)
        table["starts"], table["deltas"] = starts.ctypes.data, deltas.ctypes.data
        changes_all_bare = all(
            self._bares[layer]["row_tiles"] > 0
            and ((layer, "gate") in adapter.deltas or (layer, "up") in adapter.deltas)
            for layer in range(self._num_layers)
        )
        self._loaded[number] = _Loaded(table, starts, deltas, region, changes_all_bare)
        self._addresses.resize(max(len(self._addresses), number + 1), refcheck=False)
        self._addresses[number] = table.ctypes.data

    def unload(self, number: int) -> None:
        """Forget an adapter and give its memory back."""
        self._addresses[number] = 0
        del self._loaded[number]

    def begin(self, batch: Batch) -> None:
        """Say which tokens have which adapter. Raises ValueError for one that is not here."""
        assert batch.adapters is not None
        if not all(number == 0 or number in self._loaded for number in batch.adapters.tolist()):
            raise ValueError(f"adapters {batch.adapters.tolist()}; {list(self._loaded)} are loaded")
        tokens = len(batch.sequence_rows)
        self._by_token[:tokens] = self._addresses[batch.adapters[batch.sequence_rows]]
        self._counters[:] = 0
        self._tables.model[0]["adapters"] = self._by_token.ctypes.data
        self._tables.model[0]["only_bare"] = all(
            number in self._loaded and self._loaded[number].changes_all_bare
            for number in set(batch.adapters.tolist())
        )

    def _results(self, layer: int, role: Role) -> _Results:
        """Where the results of the matrix of this role go."""
        model, products = self._tables.model[0], self._weights.layers[layer]
        matrices = matrices_by_role(self._decoder.layers[layer])
        if role in ("query", "key", "value"):
            # Whether one product or several, a matrix begins behind the last one's tiles.
            rows = [padded(matrices[one].rows, TILE_ROWS) for one in ("query", "key", "value")]
            before = sum(rows[: ("query", "key", "value").index(role)])
            return _Results(
                int(model["projections"]) + 4 * before, 4 * int(model["projection_width"])
            )
        if role in ("output", "down"):
            return _Results(int(model["delta"]), 4 * int(model["hidden_width"]))
        if self._bares[layer]["row_tiles"]:
            outputs = int(self._bares[layer]["outputs"]) + (64 if role == "up" else 0)
            return _Results(outputs, self._bare_row_bytes, 2 * 4 * TILE_ROWS)
        is_separate = role == "up" and products.gate_up_are_separate
        name = "up_projections" if is_separate else "feed_forward"
        return _Results(int(model[name]), int(model["feed_forward_bytes"]))

    @staticmethod
    def _bare_rows(layer: LayerProducts) -> int:
        """Rows of a gate, padded, whose product applies it; 0 where none does."""
        if layer.experts is not None or not layer.is_activated:
            return 0
        return padded(layer.gate_up[0].matrices[0].rows, TILE_ROWS)

    def _compile(self) -> Callable[[Product], int]:
        """Gives the kernel of a product, compiled once."""
        kernels: dict[Product, int] = {}

        def compiled(product: Product) -> int:
            if product not in kernels:
                kernels[product] = compile_kernel(
                    forms_of(self._path).multiply, CompileTime(product), *[types.int64] * 10
                )
            return kernels[product]

        return compiled

    def _bare_table(self, compiled: Callable[[Product], int]) -> Table:
        table = np.zeros(self._num_layers, BARE)
        for number, (row, layer) in enumerate(zip(table, self._weights.layers, strict=True)):
            if not self._bare_rows(layer):
                continue
            (gated,) = layer.gate_up
            tile, activation = gated.product.tile, gated.product.activation
            row["multiply"] = compiled(Product(tile))
            row["weights"] = self._weights.region.address(gated.weights)
            row["groups"], row["row_tiles"] = gated.groups, 2 * gated.row_tiles
            row["chunk"] = 2 * gated.chunk(self._num_threads)
            row["dense"] = isinstance(tile, DenseTile)
            row["outputs"] = self._region.address(self._bare_at)
            row["output_bytes"] = self._bare_row_bytes
            row["activation"] = SILU if activation == "silu" else GELU_TANH
            row["counter"] = self._counters.ctypes.data + number * COUNTER_BYTES
        return table


def _tiled(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """A matrix as dense tiles, ``[row tiles, padded columns, 16]``; see ``tiles``."""
    rows, columns = matrix.shape
    whole = np.zeros((padded(rows, TILE_ROWS), padded(columns, TILE_COLUMNS)), np.float32)
    whole[:rows, :columns] = matrix
    return np.ascontiguousarray(whole.reshape(-1, TILE_ROWS, whole.shape[1]).transpose(0, 2, 1))
