"""Layers that keep only the last tokens, alone or between layers that see everything.

Elements per token and layer as elsewhere; a layer of window W holds min(T, W) of T tokens.
"""

from collections.abc import Callable
from dataclasses import replace

from kvikk.errors import ModelError
from kvikk.shapes import config as fields
from kvikk.shapes.config import Config
from kvikk.shapes.families.layers import (
    Family,
    Layers,
    Maker,
    attention_makers,
    by_types,
    full,
    kv_layer,
    sliding,
)
from kvikk.shapes.shape import LayerCache, LayerKind


def every_layer(config: Config) -> Layers:
    """A window on all layers if ``sliding_window`` is set (Mistral 7B v0.1, Phi 3)."""
    kind = "full_attention" if config.get("sliding_window") is None else "sliding_attention"
    return by_types(config, attention_makers(config), lambda index: kind)


def from_max_window_layers_up(config: Config) -> Layers:
    """Qwen 2: if ``use_sliding_window``, the layers from ``max_window_layers`` up slide."""
    slides = config.get("use_sliding_window") is True and config.get("sliding_window") is not None
    first = fields.num_layers(config)
    if slides:
        first = fields.read_count(config, "max_window_layers", default=28)
    return by_types(
        config,
        attention_makers(config),
        lambda index: "sliding_attention" if slides and index >= first else "full_attention",
    )


def as_listed(config: Config) -> Layers:
    """Families whose files list ``layer_types``; without that, and with a window, nobody can say.

    Raises ModelError then.
    """
    if config.get("layer_types") is None and config.get("sliding_window") is not None:
        raise ModelError("the model's configuration has a sliding_window but lacks layer_types")
    return by_types(config, attention_makers(config), lambda index: "full_attention")


def full_every(default: int, *names: str) -> Family:
    """Every nth layer sees everything, n from the first of ``names`` that is set; others slide."""

    def family(config: Config) -> Layers:
        period = fields.read_int(config, *names, default=default) if names else default
        return by_types(config, attention_makers(config), _last_of(period))

    return family


def _last_of(period: int) -> Callable[[int], str]:
    return lambda index: "sliding_attention" if (index + 1) % period else "full_attention"


def plamo3(config: Config) -> Layers:
    """Seven sliding layers to a full one, or a window a layer where they are listed.

    The list is called ``sliding_window`` too; a layer that has none in it sees everything.
    """
    listed = config.get("interleaved_sliding_window") or config.get("sliding_window")
    if not isinstance(listed, list):
        return full_every(8, "sliding_window_pattern")(config)
    windows = fields.per_layer({**config, "windows": listed}, "windows") or []
    layers = [
        full(config)(index)
        if tokens is None
        else sliding({**config, "sliding_window": tokens})(index)
        for index, tokens in enumerate(windows)
    ]
    return tuple(layers)


def cwm(config: Config) -> Layers:
    """The first of every four layers sees everything; the others slide."""
    return by_types(
        config,
        attention_makers(config),
        lambda index: "sliding_attention" if index % 4 else "full_attention",
    )


def exaone4(config: Config) -> Layers:
    """A pattern such as ``LLLG``, or its length; without a window all layers see everything."""
    if config.get("sliding_window") is None:
        return by_types(config, attention_makers(config), lambda index: "full_attention")
    stated = config.get("sliding_window_pattern")
    pattern = stated if isinstance(stated, str) and stated else None
    if pattern is None:
        period = fields.read_int(config, "sliding_window_pattern", default=4)
        pattern = "L" * (period - 1) + "G"
    last = fields.num_layers(config) - 1

    def name(index: int) -> str:
        slides = pattern[index % len(pattern)] == "L" and index != last
        return "sliding_attention" if slides else "full_attention"

    return by_types(config, attention_makers(config), name)


def smollm3(config: Config) -> Layers:
    """If ``use_sliding_window``, the layers that do not rotate positions slide."""
    slides = config.get("use_sliding_window") is True and config.get("sliding_window") is not None
    rotates = fields.flags(config, "no_rope_layers") or _rotating(config, 4)
    return by_types(
        config,
        attention_makers(config),
        lambda index: "sliding_attention" if slides and not rotates[index] else "full_attention",
    )


def llama4(config: Config) -> Layers:
    """Layers that rotate positions see their chunk; every fourth does not and sees everything."""
    rotates = fields.flags(config, "no_rope_layers") or _rotating(config, 4)
    chunks = config.get("attention_chunk_size") is not None
    return by_types(
        config,
        attention_makers(config),
        lambda index: "chunked_attention" if chunks and rotates[index] else "full_attention",
    )


def _rotating(config: Config, default_period: int) -> list[bool]:
    period = fields.read_int(config, "no_rope_layer_interval", default=default_period)
    return [(index + 1) % period != 0 for index in range(fields.num_layers(config))]


def gemma3n(config: Config) -> Layers:
    """Four sliding layers to a full one; the last ``num_kv_shared_layers`` reuse earlier caches."""
    return _share_last(full_every(5)(config), fields.read_count(config, "num_kv_shared_layers", 15))


