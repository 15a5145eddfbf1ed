"""What a GGUF file says of its layers' caches, in the words of ``config.json``.

llama.cpp names the numbers of all architectures alike; published configurations do not. A number of
KV heads a layer, zero where there is no attention, stands for most lists of kinds of layers.
Names: ``gguf.constants`` of llama.cpp's Python package.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Config = dict[str, Any]

# The architectures whose families are called something else, in the form that is one stack.
MODEL_TYPES = {
    "arwkv7": "rwkv7",
    "bailingmoe": "bailing_moe",
    "bailingmoe2": "bailing_moe_v2",
    "command-r": "cohere",
    "deepseek2": "deepseek_v2",
    "deepseek2-ocr": "deepseek",
    "ernie4_5-moe": "ernie4_5_moe",
    "exaone-moe": "exaone_moe",
    "falcon-h1": "falcon_h1",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "glm-dsa": "glm_moe_dsa",
    "glm4moe": "glm4_moe",
    "gpt-oss": "gpt_oss",
    "gptneox": "gpt_neox",
    "granitehybrid": "granitemoehybrid",
    "hunyuan-dense": "hunyuan_v1_dense",
    "hunyuan-moe": "hunyuan_v1_moe",
    "hunyuan_vl": "hunyuan_vl_text",
    "kimi-linear": "kimi_linear",
    "lfm2moe": "lfm2_moe",
    "llama4": "llama4_text",
    "mimo2": "mimo_v2_flash",
    "minimax-m2": "minimax_m2",
    "mistral3": "ministral3",
    "nemotron_h_moe": "nemotron_h",
    "paddleocr": "paddleocr_vl_text",
    "phi2": "phi",
    "qwen2moe": "qwen2_moe",
    "qwen2vl": "qwen2_vl",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "qwen3vl": "qwen3_vl_text",
    "qwen3vlmoe": "qwen3_vl_moe_text",
    "starcoder": "gpt_bigcode",
    "step35": "step3p5",
}

# Keys under "<architecture>." that mean the same wherever they occur.
_KEYS = {
    "attention.indexer.head_count": "index_n_heads",
    "attention.indexer.key_length": "index_head_dim",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "full_attention_interval": "full_attention_interval",
    "shortconv.l_cache": "conv_L_cache",
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.group_count": "mamba_n_groups",
    "ssm.inner_size": "mamba_d_ssm",
    "ssm.state_size": "mamba_d_state",
    "token_shift_count": "token_shift_count",
    "wkv.head_size": "head_size",
}

Metadata = Mapping[str, Any]


def add_shape_keys(config: Config, architecture: str, metadata: Metadata) -> None:
    """Add to ``config`` what ``metadata`` says of the layers' caches, and name its family.

    ``config`` has what all architectures state alike.
    """

    def stated(key: str) -> Any:
        value = metadata.get(f"{architecture}.{key}")
        return value.tolist() if isinstance(value, np.ndarray) else value

    config["model_type"] = MODEL_TYPES.get(architecture, config["model_type"])
    for gguf_key, config_key in _KEYS.items():
        if (value := stated(gguf_key)) is not None:
            config[config_key] = int(value) if isinstance(value, float) else value
    drafts, layers = stated("nextn_predict_layers"), config.get("num_hidden_layers")
    if isinstance(drafts, int) and isinstance(layers, int) and drafts:
        # They are counted as blocks, but keep nothing unless one speculates.
        config["num_hidden_layers"] = layers - drafts
        config["num_nextn_predict_layers"] = drafts
        _shorten_lists(config, layers - drafts)
    if "kv_lora_rank" in config:
        config["qk_rope_head_dim"] = stated("rope.dimension_count")
    _add_windows(config, stated("attention.sliding_window_pattern"))
    if architecture in _RULES:
        _RULES[architecture](config, stated)


Stated = Callable[[str], Any]


def _shorten_lists(config: Config, layers: int) -> None:
    for name in ("num_attention_heads", "num_key_value_heads"):
        if isinstance(config.get(name), list):
            config[name] = config[name][:layers]


def _add_windows(config: Config, pattern: object) -> None:
    """The pattern is a truth value a layer, true where it slides, or the length of a period."""
    if isinstance(pattern, list):
        names = ("full_attention", "sliding_attention")
        layers = config.get("num_hidden_layers")
        config["layer_types"] = [names[bool(slides)] for slides in pattern[:layers]]
    elif pattern is not None:
        config["sliding_window_pattern"] = pattern


def _has_attention(config: Config) -> list[bool] | None:
    """By the KV heads of each layer; None where all have the same."""
    heads = config.get("num_key_value_heads")
    return [bool(count) for count in heads] if isinstance(heads, list) else None


def _types_by_heads(otherwise: str) -> Callable[[Config, Stated], None]:
    """Full attention where a layer has KV heads, and ``otherwise`` where it has none."""

    def rule(config: Config, stated: Stated) -> None:
        attention = _has_attention(config)
        if attention is not None:
            config["layer_types"] = [
                "full_attention" if attends else otherwise for attends in attention
            ]

    return rule


def _heads_in(*names: str) -> Callable[[Config, Stated], None]:
    """The KV heads under the name that the family reads them by."""

    def rule(config: Config, stated: Stated) -> None:
        for name in names:
            config[name] = config.get("num_key_value_heads")

    return rule


def _falcon(config: Config, stated: Stated) -> None:
    config |= {"new_decoder_architecture": True, "num_kv_heads": config.get("num_key_value_heads")}


def _gpt_bigcode(config: Config, stated: Stated) -> None:
    config["multi_query"] = config.get("num_key_value_heads") == 1


def _attn_config(config: Config, stated: Stated) -> None:
    config["attn_config"] = {"kv_n_heads": config.get("num_key_value_heads")}


def _chatglm(config: Config, stated: Stated) -> None:
    heads = config.get("num_key_value_heads")
    config |= {"multi_query_attention": True, "multi_query_group_num": heads}


def _openelm(config: Config, stated: Stated) -> None:
    config["num_query_heads"] = config.get("num_attention_heads")


def _llama4(config: Config, stated: Stated) -> None:
    # The format does not state the chunk; all published models have this one.
    config["attention_chunk_size"] = config.pop("sliding_window", 8192)


def _gemma4(config: Config, stated: Stated) -> None:
    config["global_head_dim"] = config.get("head_dim")
    if (size := stated("attention.key_length_swa")) is not None:
        config["head_dim"] = size


def _mimo2(config: Config, stated: Stated) -> None:
    config["v_head_dim"] = stated("attention.value_length")
    config["swa_head_dim"] = stated("attention.key_length_swa") or config.get("head_dim")
    config["swa_v_head_dim"] = stated("attention.value_length_swa") or config["v_head_dim"]
    heads, types = config.get("num_key_value_heads"), config.get("layer_types")
    if isinstance(heads, list) and isinstance(types, list) and "sliding_attention" in types:
        config["swa_num_key_value_heads"] = heads[types.index("sliding_attention")]


def _gated_delta(config: Config, stated: Stated) -> None:
    heads, inner = stated("ssm.time_step_rank"), stated("ssm.inner_size")
    config |= {
        "linear_num_key_heads": stated("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": stated("ssm.state_size"),
        "linear_conv_kernel_dim": stated("ssm.conv_kernel"),
    }
    if isinstance(heads, int) and heads > 0 and isinstance(inner, int):
        config["linear_value_head_dim"] = inner // heads
    _types_by_heads("linear_attention")(config, stated)


def _kimi_linear(config: Config, stated: Stated) -> None:
    config["linear_attn_config"] = {
        "num_heads": config.get("num_attention_heads"),
        "head_dim": stated("kda.head_dim"),
        "short_conv_kernel_size": stated("ssm.conv_kernel"),
    }
    _types_by_heads("linear_attention")(config, stated)


def _nemotron_h(config: Config, stated: Stated) -> None:
    """Neither heads nor a feed-forward part is a state."""
    attention, widths = _has_attention(config), config.get("intermediate_size")
    if attention is None or not isinstance(widths, list):
        return
    config["layers_block_type"] = [
        "full_attention" if attends else "mlp" if width else "linear_attention"
        for attends, width in zip(attention, widths, strict=False)
    ]


def _plamo2(config: Config, stated: Stated) -> None:
    config |= {
        "hidden_size_per_head": stated("attention.key_length"),
        "mamba_num_heads": stated("ssm.time_step_rank"),
    }


def _t5(config: Config, stated: Stated) -> None:
    config |= {
        "num_heads": config.get("num_attention_heads"),
        "num_decoder_layers": stated("decoder_block_count") or config.get("num_hidden_layers"),
        "d_kv": config.get("head_dim"),
        "n_positions": config.get("max_position_embeddings"),
    }


_RULES: dict[str, Callable[[Config, Stated], None]] = {
    "chatglm": _chatglm,
    "dbrx": _attn_config,
    "deci": _heads_in("num_key_value_heads_per_layer"),
    "falcon": _falcon,
    "gemma4": _gemma4,
    "granitehybrid": _types_by_heads("linear_attention"),
    "jamba": _types_by_heads("linear_attention"),
    "kimi-linear": _kimi_linear,
    "lfm2": _types_by_heads("conv"),
    "lfm2moe": _types_by_heads("conv"),
    "llama4": _llama4,
    "mimo2": _mimo2,
    "mpt": _attn_config,
    "nemotron_h": _nemotron_h,
    "nemotron_h_moe": _nemotron_h,
    "openelm": _openelm,
    "plamo2": _plamo2,
    "qwen35": _gated_delta,
    "qwen35moe": _gated_delta,
    "qwen3next": _gated_delta,
    "starcoder": _gpt_bigcode,
    "t5": _t5,
}
