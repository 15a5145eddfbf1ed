"""Buffers and tables of mixtures of experts: what ``mixture`` walks along."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.base import Plan
from kvikk.backends.cpu.kernels import Kernels
from kvikk.backends.cpu.layout import ExpertProducts, PlacedProduct, WeightLayout, padded
from kvikk.backends.cpu.panels import LANE_SCALE_BYTES, MAX_UNUSED_LANES
from kvikk.backends.cpu.products import COUNTER_BYTES
from kvikk.backends.cpu.records import JOB, MIXTURE, PHASE
from kvikk.backends.cpu.tiles import DenseTile
from kvikk.models.decoder import Decoder, Mixture

Table = NDArray[np.void]
# The buffers' names as a workspace knows them, by the fields of ``records.MIXTURE``.
_BUFFERS = (
    "rows", "chosen", "shares", "starts", "active", "members", "places", "integers", "scales",
    "dense", "outputs",
)  # fmt: skip


class MixtureTables:
    """One row for each layer that has experts; none, and no buffers, for a decoder without."""

    def __init__(
        self,
        decoder: Decoder,
        weights: WeightLayout,
        plan: Plan,
        place: Callable[[str, int], None],
    ) -> None:
        """``place`` makes room for a buffer of so many bytes."""
        self._weights = weights
        layers = [
            (number, layer.feed_forward)
            for number, layer in enumerate(decoder.layers)
            if isinstance(layer.feed_forward, Mixture)
        ]
        self._numbers = [number for number, _ in layers]
        self._mixtures = [mixture for _, mixture in layers]
        self._hidden = padded(decoder.hidden_size, 32)
        self._inner = max((padded(m.experts[0].up.rows, 32) for m in self._mixtures), default=0)
        self._table = np.zeros(len(layers), MIXTURE)
        self._jobs = np.zeros(2 * len(layers), JOB)
        self._phases = np.zeros(2 * len(layers), PHASE)
        if layers:
            self._place_buffers(plan.max_batch_tokens, place)

    @property
    def num_counters(self) -> int:
        """Counters that the products of experts are taken from."""
        return 2 * len(self._numbers)

    def _place_buffers(self, tokens: int, place: Callable[[str, int], None]) -> None:
        num_experts = max(len(mixture.experts) for mixture in self._mixtures)
        pairs = tokens * max(mixture.num_used for mixture in self._mixtures)
        lanes = pairs + num_experts * MAX_UNUSED_LANES
        width = max(self._hidden, self._inner)
        sizes = {
            "rows": tokens * self._hidden * 4,
            "chosen": pairs * 8,
            "shares": pairs * 4,
            "starts": (num_experts + 1) * 8,
            "active": (num_experts + 1) * 8,
            "members": pairs * 8,
            "places": pairs * 8,
            "integers": lanes * width,
            "scales": lanes * width // 32 * LANE_SCALE_BYTES,
            "outputs": pairs * self._hidden * 4,
            "inner": pairs * self._inner * 4,
        }
        if any(
            isinstance(product.product.tile, DenseTile)
            for experts in self._weights.mixtures
            for products in experts
            for product in products
        ):
            sizes["dense"] = pairs * width * 4
        for name, num_bytes in sizes.items():
            place(f"expert_{name}", num_bytes)

    def address(self, layer: int) -> int:
        """Where the record of a layer's mixture lies."""
        return self._address_of(self._table, self._numbers.index(layer))

    def connect(
        self, address: Callable[[str], int], counters: int, kernels: Kernels, num_threads: int
    ) -> None:
        """Fill the tables. ``address`` finds a buffer; 0 where there is none."""
        rows = zip(self._table, self._mixtures, self._weights.mixtures, strict=True)
        for index, (row, mixture, experts) in enumerate(rows):
            row["num_experts"], row["num_used"] = len(mixture.experts), mixture.num_used
            row["is_renormalised"] = mixture.is_renormalised
            for name in _BUFFERS:
                row[name] = address(f"expert_{name}")
            self._fill(row, experts, index, address, kernels, num_threads)
            for place, name in enumerate(("gate_up", "down")):
                row[f"{name}_counter"] = counters + (2 * index + place) * COUNTER_BYTES

    def _fill(
        self,
        row: np.void,
        experts: ExpertProducts,
        index: int,
        address: Callable[[str], int],
        kernels: Kernels,
        num_threads: int,
    ) -> None:
        parts = (
            ("gate_up", experts.gate_up, "inner", self._inner),
            ("down", experts.down, "outputs", self._hidden),
        )
        for place, (name, products, buffer, width) in enumerate(parts):
            first, number = products[0], 2 * index + place
            job, phase = self._jobs[number], self._phases[number]
            is_dense = isinstance(first.product.tile, DenseTile)
            job["multiply"] = kernels.products[first.product]
            job["weights"] = self._weights.region.address(first.weights)
            job["groups"], job["row_tiles"] = first.groups, first.row_tiles
            job["chunk"], job["dense"] = first.chunk(num_threads), is_dense
            job["outputs"], job["output_bytes"] = address(f"expert_{buffer}"), 4 * width
            phase["width"], phase["parts"] = 32 * first.groups, first.product.parts
            phase["dense" if is_dense else "integers"] = 1
            row[f"{name}_bytes"] = _distance(products)
            row[f"{name}_job"] = self._address_of(self._jobs, number)
            row[f"{name}_phase"] = self._address_of(self._phases, number)

    @staticmethod
    def _address_of(table: Table, index: int) -> int:
        return int(table.ctypes.data) + index * table.itemsize


def _distance(products: tuple[PlacedProduct, ...]) -> int:
    """From one expert's weights to the next one's, the same for all."""
    starts = [product.weights for product in products]
    distances = {after - before for before, after in pairwise(starts)}
    assert len(distances) <= 1, "experts lie one after another"
    return distances.pop() if distances else 0
