"""A tiny configuration of each kind of model, in the words of published ones.

What a layer keeps depends on its kind and its heads, not on how large the rest is; so these build
in a blink and still prove the arithmetic of their families.
"""

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]

_PLAIN: Config = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS: Config = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_LATENT: Config = {
    **_PLAIN,
    **_EXPERTS,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "head_dim": 8,
}
_INDEXED: Config = {"index_head_dim": 128, "index_n_heads": 4, "index_topk": 8}
_WINDOW: Config = {**_PLAIN, "sliding_window": 24}
_DELTA: Config = {
    **_PLAIN,
    **_EXPERTS,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_MAMBA1: Config = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "vocab_size": 128,
    "state_size": 8,
    "conv_kernel": 4,
    "expand": 2,
}
_MAMBA2: Config = {
    **_PLAIN,
    "mamba_expand": 2,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 16,
}

TINY: Mapping[str, Config] = {
    "bamba": {**_MAMBA2, "attn_layer_indices": [1]},
    "bloom": {"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 128},
    "cohere2": {**_WINDOW, "num_hidden_layers": 8},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": {**_LATENT, **_INDEXED},
    "exaone4": {**_WINDOW, "num_hidden_layers": 8, "sliding_window_pattern": 4},
    "falcon": {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "vocab_size": 128,
        "multi_query": True,
        "new_decoder_architecture": False,
    },
    "falcon_h1": {**_MAMBA2, "mamba_d_ssm": 128},
    "falcon_mamba": _MAMBA1,
    "gemma2": _WINDOW,
    "gemma3_text": {**_WINDOW, "num_hidden_layers": 6},
    "gemma4_text": {**_WINDOW, "num_hidden_layers": 6, "global_head_dim": 32},
    "glm4_moe_lite": _LATENT,
    "glm_moe_dsa": {**_LATENT, **_INDEXED},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512, "vocab_size": 128},
    "gpt_bigcode": {
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 512,
        "vocab_size": 128,
        "multi_query": True,
    },
    "gpt_oss": {**_WINDOW, **_EXPERTS},
    "granitemoehybrid": {
        **_MAMBA2,
        **_EXPERTS,
        "layers_block_type": ["mamba", "attention", "mamba", "mamba"],
        "shared_intermediate_size": 32,
    },
    "jamba": {
        **_PLAIN,
        **_EXPERTS,
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "lfm2": {**_PLAIN, "full_attn_idxs": [2], "conv_L_cache": 3, "block_ff_dim": 96},
    "llama": _PLAIN,
    "llama4_text": {
        **_PLAIN,
        **_EXPERTS,
        "attention_chunk_size": 24,
        "intermediate_size_mlp": 96,
    },
    "mamba": _MAMBA1,
    "mamba2": {
        **_MAMBA1,
        "num_heads": 8,
        "head_dim": 16,
        "n_groups": 1,
        "chunk_size": 16,
    },
    "minimax": {**_PLAIN, **_EXPERTS, "attn_type_list": [0, 1, 0, 1], "block_size": 16},
    "mistral": _WINDOW,
    "nemotron_h": {
        **_PLAIN,
        **_EXPERTS,
        "hybrid_override_pattern": "M-M*",
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 1,
        "conv_kernel": 4,
        "chunk_size": 16,
    },
    "olmo3": {**_WINDOW, "num_hidden_layers": 8},
    "olmo_hybrid": _DELTA,
    "phi3": _WINDOW,
    "qwen2": {**_WINDOW, "use_sliding_window": True, "max_window_layers": 2},
    "qwen3_5_text": _DELTA,
    "qwen3_moe": {**_PLAIN, **_EXPERTS, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "qwen3_next": _DELTA,
    "smollm3": _PLAIN,
}
