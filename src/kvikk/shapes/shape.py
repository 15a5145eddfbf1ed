"""What a model keeps for each token, one record a layer.

The sizing tool and the engine's allocator read the same records: what is printed is what is
allocated.
"""

from dataclasses import dataclass
from enum import StrEnum


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
class LayerCache:
    """One layer's cache: elements per token, and elements per sequence that do not grow.

    ``key_elements`` and ``value_elements`` are per token (KV heads times head size).
    ``window_tokens`` is set for sliding and chunked layers: a sliding layer's token at position p
    attends to positions p - window_tokens + 1 … p. ``fixed_elements`` is per sequence.
    ``shares_with`` is the index of the layer whose cache this one reads instead of keeping its own.
    """

    kind: LayerKind
    key_elements: int = 0
    value_elements: int = 0
    window_tokens: int | None = None
    fixed_elements: int = 0
    shares_with: int | None = None


@dataclass(frozen=True)
class ModelShape:
    """A model's configuration, normalised to what its cache costs."""

    model_type: str
    layers: tuple[LayerCache, ...]
    context_tokens: int

    @property
    def num_layers(self) -> int:
        """Number of decoder layers, those that cache nothing included."""
        return len(self.layers)


@dataclass(frozen=True)
class CacheGroup:
    """The layers that keep the same tokens in the same bytes: one block pool serves them all.

    ``layers`` are indices into ``ModelShape.layers``, ascending. ``window_tokens`` is None where
    every token is kept.
    """

    layers: tuple[int, ...]
    key_elements: int
    value_elements: int
    window_tokens: int | None

    @property
    def elements_per_token(self) -> int:
        """Key and value elements of one token over all layers of the group."""
        return len(self.layers) * (self.key_elements + self.value_elements)


def cache_groups(shape: ModelShape) -> tuple[CacheGroup, ...]:
    """Group the layers that page their cache by (window, key elements, value elements).

    Groups come in the order of their first layer. Layers that keep nothing per token (state, cross,
    none) and layers that share another's cache belong to no group.
    """
    members: dict[tuple[int | None, int, int], list[int]] = {}
    for index, layer in enumerate(shape.layers):
        if layer.shares_with is None and layer.key_elements + layer.value_elements > 0:
            key = (layer.window_tokens, layer.key_elements, layer.value_elements)
            members.setdefault(key, []).append(index)
    return tuple(
        CacheGroup(tuple(layers), key_elements, value_elements, window_tokens)
        for (window_tokens, key_elements, value_elements), layers in members.items()
    )
