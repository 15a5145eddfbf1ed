"""Attention beside states where the attention is more than one of plain full layers.

Windows between states (PLaMo 2, Hymba), caches shared between neighbours (Hymba), convolved keys
(ZAYA), and lightning attention between plain or latent attention (Ling and Ring).
"""

from kvikk.errors import ModelError
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.families.latent import latent_layer
from kvikk.shapes.families.layers import Family, Layers, attention_makers, by_types, full, sliding
from kvikk.shapes.families.states import (
    beside,
    kimi_delta_state,
    lightning_state,
    mamba1_state,
    state_layer,
)
from kvikk.shapes.shape import LayerCache, LayerKind, StateCache


def plamo2(config: Config) -> Layers:
    """In every ``mamba_step`` layers one of attention, with a window unless it is listed as full.

    The states are Mamba 2's, but only the inner inputs pass the convolution.
    """
    layers = fields.num_layers(config)
    step = fields.read_int(config, "mamba_step", default=2)
    head_size = fields.read_int(config, "hidden_size_per_head", default=128, largest=65_536)
    inner = head_size * fields.read_int(config, "mamba_num_heads", default=64)
    kernel = fields.read_int(config, "mamba_d_conv", default=4)
    state_size = fields.read_int(config, "mamba_d_state", default=64)
    state = StateCache(inner * (kernel - 1), inner * state_size)
    window = fields.read_int(config, "attention_window_size", default=2048)
    config = {**config, "head_dim": head_size, "sliding_window": window}
    everything = set(fields.indices(config, "full_attention_idx"))

    def name(index: int) -> str:
        last = layers <= step // 2 and index == layers - 1
        if config.get("mamba_enabled") is not False and index % step != step // 2 and not last:
            return "linear_attention"
        return "full_attention" if index in everything else "sliding_attention"

    makers = {**attention_makers(config), "linear_attention": state_layer(state)}
    return by_types({**config, "layer_types": None}, makers, name)


def hymba(config: Config) -> Layers:
    """Attention and Mamba in every layer; a window but in the layers of ``global_attn_idx``.

    The layers of each ``kv_reuse_group`` read the cache of its first.
    """
    state = mamba1_state(config)
    window = fields.read_int(config, "sliding_window", default=1024)
    config = {**config, "sliding_window": window}
    everything = set(fields.indices(config, "global_attn_idx"))
    makers = {
        "full_attention": beside(full(config), state),
        "sliding_attention": beside(sliding(config), state),
    }
    layers = by_types(
        {**config, "layer_types": None},
        makers,
        lambda index: "full_attention" if index in everything else "sliding_attention",
    )
    return _reusing(layers, config.get("kv_reuse_group"))


def _reusing(layers: Layers, groups: object) -> Layers:
    shared = list(layers)
    for group in groups if isinstance(groups, list) else []:
        members = fields.indices({"kv_reuse_group": group}, "kv_reuse_group")
        if any(not 0 <= member < len(layers) for member in members):
            raise ModelError("the model's configuration: kv_reuse_group names no such layer")
        for member in members[1:]:  # a state of its own is all that such a layer keeps
            shared[member] = LayerCache(LayerKind.STATE, state=layers[member].state)
    return tuple(shared)


def zaya(config: Config) -> Layers:
    """Keys and queries pass two convolutions in a row, and half of each value is a token late."""
    heads, kv_heads = fields.num_heads(config), fields.num_kv_heads(config)
    head_dim = fields.read_int(config, "head_dim", default=128, largest=65_536)
    taps = sum(fields.read_int(config, name, default=2) - 1 for name in ("cca_time0", "cca_time1"))
    # What is late is one projection in the model's type, no sum over the sequence.
    state = StateCache((heads + kv_heads) * head_dim * taps + kv_heads * head_dim // 2)
    config = {**config, "head_dim": head_dim}
    makers = {
        "hybrid": beside(full(config), state),
        "hybrid_sliding": beside(sliding(config), state),
    }
    return by_types(config, makers, lambda index: "hybrid")


def ring_linear(config: Config) -> Layers:
    """Ring and Ling 2.0 linear: attention at the end of every group of layers and after the last.

    Lightning attention, with the queries' heads, elsewhere.
    """
    return _grouped(config, lightning_state(config), is_latent=False)


def bailing_hybrid(config: Config) -> Layers:
    """Latent attention at the end of every group of ``layer_group_size`` layers.

    Elsewhere lightning attention (Ling and Ring 2.5, which say ``linear_silu``), else delta
    attention.
    """
    if config.get("linear_silu") is not None and config.get("short_conv_kernel_size") is None:
        state = lightning_state(config)
    else:
        linear = {
            "num_heads": fields.num_heads(config),
            "head_dim": config.get("head_dim"),
            "short_conv_kernel_size": config.get("short_conv_kernel_size"),
        }
        state = kimi_delta_state({"linear_attn_config": linear})
    return _grouped(config, state, is_latent=True)


def _grouped(config: Config, state: StateCache, *, is_latent: bool) -> Layers:
    period = fields.read_int(config, "layer_group_size", default=6 if is_latent else 1)
    whole = fields.num_layers(config) // period * period

    def name(index: int) -> str:
        attends = (index + 1) % period == 0 or index >= whole
        return "full_attention" if attends else "linear_attention"

    makers = {**attention_makers(config), "linear_attention": state_layer(state)}
    if is_latent:
        makers["full_attention"] = lambda index: latent_layer(config)
    return by_types(config, makers, name)


HYBRIDS: dict[str, Family] = {
    "bailing_hybrid": bailing_hybrid,
    "bailing_moe_linear": ring_linear,
    "hymba": hymba,
    "plamo2": plamo2,
    "zaya": zaya,
}
