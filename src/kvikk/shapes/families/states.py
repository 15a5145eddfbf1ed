"""Layers that keep a state of fixed size, alone or between and beside attention.

The shapes are those of vLLM's ``mamba_utils.py``. I is the inner size:

* Mamba 1: I · (kernel - 1) inputs of the convolution and I · state size.
* Mamba 2: (I + 2 · groups · state size) · (kernel - 1) and heads · head size · state size.
* gated delta: (2 · key heads · key size + value heads · value size) · (kernel - 1) and
  value heads · value size · key size; Kimi's keeps three convolutions of heads · size.
* lightning attention: heads · size · size. Short convolution: channels · (kernel - 1).
"""

from collections.abc import Callable
from dataclasses import replace

from kvikk.errors import ModelError
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.families.latent import latent_layer
from kvikk.shapes.families.layers import Family, Layers, Maker, attention_makers, by_types, full
from kvikk.shapes.shape import Entries, LayerCache, LayerKind, StateCache

Pattern = Callable[[int], str]


def mamba1_state(config: Config) -> StateCache:
    """Mamba's first form, by its own keys or Jamba's."""
    inner = _inner_size(config)
    if config.get("model_type") in ("mamba", "falcon_mamba"):  # in hybrids it is the others'
        inner = fields.read_int(config, "intermediate_size", default=inner)
    kernel = fields.read_int(config, "conv_kernel", "mamba_d_conv", default=4)
    state_size = fields.read_int(config, "state_size", "mamba_d_state", default=16)
    return StateCache(inner * (kernel - 1), inner * state_size, _state_dtype(config))


def mamba2_state(config: Config) -> StateCache:
    """Mamba's second form, under any of the names that its families give the same numbers."""
    state_size = fields.read_int(config, "mamba_d_state", "ssm_state_size", "state_size")
    groups = fields.read_int(config, "mamba_n_groups", "mamba_ngroups", "n_groups", default=1)
    kernel = fields.read_int(config, "mamba_d_conv", "conv_kernel", default=4)
    inner = _mamba2_heads_size(config) or _inner_size(config)
    return StateCache(
        conv_elements=(inner + 2 * groups * state_size) * (kernel - 1),
        recurrent_elements=inner * state_size,
        recurrent_dtype=_state_dtype(config),
        num_groups=groups,
        group_elements=2 * state_size * (kernel - 1),
    )


def _mamba2_heads_size(config: Config) -> int | None:
    """Heads times their size, where both are stated; None otherwise."""
    heads: tuple[str, ...] = ("mamba_n_heads", "n_mamba_heads", "mamba_num_heads")
    sizes: tuple[str, ...] = ("mamba_d_head", "mamba_headdim", "mamba_head_dim")
    # Mamba 2 itself uses the plain names, which in hybrids are attention's.
    if config.get("model_type") == "mamba2":
        heads, sizes = ("num_heads",), ("head_dim",)
    size = next((config[name] for name in sizes if config.get(name) not in (None, "auto")), None)
    if size is None or all(config.get(name) is None for name in heads):
        return None
    return fields.read_int(config, *heads) * fields.read_int({"head_dim": size}, "head_dim")


def gated_delta_state(config: Config) -> StateCache:
    """The gated delta rule of Qwen 3 Next and 3.5."""
    key_heads = fields.read_int(config, "linear_num_key_heads")
    value_heads = fields.read_int(config, "linear_num_value_heads")
    key_dim = fields.read_int(config, "linear_key_head_dim")
    value_dim = fields.read_int(config, "linear_value_head_dim")
    kernel = fields.read_int(config, "linear_conv_kernel_dim", default=4)
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    recurrent = value_heads * value_dim * key_dim
    return StateCache(channels * (kernel - 1), recurrent, _state_dtype(config))


def kimi_delta_state(config: Config) -> StateCache:
    """Kimi's delta attention: a convolution each for queries, keys and values; always float32."""
    linear = fields.part(config, "linear_attn_config") or config
    heads = fields.read_int(linear, "num_heads", "linear_num_heads")
    head_dim = fields.read_int(linear, "head_dim", "linear_head_dim")
    kernel = fields.read_int(linear, "short_conv_kernel_size", "linear_conv_kernel_dim", default=4)
    return StateCache(3 * heads * head_dim * (kernel - 1), heads * head_dim * head_dim)


def lightning_state(config: Config) -> StateCache:
    """Lightning attention: a matrix of head size squared for each of the queries' heads."""
    heads, head_dim = fields.num_heads(config), fields.head_dim(config)
    return StateCache(recurrent_elements=heads * head_dim * head_dim)


def _inner_size(config: Config) -> int:
    stated = fields.read_count(config, "mamba_d_ssm", 0) or fields.read_count(
        config, "mamba_intermediate_size", 0
    )
    expand = fields.read_int(config, "mamba_expand", "expand", default=2)
    return stated or expand * fields.hidden_size(config)