def gemma4(config: Config) -> Layers:
    """As Gemma 3n, and full layers have heads of their own size, and number where K equals V.

    Both keys and values are stored even where they are the same projection.
    """
    global_heads = None
    if config.get("attention_k_eq_v") is True:
        global_heads = config.get("num_global_key_value_heads")
    of_full = {**config}
    if global_heads is not None:
        of_full["num_key_value_heads"] = global_heads
    if config.get("global_head_dim") is not None:
        of_full["head_dim"] = config["global_head_dim"]
    makers = {**attention_makers(config), "full_attention": full(of_full)}
    layers = by_types(config, makers, _last_of(6))
    return _share_last(layers, fields.read_count(config, "num_kv_shared_layers", 0))


def _share_last(layers: Layers, shared: int) -> Layers:
    """The last ``shared`` layers read the cache of the last layer before them of their own kind."""
    own = len(layers) - shared
    sources = {layer.kind: index for index, layer in enumerate(layers[: max(own, 0)])}
    return tuple(
        replace(layer, shares_with=sources.get(layer.kind, 0)) if index >= own else layer
        for index, layer in enumerate(layers)
    )


def mimo_v2(config: Config) -> Layers:
    """``hybrid_layer_pattern`` 1 slides; both kinds have heads and head sizes of their own."""
    slides = fields.flags(config, "hybrid_layer_pattern")
    if slides is None:
        slides = [index > 0 and (index + 1) % 6 > 0 for index in range(fields.num_layers(config))]

    return by_types(
        config,
        {"full_attention": _mimo_full(config), "sliding_attention": _mimo_sliding(config)},
        lambda index: "sliding_attention" if slides[index] else "full_attention",
    )


def step3(config: Config) -> Layers:
    """Step 3.5 and 3.7: as ``layer_types`` lists, sliding layers with heads of their own number."""
    other = fields.part(config, "attention_other_setting")
    own = {name: other.get(name) for name in ("num_attention_heads", "num_attention_groups")}
    own = {name: value for name, value in own.items() if value is not None}
    if "num_attention_groups" in own:
        own["num_key_value_heads"] = own["num_attention_groups"]
    makers = {**attention_makers(config), "sliding_attention": sliding({**config, **own})}
    return by_types(config, makers, lambda index: "full_attention")


def _mimo_full(config: Config) -> Maker:
    head_dim = fields.head_dim(config)
    value_dim = fields.read_int(config, "v_head_dim", default=head_dim)
    return lambda index: kv_layer(fields.num_kv_heads(config, index), head_dim, value_dim)


def _mimo_sliding(config: Config) -> Maker:
    def make(index: int) -> LayerCache:
        heads = fields.read_int(config, "swa_num_key_value_heads", default=8)
        head_dim = fields.read_int(config, "swa_head_dim", "head_dim")
        value_dim = fields.read_int(config, "swa_v_head_dim", "v_head_dim", default=head_dim)
        window_tokens = fields.read_int(config, "sliding_window", "sliding_window_size")
        return kv_layer(heads, head_dim, value_dim, LayerKind.SLIDING, window_tokens)

    return make


# fmt: off
_EVERY_LAYER = (
    "ministral", "mistral", "mixtral", "moshi", "phi3", "phi3_v", "phi4mm", "phimoe", "starcoder2",
    "voxtral_realtime_text",
)
_QWEN = (
    "dots_ocr", "dream", "mimo", "minicpmo", "minicpmv", "qwen2", "qwen2_5_omni_text",
    "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen3",
    "qwen3_moe", "qwen3_omni_moe_text",
)
_LISTED = (
    "beam", "flint", "granite_swa", "granitemoe_swa", "kolibri1", "laguna", "mellum",
    "modernbert-decoder", "muse_glimmer_text", "muse_spark_text",
)
# fmt: on

WINDOWS: dict[str, Family] = {
    **dict.fromkeys(_LISTED, as_listed),
    **dict.fromkeys(_EVERY_LAYER, every_layer),
    **dict.fromkeys(_QWEN, from_max_window_layers_up),
    "afmoe": full_every(4, "global_attn_every_n_layers"),
    "cohere2": full_every(4, "sliding_window_pattern", "_sliding_window_pattern"),
    "cohere2_moe": full_every(4, "sliding_window_pattern", "_sliding_window_pattern"),
    "cwm": cwm,
    "exaone4": exaone4,
    "exaone_moe": exaone4,
    "gemma2": full_every(2),
    "gemma3_text": full_every(6, "sliding_window_pattern", "_sliding_window_pattern"),
    "gemma3n_text": gemma3n,
    "gemma4_text": gemma4,
    "gemma4_unified_text": gemma4,
    "gpt_oss": full_every(2),
    "llama4_text": llama4,
    "mimo_v2_flash": mimo_v2,
    "olmo3": full_every(4),
    "plamo3": plamo3,
    "smollm3": smollm3,
    "step3p5": step3,
    "step3p7": step3,
    "vaultgemma": full_every(2),
}
