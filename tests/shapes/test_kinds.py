"""Kinds of cache that no configuration at hand has: published models' keys, derived by hand."""

from typing import Any, NamedTuple

import pytest

from kvikk.shapes.cost import cache_cost
from kvikk.shapes.families import read_shape

T = 32_768


class Kind(NamedTuple):
    """A model's keys, and its bytes a token, fixed bytes, and the tokens that windows hold."""

    keys: dict[str, Any]
    growing: int
    fixed: int = 0
    windows: int = 0


def heads(layers: int, kv_heads: int, head_dim: int) -> int:
    """Bytes a token of so many layers of keys and values in bf16."""
    return layers * 2 * kv_heads * head_dim * 2


KINDS = {
    "Jamba v0.1": Kind(
        {"model_type": "jamba", "num_hidden_layers": 32, "hidden_size": 4096}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "attn_layer_period": 8}
        | {"attn_layer_offset": 4, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2},
        heads(4, 8, 128),
        28 * 8192 * (3 * 2 + 16 * 4),
    ),
    "Zamba2 2.7B": Kind(
        {"model_type": "zamba2", "num_hidden_layers": 54, "hidden_size": 2560}
        | {"num_attention_heads": 32, "num_key_value_heads": 32, "n_mamba_heads": 80}
        | {"mamba_d_conv": 4, "mamba_d_state": 64, "mamba_ngroups": 1, "mamba_expand": 2}
        | {"hybrid_layer_ids": [6, 12, 18, 24, 30, 36, 42, 47, 51], "kv_channels": 80},
        heads(9, 32, 160),
        54 * ((5120 + 2 * 64) * 3 * 2 + 5120 * 64 * 4),
    ),
    "Bamba 9B": Kind(
        {"model_type": "bamba", "num_hidden_layers": 32, "hidden_size": 4096}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "attn_layer_indices": [9, 18, 27]}
        | {"mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1},
        heads(3, 8, 128),
        29 * ((8192 + 2 * 128) * 3 * 2 + 8192 * 128 * 4),
    ),
    "Granite 4.0 H Small": Kind(
        {"model_type": "granitemoehybrid", "num_hidden_layers": 40, "hidden_size": 4096}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "mamba_n_heads": 128}
        | {"mamba_d_head": "auto", "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_expand": 2}
        | {"layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4},
        heads(4, 8, 128),
        36 * ((8192 + 2 * 128) * 3 * 2 + 8192 * 128 * 4),
    ),
    "RecurrentGemma 2B": Kind(
        {"model_type": "recurrent_gemma", "num_hidden_layers": 26, "hidden_size": 2560}
        | {"num_attention_heads": 10, "num_key_value_heads": 1, "attention_window_size": 2048}
        | {"block_types": ["recurrent", "recurrent", "attention"], "lru_width": 2560}
        | {"conv1d_width": 4, "head_dim": 256},
        0,
        18 * 2560 * (3 * 2 + 4),
        heads(8, 1, 256) * 2048,
    ),
    "Mamba 2.8B": Kind(
        {"model_type": "mamba", "num_hidden_layers": 64, "hidden_size": 2560, "expand": 2}
        | {"state_size": 16, "conv_kernel": 4},
        0,
        64 * 5120 * (3 * 2 + 16 * 4),
    ),
    "Codestral Mamba 7B": Kind(
        {"model_type": "mamba2", "num_hidden_layers": 64, "hidden_size": 4096, "expand": 2}
        | {"num_heads": 128, "head_dim": 64, "n_groups": 8, "state_size": 128, "conv_kernel": 4},
        0,
        64 * ((8192 + 2 * 8 * 128) * 3 * 2 + 8192 * 128 * 4),
    ),
    "MiniMax Text 01": Kind(
        {"model_type": "minimax_text_01", "num_hidden_layers": 80, "hidden_size": 6144}
        | {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
        | {"attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10},
        heads(10, 8, 128),
        70 * 64 * 128 * 128 * 4,
    ),
    "Kimi Linear 48B": Kind(
        {"model_type": "kimi_linear", "num_hidden_layers": 27, "hidden_size": 2304}
        | {"num_attention_heads": 32, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
        | {
            "linear_attn_config": {
                "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
                "num_heads": 32,
                "head_dim": 128,
                "short_conv_kernel_size": 4,
            }
        },
        7 * (512 + 64) * 2,
        20 * (3 * 4096 * 3 * 2 + 32 * 128 * 128 * 4),
    ),
    "OLMo 3 7B": Kind(
        {"model_type": "olmo3", "num_hidden_layers": 32, "hidden_size": 4096}
        | {"num_attention_heads": 32, "sliding_window": 4096},
        heads(8, 32, 128),
        windows=heads(24, 32, 128) * 4096,
    ),
    "Command R7B": Kind(
        {"model_type": "cohere2", "num_hidden_layers": 32, "hidden_size": 4096, "head_dim": 128}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": 4096},
        heads(8, 8, 128),
        windows=heads(24, 8, 128) * 4096,
    ),
    "OpenELM 270M": Kind(
        {"model_type": "openelm", "num_transformer_layers": 16, "num_hidden_layers": 16}
        | {"model_dim": 1280, "head_dim": 64, "num_kv_heads": [3] * 5 + [4] * 8 + [5] * 3}
        | {"num_query_heads": [12] * 5 + [16] * 8 + [20] * 3},
        heads(1, 3 * 5 + 4 * 8 + 5 * 3, 64),
    ),
    "ChatGLM 3 6B": Kind(
        {"model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "kv_channels": 128}
        | {"num_attention_heads": 32, "multi_query_attention": True, "multi_query_group_num": 2},
        heads(28, 2, 128),
    ),
    "Falcon 7B": Kind(
        {"model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544}
        | {"num_attention_heads": 71, "multi_query": True, "num_kv_heads": 71},
        heads(32, 1, 64),
    ),
    "Falcon 40B": Kind(
        {"model_type": "falcon", "num_hidden_layers": 60, "hidden_size": 8192, "num_kv_heads": 8}
        | {"num_attention_heads": 128, "multi_query": True, "new_decoder_architecture": True},
        heads(60, 8, 64),
    ),
    "LongCat Flash": Kind(
        {"model_type": "longcat_flash", "num_layers": 28, "hidden_size": 6144}
        | {"num_attention_heads": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
        2 * 28 * (512 + 64) * 2,
    ),
    "Whisper large v3": Kind(
        {"model_type": "whisper", "decoder_layers": 32, "d_model": 1280}
        | {"decoder_attention_heads": 20, "max_source_positions": 1500},
        heads(32, 20, 64),
        heads(32, 20, 64) * 1500,
    ),
    "DeepSeek VL 2 tiny": Kind(
        {"model_type": "deepseek_vl_v2"}
        | {
            "language_config": {
                "model_type": "deepseek_v2",
                "use_mla": False,
                "kv_lora_rank": None,
                "num_hidden_layers": 12,
                "hidden_size": 1280,
                "num_attention_heads": 10,
                "num_key_value_heads": 10,
            }
        },
        heads(12, 10, 128),
    ),
    "Qwen 2.5 Omni 7B": Kind(
        {"model_type": "qwen2_5_omni", "talker_config": {"num_hidden_layers": 24}}
        | {
            "thinker_config": {
                "model_type": "qwen2_5_omni_thinker",
                "text_config": {
                    "model_type": "qwen2_5_omni_text",
                    "num_hidden_layers": 28,
                    "hidden_size": 3584,
                    "num_attention_heads": 28,
                    "num_key_value_heads": 4,
                },
            }
        },
        heads(28, 4, 128),
    ),
    "LLaVA 1.5 7B, whose part leaves out what Llama's class says": Kind(
        {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32_064}},
        heads(32, 32, 128),
    ),
    "an EAGLE 3 draft of one layer": Kind(
        {
            "speculators_model_type": "eagle3",
            "transformer_layer_config": {
                "model_type": "llama",
                "num_hidden_layers": 1,
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
            },
        },
        heads(1, 8, 128),
    ),
    "Qwen 2 72B with its window in use": Kind(
        {"model_type": "qwen2", "num_hidden_layers": 80, "hidden_size": 8192}
        | {"num_attention_heads": 64, "num_key_value_heads": 8, "use_sliding_window": True}
        | {"sliding_window": 4096, "max_window_layers": 70},
        heads(70, 8, 128),
        windows=heads(10, 8, 128) * 4096,
    ),
    "Step 3.5, whose sliding layers have heads of their own": Kind(
        {"model_type": "step3p5", "num_hidden_layers": 4, "hidden_size": 4096, "head_dim": 128}
        | {"num_attention_heads": 64, "num_attention_groups": 8, "sliding_window": 512}
        | {"attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 16}}
        | {"layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"]}
        | {"num_nextn_predict_layers": 1},
        heads(1, 8, 128),
        windows=heads(3, 16, 128) * 512,
    ),
    "RWKV 6 7B": Kind(
        {"model_type": "rwkv6", "num_hidden_layers": 32, "hidden_size": 4096, "head_size": 64}
        | {"attention_hidden_size": 4096, "num_attention_heads": 64, "context_length": 4096},
        0,
        32 * (2 * 4096 * 2 + 64 * 64 * 64 * 4),
    ),
    "xLSTM 7B": Kind(
        {"model_type": "xlstm", "num_blocks": 32, "embedding_dim": 4096, "num_heads": 8}
        | {"qk_dim_factor": 0.5, "v_dim_factor": 1.0},
        0,
        32 * (8 * 256 * 512 + 8 * 256 + 8) * 4,
    ),
    "PLaMo 2 8B": Kind(
        {"model_type": "plamo2", "num_hidden_layers": 32, "hidden_size": 4096}
        | {"num_attention_heads": 32, "num_key_value_heads": 4, "hidden_size_per_head": 128}
        | {"mamba_num_heads": 64, "mamba_d_state": 64, "mamba_d_conv": 4, "mamba_step": 2}
        | {"attention_window_size": 2048, "full_attention_idx": [31]},
        heads(1, 4, 128),
        16 * 8192 * (3 * 2 + 64 * 4),
        heads(15, 4, 128) * 2048,
    ),
    "PLaMo 3, its windows listed": Kind(
        {"model_type": "plamo3", "num_hidden_layers": 16, "hidden_size": 2048, "head_dim": 128}
        | {"num_attention_heads": 16, "num_key_value_heads": 2}
        | {"sliding_window": ([2048] * 7 + [None]) * 2},
        heads(2, 2, 128),
        windows=heads(14, 2, 128) * 2048,
    ),
    "Ring mini linear 2.0": Kind(
        {"model_type": "bailing_moe_linear", "num_hidden_layers": 20, "hidden_size": 2048}
        | {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128}
        | {"layer_group_size": 5, "group_norm_size": 4, "linear_silu": False},
        heads(4, 4, 128),
        16 * 16 * 128 * 128 * 4,
    ),
    "Ring 2.5, lightning attention between latents": Kind(
        {"model_type": "bailing_hybrid", "num_hidden_layers": 80, "hidden_size": 8192}
        | {"num_attention_heads": 64, "head_dim": 128, "kv_lora_rank": 512}
        | {"qk_rope_head_dim": 64, "layer_group_size": 8, "linear_silu": True},
        10 * (512 + 64) * 2,
        70 * 64 * 128 * 128 * 4,
    ),
    "Hymba 1.5B, neighbours sharing a cache": Kind(
        {"model_type": "hymba", "num_hidden_layers": 5, "hidden_size": 1600}
        | {"num_attention_heads": 25, "num_key_value_heads": 5, "sliding_window": 1024}
        | {"global_attn_idx": [0, 4], "kv_reuse_group": [[1, 2, 3]], "mamba_d_state": 16},
        heads(2, 5, 64),
        5 * 3200 * (3 * 2 + 16 * 4),
        heads(1, 5, 64) * 1024,
    ),
    "ZAYA 1 8B, keys and queries convolved": Kind(
        {"model_type": "zaya", "num_hidden_layers": 40, "hidden_size": 2048}
        | {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128},
        heads(40, 2, 128),
        40 * ((8 + 2) * 128 * 2 + 128) * 2,
    ),
    "Hunyuan Large, two layers to a cache": Kind(
        {"model_type": "hunyuan", "num_hidden_layers": 64, "hidden_size": 6400}
        | {"num_attention_heads": 80, "num_key_value_heads": 8}
        | {"use_cla": True, "cla_share_factor": 2},
        heads(32, 8, 80),
    ),
    "T5Gemma 2B, a windowed decoder beside its encoder": Kind(
        {"model_type": "t5gemma", "encoder": {"model_type": "t5_gemma_module"}}
        | {
            "decoder": {
                "model_type": "t5_gemma_module",
                "num_hidden_layers": 26,
                "hidden_size": 2304,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "head_dim": 256,
                "sliding_window": 4096,
                "max_position_embeddings": 8192,
            }
        },
        heads(13, 4, 256),
        heads(26, 4, 256) * 8192,
        heads(13, 4, 256) * 4096,
    ),
    "OpenELM 270M as published": Kind(
        {"model_type": "openelm", "num_transformer_layers": 16, "model_dim": 1280}
        | {"head_dim": 64, "num_kv_heads": [3] * 5 + [4] * 8 + [5] * 3}
        | {"num_query_heads": [12] * 5 + [16] * 8 + [20] * 3, "max_context_length": 2048},
        heads(1, 3 * 5 + 4 * 8 + 5 * 3, 64),
    ),
    "Falcon 40B by its first names": Kind(
        {"model_type": "RefinedWeb", "n_layer": 60, "hidden_size": 8192, "n_head": 128}
        | {"n_head_kv": 8},
        heads(60, 8, 64),
    ),
    "Qwen 2 Audio, whose part leaves out what Qwen 2's class says": Kind(
        {
            "model_type": "qwen2_audio",
            "text_config": {"model_type": "qwen2", "vocab_size": 156_032},
        },
        heads(32, 32, 128),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_costs_what_its_keys_say(name: str) -> None:
    kind = KINDS[name]
    cost = cache_cost(read_shape(kind.keys))
    assert cost.bytes_per_token_at(T) == kind.growing
    assert cost.fixed_bytes == kind.fixed
    assert cost.bytes_at(T) == kind.growing * T + kind.fixed + kind.windows


@pytest.mark.parametrize(
    ("keys", "context_tokens"),
    [
        ({"model_type": "whisper", "max_target_positions": 448, "decoder_layers": 1}, 448),
        ({"model_type": "baichuan", "model_max_length": 2048, "num_hidden_layers": 1}, 2048),
        ({"model_type": "rwkv6", "context_length": 1024, "num_hidden_layers": 1}, 1024),
    ],
)
def test_a_context_is_found_by_its_family_s_name(keys: dict[str, Any], context_tokens: int) -> None:
    widths = {"hidden_size": 64, "num_attention_heads": 1, "decoder_attention_heads": 1}
    assert read_shape({**widths, **keys}).context_tokens == context_tokens
