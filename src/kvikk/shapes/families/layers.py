"""What the families' functions are made of: one layer's record, and layers by their types."""

from collections.abc import Callable, Mapping
from reprlib import repr as shown

from kvikk.errors import ModelError
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.shape import LayerCache, LayerKind

Layers = tuple[LayerCache, ...]
Family = Callable[[Config], Layers]
# From a layer's index to its record.
Maker = Callable[[int], LayerCache]

NOTHING = LayerCache(LayerKind.NONE)

# Names that checkpoints carry from before transformers settled on today's.
_LEGACY_TYPES = {
    "attention": "full_attention",
    "global": "full_attention",
    "local": "sliding_attention",
    "mamba": "linear_attention",
    "recurrent": "linear_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "mlp": "none",
    "moe": "none",
}


def kv_layer(
    kv_heads: int,
    key_dim: int,
    value_dim: int | None = None,
    kind: LayerKind = LayerKind.FULL,
    window_tokens: int | None = None,
) -> LayerCache:
    """A layer that keeps keys and values in ``kv_heads`` heads; none of them, and it keeps nothing.

    ``value_dim`` None is a value as long as a key.
    """
    if not kv_heads:
        return NOTHING
    value_dim = key_dim if value_dim is None else value_dim
    return LayerCache(kind, kv_heads * key_dim, kv_heads * value_dim, window_tokens, kv_heads)


def full(config: Config) -> Maker:
    """Layers that see everything, with the configuration's heads."""
    return lambda index: kv_layer(fields.num_kv_heads(config, index), fields.head_dim(config))


def sliding(config: Config, *names: str) -> Maker:
    """Layers with a window, whose size is the first of ``names`` that is set."""

    def make(index: int) -> LayerCache:
        window_tokens = fields.read_int(config, *(names or ("sliding_window",)))
        heads, head_dim = fields.num_kv_heads(config, index), fields.head_dim(config)
        return kv_layer(heads, head_dim, None, LayerKind.SLIDING, window_tokens)

    return make


def chunked(config: Config) -> Maker:
    """Layers that see their chunk of ``attention_chunk_size`` tokens."""

    def make(index: int) -> LayerCache:
        window_tokens = fields.read_int(config, "attention_chunk_size")
        heads, head_dim = fields.num_kv_heads(config, index), fields.head_dim(config)
        return kv_layer(heads, head_dim, None, LayerKind.CHUNKED, window_tokens)

    return make


def attention_makers(config: Config) -> dict[str, Maker]:
    """The types of layer that every family of plain attention may list."""
    return {
        "full_attention": full(config),
        "sliding_attention": sliding(config),
        "chunked_attention": chunked(config),
        "none": lambda index: NOTHING,
    }


def by_types(config: Config, makers: Mapping[str, Maker], pattern: Callable[[int], str]) -> Layers:
    """Each layer's record by its type: as ``layer_types`` lists them, else as ``pattern`` says.

    Raises ModelError for a listed type that is not among ``makers``.
    """
    listed = fields.layer_types(config)
    names = listed or [pattern(index) for index in range(fields.num_layers(config))]
    return tuple(_make(makers, name, index) for index, name in enumerate(names))


def _make(makers: Mapping[str, Maker], name: str, index: int) -> LayerCache:
    name = name if name in makers else _LEGACY_TYPES.get(name, name)
    if name not in makers:
        known = ", ".join(sorted(makers))
        raise ModelError(
            f"the model's configuration: a layer of the unknown type {shown(name)}; known: {known}"
        )
    return makers[name](index)
