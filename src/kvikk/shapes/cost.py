"""What a model's cache costs in bytes: per token, per conversation, and at a context.

Three figures, because no single one is enough: the slope at the first token, what a conversation
keeps whatever its length, and the sum at a context, where windows have stopped growing.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from kvikk.errors import ModelError
from kvikk.shapes.dtypes import PACKED_LATENTS, CacheDtype, KvDtypes, cache_dtype, kv_dtypes
from kvikk.shapes.shape import Entries, LayerCache, LayerKind, ModelShape, StateCache


@dataclass(frozen=True)
class Part:
    """One of the things that a layer keeps, and how it grows.

    ``kind`` is the layer's kind for keys and values (``full``, ``sliding``, ``chunked``,
    ``latent``), else ``indexer``, ``compressed``, ``convolution``, ``recurrent`` or ``cross``.
    There is an entry of ``bytes_per_entry`` for every ``tokens_per_entry`` tokens, at most
    ``window_tokens`` of them; or, where it does not grow, ``fixed_entries`` of them.
    """

    kind: str
    bytes_per_entry: int
    tokens_per_entry: int = 1
    window_tokens: int | None = None
    fixed_entries: int | None = None

    @property
    def bytes_per_token(self) -> float:
        """Bytes that a further token adds at position 0, on average over an entry's tokens."""
        return 0 if self.fixed_entries is not None else self.bytes_per_entry / self.tokens_per_entry

    @property
    def fixed_bytes(self) -> int:
        """Bytes that a conversation takes whatever its length."""
        return (self.fixed_entries or 0) * self.bytes_per_entry

    def entries_at(self, context_tokens: int) -> int:
        """Entries held when a conversation has ``context_tokens`` tokens."""
        if self.fixed_entries is not None:
            return self.fixed_entries
        entries = context_tokens // self.tokens_per_entry
        return entries if self.window_tokens is None else min(entries, self.window_tokens)


@dataclass(frozen=True)
class CacheCost:
    """The cost of one conversation: of the whole model, or of what one rank holds of it.

    ``parts`` are those of all layers, equal ones together with how often they occur, in the order
    in which they first do.
    """

    parts: tuple[tuple[Part, int], ...]

    @cached_property
    def bytes_per_token(self) -> float:
        """What a further token costs at position 0. Whole unless entries stand for many tokens."""
        return _whole(sum(count * part.bytes_per_token for part, count in self.parts))

    @cached_property
    def fixed_bytes(self) -> int:
        """What a conversation costs before its first token: states and cross-attention."""
        return sum(count * part.fixed_bytes for part, count in self.parts)

    def bytes_per_token_at(self, context_tokens: int) -> float:
        """What a further token costs after ``context_tokens``, where full windows cost nothing."""
        growing = (
            count * part.bytes_per_token
            for part, count in self.parts
            if part.window_tokens is None or context_tokens < part.window_tokens
        )
        return _whole(sum(growing))

    def bytes_at(self, context_tokens: int) -> int:
        """What a conversation of ``context_tokens`` tokens holds, fixed bytes included."""
        return sum(
            count * part.entries_at(context_tokens) * part.bytes_per_entry
            for part, count in self.parts
        )


def cache_cost(
    shape: ModelShape, dtypes: KvDtypes | None = None, encoder_tokens: int | None = None
) -> CacheCost:
    """The logical cost: the sum over the whole model, however many devices it is spread over.

    ``dtypes`` None is the model's own type. ``encoder_tokens`` None is the most that an encoder can
    give. Raises ModelError if a type cannot store the model's rows.
    """
    return _cost(shape, dtypes, encoder_tokens, tp=1)


def rank_cost(
    shape: ModelShape,
    dtypes: KvDtypes | None = None,
    encoder_tokens: int | None = None,
    *,
    tp: int,
    dp_attention: bool = False,
) -> CacheCost:
    """What one of ``tp`` tensor-parallel ranks holds of a conversation.

    Heads are divided, and copied where there are fewer of them than ranks; latents and an indexer's
    keys are copied to every rank; states are divided. With ``dp_attention`` a rank holds the whole
    cache of its own conversations. Raises ModelError if heads cannot be divided among the ranks.
    """
    if tp < 1:
        raise ModelError(f"{tp} ranks of tensor parallelism; at least 1 is possible")
    return _cost(shape, dtypes, encoder_tokens, tp=1 if dp_attention else tp)


