"""From a model's configuration to its shape: one small function a family.

A family is known by its ``model_type``. To add one, write its function and its line in
``FAMILIES``.
"""

from collections.abc import Callable

from kvikk.errors import ModelError
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config, text_config
from kvikk.shapes.shape import LayerCache, LayerKind, ModelShape


def normalise(config: Config) -> Config:
    """The language model's part of a ``config.json``, with its family's defaults filled in.

    Raises ModelError for an unknown ``model_type``.
    """
    text = text_config(config)
    model_type = fields.model_type(text)
    if model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ModelError(f"models of type {model_type!r} are not supported; known types: {known}")
    return {**_DEFAULTS.get(model_type, {}), **text}


def read_shape(config: Config) -> ModelShape:
    """What a model with this ``config.json`` keeps for each token.

    Raises ModelError for an unknown ``model_type`` and for a configuration that is incomplete or
    contradicts itself.
    """
    text = normalise(config)
    model_type = fields.model_type(text)
    return ModelShape(model_type, FAMILIES[model_type](text), fields.context_tokens(text))


def _full_attention(config: Config) -> tuple[LayerCache, ...]:
    return (_layer(config, LayerKind.FULL),) * fields.num_layers(config)


def _gemma3(config: Config) -> tuple[LayerCache, ...]:
    """Five sliding layers, then one that sees everything, unless each layer's type is listed."""
    window_tokens = fields.read_int(config, "sliding_window")
    kinds = {
        "full_attention": _layer(config, LayerKind.FULL),
        "sliding_attention": _layer(config, LayerKind.SLIDING, window_tokens),
    }
    period = fields.read_int(config, "sliding_window_pattern")
    names = fields.layer_types(config) or [
        "sliding_attention" if (index + 1) % period else "full_attention"
        for index in range(fields.num_layers(config))
    ]
    for name in names:
        if name not in kinds:
            raise ModelError(f"the model's configuration: a layer of the unknown type {name!r}")
    return tuple(kinds[name] for name in names)


def _layer(config: Config, kind: LayerKind, window_tokens: int | None = None) -> LayerCache:
    elements = fields.num_kv_heads(config) * fields.head_dim(config)
    return LayerCache(kind, elements, elements, window_tokens)


FAMILIES: dict[str, Callable[[Config], tuple[LayerCache, ...]]] = {
    "gemma3_text": _gemma3,
    "llama": _full_attention,
}

# What a family's published configurations leave out, from its class in transformers.
_DEFAULTS: dict[str, Config] = {
    "gemma3_text": {
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000.0,
        "rope_theta": 1000000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
        "vocab_size": 262208,
    },
    "llama": {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    },
}
