"""What a model keeps for each token, one record a layer.

The sizing tool and the engine's allocator read the same records: what is printed is what is
allocated.
"""

from dataclasses import dataclass
from enum import StrEnum

from kvikk.shapes.dtypes import kvikk_dtype


class LayerKind(StrEnum):
    """What a layer keeps of the tokens it has seen."""

    FULL = "full"  # every token
    SLIDING = "sliding"  # the last window_tokens tokens
    CHUNKED = "chunked"  # the tokens of the current chunk of window_tokens
    LATENT = "latent"  # every token, compressed to one vector for all heads
    STATE = "state"  # a fixed state, whatever the length
    CROSS = "cross"  # an encoder's output, fixed once it is known
    NONE = "none"  # nothing


@dataclass(frozen=True)
class Entries:
    """Vectors that a layer keeps beside its keys and values, one for every few tokens.

    The keys of a sparse indexer, or latents that each stand for ``tokens_per_entry`` tokens.
    ``elements`` are those of one entry. ``packed_bytes`` is what an entry takes where it has a
    format of its own: an indexer's key always (fp8 with its scales), a latent when the cache is of
    the type ``fp8_ds_mla``.
    """

    elements: int
    tokens_per_entry: int = 1
    packed_bytes: int | None = None


@dataclass(frozen=True)
class StateCache:
    """What a recurrent layer keeps of a sequence, whatever its length.

    ``conv_elements`` are the last inputs of a short convolution, in the model's data type;
    ``recurrent_elements`` the state itself, in ``recurrent_dtype``. ``num_groups`` of
    ``group_elements`` each are the part of ``conv_elements`` that several heads share (Mamba 2's
    groups): ranks that get no whole group keep a copy.
    """

    conv_elements: int = 0
    recurrent_elements: int = 0
    recurrent_dtype: str = "f32"
    num_groups: int = 0
    group_elements: int = 0


@dataclass(frozen=True)
class CrossCache:
    """Keys and values of an encoder's output: computed once, kept as long as the sequence.

    Elements are per encoder token; ``encoder_tokens`` is the most that the encoder gives.
    """

    key_elements: int
    value_elements: int
    encoder_tokens: int


@dataclass(frozen=True)
class LayerCache:
    """One layer's cache: elements per token, and what a sequence keeps whatever its length.

    ``key_elements`` and ``value_elements`` are per token, over all ``kv_heads`` heads. A latent
    layer has one vector, in ``key_elements``, for all heads. ``window_tokens`` is set for sliding
    and chunked layers: a sliding layer's token at position p attends to positions
    p - window_tokens + 1 … p. ``shares_with`` is the index of the layer whose cache this one reads
    instead of keeping its own. A layer may keep a ``state`` or a ``cross`` cache beside its keys
    and values; one whose kind is ``state`` or ``cross`` keeps nothing else. ``packed_bytes`` is
    what a latent takes in the type ``fp8_ds_mla``.
    """

    kind: LayerKind
    key_elements: int = 0
    value_elements: int = 0
    window_tokens: int | None = None
    kv_heads: int = 1
    shares_with: int | None = None
    indexer: Entries | None = None
    compressed: Entries | None = None
    state: StateCache | None = None
    cross: CrossCache | None = None
    packed_bytes: int | None = None


@dataclass(frozen=True)
class ModelShape:
    """A model's configuration, normalised to what its cache costs.

    ``dtype`` is the data type the model is made for, ``kv_dtype`` the one its keys and values are
    kept in unless something else is asked for; both by the names in ``dtypes``.
    """

    model_type: str
    layers: tuple[LayerCache, ...]
    context_tokens: int
    dtype: str = "bf16"
    kv_dtype: str = "bf16"

    @property
    def num_layers(self) -> int:
        """Number of decoder layers, those that cache nothing included."""
        return len(self.layers)


@dataclass(frozen=True)
class CacheGroup:
    """The layers that keep the same tokens in the same bytes: one block pool serves them all.

    ``layers`` are indices into ``ModelShape.layers``, ascending. ``window_tokens`` is None where
    every token is kept. The elements are those of ``kv_heads`` heads together.
    """

    layers: tuple[int, ...]
    key_elements: int
    value_elements: int
    window_tokens: int | None
    kv_heads: int = 1

    @property
    def elements_per_token(self) -> int:
        """Key and value elements of one token over all layers of the group."""
        return len(self.layers) * (self.key_elements + self.value_elements)

    def block_bytes(self, block_size: int, kv_dtype: str) -> int:
        """Bytes of a block in kvikk's own backends: ``block_size`` tokens in all layers.

        Raises ModelError for a type that they do not have, or that rows do not fill.
        """
        dtype = kvikk_dtype(kv_dtype)
        rows = (self.key_elements, self.value_elements)
        row_bytes = sum(dtype.row_bytes(elements, self.kv_heads) for elements in rows)
        return block_size * len(self.layers) * row_bytes


def cache_groups(shape: ModelShape) -> tuple[CacheGroup, ...]:
    """Group the layers that page their cache by (window, key and value elements, KV heads).

    Groups come in the order of their first layer. Layers that keep nothing per token (state, cross,
    none) and layers that share another's cache belong to no group.
    """
    members: dict[tuple[int, int, int | None, int], list[int]] = {}
    for index, layer in enumerate(shape.layers):
        if layer.shares_with is None and layer.key_elements + layer.value_elements > 0:
            kept = (layer.key_elements, layer.value_elements, layer.window_tokens, layer.kv_heads)
            members.setdefault(kept, []).append(index)
    return tuple(CacheGroup(tuple(layers), *kept) for kept, layers in members.items())