def _state_dtype(config: Config) -> str:
    """What the recurrent part is kept in: as the configuration says, else float32.

    A state is summed up over the whole sequence; engines keep it in float32 unless told otherwise.
    """
    stated = config.get("mamba_ssm_dtype") or config.get("mamba_ssm_cache_dtype")
    return fields.model_dtype({"dtype": stated}) if stated is not None else "f32"


def state_layer(state: StateCache) -> Maker:
    """Layers that keep a state and nothing else."""
    return lambda index: LayerCache(LayerKind.STATE, state=state)


def beside(maker: Maker, state: StateCache) -> Maker:
    """Layers that keep a state and, beside it, what ``maker`` says."""
    return lambda index: replace(maker(index), state=state)


def states_only(state_of: Callable[[Config], StateCache]) -> Family:
    """All layers keep a state and nothing else."""

    def family(config: Config) -> Layers:
        layer = LayerCache(LayerKind.STATE, state=state_of(config))
        return (layer,) * fields.num_layers(config)

    return family


def _hybrid(config: Config, state: StateCache, pattern: Pattern) -> Layers:
    """Attention in some layers, a state in others, both in those called ``hybrid``.

    ``layers_block_type`` is another name for ``layer_types``.
    """
    makers = {
        **attention_makers(config),
        "linear_attention": state_layer(state),
        "hybrid": beside(full(config), state),
    }
    listed = config.get("layer_types") or config.get("layers_block_type")
    return by_types({**config, "layer_types": listed}, makers, pattern)


def jamba(config: Config) -> Layers:
    """Attention every ``attn_layer_period`` layers from ``attn_layer_offset``; else Mamba 1."""
    period = fields.read_int(config, "attn_layer_period", default=8)
    offset = fields.read_count(config, "attn_layer_offset", 4)
    return _hybrid(
        config,
        mamba1_state(config),
        lambda index: "full_attention" if index % period == offset else "linear_attention",
    )


def bamba(config: Config) -> Layers:
    """Attention in the layers of ``attn_layer_indices``; else Mamba 2."""
    attention = set(fields.indices(config, "attn_layer_indices"))
    return _hybrid(
        config,
        mamba2_state(config),
        lambda index: "full_attention" if index in attention else "linear_attention",
    )


def granite4(config: Config) -> Layers:
    """By ``layer_types``; without it all Mamba 2. Its smallest models are all attention."""
    listed = fields.layer_types(config) or fields.per_layer(config, "layers_block_type")
    if listed is not None and not {"mamba", "linear_attention"} & set(map(str, listed)):
        return _hybrid(config, StateCache(), lambda index: "full_attention")
    return _hybrid(config, mamba2_state(config), lambda index: "linear_attention")


def falcon_h1(config: Config) -> Layers:
    """Attention and Mamba 2 side by side in every layer."""
    return _hybrid(config, mamba2_state(config), lambda index: "hybrid")


_NEMOTRON_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "none", "E": "none"}


def nemotron_h(config: Config) -> Layers:
    """``layers_block_type``, or in ``hybrid_override_pattern`` a letter a layer.

    M is Mamba 2, * attention, - and E are feed-forward layers.
    """
    listed = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(listed, list):
        config = {**config, "num_hidden_layers": len(listed), "layer_types": listed}
        return _hybrid(config, mamba2_state(config), lambda index: "none")
    pattern = config.get("hybrid_override_pattern")
    if not isinstance(pattern, str):
        raise ModelError(
            "the model's configuration lacks hybrid_override_pattern or layers_block_type"
        )
    letters = pattern.replace("|", "")
    if not letters or set(letters) - _NEMOTRON_LETTERS.keys():
        raise ModelError(
            "the model's configuration: hybrid_override_pattern is written in M, *, - and E"
        )
    config = {**config, "num_hidden_layers": len(letters), "layer_types": None}
    return _hybrid(config, mamba2_state(config), lambda index: _NEMOTRON_LETTERS[letters[index]])


def zamba(config: Config) -> Layers:
    """Mamba 1 everywhere; beside it, shared attention in the third layer and then periodically."""
    period = fields.read_int(config, "attn_layer_period", default=6)
    offset = fields.read_count(config, "attn_layer_offset", 4)

    def name(index: int) -> str:
        attends = index == 2 or (index > 2 and (index - 3) % period == offset)
        return "hybrid" if attends else "linear_attention"

    return _zamba(config, mamba1_state(config), name)


# The layers of the 2.7B model.
_ZAMBA2_HYBRIDS = [6, 12, 18, 24, 30, 36, 42, 47, 51]


def zamba2(config: Config) -> Layers:
    """Mamba 2 everywhere; beside it, shared attention in the layers of ``hybrid_layer_ids``."""
    hybrids = set(fields.indices(config, "hybrid_layer_ids") or _ZAMBA2_HYBRIDS)
    return _zamba(
        config,
        mamba2_state(config),
        lambda index: "hybrid" if index in hybrids else "linear_attention",
    )


