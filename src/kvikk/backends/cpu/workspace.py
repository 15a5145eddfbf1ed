"""The buffers of a step, sized by the plan. What leads kernels to them is in ``tables``."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.base import Plan
from kvikk.backends.cpu.attention import (
    PIECE_SLOTS,
    head_partial_bytes,
    scratch_bytes,
)
from kvikk.backends.cpu.fetching import FETCHES_BYTES, MAX_STRETCHES
from kvikk.backends.cpu.items import max_parts
from kvikk.backends.cpu.layout import (
    WeightLayout,
    feed_forward_inputs,
    padded,
)
from kvikk.backends.cpu.memory import Region
from kvikk.backends.cpu.mixture_tables import MixtureTables
from kvikk.backends.cpu.panels import LANE_SCALE_BYTES, MAX_UNUSED_LANES, PANEL_TOKENS
from kvikk.backends.cpu.products import COUNTER_BYTES, most_parts
from kvikk.backends.cpu.records import (
    ITEM_FIELDS,
)
from kvikk.backends.cpu.rough import apart_bytes, num_spans
from kvikk.backends.cpu.threads import MEETING_BYTES
from kvikk.backends.cpu.tiles import TILE_ROWS, DenseTile
from kvikk.models.decoder import Decoder, Rotation


@dataclass(frozen=True)
class Widths:
    """The widest rows of a decoder, in elements, padded to what kernels read at a time."""

    hidden: int
    queries: int
    projections: int
    feed_forward: int

    @property
    def inputs(self) -> int:
        """Of any product's inputs."""
        return max(self.hidden, self.queries, self.feed_forward)

    @property
    def row(self) -> int:
        """Of any row that a thread works on."""
        return max(self.inputs, self.projections)


def _widths(decoder: Decoder) -> Widths:
    attentions = [layer.attention for layer in decoder.layers]
    return Widths(
        hidden=padded(decoder.hidden_size, 32),
        queries=max(a.num_heads * a.head_dim for a in attentions),
        projections=max((a.num_heads + 2 * a.num_kv_heads) * a.head_dim for a in attentions),
        feed_forward=max(
            padded(feed_forward_inputs(layer.feed_forward)[0].rows, 32) for layer in decoder.layers
        ),
    )


def _rotations(decoder: Decoder) -> list[Rotation]:
    """The different ways in which layers rotate."""
    distinct: list[Rotation] = []
    for layer in decoder.layers:
        rotation = layer.attention.rotation
        if rotation and not any(same_rotation(rotation, other) for other in distinct):
            distinct.append(rotation)
    return distinct


def same_rotation(a: Rotation, b: Rotation) -> bool:
    """Whether two layers rotate alike."""
    return a is b or (
        a.stretch == b.stretch and np.array_equal(a.inverse_frequencies, b.inverse_frequencies)
    )