def _cost(
    shape: ModelShape, dtypes: KvDtypes | None, encoder_tokens: int | None, tp: int
) -> CacheCost:
    types = dtypes or kv_dtypes(shape.kv_dtype)
    if shape.kv_dtype == PACKED_LATENTS and types.key.name == "fp8":
        types = kv_dtypes(PACKED_LATENTS)  # the only form of fp8 that such a model has
    model_dtype = cache_dtype(shape.dtype)
    counts: Counter[Part] = Counter()
    for layer, times in Counter(shape.layers).items():
        for part in layer_parts(layer, types, model_dtype, encoder_tokens, tp):
            counts[part] += times
    return CacheCost(tuple(counts.items()))


def layer_parts(
    layer: LayerCache,
    dtypes: KvDtypes,
    model_dtype: CacheDtype,
    encoder_tokens: int | None = None,
    tp: int = 1,
) -> Iterator[Part]:
    """The parts of one layer's cache as one of ``tp`` ranks holds them.

    Raises ModelError as ``rank_cost`` does.
    """
    if layer.shares_with is not None:
        return
    heads = rank_heads(layer.kv_heads, tp)
    if layer.key_elements and not layer.value_elements:  # a latent, the same for every rank
        row_bytes = _entry_bytes(Entries(layer.key_elements, 1, layer.packed_bytes), dtypes.key)
        yield Part(layer.kind, row_bytes, window_tokens=layer.window_tokens)
    elif layer.key_elements:
        row_bytes = _rows_bytes(layer.key_elements, layer.value_elements, layer, heads, dtypes)
        yield Part(layer.kind, row_bytes, window_tokens=layer.window_tokens)
    if layer.compressed is not None:
        entry_bytes = _entry_bytes(layer.compressed, dtypes.key)
        yield Part("compressed", entry_bytes, layer.compressed.tokens_per_entry)
    if layer.indexer is not None:
        index_bytes = layer.indexer.packed_bytes
        if index_bytes is None:
            index_bytes = dtypes.key.row_bytes(layer.indexer.elements)
        yield Part("indexer", index_bytes, layer.indexer.tokens_per_entry)
    if layer.state is not None:
        yield from _state_parts(layer.state, model_dtype, tp)
    if layer.cross is not None:
        cross = layer.cross
        row_bytes = _rows_bytes(cross.key_elements, cross.value_elements, layer, heads, dtypes)
        tokens = cross.encoder_tokens if encoder_tokens is None else encoder_tokens
        yield Part(LayerKind.CROSS, row_bytes, fixed_entries=tokens)


def rank_heads(heads: int, tp: int) -> int:
    """KV heads that one of ``tp`` ranks holds: copies where there are fewer heads than ranks.

    Raises ModelError if they cannot be divided equally.
    """
    if max(heads, tp) % min(heads, tp):
        raise ModelError(f"{heads} key/value heads cannot be divided among {tp} ranks")
    return max(1, heads // tp)


def _rows_bytes(
    key_elements: int, value_elements: int, layer: LayerCache, heads: int, dtypes: KvDtypes
) -> int:
    """Bytes of a token's keys and values in ``heads`` of the layer's heads."""
    key = dtypes.key.row_bytes(key_elements // layer.kv_heads * heads, heads)
    return key + dtypes.value.row_bytes(value_elements // layer.kv_heads * heads, heads)


def _entry_bytes(entries: Entries, dtype: CacheDtype) -> int:
    if dtype.name == PACKED_LATENTS and entries.packed_bytes is not None:
        return entries.packed_bytes
    return dtype.row_bytes(entries.elements)


def _state_parts(state: StateCache, model_dtype: CacheDtype, tp: int) -> Iterator[Part]:
    """Convolution and recurrent state; shared groups are copied where ranks do not divide them."""
    groups = state.num_groups
    padded_groups = groups if groups % tp == 0 else tp
    conv_elements = state.conv_elements + (padded_groups - groups) * state.group_elements
    if conv_elements % tp or state.recurrent_elements % tp:
        raise ModelError(f"the recurrent states cannot be divided among {tp} ranks")
    if conv_elements:
        conv_bytes = model_dtype.row_bytes(conv_elements // tp)
        yield Part("convolution", conv_bytes, fixed_entries=1)
    if state.recurrent_elements:
        dtype = cache_dtype(state.recurrent_dtype)
        yield Part("recurrent", dtype.row_bytes(state.recurrent_elements // tp), fixed_entries=1)


def _whole(number: float) -> float:
    return int(number) if number == int(number) else number
