"""The reference backend: the plainest way to run a decoder over paged blocks.

Everything is float32 and one line a formula. It is not fast; it is what the fast ones are tested
against, and where to look when one wants to know what a decoder does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvikk.backends import sampling
from kvikk.backends.base import Batch, MemoryUse, Plan, SamplingParameters
from kvikk.backends.reference.arithmetic import Floats, activate, attend, rms_norm, rotate
from kvikk.backends.reference.blocks import Blocks, block_bytes
from kvikk.models.decoder import Attention, Decoder, DecoderLayer, FeedForward, Matrix

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class _Home:
    """Where a layer's keys and values are kept."""

    group: int
    blocks: Blocks
    layer: int  # index within the group


class ReferenceBackend:
    """A ``Backend`` in numpy."""

    name = "reference"
    numerics = "reference-1"

    def memory_use(self, decoder: Decoder, plan: Plan) -> MemoryUse:
        """Float32 weights; attention scores of one sequence are the largest scratch array."""
        elements = sum(matrix.rows * matrix.columns for matrix in _matrices(decoder))
        num_heads = max(layer.attention.num_heads for layer in decoder.layers)
        widest = max(layer.feed_forward.gate.rows for layer in decoder.layers)
        scores = num_heads * plan.max_batch_tokens * plan.max_context_tokens
        activations = plan.max_batch_tokens * (3 * widest + 8 * decoder.hidden_size)
        logits = plan.max_batch_sequences * decoder.vocabulary_size
        return MemoryUse(
            weight_bytes=elements * _FLOAT_BYTES,
            activation_bytes=(scores + activations + logits) * _FLOAT_BYTES,
            block_bytes=tuple(
                block_bytes(group, plan.block_size, plan.kv_dtype) for group in plan.groups
            ),
        )

    def load(self, decoder: Decoder, plan: Plan) -> None:
        """Dequantise the weights and allocate the blocks."""
        self._decoder = decoder
        self._weights = {id(matrix): matrix.float32() for matrix in _matrices(decoder)}
        self._blocks = tuple(
            Blocks(group, num_blocks, plan.block_size, plan.kv_dtype)
            for group, num_blocks in zip(plan.groups, plan.num_blocks, strict=True)
        )
        self._homes = {
            layer: _Home(number, self._blocks[number], index)
            for number, group in enumerate(plan.groups)
            for index, layer in enumerate(group.layers)
        }

    def forward(self, batch: Batch) -> Floats:
        """Run every layer over the batch's tokens; return the logits of the rows that want them."""
        for copy in batch.copies:
            self._blocks[copy.group].copy(copy.source, copy.target)

        decoder = self._decoder
        hidden = decoder.embedding.take(batch.token_ids) * np.float32(decoder.embedding_scale)
        for index, layer in enumerate(decoder.layers):
            hidden = self._layer(layer, self._homes[index], hidden, batch)
        wanted = self._norm(hidden[batch.logits_rows], decoder.final_norm)
        return self._apply(decoder.head, wanted)

    def sample(
        self,
        logits: Floats,
        parameters: Sequence[SamplingParameters],
        uniforms: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """Choose one token a row."""
        return sampling.sample(logits, parameters, uniforms)

    def read(self, group: int, blocks: Sequence[int]) -> bytes:
        """The blocks' bytes: for each its keys, then its values, ``[layers, slots, elements]``."""
        return self._blocks[group].read(blocks)

    def write(self, group: int, blocks: Sequence[int], data: bytes) -> None:
        """The inverse of ``read``. Raises ValueError if the length does not fit."""
        self._blocks[group].write(blocks, data)

    def _layer(self, layer: DecoderLayer, home: _Home, hidden: Floats, batch: Batch) -> Floats:
        """One layer, ``[T, hidden]`` to ``[T, hidden]``."""
        attended = self._attention(
            layer.attention, home, self._norm(hidden, layer.attention_norm), batch
        )
        if layer.attention_post_norm is not None:
            attended = self._norm(attended, layer.attention_post_norm)
        hidden = hidden + attended

        fed = self._feed_forward(layer.feed_forward, self._norm(hidden, layer.feed_forward_norm))
        if layer.feed_forward_post_norm is not None:
            fed = self._norm(fed, layer.feed_forward_post_norm)
        return hidden + fed

    def _attention(self, attention: Attention, home: _Home, x: Floats, batch: Batch) -> Floats:
        """Project all tokens at once, then let each sequence look back through its block table."""
        head_dim = attention.head_dim
        queries = self._apply(attention.query, x).reshape(len(x), -1, head_dim)
        keys = self._apply(attention.key, x).reshape(len(x), -1, head_dim)
        values = self._apply(attention.value, x)
        if attention.query_norm is not None:
            queries = self._norm(queries, attention.query_norm)
        if attention.key_norm is not None:
            keys = self._norm(keys, attention.key_norm)
        queries = rotate(queries, batch.positions, attention.rotation)
        keys = rotate(keys, batch.positions, attention.rotation)

        mixed = np.empty_like(queries)
        for sequence, rows in _sequences(batch):
            block_table = batch.block_tables[home.group][sequence]
            positions = batch.positions[rows]
            home.blocks.store(
                home.layer,
                block_table,
                positions,
                keys[rows].reshape(len(positions), -1),
                values[rows],
            )
            visible = _visible_positions(positions, attention.window_tokens)
            seen_keys, seen_values = home.blocks.fetch(home.layer, block_table, visible)
            mixed[rows] = attend(
                queries[rows],
                seen_keys.reshape(len(visible), -1, head_dim),
                seen_values.reshape(len(visible), -1, head_dim),
                positions,
                visible,
                attention.window_tokens,
                attention.scale,
            )
        return self._apply(attention.output, mixed.reshape(len(x), -1))

    def _feed_forward(self, network: FeedForward, x: Floats) -> Floats:
        gate = activate(self._apply(network.gate, x), network.activation)
        return self._apply(network.down, gate * self._apply(network.up, x))

    def _norm(self, x: Floats, weight: Floats) -> Floats:
        return rms_norm(x, weight, self._decoder.norm_epsilon)

    def _apply(self, matrix: Matrix, x: Floats) -> Floats:
        """``matrix`` times each row of ``x``: ``[T, columns]`` to ``[T, rows]``."""
        product: Floats = x @ self._weights[id(matrix)].T
        return product


def _matrices(decoder: Decoder) -> Iterator[Matrix]:
    """Every matrix that is multiplied by; the embedding is only looked up."""
    yield decoder.head
    for layer in decoder.layers:
        attention, network = layer.attention, layer.feed_forward
        yield from (attention.query, attention.key, attention.value, attention.output)
        yield from (network.gate, network.up, network.down)


def _sequences(batch: Batch) -> Iterator[tuple[int, slice]]:
    """Each sequence's number, and its rows in the batch."""
    starts = np.flatnonzero(np.diff(batch.sequence_rows, prepend=-1))
    stops = [*starts[1:], len(batch.sequence_rows)]
    for start, stop in zip(starts, stops, strict=True):
        yield int(batch.sequence_rows[start]), slice(int(start), int(stop))


def _visible_positions(
    positions: NDArray[np.int32], window_tokens: int | None
) -> NDArray[np.int32]:
    """What the tokens at ``positions`` may look at, taken together.

    without a window   [ 0 … last ]
    with one           [ first - window + 1 … last ]
    """
    first = 0 if window_tokens is None else max(0, int(positions[0]) - window_tokens + 1)
    return np.arange(first, int(positions[-1]) + 1, dtype=np.int32)
