"""The tables of ``records``, which lead a step to everything, filled for one model."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvikk.backends.cpu.attention import (
    SUB_BLOCK_SLOTS,
    max_item_tokens,
)
from kvikk.backends.cpu.blocks import BlockStore
from kvikk.backends.cpu.facts import row_tiles
from kvikk.backends.cpu.items import FEW_ITEM_TOKENS, MANY_TOKENS
from kvikk.backends.cpu.kernels import Kernels
from kvikk.backends.cpu.layout import (
    PlacedProduct,
    feed_forward_inputs,
    padded,
)
from kvikk.backends.cpu.records import (
    ACTIVATED,
    EMBEDDING_BF16,
    EMBEDDING_F16,
    EMBEDDING_F32,
    EMBEDDING_INTEGERS,
    GELU,
    GELU_TANH,
    GROUP,
    JOB,
    LAYER,
    MODEL,
    PHASE,
    PHASES_PER_LAYER,
    ROTATION,
    SILU,
)
from kvikk.backends.cpu.rough import SPAN_TILES
from kvikk.backends.cpu.tiles import TILE_ROWS, DenseTile
from kvikk.backends.cpu.workspace import Workspace, same_rotation
from kvikk.models.decoder import Attention, DecoderLayer, Mixture, Rotation

Table = NDArray[np.void]
_ACTIVATIONS = {"silu": SILU, "gelu_tanh": GELU_TANH, "gelu": GELU}
# Scores are powers of two's.
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Tables:
    """The tables of ``records``, filled."""

    model: Table
    layers: Table
    phases: Table
    jobs: Table
    groups: Table
    rotations: Table


def fill_tables(room: Workspace, blocks: tuple[BlockStore, ...], kernels: Kernels) -> Tables:
    """The tables of a model whose weights, blocks and buffers have their memory."""
    return _Filling(room, blocks, kernels).tables()


class _Filling:
    """Everything that the tables speak of."""

    def __init__(self, room: Workspace, blocks: tuple[BlockStore, ...], kernels: Kernels) -> None:
        self._room, self._blocks, self._kernels = room, blocks, kernels
        self._decoder, self._weights, self._plan = room.decoder, room.weights, room.plan

    def tables(self) -> Tables:
        room = self._room
        jobs, phases = self._jobs()
        counters = room.address("counters") + room.num_jobs * room.counter_bytes
        room.mixtures.connect(room.address, counters, self._kernels, room.num_threads)
        model = self._model()
        if self._weights.rough_head is not None:
            model["head_job"] = jobs[-2:].ctypes.data
        return Tables(model, self._layers(), phases, jobs, self._groups(), self._rotation_table())

    def _model(self) -> Table:
        decoder, widths = self._decoder, self._room.widths
        table = np.zeros(1, MODEL)
        row = table[0]
        names = MODEL.names or ()
        for name in names:
            if address := self._room.address(name):
                row[name] = address
            elif name in self._room.private:
                row[name] = self._room.private[name]
        row["private_bytes"], row["row_bytes"] = self._room.private_bytes, 4 * widths.row
        row["num_counters"] = self._room.num_counters
        row["counter_bytes"] = self._room.counter_bytes
        row["num_layers"] = len(decoder.layers)
        row["num_groups"] = len(self._plan.groups)
        row["num_rotations"] = len(self._room.rotations)
        row["hidden_size"], row["hidden_width"] = decoder.hidden_size, widths.hidden
        row["projection_width"] = widths.projections
        row["feed_forward_bytes"] = 4 * widths.feed_forward
        row["max_parts"] = self._room.max_parts
        row["max_choices"] = self._plan.max_batch_sequences
        row["vocabulary_size"] = decoder.vocabulary_size
        for name in ("quantize", "quantize_panel", "sum_of_squares", "walk", "settle"):
            row[name] = getattr(self._kernels, name)
        row["bounds"] = self._weights.bounds_address
        if not self._weights.bounds_hold:
            row["settle"] = 0
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

    def _jobs(self) -> tuple[Table, Table]:
        jobs = np.zeros(self._room.num_jobs, JOB)
        phases = np.zeros(len(list(self._weights.products())), PHASE)
        outputs = ("projections", "delta", "feed_forward", "delta")
        widths = self._room.widths
        output_widths = (widths.projections, widths.hidden, widths.feed_forward, widths.hidden)
        index = 0
        for number, products in enumerate(self._weights.products()):
            is_head = number >= PHASES_PER_LAYER * len(self._decoder.layers)
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
                self._fill_job(jobs[index], product, self._room.address(name), width)
                index += 1
        if self._weights.rough_head is not None:
            rough = jobs[-1]
            rough["tops"] = self._room.address("tops")
            rough["chunk"] = -(-rough["chunk"] // SPAN_TILES) * SPAN_TILES
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

    def _fill_job(self, job: np.void, product: PlacedProduct, outputs: int, width: int) -> None:
        job["multiply"] = self._kernels.products[product.product]
        job["weights"] = self._weights.region.address(product.weights)
        job["groups"], job["row_tiles"] = product.groups, product.row_tiles
        job["chunk"] = product.chunk(self._room.num_threads)
        job["dense"] = isinstance(product.product.tile, DenseTile)
        job["outputs"], job["output_bytes"] = outputs + 4 * product.output_row, 4 * width

    def _layers(self) -> Table:
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
                row[f"{width}_scores"] = self._kernels.scores[tile]
                row[f"{width}_values"] = self._kernels.values[tile]
                row[f"{width}_join"] = self._kernels.join[tile]

            group, index = homes[number]
            store = self._blocks[group]
            row["group"] = group
            row["keys"] = store.layer_address(index)
            row["block_bytes"], row["head_bytes"] = store.block_bytes, store.head_bytes(attention)
            row["value_offset"] = row["head_bytes"] // 2
            row["sub_blocks"] = self._plan.block_size // SUB_BLOCK_SLOTS
            row["sub_block_bytes"] = row["value_offset"] // row["sub_blocks"]
            row["bfloats"] = self._plan.kv_dtype == "bf16"
            row["store_codes"] = self._kernels.store_codes.get(narrow, 0)

            if attention.rotation is not None:
                self._fill_rotation(row, attention.rotation)
            if isinstance(network, Mixture):
                row["mixture"] = self._room.mixtures.address(number)
                row["mixture_rows"] = self._room.address("expert_rows")
                row["run_mixture"] = self._kernels.mixture
                continue
            row["feed_forward_size"] = padded(network.up.rows, 32)
            products = self._weights.layers[number]
            if products.gate_up_are_separate:
                row["up_projections"] = self._room.address("up_projections")
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
        alike = (same_rotation(rotation, other) for other in self._room.rotations)
        index = list(alike).index(True)
        row["rotations"] = self._room.address(f"rotation {index}")
        row["rotated"] = rotation.dimensions
        row["rotation_bytes"] = 4 * rotation.dimensions

    def _groups(self) -> Table:
        table = np.zeros(len(self._plan.groups), GROUP)
        for index, (row, group) in enumerate(zip(table, self._plan.groups, strict=True)):
            row["window"] = group.window_tokens or 0
            row["num_blocks"] = self._plan.num_blocks[index]
            row["block_bytes"] = self._blocks[index].block_bytes
            row["layer_bytes"] = self._blocks[index].block_bytes // len(group.layers)
            row["item_tokens"] = min(
                self._item_tokens(self._decoder.layers[layer].attention) for layer in group.layers
            )
            for name in ("stretches", "stretch_starts", "items", "members"):
                row[name] = self._room.address(f"{name} {index}")
        return table

    def _item_tokens(self, attention: Attention) -> int:
        """Tokens of an attention item: so few that each thread finds two."""
        most = max_item_tokens(attention.num_heads // attention.num_kv_heads)
        shared_out = MANY_TOKENS * attention.num_kv_heads // (2 * self._room.num_threads)
        return max(min(most, shared_out), FEW_ITEM_TOKENS)

    def _rotation_table(self) -> Table:
        table = np.zeros(len(self._room.rotations), ROTATION)
        for index, (row, rotation) in enumerate(zip(table, self._room.rotations, strict=True)):
            self._room.frequencies(index)[:] = rotation.inverse_frequencies
            row["inverse_frequencies"] = self._room.address(f"frequencies {index}")
            row["num_angles"], row["stretch"] = len(rotation.inverse_frequencies), rotation.stretch
            row["rotations"] = self._room.address(f"rotation {index}")
        return table