def _zamba(config: Config, state: StateCache, pattern: Pattern) -> Layers:
    """Attention works on twice the width. Its weights are shared between layers, its caches not."""
    if config.get("attention_head_dim") is None:
        heads = fields.num_heads(config)
        config = {**config, "attention_head_dim": 2 * fields.hidden_size(config) // heads}
    return _hybrid({**config, "kv_channels": None}, state, pattern)


def gated_delta(config: Config) -> Layers:
    """Every ``full_attention_interval``-th layer is attention, the others the gated delta rule."""
    period = fields.read_int(config, "full_attention_interval", default=4)
    return _hybrid(
        config,
        gated_delta_state(config),
        lambda index: "linear_attention" if (index + 1) % period else "full_attention",
    )


def qwen4(config: Config) -> Layers:
    """As Qwen 3.5, and attention layers keep their indexer's keys too where they have one."""
    makes = full(config)
    elements = fields.read_count(config, "indexer_head_dim", 0)
    elements *= fields.read_int(config, "indexer_kv_heads", default=1)
    ratio = fields.read_int(config, "indexer_compress_ratio", default=1)
    indexer = Entries(elements, ratio) if elements else None

    def indexed(index: int) -> LayerCache:
        return replace(makes(index), indexer=indexer)

    period = fields.read_int(config, "full_attention_interval", default=4)
    makers = {
        "linear_attention": state_layer(gated_delta_state(config)),
        "full_attention": indexed,
        "indexed_attention": indexed,
    }
    return by_types(
        config,
        makers,
        lambda index: "linear_attention" if (index + 1) % period else "full_attention",
    )


def kimi_linear(config: Config) -> Layers:
    """Latent attention in the layers of ``full_attn_layers``, counted from one; else delta."""
    linear = fields.part(config, "linear_attn_config")
    attention = {index - 1 for index in fields.indices(linear, "full_attn_layers")}
    if not attention:
        attention = set(range(4, fields.num_layers(config), 4))
    return _latent_hybrid(
        config,
        kimi_delta_state(config),
        lambda index: "full_attention" if index in attention else "linear_attention",
    )


def _latent_hybrid(config: Config, state: StateCache, pattern: Pattern) -> Layers:
    makers: dict[str, Maker] = {
        "full_attention": lambda index: latent_layer(config),
        "linear_attention": state_layer(state),
    }
    return by_types(config, makers, pattern)


def minimax(config: Config) -> Layers:
    """Lightning attention, with the queries' heads; attention where ``attn_type_list`` is 1."""
    attention = fields.flags(config, "attn_type_list")

    def name(index: int) -> str:
        is_full = attention[index] if attention else index % 2 == 0
        return "full_attention" if is_full else "linear_attention"

    return _hybrid(config, lightning_state(config), name)


def lfm2(config: Config) -> Layers:
    """Short convolutions of ``conv_L_cache`` taps, and attention by ``full_attn_idxs``."""
    kernel = fields.read_int(config, "conv_L_cache", default=3)
    channels = fields.read_int(config, "conv_dim", default=fields.hidden_size(config))
    conv = state_layer(StateCache(channels * (kernel - 1)))
    everywhere = config.get("full_attn_idxs") is None
    attention = set(fields.indices(config, "full_attn_idxs"))
    return by_types(
        config,
        {**attention_makers(config), "conv": conv},
        lambda index: "full_attention" if everywhere or index in attention else "conv",
    )


def recurrent_gemma(config: Config) -> Layers:
    """``block_types`` repeats: a gated recurrence, or attention with a window."""
    width = fields.read_int(config, "lru_width", default=fields.hidden_size(config))
    kernel = fields.read_int(config, "conv1d_width", default=4)
    blocks = config.get("block_types") or ["recurrent", "recurrent", "attention"]
    if not isinstance(blocks, list | tuple):
        raise ModelError("the model's configuration: block_types is not a list")
    window_tokens = fields.read_int(config, "attention_window_size", default=2048)
    # There its name for attention is that of full attention elsewhere.
    config = {**config, "layers_block_type": None, "sliding_window": window_tokens}
    return _hybrid(
        config,
        StateCache(width * (kernel - 1), width),
        lambda index: (
            "sliding_attention"
            if blocks[index % len(blocks)] == "attention"
            else "linear_attention"
        ),
    )


STATES: dict[str, Family] = {
    "bamba": bamba,
    "falcon_h1": falcon_h1,
    "falcon_mamba": states_only(mamba1_state),
    "granitemoehybrid": granite4,
    "jamba": jamba,
    "kimi_linear": kimi_linear,
    "lfm2": lfm2,
    "lfm2_moe": lfm2,
    "lfm3": lfm2,
    "mamba": states_only(mamba1_state),
    "mamba2": states_only(mamba2_state),
    "minimax": minimax,
    "minimax_m1": minimax,
    "minimax_text_01": minimax,
    "nemotron_h": nemotron_h,
    "olmo_hybrid": gated_delta,
    "qwen3_5_moe_text": gated_delta,
    "qwen3_5_text": gated_delta,
    "qwen3_next": gated_delta,
    "qwen4_exp_text": qwen4,
    "recurrent_gemma": recurrent_gemma,
    "zamba": zamba,
    "zamba2": zamba2,
}
