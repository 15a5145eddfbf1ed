"""The reference backend: the plainest way to run a decoder over paged blocks.

Everything is float32 and one line a formula. It is not fast; it is what the fast ones are tested
against, and where to look when one wants to know what a decoder does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvikk.backends import sampling
from kvikk.backends.base import Batch, LogitsEdit, Logprobs, MemoryUse, Plan, SamplingParameters
from kvikk.backends.logprobs import logprobs
from kvikk.backends.reference.arithmetic import (
    Floats,
    activate,
    attend,
    capped,
    normed,
    rotate,
    softmax,
)
from kvikk.backends.reference.blocks import Blocks
from kvikk.backends.reference.lookback import Lookback, Places, lookbacks, write_places
from kvikk.models.adapter import Adapter, LowRank, matrices_by_role
from kvikk.models.decoder import Attention, Decoder, FeedForward, Matrix, Mixture, Norm

_FLOAT_BYTES = 4
# Rows of a batch, and what is added to their products.
_RowsDelta = tuple[NDArray[np.int64], LowRank]


@dataclass(frozen=True)
class _View:
    """What a batch writes to and sees of one group's blocks, the same in all its layers."""

    blocks: Blocks
    write_places: Places
    lookbacks: tuple[Lookback, ...]


class ReferenceBackend:
    """A ``Backend`` in numpy."""

    name = "reference"
    numerics = "reference-2"

    def memory_use(self, decoder: Decoder, plan: Plan) -> MemoryUse:
        """Float32 weights; attention scores of one sequence are the largest scratch array."""
        elements = sum(matrix.rows * matrix.columns for matrix in _matrices(decoder))
        num_heads = max(layer.attention.num_heads for layer in decoder.layers)
        widest = max(
            network.up.rows for layer in decoder.layers for network in _networks(layer.feed_forward)
        )
        # Beside each head's scores: the mask, and what it is made of.
        scores = (num_heads + 3) * plan.max_batch_tokens * plan.max_context_tokens
        activations = plan.max_batch_tokens * (3 * widest + 8 * decoder.hidden_size)
        logits = plan.max_batch_sequences * decoder.vocabulary_size
        return MemoryUse(
            weight_bytes=elements * _FLOAT_BYTES,
            activation_bytes=(scores + activations + logits) * _FLOAT_BYTES,
            block_bytes=tuple(
                group.block_bytes(plan.block_size, plan.kv_dtype) for group in plan.groups
            ),
        )

    def load(self, decoder: Decoder, plan: Plan) -> None:
        """Dequantise the weights and allocate the blocks."""
        self._decoder, self._plan = decoder, plan
        self._weights = {id(matrix): matrix.float32() for matrix in _matrices(decoder)}
        self._adapters: dict[int, Adapter] = {}
        self._deltas: dict[int, list[_RowsDelta]] = {}  # by the matrix's id; the batch's
        self._hidden_states = np.zeros((0, decoder.hidden_size), np.float32)
        self._blocks = tuple(
            Blocks(group, num_blocks, plan.block_size, plan.kv_dtype)
            for group, num_blocks in zip(plan.groups, plan.num_blocks, strict=True)
        )
        # Where a layer's keys and values are kept: its group, and its index within the group.
        self._homes = {
            layer: (number, index)
            for number, group in enumerate(plan.groups)
            for index, layer in enumerate(group.layers)
        }

    def load_adapter(self, number: int, adapter: Adapter) -> None:
        """Keep it; its matrices are used as they are."""
        self._adapters[number] = adapter

    def unload_adapter(self, number: int) -> None:
        """Forget it."""
        del self._adapters[number]

    def forward(self, batch: Batch) -> Floats:
        """Run every layer over the batch's tokens; return the logits of the rows that want them."""
        for copy in batch.copies:
            self._blocks[copy.group].copy(copy.source, copy.target)
        self._deltas = self._deltas_of(batch)
        views = [self._view(batch, number) for number in range(len(self._blocks))]

        decoder = self._decoder
        hidden = decoder.embedding.take(batch.token_ids) * np.float32(decoder.embedding_scale)
        if decoder.position_embedding is not None:
            hidden = hidden + decoder.position_embedding.take(batch.positions)
        for number, layer in enumerate(decoder.layers):
            group, index_in_group = self._homes[number]
            x = self._norm(hidden, layer.attention_norm)
            x = self._attention(layer.attention, x, batch.positions, views[group], index_in_group)
            hidden = hidden + self._norm(x, layer.attention_post_norm)

            x = self._norm(hidden, layer.feed_forward_norm)
            x = self._feed_forward(layer.feed_forward, x)
            hidden = hidden + self._norm(x, layer.feed_forward_post_norm)
        if batch.hidden_rows is not None:
            self._hidden_states = self._norm(hidden[batch.hidden_rows], decoder.final_norm)
        wanted = self._norm(hidden[batch.logits_rows], decoder.final_norm)
        return capped(self._apply(decoder.head, wanted), decoder.logit_cap)

    def hidden_states(self) -> Floats:
        """The last hidden states that the latest batch wanted, normed."""
        return self._hidden_states

    def sample(
        self,
        logits: Floats,
        parameters: Sequence[SamplingParameters],
        uniforms: NDArray[np.float64],
        edits: Sequence[LogitsEdit | None] | None = None,
    ) -> NDArray[np.int64]:
        """Choose one token a row."""
        return sampling.sample(logits, parameters, uniforms, edits)

    def likeliest(self, logits: NDArray[np.float32]) -> None:
        """Always to be looked for."""

    def logprobs(self, logits: Floats, token_ids: NDArray[np.int64], num_top: int) -> Logprobs:
        """How likely each row's token is, and the likeliest."""
        return logprobs(logits, token_ids, num_top)

    def touch(self, group: int, block: int) -> None:
        """Nothing: what is measured here is not speed."""

    def read(self, group: int, blocks: Sequence[int]) -> bytes:
        """The blocks' bytes: for each its keys, then its values, ``[layers, slots, row bytes]``."""
        return self._blocks[group].read(blocks)

    def write(self, group: int, blocks: Sequence[int], data: bytes) -> None:
        """The inverse of ``read``. Raises ValueError if the length does not fit."""
        self._blocks[group].write(blocks, data)

    def _view(self, batch: Batch, group: int) -> _View:
        block_size, window_tokens = self._plan.block_size, self._plan.groups[group].window_tokens
        return _View(
            self._blocks[group],
            write_places(batch, group, block_size),
            lookbacks(batch, group, window_tokens, block_size),
        )

    def _attention(
        self,
        attention: Attention,
        x: Floats,
        positions: NDArray[np.int32],
        view: _View,
        layer: int,
    ) -> Floats:
        """Project all tokens at once, then let each sequence look back through its blocks."""
        num_tokens, head_dim = len(x), attention.head_dim
        queries = self._heads(attention.query, attention.query_norm, x, head_dim)
        keys = self._heads(attention.key, attention.key_norm, x, head_dim)
        values = self._apply(attention.value, x)
        if attention.rotation is not None:
            queries = rotate(queries, positions, attention.rotation)
            keys = rotate(keys, positions, attention.rotation)
        view.blocks.store(layer, view.write_places, keys.reshape(num_tokens, -1), values)

        mixed = np.empty_like(queries)
        for sequence in view.lookbacks:
            seen_keys, seen_values = view.blocks.fetch(layer, sequence.places)
            mixed[sequence.rows] = attend(
                queries[sequence.rows],
                seen_keys.reshape(-1, attention.num_kv_heads, head_dim),
                seen_values.reshape(-1, attention.num_kv_heads, head_dim),
                sequence.mask,
                attention.scale,
                attention.score_cap,
            )
        return self._apply(attention.output, mixed.reshape(num_tokens, -1))

    def _heads(self, matrix: Matrix, norm: Norm | None, x: Floats, head_dim: int) -> Floats:
        """Queries or keys ``[T, heads, head_dim]``, normed head by head or all heads as one."""
        projected = self._apply(matrix, x)
        if norm is not None and len(norm.weight) == matrix.rows:
            return self._norm(projected, norm).reshape(len(x), -1, head_dim)
        return self._norm(projected.reshape(len(x), -1, head_dim), norm)

    def _feed_forward(self, network: FeedForward | Mixture, x: Floats) -> Floats:
        if isinstance(network, Mixture):
            return self._mixture(network, x)
        up = self._apply(network.up, x)
        if network.gate is None:
            return self._apply(network.down, activate(up, network.activation))
        gate = activate(self._apply(network.gate, x), network.activation)
        return self._apply(network.down, gate * up)

    def _mixture(self, mixture: Mixture, x: Floats) -> Floats:
        shares = softmax(self._apply(mixture.router, x))
        # A stable sort has the lower number first among equals.
        used = np.argsort(-shares, axis=-1, kind="stable")[:, : mixture.num_used]
        kept = np.zeros_like(shares)
        np.put_along_axis(kept, used, np.take_along_axis(shares, used, axis=-1), axis=-1)
        if mixture.is_renormalised:
            kept /= kept.sum(axis=-1, keepdims=True)
        mixed = np.zeros_like(x)
        for expert, share in zip(mixture.experts, kept.T, strict=True):
            rows = np.flatnonzero(share)
            if len(rows):
                mixed[rows] += share[rows, None] * self._feed_forward(expert, x[rows])
        return mixed

    def _norm(self, x: Floats, norm: Norm | None) -> Floats:
        return x if norm is None else normed(x, norm, self._decoder.norm_epsilon)

    def _apply(self, matrix: Matrix, x: Floats) -> Floats:
        """``matrix`` times each row of ``x``: ``[T, columns]`` to ``[T, rows]``."""
        product: Floats = x @ self._weights[id(matrix)].T
        for rows, delta in self._deltas.get(id(matrix), ()):
            product[rows] += x[rows] @ delta.a.T @ delta.b.T * np.float32(delta.scale)
        return product if matrix.bias is None else product + matrix.bias

    def _deltas_of(self, batch: Batch) -> dict[int, list[_RowsDelta]]:
        """What the batch's adapters add to which rows of each matrix's products."""
        deltas: dict[int, list[_RowsDelta]] = {}
        if batch.adapters is None:
            return deltas
        numbers = batch.adapters[batch.sequence_rows]
        for number in np.unique(numbers[numbers > 0]):
            rows = np.flatnonzero(numbers == number)
            for (layer, role), delta in self._adapters[int(number)].deltas.items():
                matrix = matrices_by_role(self._decoder.layers[layer])[role]
                deltas.setdefault(id(matrix), []).append((rows, delta))
        return deltas


def _matrices(decoder: Decoder) -> Iterator[Matrix]:
    """Every matrix that is multiplied by; the embedding is only looked up."""
    yield decoder.head
    for layer in decoder.layers:
        attention = layer.attention
        yield from (attention.query, attention.key, attention.value, attention.output)
        if isinstance(layer.feed_forward, Mixture):
            yield layer.feed_forward.router
        for network in _networks(layer.feed_forward):
            yield from (network.up, network.down)
            if network.gate is not None:
                yield network.gate


def _networks(network: FeedForward | Mixture) -> tuple[FeedForward, ...]:
    """The experts, or the one there is."""
    return network.experts if isinstance(network, Mixture) else (network,)