class Workspace:
    """Plans and holds a step's buffers, found by the names of their fields in ``records``."""

    def __init__(
        self, decoder: Decoder, weights: WeightLayout, plan: Plan, num_threads: int
    ) -> None:
        self.decoder, self.weights, self.plan = decoder, weights, plan
        self.widths = _widths(decoder)
        self.rotations = _rotations(decoder)
        self.num_jobs = sum(len(phase) for phase in weights.products())
        self.region = Region()
        self._offsets: dict[str, int] = {}
        self.num_threads = num_threads
        self._place_buffers()

    def _place_buffers(self) -> None:
        plan, widths, decoder = self.plan, self.widths, self.decoder
        tokens, attentions = plan.max_batch_tokens, [layer.attention for layer in decoder.layers]
        max_pieces = -(-plan.max_context_tokens // PIECE_SLOTS)
        row_bytes = {
            "hidden": 4 * widths.hidden,
            "delta": 4 * widths.hidden,
            "projections": 4 * widths.projections,
            "feed_forward": 4 * widths.feed_forward,
            "attention": 4 * widths.queries,
            "queries": 4 * widths.queries,
            "integers": 2 * widths.inputs,
            "scales": 2 * widths.inputs // 32 * LANE_SCALE_BYTES,
            "runs": 8,
            "parts": 16 * len(plan.groups),
        }
        if any(layer.gate_up_are_separate for layer in self.weights.layers):
            row_bytes["up_projections"] = 4 * widths.feed_forward
        if self._reads_dense_inputs():
            row_bytes["dense"] = 4 * widths.inputs
        for index, rotation in enumerate(self.rotations):
            row_bytes[f"rotation {index}"] = 4 * rotation.dimensions
        for name, size in row_bytes.items():
            self._place(name, (tokens + MAX_UNUSED_LANES) * size)

        partial_bytes = max(
            a.num_kv_heads * head_partial_bytes(a.head_dim, a.num_heads // a.num_kv_heads)
            for a in attentions
        )
        self.max_parts = max_parts(max_pieces, plan.max_batch_sequences)
        self._place("partials", self.max_parts * partial_bytes)
        items = tokens + self.max_parts
        for index in range(len(plan.groups)):
            self._place(f"items {index}", items * ITEM_FIELDS * 8)
            self._place(f"members {index}", 2 * tokens * 8)
            self._place(f"stretches {index}", MAX_STRETCHES * 8)
            self._place(f"stretch_starts {index}", (tokens + 1) * 8)
        self.mixtures = MixtureTables(decoder, self.weights, plan, self._place)
        self.num_counters = self.num_jobs + self.mixtures.num_counters + len(decoder.layers)
        self.counter_bytes = COUNTER_BYTES * int(most_parts.py_func(self.num_threads))
        self._place("counters", self.num_counters * self.counter_bytes)
        self._place("meeting", MEETING_BYTES)
        for index, rotation in enumerate(self.rotations):
            self._place(f"frequencies {index}", 4 * len(rotation.inverse_frequencies))
        logits = padded(decoder.head.rows, TILE_ROWS)
        self._place("logits", plan.max_batch_sequences * logits * 4)
        self._place("choices", plan.max_batch_sequences * 4)
        if self.weights.rough_head is not None:
            integer_bytes, scale_bytes = apart_bytes(32 * self.weights.head.groups)
            self._place("apart_integers", plan.max_batch_sequences * integer_bytes)
            self._place("apart_scales", plan.max_batch_sequences * scale_bytes)
            spans = int(num_spans.py_func(self.weights.head.row_tiles))
            self._place("tops", plan.max_batch_sequences * spans * 4)

        # Each thread's own, for steps of one token and for rows and tiles under way.
        private = Region()
        self.private = {
            "private_hidden": private.place(4 * widths.hidden),
            "private_integers": private.place(2 * widths.inputs),
            "private_scales": private.place(2 * widths.inputs // 32 * LANE_SCALE_BYTES),
            "private_dense": private.place(4 * widths.inputs),
            "private_rows": private.place(PANEL_TOKENS * 4 * widths.row),
            "private_panel": private.place(PANEL_TOKENS * 8),
            "private_queries": private.place(4 * widths.queries),
            "private_fetches": private.place(FETCHES_BYTES),
            "private_candidates": private.place(plan.max_batch_sequences * 8),
            "private_attention": private.place(
                max(
                    8 * max(a.num_heads for a in attentions),
                    *(scratch_bytes(a.head_dim, a.num_heads // a.num_kv_heads) for a in attentions),
                )
            ),
        }
        self.private_bytes = private.num_bytes
        self._place("private", self.num_threads * private.num_bytes)

    def frequencies(self, index: int) -> NDArray[np.float32]:
        """Room for the inverse frequencies of rotation ``index``."""
        num_bytes = 4 * len(self.rotations[index].inverse_frequencies)
        return self._bytes(f"frequencies {index}", num_bytes).view(np.float32)

    def logits(self) -> NDArray[np.float32]:
        """Room for the logits of a step, ``[max_batch_sequences, padded vocabulary]``."""
        width = padded(self.decoder.head.rows, TILE_ROWS)
        num_bytes = self.plan.max_batch_sequences * width * 4
        return self._bytes("logits", num_bytes).view(np.float32).reshape(-1, width)

    def choices(self) -> NDArray[np.int32]:
        """Where a step leaves the likeliest token of each row of logits."""
        num_bytes = self.plan.max_batch_sequences * 4
        return self._bytes("choices", num_bytes).view(np.int32)

    def _reads_dense_inputs(self) -> bool:
        return any(
            isinstance(product.product.tile, DenseTile) for product in self.weights.all_products()
        )

    def _place(self, name: str, num_bytes: int) -> None:
        self._offsets[name] = self.region.place(num_bytes)

    def address(self, name: str) -> int:
        """Where a buffer lies; 0 where the model needs no such one."""
        offset = self._offsets.get(name)
        return 0 if offset is None else self.region.address(offset)

    def _bytes(self, name: str, num_bytes: int) -> NDArray[np.uint8]:
        return self.region.bytes_at(self._offsets[name], num_bytes)
