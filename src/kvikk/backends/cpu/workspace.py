"""The buffers of a step and the tables that lead to everything: sized by the plan, filled once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.base import Plan
from kvikk.backends.cpu.attention import (
    PIECE_SLOTS,
    SUB_BLOCK_SLOTS,
    head_partial_bytes,
    max_item_tokens,
    scratch_bytes,
)
from kvikk.backends.cpu.blocks import BlockStore
from kvikk.backends.cpu.facts import row_tiles
from kvikk.backends.cpu.fetching import FETCHES_BYTES, MAX_STRETCHES
from kvikk.backends.cpu.items import FEW_ITEM_TOKENS, MANY_TOKENS, max_parts
from kvikk.backends.cpu.kernels import Kernels
from kvikk.backends.cpu.layout import (
    PlacedProduct,
    WeightLayout,
    feed_forward_inputs,
    padded,
)
from kvikk.backends.cpu.memory import Region
from kvikk.backends.cpu.mixture_tables import MixtureTables
from kvikk.backends.cpu.panels import LANE_SCALE_BYTES, MAX_UNUSED_LANES, PANEL_TOKENS
from kvikk.backends.cpu.products import COUNTER_BYTES, most_parts
from kvikk.backends.cpu.records import (
    ACTIVATED,
    EMBEDDING_BF16,
    EMBEDDING_F16,
    EMBEDDING_F32,
    EMBEDDING_INTEGERS,
    GELU,
    GELU_TANH,
    GROUP,
    ITEM_FIELDS,
    JOB,
    LAYER,
    MODEL,
    PHASE,
    PHASES_PER_LAYER,
    ROTATION,
    SILU,
)
from kvikk.backends.cpu.threads import MEETING_BYTES
from kvikk.backends.cpu.tiles import TILE_ROWS, DenseTile
from kvikk.models.decoder import Attention, Decoder, DecoderLayer, Mixture, Rotation

Table = NDArray[np.void]
_ACTIVATIONS = {"silu": SILU, "gelu_tanh": GELU_TANH, "gelu": GELU}
# Scores are powers of two's.
_LOG2_E = 1.4426950408889634


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
        if rotation and not any(_same(rotation, other) for other in distinct):
            distinct.append(rotation)
    return distinct


def _same(a: Rotation, b: Rotation) -> bool:
    return a is b or (
        a.stretch == b.stretch and np.array_equal(a.inverse_frequencies, b.inverse_frequencies)
    )


class Workspace:
    """Plans and holds a step's buffers; ``connect`` fills the tables of ``records``."""

    def __init__(
        self, decoder: Decoder, weights: WeightLayout, plan: Plan, num_threads: int
    ) -> None:
        self._decoder, self._weights, self._plan = decoder, weights, plan
        self._widths = _widths(decoder)
        self._rotations = _rotations(decoder)
        self._num_jobs = sum(len(phase) for phase in weights.products())
        self.region = Region()
        self._offsets: dict[str, int] = {}
        self._num_threads = num_threads
        self._place_buffers()

    def _place_buffers(self) -> None:
        plan, widths, decoder = self._plan, self._widths, self._decoder
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
        if any(layer.gate_up_are_separate for layer in self._weights.layers):
            row_bytes["up_projections"] = 4 * widths.feed_forward
        if self._reads_dense_inputs():
            row_bytes["dense"] = 4 * widths.inputs
        for index, rotation in enumerate(self._rotations):
            row_bytes[f"rotation {index}"] = 4 * rotation.dimensions
        for name, size in row_bytes.items():
            self._place(name, (tokens + MAX_UNUSED_LANES) * size)

        partial_bytes = max(
            a.num_kv_heads * head_partial_bytes(a.head_dim, a.num_heads // a.num_kv_heads)
            for a in attentions
        )
        self._max_parts = max_parts(max_pieces, plan.max_batch_sequences)
        self._place("partials", self._max_parts * partial_bytes)
        items = tokens + self._max_parts
        for index in range(len(plan.groups)):
            self._place(f"items {index}", items * ITEM_FIELDS * 8)
            self._place(f"members {index}", 2 * tokens * 8)
            self._place(f"stretches {index}", MAX_STRETCHES * 8)
        self._mixtures = MixtureTables(decoder, self._weights, plan, self._place)
        self._num_counters = self._num_jobs + self._mixtures.num_counters + len(decoder.layers)
        self._counter_bytes = COUNTER_BYTES * int(most_parts.py_func(self._num_threads))
        self._place("counters", self._num_counters * self._counter_bytes)
        self._place("meeting", MEETING_BYTES)
        for index, rotation in enumerate(self._rotations):
            self._place(f"frequencies {index}", 4 * len(rotation.inverse_frequencies))
        logits = padded(decoder.head.rows, TILE_ROWS)
        self._place("logits", plan.max_batch_sequences * logits * 4)
        self._place("choices", plan.max_batch_sequences * 4)

        # Each thread's own, for steps of one token and for rows and tiles under way.
        private = Region()
        self._private = {
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
        self._private_bytes = private.num_bytes
        self._place("private", self._num_threads * private.num_bytes)

    def connect(self, blocks: tuple[BlockStore, ...], kernels: Kernels) -> "Tables":
        """Take the memory and fill the tables."""
        self.region.allocate()
        jobs, phases = self._jobs(kernels)
        counters = self._address("counters") + self._num_jobs * self._counter_bytes
        self._mixtures.connect(self._address, counters, kernels, self._num_threads)
        return Tables(
            self._model(kernels),
            self._layers(blocks, kernels),
            phases,
            jobs,
            self._groups(blocks),
            self._rotation_table(),
        )

    def logits(self) -> NDArray[np.float32]:
        """Room for the logits of a step, ``[max_batch_sequences, padded vocabulary]``."""
        width = padded(self._decoder.head.rows, TILE_ROWS)
        num_bytes = self._plan.max_batch_sequences * width * 4
        return (
            self.region.bytes_at(self._offsets["logits"], num_bytes)
            .view(np.float32)
            .reshape(-1, width)
        )

    def choices(self) -> NDArray[np.int32]:
        """Where a step leaves the likeliest token of each row of logits."""
        num_bytes = self._plan.max_batch_sequences * 4
        return self.region.bytes_at(self._offsets["choices"], num_bytes).view(np.int32)

    def _reads_dense_inputs(self) -> bool:
        return any(
            isinstance(product.product.tile, DenseTile) for product in self._weights.all_products()
        )

    def _place(self, name: str, num_bytes: int) -> None:
        self._offsets[name] = self.region.place(num_bytes)

    def _address(self, name: str) -> int:
        offset = self._offsets.get(name)
        return 0 if offset is None else self.region.address(offset)

    def _model(self, kernels: Kernels) -> Table:
        decoder, widths = self._decoder, self._widths
        table = np.zeros(1, MODEL)
        row = table[0]
        names = MODEL.names or ()
        for name in names:
            if name in self._offsets:
                row[name] = self._address(name)
            elif name in self._private:
                row[name] = self._private[name]
        row["private_bytes"], row["row_bytes"] = self._private_bytes, 4 * widths.row
        row["num_counters"], row["counter_bytes"] = self._num_counters, self._counter_bytes
        row["num_layers"] = len(decoder.layers)
        row["num_groups"] = len(self._plan.groups)
        row["num_rotations"] = len(self._rotations)
        row["hidden_size"], row["hidden_width"] = decoder.hidden_size, widths.hidden
        row["projection_width"] = widths.projections
        row["feed_forward_bytes"] = 4 * widths.feed_forward
        row["max_parts"] = self._max_parts
        row["max_choices"] = self._plan.max_batch_sequences
        row["vocabulary_size"] = decoder.vocabulary_size
        row["quantize"], row["quantize_panel"] = kernels.quantize, kernels.quantize_panel
        row["sum_of_squares"], row["walk"] = kernels.sum_of_squares, kernels.walk
        row["final_norm"] = self._weights.norm_address(decoder.final_norm)
        row["are_layer_norms"] = decoder.final_norm.bias is not None
        row["position_embedding"] = self._weights.position_embedding_address
        row["logit_cap"] = decoder.logit_cap or 0
        row["epsilon"], row["embedding_scale"] = decoder.norm_epsilon, decoder.embedding_scale
        embedding = self._weights.embedding
        tile = embedding.product.tile
        row["embedding"] = self._weights.region.address(embedding.weights)
        row["embedding_bytes"], row["embedding_groups"] = tile.num_bytes, embedding.groups
        if isinstance(tile, DenseTile):
            kinds = {"F32": EMBEDDING_F32, "F16": EMBEDDING_F16, "BF16": EMBEDDING_BF16}
            row["embedding_kind"] = kinds[tile.dtype]
        else:
            row["embedding_kind"] = EMBEDDING_INTEGERS
            row["embedding_bits"], row["embedding_scales"] = tile.bits, tile.num_scales
            row["embedding_minimum"] = tile.has_minimum
        return table

    def _jobs(self, kernels: Kernels) -> tuple[Table, Table]:
        jobs = np.zeros(self._num_jobs, JOB)
        phases = np.zeros(4 * len(self._decoder.layers) + 1, PHASE)
        outputs = ("projections", "delta", "feed_forward", "delta")
        widths = self._widths
        output_widths = (widths.projections, widths.hidden, widths.feed_forward, widths.hidden)
        index = 0
        for number, products in enumerate(self._weights.products()):
            is_head = number == len(phases) - 1
            phases[number]["first_job"], phases[number]["end_job"] = index, index + len(products)
            for place, product in enumerate(products):
                kind = "dense" if isinstance(product.product.tile, DenseTile) else "integers"
                phases[number][kind] = 1
                phases[number]["width"] = 32 * product.groups
                phases[number]["parts"] = product.product.parts
                name = "logits" if is_head else outputs[number % 4]
                if name == "feed_forward" and place == 1:
                    name = "up_projections"
                width = padded(self._decoder.head.rows, TILE_ROWS)
                width = width if is_head else output_widths[number % 4]
                self._fill_job(jobs[index], product, kernels, self._address(name), width)
                index += 1
        self._share_fetching(jobs, phases)
        return jobs, phases

    def _share_fetching(self, jobs: Table, phases: Table) -> None:
        """Say of each job which attention's memory it fetches, and beside how much work."""
        for layer in range(len(self._decoder.layers)):
            end = PHASES_PER_LAYER * layer + 1
            begin = max(end - PHASES_PER_LAYER, 0)
            own = jobs[phases[begin]["first_job"] : phases[end - 1]["end_job"]]
            own["fetched_layer"] = layer
            own["fetching_work"] = (own["groups"] * own["row_tiles"]).sum()

    def _fill_job(
        self, job: np.void, product: PlacedProduct, kernels: Kernels, outputs: int, width: int
    ) -> None:
        job["multiply"] = kernels.products[product.product]
        job["weights"] = self._weights.region.address(product.weights)
        job["groups"], job["row_tiles"] = product.groups, product.row_tiles
        job["chunk"] = product.chunk(self._num_threads)
        job["dense"] = isinstance(product.product.tile, DenseTile)
        job["outputs"], job["output_bytes"] = outputs + 4 * product.output_row, 4 * width

    def _layers(self, blocks: tuple[BlockStore, ...], kernels: Kernels) -> Table:
        table = np.zeros(len(self._decoder.layers), LAYER)
        homes = {
            layer: (group, index)
            for group, cache_group in enumerate(self._plan.groups)
            for index, layer in enumerate(cache_group.layers)
        }
        for number, (row, layer) in enumerate(zip(table, self._decoder.layers, strict=True)):
            attention, network = layer.attention, layer.feed_forward
            self._fill_vectors(row, layer)
            row["num_heads"], row["num_kv_heads"] = attention.num_heads, attention.num_kv_heads
            row["head_dim"], row["score_scale"] = attention.head_dim, attention.scale
            row["score_cap"] = (attention.score_cap or 0) * _LOG2_E
            row["head_words"] = attention.head_dim // (2 if self._plan.kv_dtype == "bf16" else 1)
            num_queries = attention.num_heads // attention.num_kv_heads
            wide, narrow = row_tiles(self._plan.kv_dtype, attention.head_dim, num_queries)
            for width, tile in (("wide", wide), ("narrow", narrow)):
                row[f"{width}_rows"] = tile.rows
                row[f"{width}_scores"] = kernels.scores[tile]
                row[f"{width}_values"] = kernels.values[tile]
                row[f"{width}_join"] = kernels.join[tile]

            group, index = homes[number]
            store = blocks[group]
            row["group"] = group
            row["keys"] = store.layer_address(index)
            row["block_bytes"], row["head_bytes"] = store.block_bytes, store.head_bytes(attention)
            row["value_offset"] = row["head_bytes"] // 2
            row["sub_blocks"] = self._plan.block_size // SUB_BLOCK_SLOTS
            row["sub_block_bytes"] = row["value_offset"] // row["sub_blocks"]
            row["bfloats"] = self._plan.kv_dtype == "bf16"
            row["store_codes"] = kernels.store_codes.get(narrow, 0)

            if attention.rotation is not None:
                self._fill_rotation(row, attention.rotation)
            if isinstance(network, Mixture):
                row["mixture"] = self._mixtures.address(number)
                row["mixture_rows"] = self._address("expert_rows")
                row["run_mixture"] = kernels.mixture
                continue
            row["feed_forward_size"] = padded(network.up.rows, 32)
            products = self._weights.layers[number]
            if products.gate_up_are_separate:
                row["up_projections"] = self._address("up_projections")
            row["activation"] = ACTIVATED
            if not products.is_activated:
                row["activation"] = _ACTIVATIONS[network.activation]
        return table

    def _fill_vectors(self, row: np.void, layer: DecoderLayer) -> None:
        norm, bias = self._weights.norm_address, self._weights.bias_address
        attention, network = layer.attention, layer.feed_forward
        row["attention_norm"] = norm(layer.attention_norm)
        row["attention_post_norm"] = norm(layer.attention_post_norm)
        row["feed_forward_norm"] = norm(layer.feed_forward_norm)
        row["feed_forward_post_norm"] = norm(layer.feed_forward_post_norm)
        for heads, one, together in (
            (attention.query_norm, "query_norm", "all_queries_norm"),
            (attention.key_norm, "key_norm", "all_keys_norm"),
        ):
            if heads is not None:
                is_one = len(heads.weight) == attention.head_dim
                row[one if is_one else together] = norm(heads)
        row["projection_bias"] = bias(attention.query, attention.key, attention.value)
        row["output_bias"] = bias(attention.output)
        row["feed_forward_bias"] = bias(*feed_forward_inputs(network))
        row["down_bias"] = 0 if isinstance(network, Mixture) else bias(network.down)

    def _fill_rotation(self, row: np.void, rotation: Rotation) -> None:
        index = next(i for i, other in enumerate(self._rotations) if _same(rotation, other))
        row["rotations"] = self._address(f"rotation {index}")
        row["rotated"] = rotation.dimensions
        row["rotation_bytes"] = 4 * rotation.dimensions

    def _groups(self, blocks: tuple[BlockStore, ...]) -> Table:
        table = np.zeros(len(self._plan.groups), GROUP)
        for index, (row, group) in enumerate(zip(table, self._plan.groups, strict=True)):
            row["window"] = group.window_tokens or 0
            row["num_blocks"] = self._plan.num_blocks[index]
            row["block_bytes"] = blocks[index].block_bytes
            row["layer_bytes"] = blocks[index].block_bytes // len(group.layers)
            row["item_tokens"] = min(
                self._item_tokens(self._decoder.layers[layer].attention) for layer in group.layers
            )
            row["stretches"] = self._address(f"stretches {index}")
            row["items"] = self._address(f"items {index}")
            row["members"] = self._address(f"members {index}")
        return table

    def _item_tokens(self, attention: Attention) -> int:
        """Tokens of an attention item: so few that each thread finds two."""
        most = max_item_tokens(attention.num_heads // attention.num_kv_heads)
        shared_out = MANY_TOKENS * attention.num_kv_heads // (2 * self._num_threads)
        return max(min(most, shared_out), FEW_ITEM_TOKENS)

    def _rotation_table(self) -> Table:
        table = np.zeros(len(self._rotations), ROTATION)
        for index, (row, rotation) in enumerate(zip(table, self._rotations, strict=True)):
            frequencies = np.asarray(rotation.inverse_frequencies, np.float32)
            offset = self._offsets[f"frequencies {index}"]
            self.region.bytes_at(offset, frequencies.nbytes).view(np.float32)[:] = frequencies
            row["inverse_frequencies"] = self._address(f"frequencies {index}")
            row["num_angles"], row["stretch"] = len(frequencies), rotation.stretch
            row["rotations"] = self._address(f"rotation {index}")
        return table


@dataclass(frozen=True)
class Tables:
    """The tables of ``records``, filled."""

    model: Table
    layers: Table
    phases: Table
    jobs: Table
    groups: Table
    rotations: Table
